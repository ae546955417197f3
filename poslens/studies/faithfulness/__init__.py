"""The study `faithfulness`: whether a method's order of words is that of their effects."""

"""The study `faithfulness`: whether a method ranks words by their effect on the score."""

"""The study `simulatability`: whether a method's words help to predict a model's ranking."""

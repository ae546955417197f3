"""The page Faithfulness."""

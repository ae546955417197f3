"""The page Cause and its command: interventions."""

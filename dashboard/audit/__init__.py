"""The Audit page: unretrieved sentences, and the chunk planner."""

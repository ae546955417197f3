"""Interventions on texts and their effect on the score: the command `cause` and its page's
service."""

"""Passport: stored evidence of a model's position bias, on one card."""

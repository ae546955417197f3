"""Passport: what is known of a model's position bias, on one card."""

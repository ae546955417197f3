"""Passport: the stored results on a model's position bias, on one card."""

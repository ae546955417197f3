"""Position passport: what is known about one model's position bias, on one card."""

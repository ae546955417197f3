"""Position passport: what is known of one model's position bias, on one card."""

"""Removing position bias from a dense model by self-distillation, without labels."""

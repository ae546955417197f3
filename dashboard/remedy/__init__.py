"""Remedy: does calibrated attention reduce a position bias, and at what cost?"""

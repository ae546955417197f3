"""Bias tests: what do models prefer?"""

"""Cause: does the score change when the evidence moves?"""

"""Cause: does position cause the score?"""

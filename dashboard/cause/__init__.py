"""Cause: does moving the evidence change the score?"""

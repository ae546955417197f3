"""Explain: which words drive the score of a pair?"""

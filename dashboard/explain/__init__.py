"""Explain: which words of a document carry the score?"""

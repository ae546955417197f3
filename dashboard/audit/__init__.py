"""Audit: which passages can the index not find?"""

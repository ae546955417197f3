"""Faithfulness: which method's order of the words agrees with what the words do?"""

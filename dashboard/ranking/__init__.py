"""Ranking: how good are the rankings, and do they depend on the position of the evidence?"""

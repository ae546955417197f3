"""Interventions: change a text and measure the score, to test whether position causes it.

`relocation` moves the evidence, `ablation` removes parts, `null_controls` are texts under which a
curve should change, `displacement` moves the whole text, and `agreement` correlates methods' curves
with these causal curves.
"""

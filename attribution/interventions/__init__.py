"""Tests that change a text and read what the score does: whether position causes it.

`relocation` moves the evidence, `ablation` takes parts out, `controls` are texts under which a
curve should vanish, `displacement` moves the whole text, `agreement` compares curves with what
the score really did.
"""

"""The sentences from which training documents are composed, and their fixed split."""

from __future__ import annotations

import random
from pathlib import Path

SENTENCES = Path(__file__).parent / "sentences.txt"
HELD_OUT_EVERY = 8


def sentences(held_out: bool) -> list[str]:
    """The held-out sentences (every eighth line), or those for training."""
    lines = SENTENCES.read_text(encoding="utf-8").split("\n")
    return [
        line
        for number, line in enumerate(lines)
        if line and (number % HELD_OUT_EVERY == 0) == held_out
    ]


def half_query(sentence: str, rng: random.Random) -> str:
    """A query: a random half of the sentence's words in their order, without the full stop."""
    words = sentence.rstrip(".").split()
    chosen = sorted(rng.sample(range(len(words)), (len(words) + 1) // 2))
    return " ".join(words[index] for index in chosen)


def relocated(evidence: str, others: list[str], n_positions: int) -> list[list[str]]:
    """Orders of the sentences with the evidence at each of `n_positions` positions, first to last,
    and the others in their order.

    Raises:
        ValueError: there are too few sentences for distinct orders.
    """
    if len(others) + 1 < n_positions:
        raise ValueError(f"{len(others) + 1} sentences give fewer than {n_positions} orders")
    places = [round(k * len(others) / (n_positions - 1)) for k in range(n_positions)]
    return [[*others[:place], evidence, *others[place:]] for place in places]

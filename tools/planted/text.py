"""The sentences that planted documents are made of, and their fixed split."""

from __future__ import annotations

import random
from pathlib import Path

SENTENCES = Path(__file__).parent / "sentences.txt"
HELD_OUT_EVERY = 8


def sentences(held_out: bool) -> list[str]:
    """Sentences kept out of training (every eighth line), or all the others."""
    lines = SENTENCES.read_text(encoding="utf-8").split("\n")
    return [
        line
        for number, line in enumerate(lines)
        if line and (number % HELD_OUT_EVERY == 0) == held_out
    ]


def half_query(sentence: str, rng: random.Random) -> str:
    """A random half of the sentence's words in their order, without the full stop."""
    words = sentence.rstrip(".").split()
    kept = sorted(rng.sample(range(len(words)), (len(words) + 1) // 2))
    return " ".join(words[index] for index in kept)


def relocated(evidence: str, others: list[str], n_positions: int) -> list[list[str]]:
    """`n_positions` orders of one text: the evidence first, ..., last; the rest unchanged.

    Raises:
        ValueError: fewer places than positions, so that two orders would be the same.
    """
    if len(others) + 1 < n_positions:
        raise ValueError(f"{len(others) + 1} sentences give fewer than {n_positions} orders")
    places = [round(k * len(others) / (n_positions - 1)) for k in range(n_positions)]
    return [[*others[:place], evidence, *others[place:]] for place in places]

"""Interleaved timing: every contender runs once per round, so that other load affects all of them
equally. Ratios are medians over rounds of the ratio within a round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(
    contenders: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Seconds of each contender in each round, after a warm-up round unless `warm_up` is False."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(rounds + warm_up):
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            if round_number >= warm_up:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def ratio(numerator: list[float], denominator: list[float]) -> float:
    """Median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))

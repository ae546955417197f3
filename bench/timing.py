"""Interleaved timing: every contender runs once per round, so that other load affects all of them
equally. Ratios are medians over rounds of the ratio within a round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Timed(NamedTuple, Generic[T]):
    """The result of a call and its seconds: by the clock, and the processor time of all threads of
    this process, which load from other programs affects less."""

    result: T
    wall: float
    cpu: float


def timed(run: Callable[[], T]) -> Timed[T]:
    """The result and the seconds of one call."""
    started, used = time.perf_counter(), time.process_time()
    result = run()
    return Timed(result, time.perf_counter() - started, time.process_time() - used)


def interleaved(
    contenders: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Seconds of each contender in each round, after a warm-up round unless `warm_up` is False."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for round_number in range(rounds + warm_up):
        for name, run in contenders.items():
            taken = timed(run).wall
            if round_number >= warm_up:
                seconds[name].append(taken)
    return seconds


def ratio(numerator: list[float], denominator: list[float]) -> float:
    """Median over rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def time_line(name: str, values: list[float], base: list[float], unit: str, n: int = 1) -> str:
    """A contender's median time, and its time for one of `n` items relative to `base`, which is
    called `unit`."""
    median = statistics.median(values)
    return f"  {name:32} {1000 * median:9.1f} ms  {ratio(values, base) / n:6.2f}x {unit}"

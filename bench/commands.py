"""Time of commands that start with an empty cache, each in a process of its own.

    python -m bench.commands [--rounds 3] [--before FOLDER] [--only TEXT]

With `--before`, runs alternate between this checkout and that one; with `--only`, commands are run
whose name contains the text. A map has no command: its line is the first one in Python.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
from pathlib import Path

from bench.options import run
from bench.processes import checkouts, output_of
from bench.timing import timed

TEXTS = ("--query", "when does the tide turn", "--document", "The tide turns every six hours.")
POSLENS = ("-m", "poslens")
MAP = """
import numpy
from poslens.attribution.curves.projection import Layout, project
project(numpy.random.default_rng(0).random((300, 384)), Layout())
"""
COMMANDS = {
    "--help": (*POSLENS, "--help"),
    "models": (*POSLENS, "models"),
    "rank, included results": (*POSLENS, "rank", "--model", "MiniLM"),
    "explain BM25": (*POSLENS, "explain", "--model", "BM25", "--method", "terms", *TEXTS),
    **{
        f"explain {method}": (*POSLENS, "explain", "--method", method, *TEXTS)
        for method in ("decomposition", "occlusion", "saliency")
    },
    "map of 300 vectors": ("-c", MAP),
}


def measure(checkout: Path, command: tuple[str, ...]) -> tuple[float, float]:
    """Wall-clock and CPU seconds of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as home:
        wall = timed(lambda: output_of(*command, checkout=checkout, home=Path(home))).wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int = 3, before: Path | None = None, only: str = "") -> None:
    """Print a table of medians."""
    compared = checkouts(before)
    for name, command in COMMANDS.items():
        if only not in name:
            continue
        runs: dict[str, list[tuple[float, float]]] = {which: [] for which in compared}
        for _ in range(rounds):
            for which, checkout in compared.items():
                runs[which].append(measure(checkout, command))
        for which, measured in runs.items():
            wall, cpu = (statistics.median(column) for column in zip(*measured, strict=True))
            print(f"{name:24} {which:7} {wall:6.2f} s wall-clock {cpu:6.2f} s CPU", flush=True)


if __name__ == "__main__":
    run(main)

"""Time of commands that start with an empty cache, each in a process of its own.

    python -m bench.commands [--rounds 3] [--before FOLDER]

With `--before`, runs alternate between this checkout and that one.
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
COMMANDS = {
    "--help": ("--help",),
    "models": ("models",),
    "rank, included results": ("rank", "--model", "MiniLM"),
    "explain BM25": ("explain", "--model", "BM25", "--method", "terms", *TEXTS),
    **{
        f"explain {method}": ("explain", "--method", method, *TEXTS)
        for method in ("decomposition", "occlusion", "saliency")
    },
}


def measure(checkout: Path, command: tuple[str, ...]) -> tuple[float, float]:
    """Wall-clock and CPU seconds of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as home:
        arguments = ("-m", "poslens", *command)
        wall = timed(lambda: output_of(*arguments, checkout=checkout, home=Path(home))).wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int = 3, before: Path | None = None) -> None:
    """Print a table of medians."""
    compared = checkouts(before)
    for name, command in COMMANDS.items():
        runs: dict[str, list[tuple[float, float]]] = {which: [] for which in compared}
        for _ in range(rounds):
            for which, checkout in compared.items():
                runs[which].append(measure(checkout, command))
        for which, measured in runs.items():
            wall, cpu = (statistics.median(column) for column in zip(*measured, strict=True))
            print(f"{name:24} {which:7} {wall:6.2f} s wall-clock {cpu:6.2f} s CPU", flush=True)


if __name__ == "__main__":
    run(main)

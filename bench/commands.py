"""Time of commands that start with an empty cache, each in a process of its own.

    python -m bench.commands [--rounds 3] [--before FOLDER]

With `--before`, runs alternate between that checkout and this one.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parents[1]
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
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as home:
        subprocess.run(
            [sys.executable, "-m", "dashboard", *command],
            cwd=checkout,
            env={**os.environ, "POSLENS_HOME": home},
            check=True,
            capture_output=True,
        )
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path)
    given = parser.parse_args()
    checkouts = {"before": given.before, "now": HERE} if given.before else {"now": HERE}
    for name, command in COMMANDS.items():
        runs: dict[str, list[tuple[float, float]]] = {which: [] for which in checkouts}
        for _ in range(given.rounds):
            for which, checkout in checkouts.items():
                runs[which].append(measure(checkout, command))
        for which, measured in runs.items():
            wall, cpu = (statistics.median(column) for column in zip(*measured, strict=True))
            print(f"{name:24} {which:7} {wall:6.2f} s wall-clock {cpu:6.2f} s CPU", flush=True)


if __name__ == "__main__":
    main()

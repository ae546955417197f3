"""Compare every method on every architecture on a simulated device with the CPU.

    python -m bench.simulated_device [NAME ...] [--spread]

Needs no GPU. Uses float32 and the architectures of docs/support.md, or those given; `--spread` puts
half of each dense model's layers on a second device. The exit code is 1 if a case differs.
`tests/support/simulated_device.py` and docs/performance.md describe what the simulation can show.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from transformers.utils import logging

from bench.gpu import case_lines
from bench.gpu_proof import Case, named, prove, spread
from tests.support import simulated_device
from tests.support.spread_layers import layers_on_both
from tests.support.tiny_models import TINY

DEVICE = f"{simulated_device.NAME}:1"


def main() -> None:
    """Print a table with a row for each method and architecture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="Architectures; all by default.")
    parser.add_argument("--spread", action="store_true", help="Dense models over two devices.")
    options = parser.parse_args()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    simulated_device.install()
    head, rule, *_ = case_lines([])
    print(head, rule, sep="\n")
    counts: Counter[bool | None] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        run = spread_cases if options.spread else partial(prove, precisions=["float32"])
        for case in run(Path(folder), DEVICE, names=options.names or None):
            print(case_lines([case])[2], flush=True)
            counts[case.passed] += 1
    print(
        f"{counts[True]} cases agree with the CPU, {counts[False]} differ, {counts[None]} are "
        "refused on both."
    )
    sys.exit(0 if counts[True] and not counts[False] else 1)


def spread_cases(root: Path, device: str, names: Sequence[str] | None) -> Iterator[Case]:
    """The cases of dense models with layers on both devices."""
    for spec in named(root, [name for name in names or TINY if name in TINY]):
        with layers_on_both():
            yield from spread(spec, device)[0]


if __name__ == "__main__":
    main()

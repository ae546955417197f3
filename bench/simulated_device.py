"""Compare every method on every architecture on a simulated device with the CPU.

    python -m bench.simulated_device [NAME ...] [--spread]

Needs no GPU. Uses float32 and the architectures of docs/support.md, or those given; `--spread` puts
half of each dense model's layers on a second device. The exit code is 1 if a case differs.
`tests/support/simulated_device.py` and docs/performance.md describe what the simulation can show.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from transformers.utils import logging

from bench import gpu_proof
from bench.gpu import case_lines
from bench.gpu_proof import Case, prove
from bench.options import run
from tests.attribution.support_matrix import models
from tests.support import simulated_device
from tests.support.spread_layers import layers_on_both
from tests.support.tiny_models import TINY

DEVICE = f"{simulated_device.NAME}:1"


def main(
    *names: str, spread: Annotated[bool, {"help": "Dense models over two devices."}] = False
) -> None:
    """Print a table with a row for each method and architecture, or for those of `names`."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    simulated_device.install()
    head, rule, *_ = case_lines([])
    print(head, rule, sep="\n")
    counts: Counter[bool | None] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        cases = spread_cases if spread else partial(prove, precisions=["float32"])
        for case in cases(Path(folder), DEVICE, names=names or None):
            print(case_lines([case])[2], flush=True)
            counts[case.passed] += 1
    print(
        f"{counts[True]} cases agree with the CPU, {counts[False]} differ, {counts[None]} are "
        "refused on both."
    )
    sys.exit(0 if counts[True] and not counts[False] else 1)


def spread_cases(root: Path, device: str, names: Sequence[str] | None) -> Iterator[Case]:
    """The cases of dense models with layers on both devices."""
    for _, spec in models(root, [name for name in names or TINY if name in TINY]):
        with layers_on_both():
            yield from gpu_proof.spread(spec, device)[0]


if __name__ == "__main__":
    run(main)

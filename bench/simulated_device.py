"""Compare every method on every architecture on a simulated device with the CPU.

    python -m bench.simulated_device [NAME ...]

Needs no GPU. Uses float32 and the architectures of docs/support.md, or those given; the exit code
is 1 if a case differs. `tests/support/simulated_device.py` and docs/performance.md describe what
the simulation can show.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from transformers.utils import logging

from bench.gpu import case_lines
from bench.gpu_proof import prove
from tests.support import simulated_device


def main() -> None:
    """Print a table with a row for each method and architecture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="Architectures; all by default.")
    names = parser.parse_args().names or None
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    simulated_device.install()
    head, rule, *_ = case_lines([])
    print(head, rule, sep="\n")
    n = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in prove(Path(folder), f"{simulated_device.NAME}:0", ["float32"], names):
            print(case_lines([case])[2], flush=True)
            n, failed = n + 1, failed + (case.passed is False)
    print(f"{failed} of {n} cases differ from the CPU.")
    sys.exit(1 if failed or not n else 0)


if __name__ == "__main__":
    main()

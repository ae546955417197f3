"""Pairs per second of two Ray actors on two cores, relative to one thread, without model loading.

    python -m bench.ray [--pairs 96] [--rounds 5]

Both compute MiniLM's saliency of the same pairs into new stores, one after the other in each round.
The limit is 2; the difference is the cost of Ray, of moving results and of the single writer.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from bench.options import run
from bench.timing import interleaved, ratio


def main(pairs: int = 96, rounds: int = 5) -> None:
    """Print the ratio."""
    import torch

    from poslens.attribution.datasets import read
    from poslens.attribution.methods import make_method
    from poslens.attribution.retrievers.load import load
    from poslens.attribution.retrievers.resolve import resolve
    from poslens.cache.jobs.attributions import Executor, OneDevice, precompute
    from poslens.cache.jobs.ray_executor import RayExecutor
    from poslens.cache.keys import used_model
    from poslens.cache.storage.store import ModelKey, Store

    torch.set_num_threads(1)
    spec, method = resolve("MiniLM"), make_method("saliency")
    computed = read("sample").pairs[:pairs]
    key = ModelKey("MiniLM", used_model(spec, "cpu", "float32").fingerprint)

    def compute(executor: Executor) -> None:
        with tempfile.TemporaryDirectory() as folder:
            done = precompute(executor, key, method, computed, Store(Path(folder)))
            assert done.computed == len(computed)

    alone = OneDevice(load(spec, "cpu", "float32"), method)
    with RayExecutor(
        spec, method, key.fingerprint, device="cpu", precision="float32", workers=2
    ) as two:
        seconds = interleaved(
            {"one thread": lambda: compute(alone), "two actors": lambda: compute(two)}, rounds
        )
    for name, times in seconds.items():
        print(f"{name}: {len(computed) / sorted(times)[len(times) // 2]:.2f} pairs/s")
    gain = ratio(seconds["one thread"], seconds["two actors"])
    print(f"two actors / one thread: {gain:.2f} ({gain / 2:.2f} of twice)")


if __name__ == "__main__":
    run(main)

"""Effect of number formats and settings of a CPU on the time of a gradient and on its numbers.

    python -m bench.cpu [--rounds 7] [--tokens 512] [--batch 2] [--threads 2]

all-MiniLM-L6-v2, with each setting once per round; ratios are to PosLens' default within a round.
The product of two matrices in float32 and in bfloat16 shows the processor's limit. `moved by` is
the largest difference from the default divided by the largest number.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu_speed import contenders
from bench.random_encoder import SIZES
from bench.timing import interleaved, ratio
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve

SIDE = 2048
"""Number of rows and columns of the matrices whose product is timed."""

DEFAULT = "as it is"
Setting = Callable[[], AbstractContextManager[object]]


@contextmanager
def short_products() -> Iterator[None]:
    """Multiply float32 matrices in bfloat16."""
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def no_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Use `n` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def eager(retriever: DenseRetriever) -> Iterator[None]:
    """Use the attention of transformers instead of PyTorch's."""
    backbone = retriever.backbone
    before = backbone.config._attn_implementation
    backbone.set_attn_implementation("eager")
    try:
        yield
    finally:
        backbone.set_attn_implementation(before)


def settings(tokens: int, n_threads: int) -> dict[str, tuple[Callable[[int], object], Setting]]:
    """The settings by name: a function of the number of documents, and the context it runs in."""
    float32, bfloat16 = (
        load(resolve("MiniLM"), "cpu", literal) for literal in ("float32", "bfloat16")
    )
    assert isinstance(float32, DenseRetriever) and isinstance(bfloat16, DenseRetriever)
    own = contenders(float32, SIZES[0], tokens, compiled=True)
    short = contenders(bfloat16, SIZES[0], tokens, compiled=True)
    gradient = own["gradient"]
    return {
        DEFAULT: (gradient, nullcontext),
        "without Captum and hooks": (own["plain"], nullcontext),
        "torch.compile": (own["compiled"], nullcontext),
        "bfloat16 weights": (short["gradient"], nullcontext),
        "bfloat16 weights, torch.compile": (short["compiled"], nullcontext),
        "autocast to bfloat16": (gradient, partial(torch.autocast, "cpu", torch.bfloat16)),
        "products in bfloat16": (gradient, short_products),
        "eager attention": (gradient, partial(eager, float32)),
        "attention by its formula": (gradient, partial(sdpa_kernel, SDPBackend.MATH)),
        "no denormals": (gradient, no_denormals),
        **{
            f"{n} threads": (gradient, partial(threads, n))
            for n in range(1, 2 * n_threads + 1)
            if n != n_threads
        },
    }


def numbers(result: object) -> Tensor:
    """The gradient that a contender returns, in float32."""
    values = result[0] if isinstance(result, tuple) else result
    assert isinstance(values, Tensor)
    return values.float()


def moved(values: Tensor, reference: Tensor) -> float:
    """The largest difference divided by the largest number; infinite if a value is not finite."""
    if not values.isfinite().all():
        return float("inf")
    return float((values - reference).abs().max() / reference.abs().max())


def main() -> None:
    """Print the limits and a table of settings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    timed: dict[str, Callable[[], object]] = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        matrix = torch.randn(SIDE, SIDE).to(dtype)
        timed[f"product in {name}"] = partial(torch.matmul, matrix, matrix)
    distance: dict[str, float] = {}
    reference: Tensor | None = None
    for name, (run, setting) in settings(options.tokens, options.threads).items():

        def within(run: Callable[[int], object] = run, setting: Setting = setting) -> object:
            with setting():
                return run(options.batch)

        try:
            array = numbers(within())
        except Exception as error:  # for example, there is no compiler
            print(f"{name}: left out ({type(error).__name__})")
            continue
        reference = array if reference is None else reference
        distance[name] = moved(array, reference)
        timed[name] = within
    seconds = interleaved(timed, options.rounds)
    print(
        f"{options.tokens} tokens, {options.batch} documents, {options.threads} threads, "
        f"{torch.backends.cpu.get_cpu_capability()}, median of {options.rounds}"
    )
    work = SIZES[0].gradient(options.tokens) * options.batch
    for name, values in seconds.items():
        median = statistics.median(values)
        if name in distance:
            print(
                f"  {name:34} {1000 * median:7.0f} ms  {ratio(values, seconds[DEFAULT]):5.2f}x  "
                f"{work / median / 1e9:5.0f} GFLOP/s  moved by {distance[name]:.0e}"
            )
        else:
            print(
                f"  {name:34} {1000 * median:7.0f} ms  {2 * SIDE**3 / median / 1e9:13.0f} GFLOP/s"
            )


if __name__ == "__main__":
    main()

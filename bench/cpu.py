"""Effect of number formats and settings of a CPU on the time of a gradient and on its numbers.

    python -m bench.cpu [--rounds 7] [--tokens 512] [--batch 2] [--threads 2]

all-MiniLM-L6-v2, with each setting once per round; ratios are to PosLens' default within a round.
The product of two matrices in float32 and in bfloat16 shows the processor's limit. `moved by` is
the largest difference from the default divided by the largest number.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.contenders import contenders
from bench.encoders import SIZES, attention, dense
from bench.options import run
from bench.timing import interleaved, ratio

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
def with_threads(n: int) -> Iterator[None]:
    """Use `n` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def settings(tokens: int, n_threads: int) -> dict[str, tuple[Callable[[int], object], Setting]]:
    """The settings by name: a function of the number of documents, and the context it runs in."""
    float32 = dense("MiniLM", precision="float32")
    runs = contenders(float32, tokens, compiled=True)
    short = contenders(dense("MiniLM", precision="bfloat16"), tokens, compiled=True)
    gradient = runs["gradient"]
    return {
        DEFAULT: (gradient, nullcontext),
        "without Captum and hooks": (runs["plain"], nullcontext),
        "torch.compile": (runs["compiled"], nullcontext),
        "bfloat16 weights": (short["gradient"], nullcontext),
        "bfloat16 weights, torch.compile": (short["compiled"], nullcontext),
        "autocast to bfloat16": (gradient, partial(torch.autocast, "cpu", torch.bfloat16)),
        "products in bfloat16": (gradient, short_products),
        "eager attention": (gradient, partial(attention, float32, "eager")),
        "attention by its formula": (gradient, partial(sdpa_kernel, SDPBackend.MATH)),
        "no denormals": (gradient, no_denormals),
        **{
            f"{n} threads": (gradient, partial(with_threads, n))
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


def main(
    rounds: int = 7, tokens: int = 512, batch: int = 2, threads: int = torch.get_num_threads()
) -> None:
    """Print the limits and a table of settings."""
    torch.set_num_threads(threads)
    timed: dict[str, Callable[[], object]] = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        matrix = torch.randn(SIDE, SIDE).to(dtype)
        timed[f"product in {name}"] = partial(torch.matmul, matrix, matrix)
    distance: dict[str, float] = {}
    reference: Tensor | None = None
    for name, (contender, setting) in settings(tokens, threads).items():

        def within(
            contender: Callable[[int], object] = contender, setting: Setting = setting
        ) -> object:
            with setting():
                return contender(batch)

        try:
            array = numbers(within())
        except Exception as error:  # for example, there is no compiler
            print(f"{name}: left out ({type(error).__name__})")
            continue
        reference = array if reference is None else reference
        distance[name] = moved(array, reference)
        timed[name] = within
    seconds = interleaved(timed, rounds)
    print(
        f"{tokens} tokens, {batch} documents, {threads} threads, "
        f"{torch.backends.cpu.get_cpu_capability()}, median of {rounds}"
    )
    work = SIZES[0].gradient(tokens) * batch
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
    run(main)

"""Pairs per second of random models on one device, compared with PosIR's published loop and with a
large matrix product. Each contender runs once per round."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bench.contenders import LOOP, SALIENCY, contenders
from bench.encoders import Size, build
from bench.timing import interleaved, ratio
from poslens.attribution.batching import batch_tokens, out_of_memory
from poslens.attribution.retrievers.dense import DenseRetriever

LOOP_PAIRS = 4
"""Pairs per round for the published loop, which computes them one at a time."""

QUERY_TOKENS = 12

PRODUCT = "matrix product"


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of one contender on one model.

    `batch` is the number of pairs per call. `over_loop` is its pairs per second relative to the
    published loop, and `of_peak` its operations per second relative to the matrix product; both are
    medians over rounds of the ratio within a round. Numbers that do not apply are None. `note` has
    the reason if it was not measured.
    """

    model: str
    precision: str
    tokens: int
    contender: str
    batch: int = 0
    pairs_per_second: float | None = None
    teraflops: float | None = None
    over_loop: float | None = None
    of_peak: float | None = None
    note: str = ""


def measure(
    size: Size,
    device: str,
    precision: str,
    lengths: Sequence[int],
    *,
    rounds: int,
    batch: int | None = None,
    matrix: int = 8192,
    compiled: bool = True,
) -> Iterator[Speed]:
    """The speed of every contender on a model of this size, for each number of document tokens.

    A call has `batch` pairs, by default those of runs on such a device, halved until they fit into
    memory. `matrix` is the number of rows and columns of the multiplied matrices. Without
    `compiled`, torch.compile and CUDA graphs are not measured.
    """
    try:
        retriever = build(size, device, precision)
    except Exception as error:
        if not out_of_memory(error):
            raise
        retriever = None
    if retriever is None:
        release()
        yield Speed(size.name, precision, 0, "", note="its weights do not fit into the memory")
        return
    for tokens in lengths:
        asked = batch or max(1, batch_tokens(torch.device(device).type) // tokens)
        yield from _at_length(retriever, size, tokens, rounds, asked, matrix, compiled)
        torch.compiler.reset()
        release()


def _at_length(
    retriever: DenseRetriever,
    size: Size,
    tokens: int,
    rounds: int,
    asked: int,
    matrix: int,
    compiled: bool,
) -> Iterator[Speed]:
    precision = retriever.precision
    runs = contenders(retriever, tokens, size.pooling, compiled=compiled)
    fitted: dict[str, int] = {}
    for name, run in runs.items():
        try:
            fitted[name] = fitting(run, LOOP_PAIRS if name == LOOP else asked)
        except Exception as error:  # for example, there is no compiler
            note = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
            yield Speed(size.name, precision, tokens, name, note=note)
            continue
        if not fitted[name]:
            yield Speed(size.name, precision, tokens, name, note="one pair does not fit")
    a, b = (
        torch.randn(matrix, matrix, device=retriever.device, dtype=getattr(torch, precision))
        for _ in range(2)
    )
    timed: dict[str, Callable[[], object]] = {PRODUCT: lambda: a @ b}
    timed |= {name: partial(runs[name], n) for name, n in fitted.items() if n}
    seconds = interleaved(
        {name: _finished(run, retriever.device) for name, run in timed.items()}, rounds
    )
    work = size.work(tokens, QUERY_TOKENS)
    product = [2 * matrix**3 / second for second in seconds[PRODUCT]]
    yield Speed(size.name, precision, tokens, PRODUCT, teraflops=statistics.median(product) / 1e12)
    loop = [second / LOOP_PAIRS for second in seconds.get(LOOP, [])]
    for name in timed:
        if name == PRODUCT:
            continue
        per_pair = [second / fitted[name] for second in seconds[name]]
        operations = [work / second for second in per_pair]
        whole = name in (SALIENCY, LOOP)
        yield Speed(
            size.name,
            precision,
            tokens,
            name,
            fitted[name],
            1 / statistics.median(per_pair),
            statistics.median(operations) / 1e12 if whole else None,
            ratio(loop, per_pair) if loop else None,
            ratio(operations, product) if whole else None,
        )


def fitting(run: Callable[[int], object], n: int) -> int:
    """The largest of n, n/2, n/4, ... pairs that fits into memory; 0 if one pair does not."""
    while n:
        try:
            run(n)
            return n
        except Exception as error:
            if not out_of_memory(error):
                raise
        release()
        n //= 2
    return 0


def release() -> None:
    """Free memory that is no longer used."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _finished(run: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """`run`, which then waits until the device has finished."""

    def timed() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return timed

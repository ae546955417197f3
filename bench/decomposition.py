"""Cost of the token decomposition compared with a forward pass and with a literal DecompX.

    python -m bench.decomposition [--rounds 7] [--literal 256 512] [--long 2048 8192]

On all-MiniLM-L6-v2 with a query of 12 tokens and documents of 256 and of 512, interleaved:

- `forward`: embed query and document, no gradients;
- `document shares`: shares.shares of the document, given the query's vector;
- `attribute`: both sides, as pages and runs compute it;
- `matrix`: each query token with each document token (shares.share_matrices);
- batches: pairs per second of `attribute`, one pair at a time and several together.

Each in a separate process, with peak memory:

- `shares`, `matrix`: as above;
- `literal`: the same shares by propagating one vector per input token forward through every layer
  (T x (T + 1) x H as in DecompX, with a separate slot for biases: methods/propagation.py). Its
  shares must agree with ours. It is optimized as far as its T x T x H vectors allow: no gradients,
  feed-forward layers and norms a few rows at a time;
- `shares`, `matrix` at 2,048 tokens and more, with a query of 16, on a random BERT of MiniLM's size
  with as many positions as that needs.

Peak memory is the growth of the process's resident set during the computation, after one run on a
short text has loaded every kernel: VmHWM, reset through /proc/self/clear_refs, minus VmRSS at the
start. This requires Linux.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from bench.contenders import pairs
from bench.encoders import SIZES, build, dense, setting
from bench.options import run
from bench.processes import apart
from bench.processes import memory as memory_of
from bench.timing import interleaved, time_line, timed
from poslens.attribution.methods import decomposition, make_method
from poslens.attribution.methods.propagation import propagate
from poslens.attribution.methods.shares import share_matrices
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import TextPair
from tests.support.linear_shares import shares

METHOD = make_method("decomposition")
MINILM_POSITIONS = 512
LONG_QUERY = 16


def literal_shares(retriever: DenseRetriever, encoded: Encoded, other: Tensor) -> Tensor:
    """Shares [T + 1] of a BERT's tokens in the inner product with `other` [1, H], propagated
    forward; the last one is that of the biases. For mean pooling and cosine."""
    with torch.no_grad():
        hidden, vectors = propagate(retriever, encoded, spread=False)
        shares: torch.Tensor = vectors.mean(0) / hidden.mean(0).norm() @ other[0]
        return shares


# -- one measurement in a separate process ---------------------------------------------------------


def work(retriever: DenseRetriever, what: str, pair: TextPair) -> Callable[[], Any]:
    """A function that runs the computation called `what` on a pair."""
    documents = retriever.encode_texts([pair.document], "document")
    with torch.no_grad():
        query = retriever.embed(retriever.encode_texts([pair.query], "query"))
        other = retriever.directions(query)
    if what == "forward":
        return lambda: forward(retriever, pair)
    if what == "shares":
        return lambda: shares(retriever, documents, other).tokens[0]
    if what == "matrix":
        return lambda: share_matrices(retriever, [pair], "explicit")[2][0]
    return lambda: literal_shares(retriever, documents, other)[:-1]


def forward(retriever: DenseRetriever, pair: TextPair) -> Tensor:
    """The pair's score [1], without gradients."""
    with torch.no_grad():
        queries = retriever.encode_texts([pair.query], "query")
        documents = retriever.encode_texts([pair.document], "document")
        return retriever.similarity(retriever.embed(queries), retriever.embed(documents))


def measure(what: str, tokens: int, threads: int) -> dict[str, float]:
    """Seconds and peak bytes of one run in this process, and for `literal` the largest difference
    from our shares."""
    torch.set_num_threads(threads)
    long = tokens > MINILM_POSITIONS
    retriever = build(SIZES[0], "cpu", "float32") if long else dense("MiniLM")
    work(retriever, what, pairs(1, 16)[0])()
    (pair,) = pairs(1, tokens, LONG_QUERY if long else 12)
    compute = work(retriever, what, pair)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_of("VmRSS")
    result, seconds, _ = timed(compute)
    peak = memory_of("VmHWM") - before
    error = 0.0
    if what == "literal":
        error = float((result - work(retriever, "shares", pair)()).abs().max())
    return {"seconds": seconds, "peak": peak, "error": error}


# -- the whole -------------------------------------------------------------------------------------


def timings(retriever: DenseRetriever, tokens: int, rounds: int, batch: int) -> None:
    """Print seconds and ratios at one length."""
    many = pairs(batch, tokens)
    pair = many[0]
    assert len(retriever.encode_texts([pair.document], "document").texts[0].tokens) == tokens
    together = f"attribute x{batch}"
    seconds = interleaved(
        {
            "forward": partial(forward, retriever, pair),
            "document shares": work(retriever, "shares", pair),
            "attribute": partial(decomposition.attribute, retriever, METHOD, [pair]),
            "matrix": work(retriever, "matrix", pair),
            together: partial(decomposition.attribute, retriever, METHOD, many),
        },
        rounds,
    )
    print(setting(tokens, batch, rounds))
    for name, values in seconds.items():
        n = batch if name == together else 1
        line = time_line(name, values, seconds["forward"], "forward a pair", n)
        print(line, f"{n / statistics.median(values):7.2f} pairs/s")


def memory(lengths: tuple[int, ...], longer: tuple[int, ...]) -> None:
    """Print seconds and peak memory of each computation, each in a separate process."""
    print("each in its own process: seconds, growth of the resident set")

    def line(what: str, tokens: int) -> dict[str, float]:
        figures = apart(measure, what, tokens, torch.get_num_threads())
        print(
            f"  {tokens:5} tokens  {what:8} {figures['seconds']:9.3f} s "
            f"{figures['peak'] / 2**20:9.1f} MiB",
            flush=True,
        )
        return figures

    for tokens in lengths:
        of_shares, matrix, literal = (
            line(what, tokens) for what in ("shares", "matrix", "literal")
        )
        print(
            f"        literal over shares: {literal['seconds'] / of_shares['seconds']:.0f}x time, "
            f"{literal['peak'] / max(of_shares['peak'], 1):.1f}x memory; over matrix: "
            f"{literal['seconds'] / matrix['seconds']:.0f}x time, "
            f"{literal['peak'] / max(matrix['peak'], 1):.1f}x memory; "
            f"largest difference of a share {literal['error']:.1e}"
        )
    for tokens in longer:
        for what in ("forward", "shares", "matrix"):
            line(what, tokens)


Tokens = Annotated[tuple[int, ...], {"metavar": "TOKENS"}]


def main(
    rounds: Annotated[int, {"help": "0 measures no batches"}] = 7,
    batch: int = 8,
    literal: Tokens = (256, 512),
    long: Tokens = (2048, 8192),
    threads: int | None = None,
) -> None:
    """Print seconds, memory and ratios."""
    if threads:
        torch.set_num_threads(threads)
    retriever = dense("MiniLM")
    for tokens in (256, 512) if rounds else ():
        timings(retriever, tokens, rounds, batch)
    memory(literal, long)


if __name__ == "__main__":
    run(main)

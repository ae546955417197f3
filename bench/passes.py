"""Which texts a passport encodes, part by part, starting from an empty store.

    python -m bench.passes [--model MiniLM] [--dataset sample] [--pairs 500] [--moved 30]
                           [--threads 1] [--part ranking] [--show 0]
    python -m bench.passes --baseline [--pairs 40]

Each part of the passport is computed in the order of the card, with the results of the parts before
it stored. Per part, the table shows processor time, forward passes, texts (rows of a batch), and
how many of the texts an earlier batch of the same model encoded, in this part or in another. Two
texts are the same if the model reads the same tokens. Gradients and replaced input embeddings need
a pass of their own, so they are counted apart, as `attributed`. With `--baseline` the parts are
those that `check` compares, over evenly spread pairs of the data set. `cpu` is the processor
time of all threads, which other load affects less than wall time.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from bench.options import run
from bench.planted import finish as finish_job
from poslens.attribution import datasets
from poslens.attribution.datasets import DataSet
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.resolve import resolve
from poslens.cache.storage.files import set_fallback
from poslens.compute.compute import Compute
from poslens.studies.check.measures import MEASURES
from poslens.studies.passport.service import passport

Read = tuple[str, str, bytes]
"""Model, side and token ids of a text as the model reads it."""


@dataclass
class Encodings:
    """The texts that were encoded, with the part that encoded each first."""

    part: str = ""
    first: dict[Read, str] = field(default_factory=dict)
    texts: Counter[str] = field(default_factory=Counter)
    passes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    attributed: Counter[str] = field(default_factory=Counter)
    again: Counter[tuple[str, str]] = field(default_factory=Counter)
    repeated: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, retriever: DenseRetriever, encoded: Encoded) -> None:
        """Count a batch."""
        features = encoded.features
        if torch.is_grad_enabled() or "input_ids" not in features:
            self.attributed[self.part] += len(features["attention_mask"])
            return
        self.passes[self.part] += 1
        for ids, mask in zip(features["input_ids"], features["attention_mask"], strict=True):
            row = ids[mask.bool()]
            read = (retriever.name, encoded.side, row.numpy().tobytes())
            self.texts[self.part] += 1
            self.tokens[self.part] += len(row)
            if (first := self.first.get(read)) is not None:
                self.again[self.part, first] += 1
                text = retriever.of(encoded.side).model.tokenizer.decode(row)
                self.repeated.append((self.part, first, text))
            self.first.setdefault(read, self.part)


def _print(title: str, seconds: float, encodings: Encodings, part: str | None, again: str) -> None:
    counts = (encodings.passes, encodings.texts, encodings.tokens, encodings.attributed)
    passes, texts, tokens, attributed = (
        count.total() if part is None else count[part] for count in counts
    )
    print(
        f"{title or 'loading':22}{seconds:7.1f}{passes:8,}{texts:7,}{tokens:9,}{attributed:12,}  "
        f"{again}",
        flush=True,
    )


@contextmanager
def counting(encodings: Encodings) -> Iterator[None]:
    """Count what dense models encode."""
    embed = DenseRetriever.embed

    def counted(self: DenseRetriever, encoded: Encoded) -> Tensor:
        encodings.add(self, encoded)
        return embed(self, encoded)

    DenseRetriever.embed = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        DenseRetriever.embed = embed  # type: ignore[method-assign]


def main(
    model: str = "MiniLM",
    dataset: str = "sample",
    pairs: int | None = None,
    moved: int = 30,
    threads: int = 1,
    part: tuple[str, ...] = (),
    baseline: bool = False,
    show: Annotated[int, {"help": "Repeated texts to print."}] = 0,
) -> None:
    """Print the table, and the texts that were encoded more than once."""
    torch.set_num_threads(threads)
    data, limit, only = datasets.read(dataset), pairs or 500, list(part) or None
    if baseline:
        chosen = spread_evenly(data.pairs, pairs or 40)
        data = DataSet(f"{data.name}-baseline", data.title, Pairs(chosen))
        only = sorted({measure.part for measure in MEASURES.values()})
    encodings = Encodings()
    print(f"{'part':22}{'cpu s':>7}{'passes':>8}{'texts':>7}{'tokens':>9}{'attributed':>12}  again")
    started = began = time.process_time()

    def finish(part: str, following: str) -> None:
        nonlocal began
        read_again = encodings.again.items()
        again = ", ".join(f"{n:,} of {first}" for (later, first), n in read_again if later == part)
        _print(part, time.process_time() - began, encodings, part, again)
        encodings.part, began = following, time.process_time()

    with tempfile.TemporaryDirectory() as folder, counting(encodings):
        compute, spec = Compute(Path(folder)), resolve(model)
        set_fallback(compute.root, None)
        compute.retriever(compute.identify(spec))
        card = passport(compute, spec, data, limit, only, moved)
        finish("", card.parts[0].key)
        for computed, following in pairwise((*card.parts, None)):
            assert computed is not None
            for job in computed.jobs:
                finish_job(job)
            finish(computed.key, following.key if following else "reading")
        passport(compute, spec, data, limit, only, moved)
        finish("reading", "")
    _print("all", time.process_time() - started, encodings, None, f"{encodings.again.total():,}")
    for part_key, first, text in encodings.repeated[:show]:
        print(f"{part_key} <- {first}: {text[:100]}")


if __name__ == "__main__":
    run(main)

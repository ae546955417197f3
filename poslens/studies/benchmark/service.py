"""Needle grids by models: computed once, kept, measured. No Streamlit here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.needle import (
    NEEDLES,
    Haystacks,
    NeedleCell,
    NeedleGrid,
    cell,
    checked_grid,
    needle_method,
    needles,
)
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.text import script_without_sentences
from poslens.attribution.types import Method, Provenance
from poslens.cache.jobs.items import compute_missing
from poslens.cache.jobs.loop import Progress
from poslens.cache.kinds.needles import CellItem, item_id, needle_cells
from poslens.compute import provenance
from poslens.compute.compute import Compute, run_key
from poslens.compute.estimates import estimate_columns
from poslens.compute.provenance import ModelIdentity
from poslens.compute.runs import Job, Report, Run
from poslens.studies.benchmark.answers import CellRow

MAX_DOCUMENTS = 1000
"""Documents that texts are cut from: more than the longest text takes."""

ENGLISH = "eng"


@dataclass(frozen=True)
class NeedleSetup:
    """A grid: lengths in tokens, depths in percent, how many needles a cell has, and the documents
    (text, language) that texts are cut from; `selection` says in words which these are."""

    dataset: str
    documents: tuple[tuple[str, str | None], ...]
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    n: int
    seed: int
    selection: str

    @property
    def method(self) -> Method:
        """What its cells are kept under."""
        return needle_method(self.n, self.seed)

    @property
    def corpus(self) -> str:
        """Fingerprint of the documents."""
        total = hashlib.sha256()
        for text, language in self.documents:
            total.update(f"{language}\0{text}\0".encode("utf-8", "replace"))
        return total.hexdigest()[:16]


def needle_setup(
    data: DataSet,
    lengths: Sequence[int],
    depths: Sequence[float],
    n: int = NEEDLES,
    seed: int = 0,
) -> NeedleSetup:
    """A grid over a data set's documents: those in English, as the needles are, where it has any
    and says so.

    Raises:
        UserError: a length, depth or number of needles out of range, or no document with sentences.
    """
    known = {pair.document: pair.language for pair in data.pairs}
    english = {text: one for text, one in known.items() if one == ENGLISH}
    usable = [
        (text, language)
        for text, language in (english or known).items()
        if not script_without_sentences(text)
    ][:MAX_DOCUMENTS]
    if not usable:
        raise UserError(f"{data.title} has no document whose sentences can be told: name another.")
    words = f"{len(usable):,} documents{' in English' if english else ''}"
    needles(n, seed)
    return NeedleSetup(data.name, tuple(usable), *checked_grid(lengths, depths), n, seed, words)


@dataclass(frozen=True)
class Needles:
    """A model's grid; lengths beyond what it reads are left out and listed."""

    model: ModelIdentity
    setup: NeedleSetup
    grid: NeedleGrid
    left_out: tuple[int, ...]

    @property
    def missing(self) -> int:
        """Cells that are not computed."""
        return len(self.grid.lengths) * len(self.grid.depths) - len(self.grid.cells)

    def provenance(self) -> Provenance:
        """Everything needed to compute it again."""
        return provenance.of_needles(
            self.model,
            self.setup.method,
            self.setup.dataset,
            self.setup.n,
            f"needles in {self.setup.selection}",
        )


def _split(
    compute: Compute, model: ModelIdentity, setup: NeedleSetup
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths that the model reads, and the others.

    Raises:
        UserError: it reads none.
    """
    limit = model.spec.max_length
    if limit is None and not model.stored_only:
        limit = compute.retriever(model).max_length
    read = tuple(one for one in setup.lengths if limit is None or one <= limit)
    if not read:
        raise UserError(
            f"{model.spec.name} reads {limit:,} tokens, fewer than any length asked for: name a "
            "shorter one."
        )
    return read, tuple(one for one in setup.lengths if one not in read)


def _items(lengths: Sequence[int], setup: NeedleSetup) -> list[CellItem]:
    corpus = setup.corpus
    return [
        CellItem(setup.dataset, one, depth, corpus) for one in lengths for depth in setup.depths
    ]


def needle_job(compute: Compute, spec: RetrieverSpec, setup: NeedleSetup) -> Job:
    """Compute the cells that are missing; progress counts cells.

    Raises:
        UserError: the model's files are not here, or it reads none of the lengths.
    """
    model = compute.identify(spec)
    items = _items(_split(compute, model, setup)[0], setup)

    def work(run: Run, report: Report) -> Progress:
        retriever = compute.retriever(model)
        options = replace(compute.run_options(spec, run, report), retry_failed=True)
        haystacks = Haystacks(retriever, setup.documents, needles(setup.n, setup.seed), setup.seed)

        def one(item: CellItem) -> NeedleCell:
            return cell(haystacks, item.length, item.depth, options.should_stop)

        return compute_missing(
            needle_cells(compute.root),
            model.key,
            setup.method,
            items,
            one,
            options=options,
        )

    def n_done() -> int:
        return len(needle_cells(compute.root).select(model.key, setup.method, items).results)

    key = run_key(model, setup.method, f"{setup.dataset}: needles")
    return compute.job(
        key,
        spec.name,
        len(items),
        work,
        n_done=n_done,
        doing="needles",
        sending=compute.sending(spec, lambda other: needle_job(other, spec, setup)),
    )


def needle_grid(compute: Compute, spec: RetrieverSpec, setup: NeedleSetup) -> Needles:
    """What is stored of a model's grid.

    Raises:
        UserError: as `needle_job`.
    """
    model = compute.identify(spec)
    lengths, left_out = _split(compute, model, setup)
    items = _items(lengths, setup)
    found = needle_cells(compute.root).select(model.key, setup.method, items).results
    cells = {
        (one.length, one.depth): found[name]
        for one in items
        if (name := item_id(one.length, one.depth)) in found
    }
    return Needles(model, setup, NeedleGrid(lengths, setup.depths, cells), left_out)


def why_missing(compute: Compute, found: Needles) -> str:
    """Why a cell has no result; empty where none failed."""
    items = _items(found.grid.lengths, found.setup)
    stored = needle_cells(compute.root).select(found.model.key, found.setup.method, items)
    return next(iter(stored.failed.values()), "")


# -- tables ----------------------------------------------------------------------------------------


def cells_frame(found: Sequence[Needles]) -> pd.DataFrame:
    """A row for each model, length and depth: needles, share found with the ends of its interval,
    what chance alone finds, mean tokens of the texts, and how many texts repeat sentences."""
    rows: list[CellRow] = []
    for one in found:
        for (length, depth), known in one.grid.cells.items():
            accuracy = one.grid.accuracy(length, depth)
            assert accuracy is not None  # the cell is there
            rows.append(
                {
                    "model": one.model.spec.name,
                    "length": length,
                    "depth": depth,
                    "needles": accuracy.n,
                    "accuracy": accuracy.value,
                    "low": accuracy.low,
                    "high": accuracy.high,
                    "by chance": 1 / accuracy.n,
                    "tokens": sum(known.tokens) / len(known.tokens),
                    "repeated": known.n_repeated,
                }
            )
    return pd.DataFrame(rows)


def summary_frame(found: Sequence[Needles]) -> pd.DataFrame:
    """A row for each model and length, all lengths last: needles, cells, share found and, over all
    lengths, late less early, each with the ends of its interval, which resamples needles."""
    rows = []
    for one in found:
        grid = one.grid
        for length in (*grid.lengths, None):
            cells = [key for key in grid.cells if length in (None, key[0])]
            row: dict[str, object] = {
                "model": one.model.spec.name,
                "limit": one.model.spec.max_length,
                "length": "all" if length is None else str(length),
                "needles": grid.n,
                "cells": len(cells),
                "by chance": 1 / grid.n,
            }
            row |= estimate_columns("accuracy", grid.mean(length))
            row |= estimate_columns("late less early", grid.lean if length is None else None)
            rows.append(row)
    return pd.DataFrame(rows).astype({"limit": "Int64"})

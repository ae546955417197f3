"""The study `needles`: whether a model finds one sentence at every depth of texts of every
length."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from poslens.attribution.curves.bootstrap import Estimate, ratio_difference
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import SHARE_MARGIN, estimate_of
from poslens.attribution.evaluation.comparison_words import POINTS, share_change
from poslens.attribution.evaluation.needle import (
    MAX_LENGTH,
    MAX_NEEDLES,
    MIN_LENGTH,
    MIN_NEEDLES,
    NEEDLES,
    Haystacks,
    NeedleCell,
    NeedleGrid,
    cell,
    in_first_third,
    in_last_third,
    needle_method,
    needles,
)
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.limits import context_limit, unit
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.text import (
    listed,
    revision,
    script_without_sentences,
    starts_unspaced,
)
from poslens.attribution.types import Method, Provenance
from poslens.cache.kinds.embeddings import recent_texts
from poslens.cache.kinds.study_items import CellItem, cell_id, needle_cells
from poslens.compute.compute import Compute
from poslens.compute.item_job import item_job
from poslens.compute.provenance import of_model
from poslens.compute.runs import Job
from poslens.figures.matrix import needle_heatmap
from poslens.paired import ItemMeasure, MeasuredModel
from poslens.parameters import Integer, Numbers, Parameters, Settings
from poslens.rows import PERCENT, PERCENTAGE_POINTS, ModelRow, Table, column
from poslens.study import Asked, Figure, ModelSummary, Study, register
from poslens.study_part import Number, StudyPart, number

MAX_DOCUMENTS = 1000
"""Maximum number of documents from which texts are composed, more than the longest text needs."""
ENGLISH = "eng"
PART_LENGTHS, PART_DEPTHS = (256, 512), (0, 25, 50, 75, 100)
"""Lengths of a passport's texts in tokens, and depths of the needle in percent."""


@dataclass(frozen=True)
class Documents:
    """The texts from which haystacks are composed, each with its language."""

    dataset: str
    texts: tuple[tuple[str, str | None], ...]
    selection: str


@dataclass(frozen=True)
class Grid(Asked[Documents]):
    """The grid of one model: the requested `lengths` in tokens, without those that exceed the
    model's context limit (`unread`)."""

    lengths: tuple[int, ...]
    unread: tuple[int, ...]

    @property
    def method(self) -> Method:
        """The method under which cells are stored."""
        return needle_method(self.settings.needles, self.settings.seed)

    def items(self) -> list[CellItem]:
        """The cells, by length and depth."""
        total = hashlib.sha256()
        for text, language in self.corpus.texts:
            # Earlier versions put spaces into scripts without them and missed the length.
            revised = revision(language) or "/2" * starts_unspaced(text)
            total.update(f"{language}{revised}\0{text}\0".encode("utf-8", "replace"))
        digest = total.hexdigest()[:16]
        return [
            CellItem(self.corpus.dataset, length, depth, digest)
            for length in self.lengths
            for depth in self.settings.depths
        ]


@dataclass(frozen=True)
class NeedleSummary(ModelSummary[Grid]):
    """The computed cells of one model."""

    grid: NeedleGrid


@dataclass(frozen=True)
class CellRow(ModelRow):
    """One cell of the grid."""

    length: int = column(
        "Requested length of the texts, in tokens (in words for endpoints and Python objects)."
    )
    depth: float = column("Position of the needle, in percent of the text.")
    needles: int = column("Number of needles in the cell; each has its own text.")
    accuracy: Estimate | None = column("Share of needles found, 0 to 1.", form=PERCENT)
    by_chance: float = column("Share found by chance.", form=PERCENT)
    tokens: float = column("Mean length of the texts, in the same unit.")
    repeated: int = column("Number of texts that repeat sentences to be long enough.")


@dataclass(frozen=True)
class LengthRow(ModelRow):
    """The mean over all depths of one length, or of all lengths."""

    limit: int | None = column(
        "Context limit in tokens (of an endpoint, in words); null if unlimited or unknown."
    )
    length: int | None = column(
        "Length of the texts in tokens (in words for endpoints and Python objects); null for all "
        "lengths.",
        shown=False,
        words={None: "all"},
    )
    length_text: str = column(
        "Length of the texts in tokens (in words for endpoints and Python objects).",
        title="length",
        in_files=False,
    )
    needles: int = column("Number of needles in a cell; each has its own text.")
    cells: int = column("Number of cells that are averaged.")
    by_chance: float = column("Share found by chance.", form=PERCENT)
    accuracy: Estimate | None = column("Share of needles found, 0 to 1.", form=PERCENT)
    last_minus_first: Estimate | None = column(
        "Accuracy in the last third of depths minus that in the first; only in the row for all "
        "lengths.",
        form=PERCENTAGE_POINTS,
    )


def _cells(summary: NeedleSummary) -> Iterator[CellRow]:
    for (length, depth), measured in summary.grid.cells.items():
        yield CellRow(
            summary.name,
            length,
            depth,
            summary.grid.n,
            summary.grid.accuracy(length, depth),
            1 / summary.grid.n,
            sum(measured.tokens) / len(measured.tokens),
            measured.n_repeated,
        )


def _lengths(summary: NeedleSummary) -> Iterator[LengthRow]:
    grid = summary.grid
    for length in (*grid.lengths, None):
        yield LengthRow(
            summary.name,
            context_limit(summary.model.spec),
            length,
            "all" if length is None else str(length),
            grid.n,
            sum(length in (None, key[0]) for key in grid.cells),
            1 / grid.n,
            grid.mean(length),
            estimate_of(grid.last_minus_first) if length is None else None,
        )


def _numbers(summary: NeedleSummary) -> list[Number]:
    grid, numbers, chance = summary.grid, list[Number](), f"chance level {1 / NEEDLES:.1%}"
    for length in PART_LENGTHS:
        share = (
            f"share of searches that rank the needle's text first among {NEEDLES} texts of "
            f"{length} tokens, with each needle at {len(PART_DEPTHS)} depths"
        )
        numbers += number(f"found_{length}", share, grid.mean(length), PERCENT, chance)
    change = "share of needles retrieved, last minus first third of the text (negative: primacy)"
    late_minus_early = number(
        "late_minus_early", change, estimate_of(grid.last_minus_first), PERCENTAGE_POINTS
    )
    return [*numbers, *late_minus_early]


PART = StudyPart(
    "needles",
    "Retrieval of a hidden sentence",
    "A needle is a generated sentence hidden in unrelated text and then searched for; real "
    "answers fit their context.",
    "needles",
    _numbers,
    {"lengths": PART_LENGTHS, "depths": PART_DEPTHS},
)


def _label(summary: NeedleSummary, item: tuple[int, float, int]) -> str:
    length, depth, needle = item
    return f"{length:,} {unit(summary.model.spec)}, {depth:g}%, needle {needle + 1}"


class Needles(Study[Documents, Grid, NeedleSummary]):
    """Hides one sentence at every depth of texts of every length, and searches for it."""

    name = "needles"
    question = "At which lengths and depths does a model still find one hidden sentence?"
    unit = "cell"
    reads = (
        "Each cell is the share of needles whose own text scores highest among all needles' texts."
    )
    limits = (
        "A needle is unlike the text around it, which makes it easier to find than evidence. "
        "Intervals of a cell are Agresti-Coull; over several cells they resample needles."
    )
    parameters = Parameters(
        lengths=Numbers(
            default=(256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
            low=MIN_LENGTH,
            high=MAX_LENGTH,
            whole=True,
            help="Text lengths in tokens (words for endpoints and Python objects), separated by "
            "commas. Lengths beyond a model's context limit are skipped.",
        ),
        depths=Numbers(
            default=(0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100),
            low=0,
            high=100,
            help="Positions of the needle in percent of the text, separated by commas.",
        ),
        needles=Integer(
            default=NEEDLES,
            low=MIN_NEEDLES,
            high=MAX_NEEDLES,
            help="Number of needles for each length and depth, 2 to 100. Each needle has its own "
            "text.",
        ),
        seed=Integer(default=0, low=0, high=1 << 31, help="Seed of codes and texts."),
    )
    part = PART
    tables: ClassVar = {
        "cells": Table(CellRow, _cells, "Cells", on_page=False),
        "summary": Table(LengthRow, _lengths, "By length"),
    }
    figures = (
        Figure(
            "Needles found by length and depth",
            lambda summaries, style: needle_heatmap(
                {summary.name: summary.grid for summary in summaries},
                {summary.name: unit(summary.model.spec) for summary in summaries},
                style,
            ),
        ),
    )

    def corpus(self, data: DataSet, settings: Settings) -> Documents:
        """The data set's documents. If any is known to be English, the language of the needles,
        only the English ones.

        Raises:
            UserError: no document can be split into sentences.
        """
        languages = {pair.document: pair.language for pair in data.pairs}
        english = {text: code for text, code in languages.items() if code == ENGLISH}
        usable = [
            (text, language)
            for text, language in (english or languages).items()
            if not script_without_sentences(text)
        ][:MAX_DOCUMENTS]
        if not usable:
            raise UserError(
                f"{data.title} has no document that can be split into sentences: choose another."
            )
        language = "English " if english else ""
        words = f"needles hidden in texts made from {len(usable):,} {language}documents"
        return Documents(data.name, tuple(usable), words)

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: Documents, settings: Settings
    ) -> list[Grid]:
        """One grid over the lengths that the model reads.

        Raises:
            UserError: the model reads none of the lengths.
        """
        model = compute.identify(spec)
        limit = model.spec.max_length
        if limit is None and not model.stored_only:
            limit = compute.retriever(model).max_length
        read = tuple(length for length in settings.lengths if limit is None or length <= limit)
        if not read:
            raise UserError(
                f"The context limit of {spec.name}, {limit:,} {unit(spec)}, is below all lengths "
                f"of texts, from {min(settings.lengths):,}: run `needles` with a shorter length."
            )
        unread = tuple(length for length in settings.lengths if length not in read)
        return [Grid(spec, corpus, settings, read, unread)]

    def job(self, compute: Compute, subject: Grid) -> Job:
        """A job that computes the missing cells; progress counts cells."""

        def worker(given: Compute, retriever: Retriever) -> Callable[[CellItem], NeedleCell]:
            n, seed = subject.settings.needles, subject.settings.seed
            texts = Haystacks(retriever, subject.corpus.texts, needles(n, seed), seed)
            cache = recent_texts(given.root, given.identify(subject.spec).key, retriever)
            return lambda item: cell(texts, item.length, item.depth, cache)

        return item_job(
            compute,
            subject.spec,
            subject.method,
            subject.items(),
            needle_cells,
            worker,
            scope=f"{subject.corpus.dataset}: needles",
            doing="needles",
        )

    def summarize(self, compute: Compute, subject: Grid) -> NeedleSummary | None:
        """The grid; None while a cell is missing.

        Raises:
            UserError: a cell could not be computed.
        """
        model, items = compute.identify(subject.spec), subject.items()
        store = needle_cells(compute.root)
        if store.missing(model.key, subject.method, items):
            return None
        stored = store.select(model.key, subject.method, items)
        if failed := stored.failed:
            raise UserError(
                f"{len(failed)} cells of {subject.spec.name} have no result: "
                f"{next(iter(failed.values()))}"
            )
        cells = {
            (item.length, item.depth): stored.results[cell_id(item.length, item.depth)]
            for item in items
        }
        blind = family_of(subject.spec).order_blind
        grid = NeedleGrid(subject.lengths, subject.settings.depths, cells, blind)
        return NeedleSummary(model, subject, grid)

    def measured(self, summary: NeedleSummary) -> MeasuredModel:
        """Accuracy and its change with depth, by cell and needle."""
        retrieved_of = {
            (length, depth, needle): float(retrieved)
            for (length, depth), measured in summary.grid.cells.items()
            for needle, retrieved in enumerate(measured.found)
        }
        needle_of = {item: item[2] for item in retrieved_of}
        accuracy = {item: np.array([value]) for item, value in retrieved_of.items()}
        # Retrieved in the last and in the first third, and whether the depth is in each.
        by_third = {
            (length, depth, needle): np.array([value * last, value * first, last, first])
            for (length, depth, needle), value in retrieved_of.items()
            for last, first in [(float(in_last_third(depth)), float(in_first_third(depth)))]
            if last or first
        }
        measure = partial(
            ItemMeasure,
            documents=needle_of,
            share=True,
            resampled="needles",
            label=partial(_label, summary),
        )
        third = "last minus first third of depths"
        return MeasuredModel(
            summary.name,
            [
                measure("accuracy", "texts", SHARE_MARGIN, accuracy),
                measure(
                    third, "texts", SHARE_MARGIN, by_third, statistic=ratio_difference, largest=2.0
                ),
            ],
        )

    def verdict(self, summary: NeedleSummary) -> str:
        """Share of needles retrieved over all cells, and its change with depth."""
        name, grid = summary.name, summary.grid
        mean, change = grid.mean(None), grid.last_minus_first
        if mean is None:
            return f"{name}: no cell."
        sentences = [
            f"{name} ranks the needle's text first of {grid.n} in {mean.text('.0%')} of the "
            f"searches (by chance: {1 / grid.n:.0%})."
        ]
        if change is not None and change.difference.interval is not None:
            sides = {"higher": "end", "lower": "beginning"}
            side = sides.get(change.verdict)
            sentences += [
                f"The share {share_change(change)} from the first to the last third of the text.",
                change.in_words(100, POINTS)
                if side is None
                else f"Needles near the {side} are easier to retrieve.",
            ]
        elif change is not None:
            sentences.append(change.sentence)
        if unread := ", ".join(f"{number:,}" for number in summary.asked.unread):
            lengths = f"{unread} {unit(summary.model.spec)}"
            sentences.append(f"Texts of {lengths} exceed its context limit.")
        return " ".join(sentences)

    def provenance(self, summary: NeedleSummary) -> Provenance:
        asked = summary.asked
        lengths, depths = (
            listed([f"{number:,.10g}" for number in numbers])
            for numbers in (asked.lengths, asked.settings.depths)
        )
        return of_model(
            summary.model,
            asked.method,
            asked.corpus.dataset,
            n_queries=asked.settings.needles,
            truncated=0,
            selection=(
                asked.corpus.selection,
                f"of {lengths} {unit(asked.spec)}",
                f"at depths of {depths}%",
            ),
        )


NEEDLE_STUDY = register(Needles())

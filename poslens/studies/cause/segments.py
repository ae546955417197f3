"""The study `segments`: compares the vectors of a document's parts with the vector of the whole
document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import plotly.graph_objects as go

from poslens.attribution.datasets import DataSet
from poslens.attribution.evaluation.comparison import SCORE_MARGIN, Comparison
from poslens.attribution.evaluation.comparison_words import change_in_words
from poslens.attribution.interventions.segments import (
    N_SEGMENTS,
    Cut,
    segments_method,
)
from poslens.figures.curves import mean_curves
from poslens.figures.palettes import Style
from poslens.parameters import Choice, Parameters, Settings
from poslens.rows import ModelRow, Table, column
from poslens.studies.cause.figures import COSINE
from poslens.studies.cause.over_items import (
    DOCUMENTS,
    NOTES,
    POINTS,
    SIDES,
    CauseItems,
    CauseSummary,
    CurveStudy,
    basis,
    documents_for,
    label_of,
    notes_of,
)
from poslens.study import Figure, register
from poslens.study_part import Number, StudyPart, number


@dataclass(frozen=True)
class SegmentRow(ModelRow):
    """The similarity of parts of a document to the whole document."""

    parts: str = column("Segments in original order, segments in random order, or thirds.")
    n: int = column("Number of documents.", title="documents")
    truncated: int = column("Documents that the model truncates.")
    failed: int = column("Number of failed documents, which are excluded.")
    last_minus_first: Comparison | None = column(
        "Mean cosine in the last third of positions minus that in the first.",
        title="last third minus first (cosine)",
        form="+.4f",
    )
    notes: str = column(NOTES)


def _segments(summary: CauseSummary) -> list[SegmentRow]:
    curve = summary.cause.summary.curve
    parts, counts = label_of(summary.asked.method), (curve.n, curve.n_truncated, curve.n_failed)
    return [SegmentRow(curve.model, parts, *counts, summary.test, notes_of(summary))]


def _drawn(summaries: Sequence[CauseSummary], style: Style) -> go.Figure:
    curves = [
        replace(curve, model=f"{curve.model}, {label_of(each.asked.method)}")
        for each in summaries
        for curve in [each.cause.summary.curve]
    ]
    return mean_curves(curves, style, y_title=COSINE)


def _numbers(summary: CauseSummary) -> list[Number]:
    key = "shuffled" if _shuffled(summary) else "segments"
    parts = label_of(summary.asked.method)
    name = f"cosine, last minus first third, {parts} (negative: primacy)"
    return number(key, name, summary.cause.last_minus_first)


def _shuffled(summary: CauseSummary) -> bool:
    return "order" in summary.asked.method.params


PART = StudyPart(
    "segments",
    "Weight of each position in the document vector",
    f"Each text is split into up to {N_SEGMENTS} consecutive segments of similar length. Only "
    "vectors are compared; no documents are ranked.",
    "documents",
    _numbers,
)


class SegmentsStudy(CurveStudy):
    """Compares the vectors of a document's parts with that of the whole document."""

    name = "segments"
    question = "Which part of a document is its vector most similar to?"
    reads = (
        f"Segments: each document is split into up to {N_SEGMENTS} segments, and each segment's "
        "own vector is compared with that of the whole text. In random order, it is compared with "
        "the text in that order. A difference between the last and the first third in random order "
        "is due to position; what the original order adds is due to content. Thirds: the first, "
        "middle and last third of the text (by characters). Only dense models have a vector per "
        "text; no queries are needed."
    )
    limits = (
        "Positions are relative to what the model reads; truncated text does not count. Equivalent "
        f"means within {SCORE_MARGIN:g}. Brackets are 95% bootstrap intervals over documents."
    )
    parameters = Parameters(
        parts=Choice(
            default="segments",
            options=("segments", "thirds"),
            help="segments, in original and in random order, or thirds of the text.",
        ),
        documents=DOCUMENTS,
    )
    tables: ClassVar = {"segments": Table(SegmentRow, _segments), "curve": POINTS}
    figures = (
        Figure("Cosine with the whole text's vector by position", _drawn, intervals="curve"),
    )
    part = PART

    def corpus(self, data: DataSet, settings: Settings) -> CauseItems:
        """The documents, as pairs without a query."""
        cuts: tuple[Cut, ...] = (
            ("thirds",) if settings.parts == "thirds" else ("segments", "shuffled")
        )
        return documents_for(data, settings.documents, *map(segments_method, cuts))

    def verdict(self, summary: CauseSummary) -> str:
        """How the similarity to the whole text changes with the position."""
        name, test = summary.name, summary.test
        parts = label_of(summary.asked.method)
        if test is None:
            return f"{name}: {parts} have no result."
        change = change_in_words(test.difference, ".4f")
        sentence = (
            f"{name}, {parts}: the cosine with the whole text {change} from the first to the last "
            f"third ({basis(test)})."
        )
        if _shuffled(summary) and (side := SIDES.get(test.verdict)):
            sentence += f" Content near the {side} of a text weighs more in its vector."
        return sentence


SEGMENTS = register(SegmentsStudy())

"""The study `edits`: the effect of inserting or removing text on documents' vectors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate, estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.evaluation.comparison import SCORE_MARGIN
from poslens.attribution.evaluation.comparison_words import p_in_words
from poslens.attribution.interventions.segments import (
    EDITS,
    POSITIONS,
    SHARES,
    EditCurves,
    EditPosition,
    edits_method,
)
from poslens.attribution.nouns import counted
from poslens.attribution.pairs import columns_of
from poslens.attribution.types import Provenance
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity, of_documents
from poslens.figures.figure_base import canvas, group, intervals, legend_name, with_legend
from poslens.figures.palettes import Style
from poslens.paired import ItemMeasure
from poslens.parameters import Choice, Parameters, Settings
from poslens.rows import ModelRow, Table, column
from poslens.studies.cause import service
from poslens.studies.cause.over_items import (
    DOCUMENTS,
    CauseItems,
    CauseSubject,
    MeanEffect,
    OverItems,
    documents_for,
)
from poslens.study import Figure, register


@dataclass(frozen=True)
class EditSummary(MeanEffect):
    """Cosines to the vector of the unchanged text, averaged over documents. `means` has, for each
    position of the edit, one estimate for each of `shares` (of the text). `measure` has each
    document's mean cosine with the edit at the end minus that with the edit at the beginning."""

    shares: tuple[float, ...]
    means: Mapping[EditPosition, tuple[Estimate, ...]]
    n: int
    n_failed: int
    n_shortened: int
    n_truncated: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class EditRow(ModelRow):
    """The mean cosine after one edit."""

    edit: str = column("insertion or removal.")
    position: str = column("Position of the edit: beginning, middle or end.")
    share: float = column("Text inserted or removed, relative to the text's length.", form=".2f")
    n: int = column("Number of documents.", title="documents")
    failed: int = column("Number of failed documents, which are excluded.")
    shortened: int = column(
        "Documents of which only the beginning was used, so that the model reads the edited text."
    )
    cosine: Estimate = column("Mean cosine with the unchanged text's vector.", form=".4f")


def _rows(summary: EditSummary) -> Iterator[EditRow]:
    for position, values in summary.means.items():
        for share, value in zip(summary.shares, values, strict=True):
            yield EditRow(
                summary.name,
                summary.asked.method.name,
                position,
                share,
                summary.n,
                summary.n_failed,
                summary.n_shortened,
                value,
            )


DASHES = ("solid", "dash", "dot")
"""Line styles of edits at the beginning, in the middle and at the end."""


def edit_means(edits: Sequence[EditSummary], style: Style) -> go.Figure:
    """Cosine to the unchanged text by the share of text inserted or removed, with a color for each
    model, a line style for each position, and 95% intervals if there are enough documents."""
    title = {"insertion": "Inserted", "removal": "Removed"}[edits[0].asked.method.name]
    figure = canvas("edit_means", style, f"{title} (% of the text)", "Cosine to the unchanged text")
    for index, means in enumerate(edits):
        look = style.line(index)
        for (position, values), dash in zip(means.means.items(), DASHES, strict=True):
            has_interval = all(value.interval is not None for value in values)
            trace = go.Scatter(
                x=[100 * share for share in means.shares],
                y=[value.value for value in values],
                error_y=intervals(values, str(look["color"])) if has_interval else None,
                mode="lines+markers",
                line={**look, "dash": dash},
                hovertemplate="%{y:.4f}",
                name=legend_name(f"{means.name}, {position}", style),
            )
            figure.add_trace(group(trace, f"model {index}", means.name, position))
    return with_legend(figure, style)


class EditsStudy(OverItems[EditSummary]):
    """Inserts neutral text into each document, or removes a part of it."""

    name = "edits"
    question = (
        "Does editing the beginning of a document change its vector more than editing the end?"
    )
    unit = "document"
    reads = (
        "Insertion: cosine between the text's vectors before and after inserting neutral text; a "
        "text that would exceed the context limit is shortened first. Removal: the same after "
        "removing a part. Only dense models have a vector per text; no queries are needed."
    )
    limits = (
        "End minus beginning: a document's mean cosine over all amounts with the edit at the end "
        "minus the same with it at the beginning; positive means that the beginning weighs more. "
        f"Equivalent means within {SCORE_MARGIN:g}. Removal also removes content, so a difference "
        "can also come from more important content at the beginning. Brackets are 95% bootstrap "
        "intervals over documents."
    )
    parameters = Parameters(
        edit=Choice(
            default=EDITS[0],
            options=EDITS,
            help="insertion of neutral text, or removal of a part.",
        ),
        documents=DOCUMENTS,
    )
    tables: ClassVar = {"cosines": Table(EditRow, _rows, on_page=False)}
    figures = (Figure("Cosine with the unchanged text's vector", edit_means),)

    def corpus(self, data: DataSet, settings: Settings) -> CauseItems:
        """The documents, as pairs without a query."""
        return documents_for(data, settings.documents, edits_method(settings.edit))

    def mean_effect(self, compute: Compute, subject: CauseSubject) -> EditSummary:
        model = compute.identify(subject.spec)
        stored = service.stored(compute, subject.spec, subject.method, subject.corpus.pairs)
        chosen = (subject.corpus.dataset, subject.corpus.selection)
        key = (model.spec.name, model.key, repr(subject.method), *chosen, stored.digest)
        summary = self.summaries.get(
            key, lambda: _summary(model, subject, stored.results, len(stored.failed))
        )
        # The same texts can have other ids now.
        return replace(summary, asked=subject)

    def remarks(self, summaries: Sequence[EditSummary]) -> list[str]:
        """What text was inserted, and which documents were shortened."""
        sentences = []
        for summary in summaries:
            facts = list(summary.notes)
            if summary.n_shortened:
                facts.append(
                    f"{counted(summary.n_shortened, 'document')} shortened, so that the model "
                    "reads the edited text"
                )
            if facts:
                sentences.append(f"{summary.name}: {'; '.join(facts)}.")
        return sentences

    def verdict(self, summary: EditSummary) -> str:
        name, test = summary.name, summary.test
        if test is None:
            return f"{name}: no result."
        edit, difference = summary.asked.method.name, test.difference
        if test.verdict not in ("higher", "lower"):
            return (
                f"{name}: the mean cosine after {edit} at the end differs from that at the "
                f"beginning by {difference.text('+.4f')}. {test.sentence}"
            )
        ends = ("beginning", "end")
        more, less = ends if test.verdict == "higher" else ends[::-1]
        size = difference if test.verdict == "higher" else difference.times(-1)
        return (
            f"{name}: {edit} at the {more} changes the vector more than {edit} at the {less}: the "
            f"mean cosine is lower by {size.text('.4f')} ({p_in_words(test)})."
        )

    def provenance(self, summary: EditSummary) -> Provenance:
        asked = summary.asked
        return of_documents(
            summary.model,
            asked.method,
            asked.corpus.dataset,
            summary.n,
            summary.n_truncated,
            asked.corpus.selection,
        )


def _summary(
    model: ModelIdentity, subject: CauseSubject, results: Mapping[str, EditCurves], n_failed: int
) -> EditSummary:
    curves = list(results.values())
    cosines = np.array([edits.cosines for edits in curves], dtype=np.float64)
    groups: Sequence[Hashable] = columns_of(subject.corpus.pairs).documents_of(list(results))

    def means(position: int) -> tuple[Estimate, ...]:
        estimates = (estimate(cosines[:, position, [k]], groups) for k in range(cosines.shape[2]))
        return tuple(value for value in estimates if value is not None)

    beginning, end = (cosines[:, POSITIONS.index(at)].mean(axis=1) for at in ("beginning", "end"))
    differences = (end - beginning)[:, None]
    measure = ItemMeasure(
        f"cosine after {subject.method.name}, at the end minus at the beginning",
        "documents",
        SCORE_MARGIN,
        dict(zip(results, differences, strict=True)),
        dict(zip(results, groups, strict=True)),
    )
    return EditSummary(
        model,
        subject,
        measure,
        measure.test(),
        SHARES[curves[0].by],
        {position: means(row) for row, position in enumerate(POSITIONS)},
        len(curves),
        n_failed,
        sum(edits.read_share < 1 for edits in curves),
        sum(edits.truncated for edits in curves),
        tuple(sorted({edits.note for edits in curves if edits.note})),
    )


EDIT_STUDY = register(EditsStudy())

"""Results of Python calls, which notebooks display and which can be saved to files."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go

from poslens.attribution.curves.interactions import interactions
from poslens.attribution.curves.positions import document_curve, positions
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS
from poslens.attribution.types import Array, Provenance
from poslens.base_result import FIGURE_OF, Result, chosen, framed, require_model
from poslens.commands.result_files import suffix_of, written
from poslens.compute.compute import Explained
from poslens.export.files import TABLE_FORMATS
from poslens.export.json_text import json_text
from poslens.failures import FAILURE_TABLE, FAILURES, FailureRow
from poslens.figures.captions import caption_text, provenance_entries
from poslens.figures.curves import pair_curves
from poslens.figures.figure_base import quantity
from poslens.figures.matrix import interaction_matrix
from poslens.figures.palettes import Style
from poslens.heatmap.data import MAX_COLUMNS, Pane, Rail, View, payload
from poslens.heatmap.results import heatmap_bytes, panes
from poslens.paired import difference_sentences
from poslens.studies.explain import service as explaining
from poslens.studies.explain.answers import explanation_answer
from poslens.studies.explain.service import head
from poslens.studies.explain.tables import comparison_frame, explained_frame, matrices, matrix_frame
from poslens.studies.passport import cohort
from poslens.studies.passport import service as passports
from poslens.studies.passport.document import FORMATS as PASSPORT_FORMATS
from poslens.studies.passport.document import document_bytes
from poslens.studies.passport.service import ModelPassport as Card
from poslens.study import Study

if TYPE_CHECKING:
    from poslens.widget import Heatmap


_EXPLAINED = {"tokens": explained_frame, "comparison": comparison_frame, "matrix": matrix_frame}
"""The tables of an explanation."""


@dataclass(frozen=True, repr=False, eq=False)
class Explanation(Result):
    """The attribution of one query-document pair for one or more models.

    `save` writes the heatmap instead of the figure of the tokens (.html, which needs no network,
    .png, .svg or .pdf), and raises UserError if it would have more models than a heatmap shows.
    """

    results: tuple[Explained, ...]
    rails: tuple[Rail, ...]

    @property
    def scores(self) -> dict[str, float]:
        """Each model's score, by name."""
        return {result.model.spec.name: result.attribution.score for result in self.results}

    @property
    def score(self) -> float:
        """The first model's score."""
        return self.results[0].attribution.score

    @property
    def curve(self) -> Array:
        """The first model's attribution at 100 relative positions, float32 [100]."""
        return document_curve(self.results[0].attribution)

    @property
    def provenance(self) -> list[Provenance]:
        """See `Result`."""
        return [result.provenance() for result in self.results]

    def to_frame(self, table: str | None = None) -> pd.DataFrame:
        """One row per model and token (`poslens.export.files.attribution_frame`), the `comparison`
        of each model with the first, or the `matrix` of query and document tokens.

        Raises:
            UserError: there is no such table, or the method has no matrix.
        """
        return chosen(_EXPLAINED, table, "explain")(self.results)

    def save(
        self, path: str | Path, table: str | None = None, *, size: str = "", palette: str = ""
    ) -> Path:
        """As `Result.save`, with the heatmap as the figure. The tokens as .json are those that the
        command `explain` prints, one line for each model."""
        tokens = table in (None, "tokens") and Path(path).suffix.lower() == ".json"
        if not tokens:
            return super().save(path, table, size=size, palette=palette)
        lines = (json_text(explanation_answer(result)) for result in self.results)
        return written(path, "".join(f"{line}\n" for line in lines).encode())

    def _drawn(self, table: str | None, style: Style) -> go.Figure:
        return chosen(self._figures, table, "explain", FIGURE_OF)(style)

    @property
    def _figures(self) -> dict[str, Callable[[Style], go.Figure]]:
        """The figures by table; the measures of a comparison have none."""
        return {"tokens": self._curves, "matrix": self._matrix}

    def _matrix(self, style: Style) -> go.Figure:
        """The contributions of query and document tokens.

        Raises:
            UserError: there is no matrix, or several models have one.
        """
        (result, _), *others = matrices(self.results)
        if others:
            raise UserError("The figure of the matrix shows one model: explain a single model.")
        tokens = interactions(result.attribution, result.pair, "token", "token")
        return interaction_matrix(tokens, style, provenance=[result.provenance()])

    def _curves(self, style: Style) -> go.Figure:
        """The document's curves, one line for each model."""
        evidence = {
            name: span
            for name, explained in zip(self.scores, self.results, strict=True)
            if (span := explaining.evidence_range(explained)) is not None
        }
        curves = {
            name: document_curve(explained.attribution)
            for name, explained in zip(self.scores, self.results, strict=True)
        }
        method = self.results[0].attribution.method
        at = positions(method.curve_params["resampling"])
        title = quantity(method)
        return pair_curves(curves, evidence, style, title, x=at, provenance=self.provenance)

    def widget(self) -> Heatmap:
        """The heatmap as a notebook widget, whose `pinned` lists the units that the user pinned.

        Raises:
            UserError: anywidget is not installed.
        """
        try:
            from poslens.widget import Heatmap
        except ImportError as error:
            raise UserError(
                "The widget needs anywidget: run `pip install anywidget`, or `pip install "
                "'.[notebook]'` in a checkout of PosLens."
            ) from error
        return Heatmap(payload(*self._panes()), self._repr_html_)

    def _panes(self) -> tuple[list[Pane], View]:
        drawn = panes(self.results, self.rails, [head(result) for result in self.results])
        return drawn, View(aggregate=METHODS[self.results[0].attribution.method.name].aggregate)

    def heatmap(self, fmt: str, style: Style | None = None) -> bytes:
        """The heatmap's file in the format `fmt`: html, png, svg or pdf."""
        drawn, view = self._panes()
        style = style or Style(width_px=1000, font_size=13)
        return heatmap_bytes(drawn, self.provenance, view, fmt, style)

    def _picture(self, fmt: str, style: Style | None = None, table: str | None = None) -> bytes:
        if table == "matrix":
            return super()._picture(fmt, style, table)
        chosen(self._figures, table, "explain", FIGURE_OF)
        return self.heatmap(fmt, style)

    def _repr_html_(self) -> str:
        if len(self.results) > MAX_COLUMNS:  # too many models for a heatmap
            return str(pd.Series(self.scores, name="score").to_frame().to_html(escape=True))
        return super()._repr_html_()

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {score:.4f}" for name, score in self.scores.items())
        method = self.results[0].attribution.method.name
        return f"<Explanation by {method}: {scores}>"


@dataclass(frozen=True, repr=False, eq=False)
class Passport(Result, Mapping[str, "Passport"]):
    """The position passports of one or more models, by model name. Tables and figures are those of
    a part of the card; the column `part` of `to_frame` lists the parts."""

    cards: tuple[Card, ...]

    def __getitem__(self, model: str) -> Passport:
        """One model's passport.

        Raises:
            NoSuchModel: it has no such model.
        """
        require_model(model, self, "passport")
        return Passport(tuple(card for card in self.cards if card.name == model))

    def __iter__(self) -> Iterator[str]:
        return (card.name for card in self.cards)

    def __len__(self) -> int:
        return len(self.cards)

    @property
    def provenance(self) -> list[Provenance]:
        """See `Result`."""
        return self.sources(None)

    def sources(self, table: str | None) -> list[Provenance]:
        parts = [part for card in self.cards for part in card.parts if table in (None, part.key)]
        return [provenance for part in parts for provenance in part.provenance]

    def to_frame(self, table: str | None = None) -> pd.DataFrame:
        """Every number of the part of this name, by default of all parts, one per row.

        Raises:
            UserError: the passport has no such part.
        """
        self._require_part(table)
        return passports.table(self.cards, table or "")

    def _require_part(self, table: str | None) -> None:
        if table is not None:
            parts = {part.key: part for card in self.cards for part in card.parts}
            chosen(parts, table, "passport", "part")

    def _drawn(self, table: str | None, style: Style) -> go.Figure:
        """The figure of one model's part, by default of relocation; for several models, nDCG@10
        against a measure of position bias."""
        self._require_part(table)
        first = self.cards[0].name
        if len(self.cards) > 1:
            if table is not None:
                raise UserError(
                    f"The figure of a part shows one model: choose it, as in "
                    f"passport[{first!r}].figure({table!r}), or draw all models with figure()."
                )
            drawn = cohort.chart(self.cards, style)
            if not any(trace.x for trace in drawn.data):
                raise UserError(
                    "No model has both nDCG@10 and a measure of position bias: compute the parts "
                    f"ranking and position_effect, or draw one model, as in passport[{first!r}]."
                    "figure()."
                )
            return drawn
        draw = {part.key: part.draw for part in self.cards[0].parts if part.draw is not None}
        if not draw:
            raise passports.no_results(self.cards)
        default = passports.RELOCATION.key if passports.RELOCATION.key in draw else next(iter(draw))
        return chosen(draw, table or default, f"{first}'s passport", "figure of")(style)

    def save(
        self, path: str | Path, table: str | None = None, *, size: str = "", palette: str = ""
    ) -> Path:
        """The cards as .html, .pdf, .svg, .png or .json, or as .yaml for a model card; the numbers
        as .csv, .parquet or .tex. For the part named by `table`, its figure and numbers as
        `Result.save` writes them.

        Raises:
            UserError: as in `Result.save`, or nothing is computed yet.
        """
        fmt = suffix_of(Path(path), tuple(dict.fromkeys((*PASSPORT_FORMATS, *TABLE_FORMATS))))
        if table is not None or fmt not in PASSPORT_FORMATS:
            self._require_part(table)
            if not self.sources(table):
                raise passports.no_results(self.cards)
            return super().save(path, table, size=size, palette=palette)
        if size or palette:
            raise UserError(
                "Cards have their own size and palette: name a part to draw, as in "
                f'save(path, "{passports.RELOCATION.key}", size=..., palette=...).'
            )
        return written(path, document_bytes(self.cards, fmt))

    def _repr_html_(self) -> str:
        return framed(document_bytes(self.cards, "html"))

    def __repr__(self) -> str:
        names = ", ".join(card.name for card in self.cards)
        findings = "; ".join(
            part.finding for card in self.cards for part in card.parts if part.finding
        )
        return f"<Passport of {names}: {findings or 'nothing is computed yet'}>"


@dataclass(frozen=True, repr=False, eq=False)
class StudyResult(Result):
    """The result of a study for one or more models. `summaries` are the study's own objects,
    `failures` the items without a result, and `notes` say what was used of the data set."""

    study: Study[Any, Any, Any]
    summaries: Sequence[Any]
    failures: Sequence[FailureRow] = ()
    notes: Sequence[str] = ()

    @property
    def verdicts(self) -> list[str]:
        """One sentence for each model, then one for each pair of models that the study compares."""
        by_model = [self.study.verdict(summary) for summary in self.summaries]
        return [*by_model, *difference_sentences(self.study.differences(self.summaries))]

    @property
    def remarks(self) -> list[str]:
        """Caveats that readers of the numbers need, one sentence each: what was used of the data
        set, then what limits these results."""
        return [*self.notes, *self.study.remarks(self.summaries)]

    @property
    def provenance(self) -> list[Provenance]:
        """Everything needed to reproduce the result, one entry for each summary."""
        return self.study.provenances(self.summaries)

    def to_frame(self, table: str | None = None) -> pd.DataFrame:
        """The table of this name, by default the study's first one. An estimate has three columns.

        Raises:
            UserError: the study has no such table.
        """
        tables = self.study.listed_tables
        # List only tables that this result can fill.
        if not isinstance(table, str) or table not in tables:
            filled = self.study.tables_of(self.summaries)
            tables = {name: each for name, each in tables.items() if name in (*filled, FAILURES)}
        chosen(tables, table, self.study.title)
        if table == FAILURES:
            return FAILURE_TABLE.frame(self.failures)
        return self.study.frame(self.summaries, table or next(iter(self.study.all_tables)))

    def _drawn(self, table: str | None, style: Style) -> go.Figure:
        if table is not None:
            chosen(self.study.drawn_tables, table, self.study.title, FIGURE_OF)
        return self.study.draw(self.summaries, style, table or "")

    def sources(self, table: str | None) -> list[Provenance]:
        return self.study.provenances(self.summaries, table or "")

    def _repr_html_(self) -> str:
        table = next(iter(self.study.all_tables.values()))
        frame = table.text_frame(self.summaries)
        for name, form in table.formats().items() if len(frame) else ():
            form, unit = (f"{form[:-1]}f", "%") if form.endswith("%") else (form, "")
            frame[name] = [
                "" if pd.isna(value) else f"{value:{form}}{unit}" for value in frame[name]
            ]
        sources = caption_text(provenance_entries(self.provenance))
        return "\n".join(
            [
                *(f"<p>{html.escape(sentence)}</p>" for sentence in self.verdicts),
                str(frame.to_html(escape=True, index=False)),
                *(f"<p>{html.escape(sentence)}</p>" for sentence in self.remarks),
                f"<p><small>{html.escape(sources)}</small></p>",
            ]
        )

    def __repr__(self) -> str:
        return f"<{self.study.title}: {' '.join((*self.verdicts, *self.remarks))}>"

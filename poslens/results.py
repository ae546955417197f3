"""Results that show themselves in a notebook, as tables, figures and files."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.positions import document_curve
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.evidence_profile import EvidenceProfile
from poslens.attribution.methods import METHODS
from poslens.attribution.types import Array, PositionCurve, Provenance
from poslens.cache.exchange.atomic_file import replacing
from poslens.compute.compute import Explained
from poslens.export.files import (
    FIGURE_FORMATS,
    TABLE_FORMATS,
    attribution_frame,
    curve_frame,
    figure_bytes,
    table_files,
)
from poslens.figures.curves import mean_curves, pair_curves, quantity
from poslens.figures.palettes import Style
from poslens.heatmap import Pane, Rail, View
from poslens.heatmap.data import MAX_COLUMNS, payload
from poslens.heatmap.results import heatmap_bytes, panes
from poslens.studies.explain import service as explaining
from poslens.studies.explain.heads import head
from poslens.studies.passport import service as passports
from poslens.studies.passport.document import FORMATS as PASSPORT_FORMATS
from poslens.studies.passport.document import document_bytes
from poslens.studies.passport.service import ModelPassport as Card
from poslens.studies.ranking import tables
from poslens.studies.ranking.figures import evidence_bins
from poslens.studies.ranking.service import Ranked

if TYPE_CHECKING:
    from poslens.widget import Heatmap

HEIGHT_PX = 460
"""Height of a heatmap in a notebook; a longer document scrolls."""

PICTURES = ("html", "png", "svg", "pdf")


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """One query and document under one model or several: how each token bears on the score."""

    results: tuple[Explained, ...]
    rails: tuple[Rail, ...]

    @property
    def scores(self) -> dict[str, float]:
        """Each model's score."""
        return {one.model.spec.name: one.attribution.score for one in self.results}

    @property
    def score(self) -> float:
        """The first model's score."""
        return self.results[0].attribution.score

    @property
    def curve(self) -> Array:
        """The first model's attribution over 100 relative positions [100]."""
        return document_curve(self.results[0].attribution)

    @property
    def provenance(self) -> list[Provenance]:
        """Everything needed to compute this again, an entry for each model."""
        return [one.provenance() for one in self.results]

    def to_frame(self) -> pd.DataFrame:
        """A row for each token of each model."""
        frames = []
        for one in self.results:
            frame = attribution_frame(one.attribution, one.pair)
            frame.insert(0, "model", one.model.spec.name)
            frames.append(frame)
        return pd.concat(frames, ignore_index=True)

    def figure(self, style: Style | None = None) -> go.Figure:
        """The document's curves, a line for each model."""
        evidence = {
            name: span
            for name, one in zip(self.scores, self.results, strict=True)
            if (span := explaining.evidence_range(one)) is not None
        }
        curves = {
            name: document_curve(one.attribution)
            for name, one in zip(self.scores, self.results, strict=True)
        }
        title = quantity(self.results[0].attribution.method)
        return pair_curves(curves, evidence, style or Style(), title, provenance=self.provenance)

    def save(self, path: str | Path) -> Path:
        """The heatmap as .html (needs no network), .png, .svg or .pdf; the tokens as .csv, .parquet
        or .json. A .csv gets a file with its provenance next to it, `NAME.provenance.json`.

        Raises:
            UserError: another suffix, no browser for a picture, more models than a heatmap shows,
                or the file cannot be written.
        """
        fmt = suffix(path, (*PICTURES, *TABLE_FORMATS))
        if fmt in PICTURES:
            return written(path, self._heatmap(fmt))
        return table_written(path, self.to_frame(), fmt, self.provenance)

    def widget(self) -> Heatmap:
        """The heatmap as a widget, whose `pinned` says what its reader has pinned.

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
        return Heatmap(data=payload(*self._panes()))

    def _panes(self) -> tuple[list[Pane], View]:
        drawn = panes(self.results, self.rails, [head(one) for one in self.results])
        return drawn, View(aggregate=METHODS[self.results[0].attribution.method.name].aggregate)

    def _heatmap(self, fmt: str) -> bytes:
        drawn, view = self._panes()
        return heatmap_bytes(drawn, self.provenance, view, fmt, Style(width_px=1000, font_size=13))

    def _repr_html_(self) -> str:
        if len(self.results) > MAX_COLUMNS:  # no heatmap has room for them
            return str(pd.Series(self.scores, name="score").to_frame().to_html(escape=True))
        return _framed(self._heatmap("html"))

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {score:.4f}" for name, score in self.scores.items())
        method = self.results[0].attribution.method.name
        return f"<Explanation by {method}: {scores}>"


@dataclass(frozen=True, repr=False, eq=False)
class Curve:
    """A mean curve over a data set, and its `numbers` with their intervals as attributes."""

    summary: PositionCurve
    numbers: Mapping[str, Estimate | None]
    provenance: Provenance
    y_title: str | None = None

    @property
    def curve(self) -> Array:
        """The mean over 100 relative positions [100]."""
        return self.summary.mean

    def __getattr__(self, name: str) -> Estimate | None:
        if name in self.__dict__.get("numbers", {}):
            return self.numbers[name]
        raise AttributeError(f"a curve has no {name}; it has {', '.join(self.numbers)}")

    def to_frame(self) -> pd.DataFrame:
        """100 rows: position, mean, standard deviation and interval."""
        return curve_frame([self.summary])

    def figure(self, style: Style | None = None) -> go.Figure:
        """The mean with its band."""
        return mean_curves(
            [self.summary], style or Style(), y_title=self.y_title, provenance=self.provenance
        )

    def save(self, path: str | Path) -> Path:
        """The figure as .html, .png, .svg or .pdf; the numbers as .csv, .parquet or .json, as
        `Explanation.save`.

        Raises:
            UserError: as `Explanation.save`.
        """
        return _saved(path, self.figure(), self.to_frame(), self.provenance)

    def _repr_html_(self) -> str:
        return _framed(figure_bytes(self.figure(), "html", Style()))

    def __repr__(self) -> str:
        one = self.summary
        said = ", ".join(f"{k} {v}" for k, v in self.numbers.items() if v is not None)
        return (
            f"<Curve of {one.model} by {one.method.name} over {one.dataset}: {one.n:,} pairs of "
            f"{one.n_documents:,} documents{'; ' + said if said else ''}>"
        )


@dataclass(frozen=True, repr=False, eq=False)
class MeasuredRanking:
    """A model's rankings of a data set, measured."""

    ranked: Ranked

    @property
    def psi(self) -> float | None:
        """How much nDCG@10 depends on the evidence's place; see `to_frame` for chance."""
        profile = self.ranked.evaluation.profile
        return None if profile is None else profile.psi

    @property
    def curve(self) -> Array:
        """nDCG@10 by the evidence's place in 20 equal bins [20], NaN for bins without a query.

        Raises:
            UserError: the data set does not say where its evidence stands.
        """
        means = self._profile().means
        return np.array([np.nan if mean is None else mean for mean in means], dtype=np.float32)

    def _profile(self) -> EvidenceProfile:
        if self.ranked.evaluation.profile is None:
            raise UserError("This data set does not say where its evidence stands.")
        return self.ranked.evaluation.profile

    def to_frame(self) -> pd.DataFrame:
        """Each measure with its interval."""
        return tables.measures_frame([self.ranked])

    def queries(self) -> pd.DataFrame:
        """A row for each query."""
        return tables.queries_frame(self.ranked)

    def figure(self, style: Style | None = None) -> go.Figure:
        """nDCG@10 over the evidence's place.

        Raises:
            UserError: as `curve`.
        """
        profiles = {self.ranked.model.spec.name: self._profile()}
        return evidence_bins(profiles, style or Style(), provenance=self.ranked.provenance())

    def save(self, path: str | Path) -> Path:
        """As `Curve.save`: the figure, or the measures."""
        fmt = suffix(path, (*FIGURE_FORMATS, *TABLE_FORMATS))
        known = self.ranked.provenance()
        if fmt in TABLE_FORMATS:
            return table_written(path, self.to_frame(), fmt, known)
        return written(path, figure_bytes(self.figure(), fmt, Style(), known))  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        return str(tables.measures_text([self.ranked]).to_html(index=False, escape=True))

    def __repr__(self) -> str:
        found = self.ranked.evaluation
        ndcg = found.estimates["nDCG@10"]
        return f"<Ranking by {found.model}: nDCG@10 {ndcg}, {found.n:,} queries>"


@dataclass(frozen=True, repr=False, eq=False)
class Passport:
    """What is known of models' position bias, a card each."""

    cards: tuple[Card, ...]

    def to_frame(self) -> pd.DataFrame:
        """Every number, a row each."""
        return passports.table(self.cards)

    def figure(self, part: str = "relocation", style: Style | None = None) -> go.Figure:
        """One part's figure, of the first card; the column `part` of `to_frame` names them.

        Raises:
            UserError: there is no such part, or it has no figure.
        """
        drawn = {one.key: one.draw for one in self.cards[0].parts if one.draw is not None}
        if part not in drawn:
            raise UserError(
                f"{self.cards[0].name}'s passport has no figure of {part[:40]!r}: it has "
                f"{', '.join(drawn) or 'none yet'}."
            )
        return drawn[part](style or Style())

    def save(self, path: str | Path) -> Path:
        """As .html, .pdf, .svg, .json, or .yaml for a model card.

        Raises:
            UserError: as `Explanation.save`.
        """
        fmt = suffix(path, PASSPORT_FORMATS)
        return written(path, document_bytes(self.cards, fmt))  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        return _framed(document_bytes(self.cards, "html"))

    def __repr__(self) -> str:
        names = ", ".join(one.name for one in self.cards)
        found = "; ".join(part.finding for one in self.cards for part in one.parts if part.finding)
        return f"<Passport of {names}: {found or 'nothing is computed yet'}>"


def _framed(page: bytes) -> str:
    """A page in a notebook's cell: in a frame of its own that may run its script and reach nothing
    of the notebook."""
    source = html.escape(page.decode(), quote=True)
    return (
        f'<iframe srcdoc="{source}" sandbox="allow-scripts" title="PosLens" '
        f'style="width:100%;height:{HEIGHT_PX}px;border:0"></iframe>'
    )


def suffix(path: str | Path, formats: Sequence[str]) -> str:
    """The format that a file's name asks for.

    Raises:
        UserError: none of `formats`.
    """
    from poslens.commands.result_files import suffix_of

    return suffix_of(Path(path), list(dict.fromkeys(formats)))


def _saved(path: str | Path, figure: go.Figure, frame: pd.DataFrame, known: Any) -> Path:
    fmt = suffix(path, (*PICTURES, *TABLE_FORMATS))
    if fmt in TABLE_FORMATS:
        return table_written(path, frame, fmt, known)
    return written(path, figure_bytes(figure, fmt, Style(), known))  # type: ignore[arg-type]


def table_written(path: str | Path, frame: pd.DataFrame, fmt: str, known: Any) -> Path:
    """The path of a table, once it and its provenance are in their files."""
    target = Path(path)
    files = table_files(frame, target.name, fmt, known)  # type: ignore[arg-type]
    for name, data in reversed(files.items()):  # the provenance first: no table is without it
        written(target.with_name(name), data)
    return target


def written(path: str | Path, data: bytes) -> Path:
    """The path, once `data` is in its file, whole.

    Raises:
        UserError: it cannot be written.
    """
    target = Path(path)
    with replacing(target) as file:
        file.write(data)
    return target

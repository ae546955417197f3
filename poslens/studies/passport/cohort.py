"""All models on one page: position effect against quality, and a table with a row per model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from html import escape
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.nouns import interval_text
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.limits import context_limit
from poslens.attribution.types import Provenance
from poslens.compute.compute import Compute
from poslens.export.files import figure_div
from poslens.figures.figure_base import (
    WITHIN_UNIT,
    canvas,
    faint,
    intervals,
    legend_name,
    with_legend,
)
from poslens.figures.palettes import Style, printable
from poslens.rows import PERCENTAGE_POINTS, ModelRow, Table, column, estimate_text, scaled
from poslens.studies.passport.service import ModelPassport

QUALITY = "ndcg_at_10"


@dataclass(frozen=True)
class CohortRow(ModelRow):
    """One model: its quality, and its measures of position bias in the order of the card."""

    family: str = column("Family of the model.")
    max_length: int | None = column(
        "Context limit in tokens; null if unlimited.", title="context limit"
    )
    ndcg_at_10: Estimate | None = column(
        "nDCG@10, 0 to 1, over the queries with evidence; over all if none has any.",
        title="nDCG@10",
    )
    position_effect: Estimate | None = column(
        "nDCG@10 with the evidence first minus last, -1 to 1; positive means primacy.",
        title="nDCG@10, evidence first minus last",
        form="+.3f",
    )
    relocation: Estimate | None = column(
        "Score with the evidence in the last third minus first third; negative is primacy.",
        title="score, evidence last minus first third",
        form="+.3f",
    )
    segments: Estimate | None = column(
        "Similarity of shuffled segments to the text, last minus first third; negative is primacy.",
        title="shuffled segments, last minus first third",
        form="+.3f",
    )
    psi: Estimate | None = column(
        "PSI minus its mean under permutation; no interval.",
        title="PSI minus permutation",
        form="+.3f",
    )
    needles: Estimate | None = column(
        "Share of needles found late minus early; negative is primacy.",
        title="needles, late minus early",
        form=PERCENTAGE_POINTS,
    )
    unretrieved: Estimate | None = column(
        "Share of unretrieved sentences in random order, last minus first third; positive is "
        "primacy.",
        title="unretrieved sentences, last minus first third",
        form=PERCENTAGE_POINTS,
    )


_NUMBERS = {
    QUALITY: ("ranking", "ndcg_at_10"),
    "position_effect": ("position_effect", "first_minus_last"),
    "relocation": ("relocation", "last_minus_first"),
    "segments": ("segments", "shuffled"),
    "psi": ("ranking", "psi_minus_permutation"),
    "needles": ("needles", "late_minus_early"),
    "unretrieved": ("audit", "last_minus_first_random_order"),
}
"""Part and key of each estimate of a row."""

TITLES = {f.name: f.metadata["title"] for f in fields(CohortRow) if f.name in _NUMBERS}
"""Title of each measure by its column."""

FORMS = {f.metadata["title"]: f.metadata["form"] for f in fields(CohortRow) if f.name in _NUMBERS}
"""Number format of each measure by its title."""

EFFECTS = tuple(name for name in _NUMBERS if name != QUALITY)
"""Columns that a chart can set against quality."""


def row(card: ModelPassport) -> CohortRow:
    """A card's row; None for each measure that the card doesn't have."""
    spec = card.model.spec
    estimates = {
        name: None if (number := card.number(*keys)) is None else number.estimate
        for name, keys in _NUMBERS.items()
    }
    return CohortRow(card.name, spec.family, context_limit(spec), **estimates)


TABLE: Table[ModelPassport] = Table(CohortRow, lambda card: [row(card)])


def names(compute: Compute) -> list[str]:
    """The models that are installed or have stored results, presets first."""
    installed = [name for name, spec in resolve.known().items() if resolve.installed(spec)]
    return list(dict.fromkeys((*installed, *compute.stored_only())))


def by_current_name(cards: Sequence[ModelPassport]) -> list[ModelPassport]:
    """The cards without those that repeat an installed model's results under the name that it had
    when they were stored."""
    here = {card.model.key.fingerprint for card in cards if not card.model.stored_only}
    return [
        card
        for card in cards
        if not (card.model.stored_only and card.model.key.fingerprint in here)
    ]


def chart(cards: Sequence[ModelPassport], style: Style, effect: str = "") -> go.Figure:
    """nDCG@10 against the measure of the column `effect`, a point per model with both 95%
    intervals. By default the first of `EFFECTS` that any card has. A model that lacks one of the
    two numbers has an empty trace, so that traces and cards correspond."""
    rows = [row(card) for card in cards]
    with_numbers = (name for name in EFFECTS if any(getattr(each, name) for each in rows))
    effect = effect or next(with_numbers, EFFECTS[0])
    about = next(f.metadata for f in fields(CohortRow) if f.name == effect)
    factor, _, unit = scaled(form := about["form"])
    title = f"{about['meaning'].rstrip('.')}{unit and ' (percentage points)'}"
    figure = canvas("cohort", style, title, "nDCG@10", provenance(cards))
    for number, each in enumerate(rows):
        x, y = getattr(each, effect), each.ndcg_at_10
        drawn = [(x, y)] if x is not None and y is not None else []
        color = str(style.line(number)["color"])
        figure.add_trace(
            go.Scatter(
                x=[factor * x.value for x, _ in drawn],
                y=[y.value for _, y in drawn],
                mode="markers",
                name=legend_name(each.model, style),
                showlegend=bool(drawn),
                marker=style.marker(number, 0.7),
                error_x=intervals([x.times(factor) for x, _ in drawn], faint(color, 0.6)),
                error_y=intervals([y for _, y in drawn], faint(color, 0.6)),
                customdata=[[escape(each.model), estimate_text(x, form), str(y)] for x, y in drawn],
                hovertemplate="%{customdata[0]}<br>%{customdata[1]}<br>nDCG@10 %{customdata[2]}"
                "<extra></extra>",
            )
        )
    figure.update_yaxes(**WITHIN_UNIT)
    zero = {"color": style.colors.muted, "width": 1, "dash": "dot"}
    figure.add_vline(x=0, line=zero, layer="below")  # BM25 has no effect, so its marker is on it
    return with_legend(figure, style)


def provenance(cards: Sequence[ModelPassport]) -> list[Provenance]:
    """Provenance of the parts that the rows come from."""
    used = {part for part, _ in _NUMBERS.values()}
    parts = (part for card in cards for part in card.parts)
    return [line for part in parts if part.key in used for line in part.provenance]


def page_frame(cards: Sequence[ModelPassport]) -> pd.DataFrame:
    """The table as pages show it: each value as a number, so that it sorts, and its interval in a
    column of its own."""
    files = TABLE.frame(cards)
    shown: dict[str, Any] = {"model": files["model"]}
    for name, title in TITLES.items():
        factor, form, _ = scaled(FORMS[title])
        ends = zip(factor * files[f"{name}_low"], factor * files[f"{name}_high"], strict=True)
        shown[title] = factor * files[name].astype(float)
        shown[f"{title}: 95% interval"] = [
            "" if pd.isna(low) else interval_text(low, high, form) for low, high in ends
        ]
    # Last, because a phone shows only the first columns.
    shown |= {
        field.metadata["title"] or field.name: files[field.name]
        for field in fields(CohortRow)
        if field.name not in _NUMBERS
    }
    return pd.DataFrame(shown)


CSS = """
#cohort th button { all: unset; cursor: pointer; font-weight: bold; }
#cohort th button:focus-visible { outline: 2px solid; }
#cohort th { text-align: left; vertical-align: bottom; padding: 2px 8px 2px 0; }
#cohort [aria-sort=ascending] button::after { content: " \25B2" / ""; }
#cohort [aria-sort=descending] button::after { content: " \25BC" / ""; }
[hidden] { display: none !important; }
"""

_SCRIPT = r"""
const table = document.getElementById("cohort"), rows = [...table.tBodies[0].rows];
const heads = [...table.tHead.rows[0].cells];
heads.forEach((head, column) => head.firstChild.onclick = () => {
  const sign = head.ariaSort === "ascending" ? -1 : 1;
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  const value = (row) => row.cells[column].dataset.value;
  const compare = (a, b) => column < 2 ? a.localeCompare(b) : a - b;
  // Models without the number stay last in both directions.
  rows.sort((a, b) => (value(a) === "") - (value(b) === "") || sign * compare(value(a), value(b)));
  table.tBodies[0].append(...rows);
});
document.getElementById("filter").oninput = (event) => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const row of rows) {
    const text = row.cells[0].textContent + " " + row.cells[1].textContent;
    row.hidden = !words.every((word) => text.toLowerCase().includes(word));
    document.getElementById("card" + row.dataset.card).hidden = row.hidden;
    window.Plotly.restyle?.("cohort-chart", {visible: !row.hidden}, [Number(row.dataset.card)]);
  }
};
"""


def overview_html(cards: Sequence[ModelPassport], style: Style) -> str:
    """Chart and table as markup of a page that has each card as an element `card0`, `card1`, ...:
    a click on a heading sorts, and the filter hides models in chart, table and cards."""
    heads = [field.metadata["title"] or field.name for field in fields(CohortRow)]
    body = "".join(
        f'<tr data-card="{number}">{"".join(_cells(row(card), number))}</tr>'
        for number, card in enumerate(cards)
    )
    return (
        f"<section>\n<h1>Position effect against quality</h1>\n"
        f"{figure_div(chart(cards, style), 'cohort-chart')}\n"
        '<p><label>Filter by model or family <input id="filter" type="search"></label></p>\n'
        f'<table id="cohort"><thead><tr>'
        + "".join(f'<th scope="col"><button>{escape(head)}</button></th>' for head in heads)
        + f"</tr></thead><tbody>{body}</tbody></table>\n<script>{_SCRIPT}</script>\n</section>"
    )


def _cells(each: CohortRow, number: int) -> Iterator[str]:
    for field in fields(CohortRow):
        value = getattr(each, field.name)
        if isinstance(value, Estimate):
            text = estimate_text(value, field.metadata["form"])
            yield f'<td data-value="{value.value}">{text}</td>'
            continue
        text = "" if value is None else escape(printable(str(value)))
        linked = f'<a href="#card{number}">{text}</a>' if field.name == "model" else text
        yield f'<td data-value="{text}">{linked}</td>'

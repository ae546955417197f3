"""The bar chart of bias tests, grouped by test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from poslens.attribution.evaluation.bias_tests import TESTS, BiasResult
from poslens.figures.figure_base import (
    Provenances,
    bar_pattern,
    canvas,
    faint,
    legend_name,
    with_legend,
)
from poslens.figures.palettes import Style, escape, text_width, wrap

MEASURES = {
    "t": "Paired t statistic",
    "effect size": "Effect size d_z (mean difference over its standard deviation)",
    "mean difference": "Mean s(d1) − s(d2), in each model's own score units",
}
"""Measures that bars can show, with axis titles. Only the mean difference depends on the scale of a
model's scores."""

_AXES = {
    "position": "Other sentences before the evidence of d2",
    "literal": "Entity's name in the query and in d1",
    "repetition": "Added sentences of d1 that name the entity",
}
"""Titles of the x axis for the variants of a test."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar with its 95% interval. If the test has no value, the label `instead` is drawn."""

    model: str
    test: str
    value: float | None
    low: float | None
    high: float | None
    note: str = ""
    instead: str = "none"
    variant: str = ""

    @property
    def label(self) -> str:
        """The label below the bar: one word for a test, or the variant."""
        return self.variant or TESTS[self.test].title.split()[0]

    @property
    def name(self) -> str:
        """Name of the test, with its variant."""
        return ", ".join(filter(None, (self.test, self.variant)))


def bar(model: str, result: BiasResult, measure: str, variant: str = "") -> Bar:
    """The bar of one result under a measure, a key of `MEASURES`."""
    note = " ".join(result.remarks)
    if measure == "mean difference":
        value, low, high = result.difference, result.low, result.high
        return Bar(model, result.test, value, low, high, note, variant=variant)
    value, interval = result.t, result.t_interval
    documents = result.n_documents
    scale = 1.0 if measure == "t" else documents**-0.5 if documents else 1.0
    if value is None or interval is None:
        instead = "tie" if result.difference == 0 else "none"
        return Bar(model, result.test, None, None, None, note, instead, variant)
    low, high = interval
    low, high, value = scale * low, scale * high, scale * value
    return Bar(model, result.test, value, low, high, note, variant=variant)


def bias_chart(
    bars: Sequence[Bar], measure: str, style: Style, provenance: Provenances = ()
) -> go.Figure:
    """A group of bars for each test, or each variant of a test, with one bar per model; above zero,
    d1 scores higher.

    Whiskers are 95% intervals. A label replaces a bar without a value. The customdata of a bar is
    [model, name of the test and its variant].
    """
    axis = next((_AXES[bar.test] for bar in bars if bar.variant), "")
    figure = canvas("bias_tests", style, axis, MEASURES[measure], provenance)
    models = list(dict.fromkeys(bar.model for bar in bars))
    order = list(TESTS)
    listed = sorted(bars, key=lambda bar: order.index(bar.test))
    labels = list(dict.fromkeys(bar.label for bar in listed))
    # Labels get the largest font size at which neighbors don't overlap.
    room = (style.width_px - 6 * style.font_size) / max(1, len(labels))
    longest = max((text_width(label, 1.0) for label in labels), default=1.0)
    for index, model in enumerate(models):
        own = [bar for bar in bars if bar.model == model]
        colour = str(style.line(index)["color"])
        values = [(bar.value, bar.low, bar.high) for bar in own]
        figure.add_trace(
            go.Bar(
                x=[bar.label for bar in own],
                y=[0.0 if value is None else value for value, *_ in values],
                name=legend_name(model, style),
                customdata=[[model, bar.name] for bar in own],
                text=[bar.instead if bar.value is None else "" for bar in own],
                textposition="outside",
                textfont={"size": style.small, "color": style.colours.muted},
                cliponaxis=False,
                marker={
                    "color": faint(colour, 0.85),
                    "line": {"color": colour, "width": 1},
                    "pattern": bar_pattern(index, style),
                },
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [
                        0.0 if value is None or high is None else high - value
                        for value, _, high in values
                    ],
                    "arrayminus": [
                        0.0 if value is None or low is None else value - low
                        for value, low, _ in values
                    ],
                    "color": style.colours.ink,
                    "thickness": 1.2,
                    "width": 3,
                },
                hovertext=[_hover(bar, measure) for bar in own],
                hovertemplate="%{hovertext}<extra></extra>",
            )
        )
    figure.add_hline(0, line={"color": style.colours.ink, "width": 1})
    figure.update_layout(barmode="group", bargap=0.25, hovermode="closest")
    figure.update_xaxes(
        categoryorder="array",
        categoryarray=labels,
        type="category",
        ticks="",
        showline=False,
        # Labels turn only if the page is too narrow for horizontal ones.
        autotickangles=[0, 45],
        tickfont={"size": min(style.small, room / longest)},
    )
    figure.update_yaxes(showgrid=True)
    return with_legend(figure, style)


def _hover(bar: Bar, measure: str) -> str:
    title = ", ".join(filter(None, (TESTS[bar.test].title, bar.variant)))
    head = f"{escape(bar.model)}<br>{escape(title)}"
    if bar.value is None:
        return f"{head}<br>{'<br>'.join(map(escape, wrap(bar.note, 320, 13)))}"
    interval = "" if bar.low is None else f" [{bar.low:.3g}, {bar.high:.3g}]"
    return f"{head}<br>{escape(measure)} {bar.value:.3g}{interval}"

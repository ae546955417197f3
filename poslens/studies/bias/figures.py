"""The bar chart of bias tests, grouped by test."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.bias_tests import TESTS
from poslens.figures.captions import Provenances
from poslens.figures.figure_base import (
    canvas,
    intervals,
    labelled_bars,
    legend_name,
    with_legend,
)
from poslens.figures.palettes import Style, escape, text_width, wrap
from poslens.studies.bias.tables import BiasSummary, ScoredTest

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


def bias_chart(
    summaries: Sequence[BiasSummary], style: Style, provenance: Provenances = ()
) -> go.Figure:
    """A group of bars for each test, or each variant of a test, with one bar per model; above zero,
    d1 scores higher. The measure is that of the first summary.

    Whiskers are 95% intervals. A label replaces a bar without a value. The customdata of a bar is
    [model, name of the test and its variant].
    """
    measure = summaries[0].asked.measure
    tests = [test for summary in summaries for test in summary.tests]
    axis = next((_AXES[test.pairs.test] for test in tests if test.pairs.variant), "")
    figure = canvas("bias_tests", style, axis, MEASURES[measure], provenance)
    order = list(TESTS)
    tests.sort(key=lambda test: order.index(test.pairs.test))
    labels = list(dict.fromkeys(map(_label, tests)))
    # Labels get the largest font size at which neighbors don't overlap.
    room = (style.width_px - 6 * style.font_size) / max(1, len(labels))
    longest = max((text_width(label, 1.0) for label in labels), default=1.0)
    for index, summary in enumerate(summaries):
        model = summary.model.spec.name
        values = [_value(test, measure) for test in summary.tests]
        bars = list(zip(summary.tests, values, strict=True))
        figure.add_trace(
            go.Bar(
                x=[_label(test) for test in summary.tests],
                y=[value.value if value else 0.0 for value in values],
                name=legend_name(model, style),
                customdata=[[model, test.name] for test in summary.tests],
                text=["" if value else _instead(test) for test, value in bars],
                **labelled_bars(index, style),
                error_y={**intervals(values, style.colours.ink), "thickness": 1.2, "width": 3},
                hovertext=[_hover(model, test, value, measure) for test, value in bars],
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


def _label(test: ScoredTest) -> str:
    """The label below a bar: one word for a test, or the variant."""
    return test.pairs.variant or TESTS[test.pairs.test].title.split()[0]


def _value(test: ScoredTest, measure: str) -> Estimate | None:
    """The value of a bar with its 95% interval; None if it is not defined."""
    if measure == "mean difference":
        return test.difference
    t, interval = test.result.t, test.result.t_interval
    if t is None or interval is None:
        return None
    return Estimate(t, *interval).times(1.0 if measure == "t" else test.result.n_documents**-0.5)


def _instead(test: ScoredTest) -> str:
    """The label in place of a bar without a value."""
    return "tie" if test.result.difference == 0 else "none"


def _hover(model: str, test: ScoredTest, value: Estimate | None, measure: str) -> str:
    title = ", ".join(filter(None, (TESTS[test.pairs.test].title, test.pairs.variant)))
    head = f"{escape(model)}<br>{escape(title)}"
    if value is None:
        note = " ".join(test.result.remarks)
        return f"{head}<br>{'<br>'.join(map(escape, wrap(note, 320, 13)))}"
    return f"{head}<br>{escape(measure)} {value.text('.3g')}"

"""The figure of one pair's curves with the data set's means."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from poslens.attribution.curves.positions import positions
from poslens.attribution.interventions.null_controls import CONTROLS
from poslens.attribution.types import Attribution
from poslens.compute.provenance import of_published
from poslens.dashboard.explain.subject import ExplainedSubject, of_curves, sources
from poslens.dashboard.widgets import panels
from poslens.figures.curves import pair_curves
from poslens.figures.figure_base import quantity
from poslens.figures.palettes import Style
from poslens.studies.explain import service
from poslens.studies.explain.service import Average
from poslens.studies.published.service import means as published_means

BOTH, PAIR, DATA_SET = "both", "this pair", "data set"


def pair_figure(
    subject: ExplainedSubject,
    style: Style,
    averages: Sequence[Average | None] = (),
    controls: Sequence[Attribution | None] = (),
    which: str = BOTH,
) -> go.Figure:
    """The pair's curve for each model, minus its control's, with the models' means and published
    curves. Positions, including those of the evidence, are relative to the tokens read. `which`
    selects the pair, the means, or both."""
    results, kind, method = subject.results, subject.kind, subject.method
    published = () if which == PAIR else subject.published
    named = dict(zip(panels.labels(results), results, strict=True))
    means = {
        label: average.mean
        for label, average in zip(named, averages, strict=False)
        if average is not None and average.mean is not None and which != PAIR
    }
    attributions = dict(zip(named, controls, strict=False))
    drawn = {} if which == DATA_SET and means else named
    curves = {label: service.pair_curve(r, attributions.get(label)) for label, r in drawn.items()}
    evidence = {
        label: span
        for label, result in drawn.items()
        if (span := service.evidence_range(result)) is not None
    }
    title = quantity(method)
    if kind is not None and any(control is not None for control in controls):
        title += f", minus {CONTROLS[kind]}"
    return pair_curves(
        curves,
        evidence,
        style,
        title,
        {label: service.read_share(result) for label, result in drawn.items()},
        means=means,
        published=published_means(published, band=False),
        x=positions(method.curve_params["resampling"]),
        provenance=[
            *(of_curves(results, controls, kind) if drawn else ()),
            *(sources(averages) if means else ()),
            *map(of_published, published),
        ],
    )

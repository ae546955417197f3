"""Numbers in, Plotly figures out: nothing is computed here but where ink goes.

Every string that comes from data (model names, tokens, labels) passes `escape` on its way in.
Figures name what they show in `layout.meta["figure"]` and carry their provenance in
`layout.meta["provenance"]`, a list of dicts. Show them in Streamlit with `theme=None`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from attribution.curves.positions import BANDS
from attribution.curves.positions import band as band_of
from attribution.types import PositionCurve
from dashboard.drawing.figure_base import (
    BINS,
    CENTRES,
    POSITION_TITLE,
    TEXT_TITLE,
    Provenances,
    Span,
    bins,
    canvas,
    faint,
    label,
    legend_name,
    line,
    positions,
    provenance_entries,
    quantity,
    shade,
    with_legend,
)
from dashboard.drawing.palettes import PRESETS, Style, escape, shorten, text_width

__all__ = [
    "PRESETS",
    "Provenances",
    "Style",
    "difference",
    "escape",
    "interaction_matrix",
    "mean_curves",
    "pair_curves",
    "provenance_entries",
    "quantity",
    "rank_scatter",
]


def pair_curves(
    curves: Mapping[str, ArrayLike],
    evidence: Span | None,
    style: Style,
    y_title: str,
    read_until: Mapping[str, float] | None = None,
    *,
    x: Mapping[str, NDArray[np.float64]] | None = None,
    provenance: Provenances = (),
) -> go.Figure:
    """One document's curves, a line for each model, over one axis of the whole text.

    Args:
        curves: model -> [100] values over what that model read of the document.
        evidence: start and end of the evidence, as shares of the document in [0, 1]; shaded.
        read_until: model -> share of the document that it read. Its 100 bins are drawn over that
            part only, a dotted line ends it and the legend says so: what was not read has
            no value, which is not a value of zero.
        x: model -> where its points stand in the whole text [100], shares of its characters
            (`attribution.curves.text_axis`); evenly over what it read if not given.
        y_title: the quantity and its unit.

    Each point carries its bin 0..99 as customdata.

    Raises:
        ValueError: a curve is not [100], or a share lies outside [0, 1].
    """
    figure = canvas("pair_curves", style, TEXT_TITLE, y_title, provenance)
    shares = {model: (read_until or {}).get(model, 1.0) for model in curves}
    if any(not 0 < share <= 1 for share in shares.values()):
        raise ValueError(f"read_until {read_until}: shares lie in (0, 1]")
    for index, (model, values) in enumerate(curves.items()):
        share = shares[model]
        suffix = "" if share == 1 else f" (reads to {100 * share:.0f}%)"
        figure.add_trace(
            line(
                index,
                bins(values),
                style,
                legend_name(model + suffix, style),
                *((share,) if x is None else (1.0, x[model])),
            )
        )
        if share < 1:
            figure.add_vline(
                100 * share, line={**style.line(index), "dash": "dot", "width": 1}, layer="below"
            )
    unread_from = max(shares.values(), default=1.0)
    if unread_from < 1:
        shade(figure, (unread_from, 1.0), style.colours.unread, "not read", style)
    if evidence is not None:
        shade(figure, evidence, style.colours.evidence, "evidence", style)
    return with_legend(positions(figure), style, above=unread_from < 1 or evidence is not None)


def mean_curves(
    curves: Sequence[PositionCurve],
    style: Style,
    band: bool = True,
    *,
    kind: str = BANDS[0],
    notes: Mapping[str, str] | None = None,
    y_title: str | None = None,
    provenance: Provenances = (),
) -> go.Figure:
    """Means over a data set, a line for each curve, with a band of `kind` (see `BANDS`).

    Curves of one model are told apart by their data set, then their method. `notes` maps a model
    (or that longer name) to what the legend adds, for example n and the centre of mass. Without
    `y_title` the curves' common method names the axis. Each point, the band's too, carries its
    bin 0..99 as customdata; the bands (all drawn below the lines) come first among the traces.
    """
    titles = {quantity(curve.method) for curve in curves}
    if y_title is None:
        y_title = titles.pop() if len(titles) == 1 else "Attribution (unit of each method)"
    figure = canvas("mean_curves", style, POSITION_TITLE, y_title, provenance)
    if band:
        for index, curve in enumerate(curves):
            edges = band_of(curve, kind)
            if edges is None:
                continue
            figure.add_trace(
                go.Scatter(
                    x=100 * np.concatenate([curve.positions, curve.positions[::-1]]),
                    y=np.concatenate([edges[1], edges[0][::-1]]),
                    customdata=np.concatenate([BINS, BINS[::-1]]),
                    mode="lines",
                    fill="toself",
                    fillcolor=faint(str(style.line(index)["color"]), 0.2),
                    line={"width": 0},
                    hoverinfo="skip",
                    legendgroup=f"curve {index}",
                    showlegend=False,
                    name="95% interval" if kind == BANDS[0] else kind,
                )
            )
    for index, (name, curve) in enumerate(zip(_curve_names(curves), curves, strict=True)):
        note = (notes or {}).get(name, (notes or {}).get(curve.model, ""))
        shown = f"{name} ({note})" if note else name
        figure.add_trace(
            line(index, bins(curve.mean), style, legend_name(shown, style), x=curve.positions)
        )
    return with_legend(positions(figure), style)


def difference(
    a: PositionCurve | ArrayLike,
    b: PositionCurve | ArrayLike,
    names: tuple[str, str],
    style: Style,
    *,
    y_title: str | None = None,
    provenance: Provenances = (),
) -> go.Figure:
    """Curve a minus curve b with a zero line, filled on either side in that curve's colour.

    The means alone: it has no band and says nothing about significance. Where either is NaN, since
    a model has not read that far, nothing is drawn, and the end is shaded as not read.
    """
    if y_title is None and isinstance(a, PositionCurve):
        y_title = quantity(a.method)
    title = "Difference" if y_title is None else f"Difference in {y_title[0].lower()}{y_title[1:]}"
    values = [bins(one.mean if isinstance(one, PositionCurve) else one) for one in (a, b)]
    gap = values[0] - values[1]
    both = isinstance(a, PositionCurve)
    x = 100 * a.positions if isinstance(a, PositionCurve) else CENTRES
    known = np.isfinite(gap)
    gap, x, drawn = gap[known], x[known], BINS[known]
    title_x = POSITION_TITLE if both else TEXT_TITLE
    figure = canvas("difference", style, title_x, title, provenance)
    unread_from = 1.0 if known.all() else float(known.sum()) / len(known)
    if unread_from < 1:
        shade(figure, (unread_from, 1.0), style.colours.unread, "not read by both", style)
    for index, side in enumerate((np.maximum(gap, 0), np.minimum(gap, 0))):
        figure.add_trace(
            go.Scatter(
                x=x,
                y=side,
                customdata=drawn,
                mode="lines",
                fill="tozeroy",
                fillcolor=faint(str(style.line(index)["color"]), 0.35),
                line={"width": 0},
                hoverinfo="skip",
                name=legend_name(f"{names[index]} higher", style),
            )
        )
    trace = line(0, gap, style, f"{escape(names[0])} − {escape(names[1])}", x=x / 100)
    trace.update(customdata=drawn)
    trace.update(showlegend=False, line={"color": style.colours.ink, "dash": "solid"})
    figure.add_trace(trace)
    figure.add_hline(0, line={"color": style.colours.muted, "width": 1})
    return with_legend(positions(figure), style, above=unread_from < 1)


def rank_scatter(
    x: ArrayLike,
    y: ArrayLike,
    labels: Sequence[str],
    names: tuple[str, str],
    style: Style,
    *,
    y_title: str = "Saliency",
    same_scale: bool = True,
    n_labelled: int = 12,
    provenance: Provenances = (),
) -> go.Figure:
    """Words [n] by what two models give them: `x` is model names[0]'s, `y` names[1]'s.

    `same_scale` gives both axes one range and draws the diagonal: right for ranks and normalised
    values, wrong for units that differ. The `n_labelled` outermost words are written beside
    their points, fewer where they would overlap; hovering shows every word. customdata is the
    word's index.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if not xs.shape == ys.shape == (len(labels),):
        raise ValueError(f"{xs.shape} x values, {ys.shape} y values, {len(labels)} labels")
    figure = canvas(
        "rank_scatter", style, f"{y_title}, {names[0]}", f"{y_title}, {names[1]}", provenance
    )
    ranges = [_range(xs), _range(ys)]
    if same_scale:
        ranges = [_range(np.concatenate([xs, ys]))] * 2
        figure.add_shape(
            type="line",
            x0=ranges[0][0],
            y0=ranges[0][0],
            x1=ranges[0][1],
            y1=ranges[0][1],
            line={"color": style.colours.muted, "width": 1, "dash": "dot"},
            layer="below",
        )
    shown = _labelled(xs, ys, ranges, labels, n_labelled, style)
    figure.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            customdata=np.arange(len(labels)),
            mode="markers+text",
            text=[escape(shorten(word, 24)) if i in shown else "" for i, word in enumerate(labels)],
            textposition="top center",
            textfont={"size": 0.85 * style.font_size, "color": style.colours.ink},
            hovertext=[escape(word) for word in labels],
            hovertemplate="%{hovertext}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
            marker={
                "color": style.line(0)["color"],
                "size": 0.5 * style.font_size,
                "opacity": 0.7,
                "line": {"color": style.colours.paper, "width": 0.5},
            },
            cliponaxis=False,
            showlegend=False,
        )
    )
    figure.update_xaxes(range=ranges[0], showgrid=True)
    figure.update_yaxes(range=ranges[1])
    figure.update_layout(hovermode="closest")
    return figure


def interaction_matrix(
    matrix: ArrayLike,
    query_labels: Sequence[str],
    document_labels: Sequence[str],
    evidence_columns: Sequence[int] | None,
    style: Style,
    *,
    limit: float | None = None,
    y_title: str = "Contribution (score units)",
    provenance: Provenances = (),
) -> go.Figure:
    """Query tokens (rows, downwards) by document tokens (columns), white at zero.

    Args:
        matrix: [Q, D], signed.
        evidence_columns: document tokens inside the evidence; outlined.
        limit: colours run from -limit to limit; the greatest absolute value by default. Give two
            maps shown side by side the same one, or their colours can't be compared.

    Where more document tokens than fit are drawn, every k-th has its label; hovering shows all.
    """
    values = np.asarray(matrix, dtype=np.float64)
    if values.shape != (len(query_labels), len(document_labels)):
        raise ValueError(
            f"matrix {values.shape}, {len(query_labels)} x {len(document_labels)} labels"
        )
    bound = limit or float(np.abs(values).max(initial=0)) or 1.0
    figure = canvas(
        "interaction_matrix", style, "Document tokens", "Query tokens", provenance, top=True
    )
    figure.add_trace(
        go.Heatmap(
            z=values,
            zmin=-bound,
            zmax=bound,
            colorscale=[list(stop) for stop in style.diverging()],
            text=[
                [f"{escape(row)} × {escape(column)}" for column in document_labels]
                for row in query_labels
            ],
            hovertemplate="%{text}<br>%{z:.4g}<extra></extra>",
            colorbar={
                "title": {
                    "text": escape(y_title),
                    "side": "right",
                    "font": {"size": style.font_size},
                },
                "thickness": 0.8 * style.font_size,
                "outlinewidth": 0,
                "ticks": "outside",
                "nticks": 5,
                "xpad": 6,
            },
        )
    )
    for start, end in _runs(evidence_columns or ()):
        figure.add_shape(
            type="rect",
            x0=start - 0.5,
            x1=end + 0.5,
            y0=-0.5,
            y1=len(query_labels) - 0.5,
            line={"color": style.colours.ink, "width": 1.5},
        )
        label(figure, (start + end) / 2, "evidence", style, y=0, yanchor="top")
    room = style.width_px - 14 * style.font_size
    step = max(1, int(np.ceil(len(document_labels) * 1.2 * style.font_size / max(room, 1))))
    columns = range(0, len(document_labels), step)
    figure.update_xaxes(
        # Labels of unknown length stand on top, where the margin grows; the caption has the foot.
        side="top",
        tickangle=-90 if len(document_labels) > 1 else 0,
        tickvals=list(columns),
        ticktext=[escape(shorten(document_labels[column], 16)) for column in columns],
        automargin=True,
        showline=False,
        ticks="",
        ticklabelstandoff=3,
    )
    figure.update_yaxes(
        autorange="reversed",
        tickvals=list(range(len(query_labels))),
        ticktext=[escape(shorten(row, 16)) for row in query_labels],
        showline=False,
        showgrid=False,
        zeroline=False,
        ticks="",
        ticklabelstandoff=3,
    )
    figure.update_layout(hovermode="closest")
    return figure


def _curve_names(curves: Sequence[PositionCurve]) -> list[str]:
    """The shortest names that tell the curves apart: model, then data set, method, number."""
    names = [curve.model for curve in curves]
    for more in (lambda curve: curve.dataset, lambda curve: repr(curve.method)):
        groups: dict[str, set[str]] = {}
        for name, curve in zip(names, curves, strict=True):
            groups.setdefault(name, set()).add(more(curve))
        names = [
            f"{name}, {more(curve)}" if len(groups[name]) > 1 else name
            for name, curve in zip(names, curves, strict=True)
        ]
    return [
        f"{name} #{1 + names[:index].count(name)}" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


def _range(values: NDArray[np.float64]) -> list[float]:
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    if not values.size:
        low, high = 0.0, 1.0
    pad = 0.06 * (high - low) or 0.5
    return [low - pad, high + pad]


def _labelled(
    xs: NDArray[np.float64],
    ys: NDArray[np.float64],
    ranges: Sequence[Sequence[float]],
    labels: Sequence[str],
    at_most: int,
    style: Style,
) -> set[int]:
    """Indices of the outermost points whose labels do not run into each other (in px, roughly)."""
    across = (xs - ranges[0][0]) / (ranges[0][1] - ranges[0][0])
    up = (ys - ranges[1][0]) / (ranges[1][1] - ranges[1][0])
    width, height = style.width_px - 7 * style.font_size, style.height_px - 5 * style.font_size
    boxes: dict[int, tuple[float, float, float]] = {}
    order: list[int] = np.argsort(-np.maximum(across, up), kind="stable").tolist()
    for index in order:
        if len(boxes) == at_most:
            break
        half = text_width(shorten(labels[index], 24), 0.85 * style.font_size) / 2
        x, y = float(across[index]) * width, float(up[index]) * height
        if half <= x <= width - half + style.font_size and all(
            abs(x - other_x) > half + other_half or abs(y - other_y) > 1.2 * style.font_size
            for other_x, other_y, other_half in boxes.values()
        ):
            boxes[index] = (x, y, half)
    return set(boxes)


def _runs(columns: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of neighbouring columns."""
    runs: list[tuple[int, int]] = []
    for column in sorted(set(columns)):
        if runs and column == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], column)
        else:
            runs.append((column, column))
    return runs

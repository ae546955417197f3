"""Figures of rankings by the evidence's place, and of published saliency curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from attribution.position import LENGTH_BUCKETS, POSITIONS
from attribution.published import PublishedCurves
from attribution.ranking import N_EVIDENCE_BINS, EvidenceProfile
from dashboard.canvas import Provenances, canvas, faint, legend_name, positions, with_legend
from dashboard.palettes import Style

_CENTRES = (np.arange(N_EVIDENCE_BINS) + 0.5) * 100 / N_EVIDENCE_BINS
EVIDENCE_TITLE = "Relative position of the evidence (%)"


def evidence_bins(
    profiles: Mapping[str, EvidenceProfile], style: Style, *, provenance: Provenances = ()
) -> go.Figure:
    """nDCG@10 over 20 bins of the evidence's place, a line for each model; faint bars at the foot
    are the bins' queries. Bins without a query leave a gap."""
    figure = canvas("evidence_bins", style, EVIDENCE_TITLE, "nDCG@10", provenance)
    counts = np.array(next(iter(profiles.values())).counts, dtype=float)
    figure.add_trace(
        go.Bar(
            x=_CENTRES, y=counts, yaxis="y2", width=100 / N_EVIDENCE_BINS, showlegend=True,
            name=f"queries (up to {int(counts.max())} a bin)", hovertemplate="%{y:.0f} queries",
            marker={"color": faint(style.colours.muted, 0.18),
                    "line": {"color": style.colours.paper, "width": 1}},
        )
    )  # fmt: skip
    for index, (model, profile) in enumerate(profiles.items()):
        line = style.line(index)
        figure.add_trace(
            go.Scatter(
                x=_CENTRES, y=profile.means, mode="lines+markers", connectgaps=False,
                name=legend_name(model, style), line=line,
                marker={"color": line["color"], "size": 0.42 * style.font_size},
                customdata=np.arange(N_EVIDENCE_BINS), hovertemplate="%{y:.3f}",
            )
        )  # fmt: skip
    positions(figure)
    figure.update_yaxes(range=[0, 1.03])
    figure.update_layout(
        # Lines in front: the second axis would else be drawn over the first.
        yaxis={"overlaying": "y2", "side": "left"},
        yaxis2={"range": [0, 5 * counts.max()], "visible": False, "side": "right"},
    )
    return with_legend(figure, style)


def length_buckets(
    buckets: Mapping[str, Mapping[str, EvidenceProfile]], style: Style,
    *, provenance: Provenances = (),
) -> go.Figure:  # fmt: skip
    """nDCG@10 in each length bucket, a bar for each model: model -> bucket -> profile."""
    figure = canvas("length_buckets", style, "Document length (tokens)", "nDCG@10", provenance)
    ranges = dict(
        zip(LENGTH_BUCKETS, ("to 512", "513 to 1024", "1025 to 1536", "above"), strict=True)
    )
    known = [b for b in LENGTH_BUCKETS if any(b in profiles for profiles in buckets.values())]
    for index, (model, profiles) in enumerate(buckets.items()):
        shown = [profiles.get(bucket) for bucket in known]
        figure.add_trace(
            go.Bar(
                x=[f"{bucket}<br>{ranges[bucket]}" for bucket in known],
                y=[None if one is None else one.mean for one in shown],
                name=legend_name(model, style), marker={"color": style.line(index)["color"]},
                customdata=[0 if one is None else one.n for one in shown],
                hovertemplate="%{y:.3f}, %{customdata} queries",
            )
        )  # fmt: skip
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_yaxes(range=[0, 1.03])
    return with_legend(figure, style)


def published_curves(
    found: Sequence[PublishedCurves], style: Style, *, provenance: Provenances = ()
) -> go.Figure:
    """Mean and standard deviation (ddof=1) over documents at 100 positions, a line and a band for
    each model: figure 5 of the PosIR paper."""
    figure = canvas(
        "published_curves", style, "Relative position", "Normalized gradient L2 norm", provenance
    )
    for index, one in enumerate(found):
        figure.add_trace(
            go.Scatter(
                x=np.concatenate([POSITIONS, POSITIONS[::-1]]),
                y=np.concatenate([one.mean + one.std, (one.mean - one.std)[::-1]]),
                mode="lines", fill="toself", line={"width": 0}, hoverinfo="skip",
                fillcolor=faint(str(style.line(index)["color"]), 0.2), showlegend=False,
                name=f"{one.model}: standard deviation",
            )
        )  # fmt: skip
    for index, one in enumerate(found):
        figure.add_trace(
            go.Scatter(
                x=POSITIONS, y=one.mean, mode="lines", line=style.line(index),
                name=legend_name(f"{one.model} (n={one.n:,})", style), hovertemplate="%{y:.3f}",
            )
        )  # fmt: skip
    figure.update_xaxes(range=[0, 1], tickvals=[0, 0.2, 0.4, 0.6, 0.8, 1])
    figure.update_layout(hovermode="x unified")
    return with_legend(figure, style)

"""Published curves: others' saliency curves, averaged and drawn as the PosIR paper's figure 5."""

from __future__ import annotations

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.curves.published import figure_5
from poslens.compute.provenance import of_published
from poslens.dashboard.published import files as published_files
from poslens.dashboard.widgets import panels
from poslens.dashboard.widgets.tables import show_table
from poslens.figures.curves import Style
from poslens.studies.published.service import curves_frame, curves_summary
from poslens.studies.ranking.figures import published_curves

CITATION = (
    "Figure 5 of PosIR: Zeng et al. 2026, [arXiv:2601.08363](https://arxiv.org/abs/2601.08363), "
    "averaged here from the curves that the authors published. Choose or upload files to draw "
    "others."
)

st.markdown(
    "# Published: where do published models look?\n"
    "Mean and standard deviation over documents of curves that were computed elsewhere."
)
figure = st.container()
found = []
with panels.guarded():
    found = published_files.curves()
if not found:
    found = list(figure_5())
    st.caption(CITATION)
the_provenance = [of_published(one) for one in found]


def draw(style: Style) -> go.Figure:
    """Mean curves with their bands."""
    return published_curves(found, style, provenance=the_provenance)


with panels.guarded():
    with figure:
        panels.show(
            draw(panels.screen_style(height_px=520)),
            "published.figure",
            "Mean and standard deviation of published saliency curves",
        )
    show_table(
        curves_summary(found),
        column_config={
            name: st.column_config.NumberColumn(format="%.3f")
            for name in ("start", "end", "centre of mass", "primacy-recency index")
        },
    )
    panels.caption(the_provenance)
    panels.downloads(
        "published",
        ["figure5", *(one.model for one in found)],
        the_provenance,
        figures={"Figure 5": draw},
        frame=curves_frame(found),
    )

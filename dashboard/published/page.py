"""Published curves: others' saliency curves, averaged and drawn as the PosIR paper's figure 5."""

from __future__ import annotations

import streamlit as st

from dashboard.core.provenance import of_published
from dashboard.drawing.curves import Style
from dashboard.published import files as published_files
from dashboard.published.service import curves_frame, curves_summary
from dashboard.ranking.figures import published_curves
from dashboard.widgets import panels

st.markdown(
    "#### Published saliency curves\n"
    "Mean and standard deviation over documents of curves that were computed elsewhere. With the "
    "files of the PosIR paper, for Qwen3-Embedding-8B and NV-Embed-v2, this is its figure 5."
)
found = []
with panels.guarded():
    found = published_files.curves()
if not found:
    st.info("Choose or upload at least one file of curves.")
    st.stop()
the_provenance = [of_published(one) for one in found]


def draw(style: Style):
    """Mean curves with their bands."""
    return published_curves(found, style, provenance=the_provenance)


with panels.guarded():
    panels.show(
        draw(panels.screen_style(height_px=520)),
        "published.figure",
        "Mean and standard deviation of published saliency curves",
    )
    st.dataframe(
        curves_summary(found),
        hide_index=True,
        column_config={
            name: st.column_config.NumberColumn(format="%.3f")
            for name in ("start", "end", "centre of mass", "primacy-recency index")
        },
    )
    for one in the_provenance:
        panels.caption(one)
    panels.downloads(
        "published",
        ["figure5", *(one.model for one in found)],
        the_provenance,
        figures={"Figure 5": draw},
        frame=curves_frame(found),
    )

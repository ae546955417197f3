"""The Ranking page's section on groups of queries."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.datasets.types import Groups
from poslens.dashboard.widgets import panels
from poslens.dashboard.widgets.tables import show_table
from poslens.figures.palettes import Style
from poslens.studies.ranking import tables
from poslens.studies.ranking.figures import position_groups
from poslens.studies.ranking.service import Measured, group_provenance


def section(rankings: Sequence[Measured], groups: Groups | None, dataset: str) -> None:
    """nDCG over the data set's groups of queries, as in position-aware benchmarks; nothing if it
    has no groups."""
    by_group = {measured.name: measured.by_group for measured in rankings}
    grouped_rankings = {
        name: grouped_ranking
        for name, grouped_ranking in by_group.items()
        if grouped_ranking is not None
    }
    if groups is None or not grouped_rankings:
        return
    provenance = group_provenance(rankings)

    def draw(style: Style) -> go.Figure:
        """nDCG by group of queries."""
        return position_groups(grouped_rankings, style, provenance=provenance)

    st.markdown(f"**{panels.plain(groups.title)}: queries by {panels.plain(groups.by)}**")
    panels.show(draw(panels.screen_style(height_px=340)), "ranking.groups", "nDCG@10 by group")
    show_table(
        tables.TABLES["positions"].text_frame(rankings),
        column_config={
            name: st.column_config.NumberColumn(format="%.3f")
            for name in ("PSI", "PSI under permutation", "p")
        }
        | {"evidence read": st.column_config.NumberColumn(format="percent")},
    )
    st.caption(
        "nDCG@10 of each group. PSI is 1 minus the worst group's nDCG@10 divided by the best "
        "one's; PSI under permutation is the mean PSI after permuting queries between groups, and "
        "p the share of permutations whose PSI is at least as large as the one measured. "
        "Brackets are 95% bootstrap intervals over documents."
    )
    panels.downloads(
        "ranking.groups",
        [dataset, groups.name],
        provenance,
        figures={"Groups": draw},
        frame=tables.TABLES["groups"].frame(rankings),
    )

"""The page of a study: parameters in the sidebar, a run board, verdicts, figures, tables and
downloads. A page adds only what is special to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.compute.compute import Compute
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, panels, url_state
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.run_board import any_active, failed_items, run_board
from poslens.figures.palettes import Style
from poslens.study import (
    Choice,
    Figure,
    Integer,
    Numbers,
    Parameter,
    Plan,
    Settings,
    Several,
    Study,
    plan,
    stored,
)


@dataclass(frozen=True)
class Opened:
    """What a reader has chosen on a study's page, and the results that are complete."""

    data: DataSet
    settings: Settings
    corpus: Any
    compute: Compute
    summaries: tuple[Any, ...]


def study_page(study: Study[Any, Any, Any]) -> Opened | None:
    """Draw the page; what is below it, if anything, is the page's own. None where nothing can be
    computed of what is chosen."""
    with st.sidebar, panels.guarded():
        data = choices.data_set()
        names = choices.models(list(study.models))
        settings = study.parameters.settings(
            {name: _widget(name, one) for name, one in study.parameters.items()}
        )
        corpus = study.corpus(data, settings)
    st.markdown(f"# {study.title}\n{study.question} {study.reads}")
    if "corpus" not in locals():
        return None
    if not names:
        st.info("Choose a model.")
        return None
    compute = service_for(data.name)

    def planned() -> Plan[Any]:
        return plan(
            study, compute, [choices.spec(name, data.name) for name in names], corpus, settings
        )

    first = planned()
    for reason in first.refused:
        st.caption(panels.plain(reason))
    if not first.subjects:
        return None
    prefix = f"{study.name}."
    ticking = any_active(first.jobs)

    @fragment(run_every=2.0 if ticking else None)
    def board() -> None:
        """Progress and results; refreshed while something is computed."""
        with panels.guarded():
            jobs = planned().jobs
            results = st.container()
            run_board(jobs, prefix, unit=f"{study.unit}s")
            if any_active(jobs) != ticking:
                st.rerun()
            with results, panels.guarded():
                if summaries := stored(study, compute, first.subjects):
                    _results(study, data, summaries)
                else:
                    st.info("Nothing is computed yet: press Compute.")
            for job in jobs:
                if not job.active:
                    failed_items(job, job.failures(), prefix, unit=study.unit)

    board()
    with panels.guarded():
        return Opened(
            data, settings, corpus, compute, tuple(stored(study, compute, first.subjects))
        )
    return None


def _widget(name: str, one: Parameter[Any]) -> Any:
    title = one.title or name.replace("_", " ").capitalize()
    if isinstance(one, Integer):
        return url_state.whole_number(title, name, one.low, one.high, one.default, help=one.help)
    bound: dict[str, Any] = {"key": name, "bind": "query-params", "help": one.help}
    if isinstance(one, Several):
        return st.multiselect(
            title,
            one.options,
            default=list(one.default),
            accept_new_options=not one.closed,
            **bound,
        ) or list(one.default)
    if isinstance(one, Numbers):
        return st.text_input(title, one.text(), **bound)
    if isinstance(one, Choice):
        return st.segmented_control(title, one.options, default=one.default, required=True, **bound)
    raise TypeError(f"{type(one).__name__} has no widget")


def _results(study: Study[Any, Any, Any], data: DataSet, summaries: Sequence[Any]) -> None:
    provenance = [study.provenance(one) for one in summaries]

    def draw(figure: Figure[Any], style: Style) -> go.Figure:
        return figure.draw(summaries, style, provenance)

    figures: dict[str, Callable[[Style], go.Figure]] = {
        one.title: partial(draw, one) for one in study.figures
    }
    for number, (title, drawn) in enumerate(figures.items()):
        key = f"{study.name}.figure{number or ''}"
        panels.show(drawn(panels.screen_style(height_px=380)), key, title)
    for one in summaries:
        st.markdown(panels.plain(study.verdict(one)))
    for table in study.tables.values():
        if table.on_page and len(frame := table.text_frame(summaries)):
            if table.title:
                st.markdown(f"**{panels.plain(table.title)}**")
            st.dataframe(frame, hide_index=True)
    st.caption(panels.plain(study.limits))
    for made in provenance:
        panels.caption(made)
    panels.downloads(
        f"{study.name}.results",
        [data.name, study.name],
        provenance,
        figures=figures,
        tables={
            table.title or name.capitalize(): partial(table.frame, summaries)
            for name, table in study.tables.items()
        },
    )

"""Mean curves minus those of their null controls."""

from __future__ import annotations

from functools import partial

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.interventions.null_controls import CONTROLS, QUERY_CONTROLS, Control
from poslens.compute.runs import Job
from poslens.dashboard.curves.results import CurvesView
from poslens.dashboard.widgets import panels, say
from poslens.dashboard.widgets.run_board import run_board
from poslens.dashboard.widgets.tables import column_settings, show_table
from poslens.figures.figure_base import captioned
from poslens.figures.palettes import Style
from poslens.studies.curves.control import CONTROL, ControlPairs, ControlSubject, nulls_of
from poslens.studies.curves.null_controls import control_job, query_controls_agree
from poslens.study import AskedMethod
from poslens.study_plan import so_far


def section(view: CurvesView, kind: Control) -> None:
    """Progress of the controls' curves, and the study `control` of what is stored."""
    compute, method, selection = view.compute, view.method, view.selection
    corpus = ControlPairs(view.data.name, selection.pairs, selection.words, view.data.pairs)
    settings = CONTROL.parameters.settings({"control": kind})
    specs, subjects, jobs = view.specs(), list[ControlSubject](), list[Job]()
    for spec in specs:
        subject = AskedMethod(spec, corpus, settings, method)
        with panels.guarded():
            nulls = nulls_of(subject)
            run = view.named(control_job(compute, spec, method, kind, nulls, view.scope))
            if run.active or run.n_done() < run.total:
                label = f"{spec.name}, {CONTROLS[kind]}"
                run_board([run], "curves.null.", f".{spec.name}", label=label)
            jobs.append(CONTROL.job(compute, subject))
            subjects.append(subject)
    results = so_far(CONTROL, compute, subjects, jobs, on_error=lambda error: None)
    if not results.summaries:
        st.info("Compute the curves and their controls: no pair has both yet.")
        return
    summaries, provenance, (figure,) = results.summaries, results.provenances(), CONTROL.figures

    def draw(style: Style) -> go.Figure:
        return captioned(figure.draw(summaries, style), results.provenances(figure.title), style)

    title = f"Curves minus their control ({CONTROLS[kind]})"
    say.heading(title)
    panels.show(draw(panels.screen_style()), "curves.null.figure", title)
    for verdict in results.verdicts:
        say.sentence(verdict)
    for remark in CONTROL.remarks(summaries):
        say.caption(remark)
    for spec in specs if kind in QUERY_CONTROLS else ():
        with panels.guarded():
            agreed = query_controls_agree(compute, spec, method, corpus.pairs, corpus.among)
            if agreed is not None:
                first, other = (CONTROLS[each] for each in QUERY_CONTROLS)
                say.caption(
                    f"{spec.name}: the mean curves of {first} and {other} have a correlation of "
                    f"{agreed.text('.2f')} over {agreed.n:,} pairs."
                )
    table = CONTROL.tables["control"]
    show_table(table.text_frame(summaries), column_config=column_settings(table))
    say.caption(f"Control: {CONTROLS[kind]}. {CONTROL.limits}")
    panels.caption(provenance)
    titles = {"control": "Summary", "curve": "Numbers"}
    panels.downloads(
        "curves.null",
        [view.data.name, method.name, "minus", kind],
        provenance,
        figures={"Minus control": draw},
        tables={title: partial(CONTROL.frame, summaries, name) for name, title in titles.items()},
        sources={title: partial(results.provenances, name) for name, title in titles.items()},
    )

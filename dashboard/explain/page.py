"""Explain: which tokens carry one pair's score, under one to four models."""

from __future__ import annotations

import time

import streamlit as st

from dashboard.core.compute import Explained
from dashboard.core.own_texts import service_for
from dashboard.core.waiting import wait
from dashboard.heatmap.data import MAX_COLUMNS
from dashboard.interventions import null_controls
from dashboard.widgets import choices, panels
from dashboard.widgets.pair_picker import choose_pair

PAUSE = 0.1  # seconds

pair = method = None
with st.sidebar:
    top = st.container()
    names = choices.models(["MiniLM"])
    with panels.guarded():
        method = choices.method(names)
with panels.guarded():
    pair = choose_pair(names, method, top)

if pair is None or method is None:
    st.stop()
if not names:
    st.info("Choose a model in the sidebar.")
    st.stop()

shown = [pair]
with panels.guarded():
    data = choices.data_of(pair)
    other = data.version_of(pair) if data else None
    room = 2 * len(names) <= MAX_COLUMNS
    if data and other and panels.other_version(data.version_name, other, room):
        shown.append(other)

results: list[Explained] = []
for one in shown:
    for name in names:
        with panels.guarded(), st.spinner(f"Computing {panels.plain(name)}", show_time=True):
            results.append(
                wait(service_for(one.dataset).ask(one, choices.spec(name, one.dataset), method))
            )
if not results:
    st.stop()
labels = panels.labels(results)

for column, label, result in zip(st.columns(len(results)), labels, results, strict=True):
    with column:
        st.markdown(f"**{panels.plain(label)}**")
        panels.metrics(result)
        if result.notice:
            st.warning(panels.plain(result.notice))
        panels.model_notes(result)

view = panels.token_heatmap(results, key="explain.heatmap")
# A chart that reaches the browser together with the heatmap holds its drawing up by some 250 ms.
time.sleep(PAUSE)

for number, (label, result) in enumerate(zip(labels, results, strict=True)):
    with panels.guarded():
        panels.matrix_view(result, f"matrix{number}", label)
        panels.terms_view(result, f"terms{number}", label)

st.markdown("**Where in the document**")
panels.show_curve(results, "explain.curve", height_px=320)
null_controls.link(method, pair.dataset, names)
for result in results:
    panels.caption(result.provenance())
panels.downloads(
    "explain",
    [pair.pair_id, *names, method.name],
    [result.provenance() for result in results],
    figures={"Curve": lambda style: panels.curve_figure(results, style)},
    heatmaps=results,
    view=view,
    frame=lambda: panels.explained_frame(results),
)

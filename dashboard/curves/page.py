"""Curves: saliency over relative positions, averaged over a data set, for several models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from poslens.attribution.methods import METHODS
from poslens.compute.selection import Selection
from poslens.dashboard.curves import controls
from poslens.dashboard.curves.results import CurvesView, results
from poslens.dashboard.widgets import choices, links, null_controls, panels, published_files, say
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.reading_panel import readable_pairs
from poslens.dashboard.widgets.run_board import results_unit, run_board, watched
from poslens.dashboard.widgets.tables import rejected_rows

WATCH_S = 3.0

st.markdown("# Curves: where in a document does each model look?")
chosen_data = picked = chosen = None
posir = False
with st.sidebar:
    with panels.guarded():
        chosen_data = choices.data_set()
    names = choices.models(["MiniLM-primacy", "MiniLM", "MiniLM-recency"])
    narrowing = st.expander("Filter pairs")
    if chosen_data is not None:
        with panels.guarded(), narrowing:
            posir = choices.posir_protocol()
            filtered = choices.filters(chosen_data)
            picked = filtered.posir if posir else filtered
    with panels.guarded():
        chosen = choices.method(names, posir=posir)
if chosen_data is None or picked is None or chosen is None:
    st.stop()
data, method = chosen_data, chosen
view = CurvesView(data, tuple(names), method, picked, posir)
with narrowing, panels.guarded():
    readable, left_out = readable_pairs(view.specs(), picked.pairs)
    words = ", ".join(filter(None, (picked.words, left_out)))
    view = replace(view, selection=Selection(data, readable, words))
selection = view.selection

n_pairs = "" if len(selection.pairs) == len(data.pairs) else f"{len(selection.pairs):,} of "
st.markdown(
    f"{panels.plain(data.title)}: {METHODS[method.name].title} by position. Selected: "
    f"{n_pairs or 'all '}{len(data.pairs):,} pairs"
    + (f" ({panels.plain(selection.words)})." if selection.words else ".")
)
rejected_rows(data.rejected, f"{len(data.rejected):,} rows of the data set were rejected")
if not selection.pairs:
    st.info("No pair matches the filters. Change them in the sidebar.")
    st.stop()
if not names:
    st.info("Select a model in the sidebar.")
    st.stop()
if METHODS[method.name].needs_query and not selection.pairs.has_queries:
    free = [name for name, entry in METHODS.items() if not entry.needs_query]
    say.info(
        f"These documents have no queries, and {METHODS[method.name].title} needs one. "
        f"Select {' or '.join(METHODS[name].title for name in free)} as the method, or use "
        "the Audit page, which searches the documents for their own sentences."
    )
    asked: dict[str, str | Sequence[str]] = {"dataset": data.name, "models": names}
    with st.container(horizontal=True):
        for name in free:
            links.page_link("curves/page.py", METHODS[name].title, "", {**asked, "method": name})
        links.page_link("audit/page.py", "Audit", "", asked)
    st.stop()

with st.sidebar:
    with st.expander("Control"):
        control = null_controls.switch(method, view.specs())
    published = published_files.curves()


def board() -> None:
    """Progress and curves."""
    progress = st.container()
    curves = view.curves()
    n_done = 0
    if computing := view.jobs():
        with progress:
            unit = results_unit("pair", len(computing))
            n_done = run_board(computing, unit=unit, rate_unit="pairs", others=True)
    if computing and not n_done and not view.active():
        st.info("No curve has been computed for these pairs. Press Compute.")
    if curves and control is not None:
        controls.section(view, control)
    if curves or published:
        with panels.guarded():
            results(view, curves, published)


@fragment(run_every=WATCH_S)
def watch() -> None:
    """Rerun the page when another process starts to compute what is shown here."""
    if view.active():
        st.rerun()


if not watched(view.active, board, seconds=1.0):
    watch()

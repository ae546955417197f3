"""Two documents of one query side by side: the contribution of each token to the difference of
their scores."""

from __future__ import annotations

import streamlit as st

from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.compute.compute import Compute
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import panels, say
from poslens.dashboard.widgets.sending import agreed
from poslens.studies.explain.minus import contrast_note, contrasted, fitting
from poslens.studies.explain.service import reading
from poslens.studies.explain.tables import explained_frame


def contrast_view(
    page: str,
    compute: Compute,
    spec: RetrieverSpec,
    first: TextPair,
    second: TextPair,
    item: str,
    scores: tuple[float, float] | None = None,
) -> Method | None:
    """Draw the contrast of two documents, d1 and d2, under a method that the user selects. Returns
    the method, or None if the contrast is not computed yet. `page` is the prefix of widget keys,
    `item` names the two documents in file names, and `scores` are the scores to show; by default
    those of the attributions."""
    name = st.selectbox(
        "Method",
        fitting(compute, spec),
        key=f"contrast.{spec.family}",
        format_func=lambda name: (
            f"{METHODS[name].title} (adds up)" if METHODS[name].additive else METHODS[name].title
        ),
    )
    method = make_method(name or "")
    sides = (("d1", first), ("d2", second))
    may = [agreed(compute, spec, method, pair, label) for label, pair in sides]
    if not all(may):  # `all` after the list, so that the page asks about both documents at once
        return None
    with st.spinner(f"Computing {METHODS[name].title}", show_time=True):
        explained, other = (wait(compute.ask(pair, spec, method)) for _, pair in sides)
    contrast = contrasted(explained, other)
    shown = contrast.shown()
    say.heading(first.query)
    s1, s2 = scores or (explained.attribution.score, other.attribution.score)
    with st.container(horizontal=True, gap="medium"):
        st.metric("s(d1)", f"{s1:.4f}", width="content")
        st.metric("s(d2)", f"{s2:.4f}", width="content")
        st.metric("s(d1) − s(d2)", f"{s1 - s2:+z.4f}", width="content")
    if contrast.contrast is None:
        say.info(f"{contrast.reason} Each document is shown with its own values.")
    else:
        say.caption(contrast_note(contrast.contrast))
    drawn = panels.panes(shown)
    view = panels.token_heatmap(drawn, shown[0].attribution.method, key=f"{page}.heatmap")
    for label, side in (("d1", contrast.first), ("d2", contrast.second)):
        read = reading(side)
        say.caption(f"{label}: {read.text}. {read.title if read.warning else ''}".rstrip())
    provenance = contrast.provenance()
    panels.caption(provenance)
    panels.downloads(
        f"{page}.contrast",
        [item, spec.name, str(name), "contrast"],
        provenance,
        heatmap=drawn,
        view=view,
        tables={"Numbers": lambda: explained_frame(shown, "document")},
    )
    return method

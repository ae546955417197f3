"""Entry point that Streamlit runs: pages and what they share."""

from __future__ import annotations

from urllib.parse import urlsplit

import streamlit as st

from poslens.compute.compute import service
from poslens.compute.runs import Run
from poslens.dashboard.server import access, own_texts, people, rights, serve
from poslens.dashboard.widgets import links, login
from poslens.dashboard.widgets.guard import guarded
from poslens.dashboard.widgets.run_board import run_strip

SIDEBAR_PX = 240

# Not in a folder named `pages`: Streamlit would run a file of it by itself, without this script,
# when the first visitor's address names it.
st.set_page_config(
    page_title="PosLens", page_icon="🔎", layout="wide", initial_sidebar_state=SIDEBAR_PX
)

# Nothing of a page runs for anybody else.
if not login.entered():
    st.stop()

# Streamlit gives its default page no address but the root. Explain answers to both; of the two the
# navigation shows the one that is open.
at_root = urlsplit(st.context.url or "").path.strip("/") in ("", access.current().base_path)
explain = [
    st.Page(
        "explain/page.py",
        title="Explain",
        default=True,
        visibility="visible" if at_root else "hidden",
    ),
    st.Page(
        "explain/page.py",
        url_path="explain",
        title="Explain",
        visibility="hidden" if at_root else "visible",
    ),
]
# page.css draws a line after the last page of each group.
page = st.navigation(
    [
        *(explain if at_root else reversed(explain)),
        # Pairs
        st.Page("compare/page.py", url_path="compare", title="Compare"),
        st.Page("why/page.py", url_path="why", title="Why"),
        st.Page("cause/page.py", url_path="cause", title="Cause"),
        # Data sets
        st.Page("curves/page.py", url_path="curves", title="Curves"),
        st.Page("ranking/page.py", url_path="ranking", title="Ranking"),
        st.Page("debias/page.py", url_path="debias", title="Debias"),
        st.Page("audit/page.py", url_path="audit", title="Audit"),
        st.Page("passport/page.py", url_path="passport", title="Passport"),
        st.Page("map/page.py", url_path="map", title="Map"),
        # Methods
        st.Page("methods/page.py", url_path="methods", title="Methods"),
        st.Page("storage/page.py", url_path="storage", title="Storage"),
    ],
    position="top",
)

other_page = st.session_state.get("app.page") != page.url_path
# A link to another page may ask for what a widget shows by default; Streamlit would then let stand
# what the session remembers of that widget.
if other_page:
    st.session_state["app.page"] = page.url_path
    # Keys of widgets that the address holds are plain words; what else the session keeps has a dot
    # or a space in its name, which no link can drop.
    for name in filter(str.isidentifier, st.query_params):
        st.session_state.pop(name, None)
links.arrive()


def runs_at_work() -> list[Run]:
    """The runs that this reader may see and stop."""
    runs = service().runs.active(own_texts.owners(), upkeep=rights.may_change())
    return [run for run in runs if people.may_stop(run)]


with guarded():
    run_strip(runs_at_work, other_page=other_page)
with guarded():
    page.run()
serve.drawn()

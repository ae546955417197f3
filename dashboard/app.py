"""Entry point that Streamlit runs: navigation and elements shared by all pages."""

from __future__ import annotations

from urllib.parse import urlsplit

import streamlit as st

from poslens.compute.compute import service
from poslens.compute.runs import Run
from poslens.dashboard.server import access, own_texts, people, serve
from poslens.dashboard.widgets import address, links, login
from poslens.dashboard.widgets.guard import guarded
from poslens.dashboard.widgets.run_board import run_strip

SIDEBAR_PX = 240

# Not in a folder named `pages`: if the first visitor's address named a file in it, Streamlit would
# run that file directly, without this script.
st.set_page_config(
    page_title="PosLens", page_icon="🔎", layout="wide", initial_sidebar_state=SIDEBAR_PX
)

# Users who may not enter run no page code.
if not login.entered():
    st.stop()

# Streamlit gives its default page no address but the root. Explain has both addresses; the
# navigation lists the one that is open.
at_root = urlsplit(st.context.url or "").path.strip("/") in ("", access.current.base_path)
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

# A link to another page may request a widget's default value. Streamlit would then use the
# session's value of that widget instead.
if st.session_state.get("app.page") != page.url_path:
    st.session_state["app.page"] = page.url_path
    # Keys of widgets bound to the address are identifiers. Other session keys contain a dot or a
    # space, so no link can delete them.
    for name in filter(str.isidentifier, st.query_params):
        st.session_state.pop(name, None)
    links.carry()
links.arrive()


def runs_at_work() -> list[Run]:
    """The active runs that this user may see and stop."""
    runs = service().runs.active(own_texts.owners(), upkeep=people.may_change())
    return [run for run in runs if people.may_stop(run)]


with guarded():
    run_strip(runs_at_work, page.url_path)
# The container also exists without a warning, so that the page's elements keep their positions.
with guarded(), st.container(key="unknown_in_address", gap=None):
    address.report_unknown()
with guarded():
    page.run()
serve.drawn()

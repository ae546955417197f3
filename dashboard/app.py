"""Entry point that Streamlit runs: pages and what they share."""

from __future__ import annotations

import streamlit as st

from dashboard.widgets.guard import guarded

# Not in a folder named `pages`: Streamlit would run a file of it by itself, without this script,
# when the first visitor's address names it.
st.set_page_config(page_title="PosLens", page_icon="🔎", layout="wide")

pages = [
    st.Page(
        "explain/page.py",
        url_path="explain",
        title="Explain",
        icon=":material/highlight:",
        default=True,
    ),
    st.Page("compare/page.py", url_path="compare", title="Compare", icon=":material/compare:"),
    st.Page("curves/page.py", url_path="curves", title="Curves", icon=":material/show_chart:"),
    st.Page("interventions/page.py", url_path="cause", title="Cause", icon=":material/swap_vert:"),
    st.Page("ranking/page.py", url_path="ranking", title="Ranking", icon=":material/leaderboard:"),
    st.Page("map/page.py", url_path="map", title="Map", icon=":material/scatter_plot:"),
    st.Page(
        "faithfulness/page.py",
        url_path="faithfulness",
        title="Faithfulness",
        icon=":material/fact_check:",
    ),
    st.Page("bias/page.py", url_path="bias", title="Bias tests", icon=":material/balance:"),
    st.Page(
        "published/page.py",
        url_path="published",
        title="Published",
        icon=":material/library_books:",
    ),
    st.Page("cache_page/page.py", url_path="cache", title="Cache", icon=":material/database:"),
]
page = st.navigation(pages, position="top")

# A link to another page may ask for what a widget shows by default; Streamlit would then let stand
# what the session remembers of that widget.
if st.session_state.get("app.page") != page.url_path:
    st.session_state["app.page"] = page.url_path
    # Keys of widgets that the address holds are plain words; what else the session keeps has a dot
    # or a space in its name, which no link can drop.
    for name in filter(str.isidentifier, st.query_params):
        st.session_state.pop(name, None)

with guarded():
    page.run()

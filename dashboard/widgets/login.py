"""Login and logout."""

from __future__ import annotations

import streamlit as st

from poslens.dashboard.server import access, people
from poslens.dashboard.widgets import say
from poslens.dashboard.widgets.guard import guarded
from poslens.figures.plain import plain


def entered() -> bool:
    """Whether the page may be shown: no login is configured, or the user has logged in and is
    admitted. Otherwise draws the login instead."""
    settings = access.current()
    if not settings.knows_people:
        return True
    allowed = False
    with guarded():
        if not people.person():
            _ask()
            return False
        allowed = people.may_enter()
        if allowed and settings.login:
            _name_and_way_out()
        elif not allowed:
            _turn_away()
    return allowed


def _ask() -> None:
    st.title("PosLens")
    st.markdown(
        "PosLens tests whether a text retriever overlooks evidence because of its position."
    )
    st.button("Log in", on_click=st.login, type="primary", icon=":material/login:")
    if st.query_params:
        st.caption("Login returns to the first page: open your link again afterwards.")


def _name_and_way_out() -> None:
    with st.sidebar, st.container(key="login"):
        st.button(
            plain(f"Log out {people.shown_name()}"),
            on_click=st.logout,
            type="tertiary",
            icon=":material/logout:",
        )


def _turn_away() -> None:
    st.title("PosLens")
    name = people.shown_name()
    reason = f"{name} doesn't have access to this PosLens."
    if people.unverified():
        reason = (
            f"{name} can't be admitted: the identity provider doesn't state that it verified the "
            "address (email_verified)."
        )
    say.error(f"{reason} Ask the administrator.", icon=":material/error:")
    if access.current().login:
        st.button("Log out", on_click=st.logout, icon=":material/logout:")

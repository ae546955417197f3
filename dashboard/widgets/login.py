"""Login and logout."""

from __future__ import annotations

import logging

import streamlit as st

from poslens.dashboard.server import access, oidc, people
from poslens.dashboard.widgets import say
from poslens.dashboard.widgets.guard import guarded
from poslens.figures.plain import plain

_UNAVAILABLE = "login.unavailable"
"""The session's key of whether the identity provider didn't answer."""


def entered() -> bool:
    """Whether the page may be shown: no login is configured, or the user has logged in and is
    admitted. Otherwise draws the login instead."""
    settings = access.current
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
    st.button("Log in", on_click=_log_in, type="primary", icon=":material/login:")
    if st.session_state.pop(_UNAVAILABLE, False):
        st.error(
            "You can't log in now, because the identity provider doesn't answer: try again later, "
            "or tell the administrator.",
            icon=":material/error:",
        )
    if st.query_params:
        st.caption("Login returns to the first page: open your link again afterwards.")


def _log_in() -> None:
    """Go to the identity provider if it answers; otherwise Streamlit would show a page with the
    words "Authentication error" alone."""
    if trouble := oidc.trouble(st.secrets["auth"]["server_metadata_url"]):
        logging.getLogger(__name__).warning(trouble)
        st.session_state[_UNAVAILABLE] = True
    else:
        st.login()


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
    if access.current.login:
        st.button("Log out", on_click=st.logout, icon=":material/logout:")

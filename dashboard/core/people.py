"""Who reads a page. Where people log in each has what is theirs; else a browser tab has."""

from __future__ import annotations

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from dashboard.core import access, door
from dashboard.core.runs import Run
from dashboard.core.settings import PEOPLE

NAME = "name"
"""Under which `st.user` holds what the proxy's header says."""


def person() -> str:
    """What tells the person apart who reads this page; empty where nobody has logged in, and
    outside of pages."""
    if get_script_run_ctx(suppress_warning=True) is None:
        return ""
    known = access.current()
    if known.proxies:
        return _of_proxy()
    if known.login and st.user.get("is_logged_in") and st.user.get("sub"):
        return f"{st.user.get('iss', '')} {st.user.get('sub', '')}"
    return ""


def reader() -> str:
    """Whose a run or a request is: the person, else the browser tab; empty outside of pages."""
    here = get_script_run_ctx(suppress_warning=True)
    return "" if here is None else person() or here.session_id


def shown_name() -> str:
    """What the person is called on pages."""
    if access.current().proxies:
        return _of_proxy()
    values = (st.user.get(key) for key in ("email", "preferred_username", "name", "sub"))
    return next((str(value) for value in values if value), "")


def may_enter() -> bool:
    """Whether the person who has logged in is one of `POSLENS_PEOPLE`."""
    listed = {name.strip().lower() for name in PEOPLE.get().split(",")} - {""}
    if not listed:
        return True
    if access.current().proxies:
        name = _of_proxy().lower()
    elif st.user.get("email_verified") is True:
        name = str(st.user.get("email") or "").lower()
    else:
        return False  # anybody may claim an address that nobody has checked
    return bool(name) and (name in listed or f"@{name.rpartition('@')[2]}" in listed)


def may_stop(run: Run) -> bool:
    """Whether this reader may stop a run: everybody where nobody logs in, else who started it."""
    return not access.current().knows_people or run.reader == reader()


def _of_proxy() -> str:
    return door.readable(str(st.user.get(NAME) or "").encode("latin-1"))

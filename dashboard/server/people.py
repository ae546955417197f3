"""Identities of users, and what they may do. With a login, data belongs to a person; without one,
to a browser tab."""

from __future__ import annotations

import re

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from poslens.compute.runs import Run
from poslens.compute.settings import PEOPLE, UPKEEP
from poslens.dashboard.server import access, access_middleware

NAME = "name"
"""The key of `st.user` that contains the proxy header's value."""

_ADDRESS = re.compile(
    rb"[a-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[a-z0-9!#$%&'*+/=?^_`{|}~-]+)*(?P<domain>@[a-z0-9.-]+)"
)
"""An email address in lower case, with an unquoted local part (RFC 5322, section 3.4.1,
dot-atom)."""

_PASSED_ON = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via")
"""Headers added by proxies, behind which every user seems to be on this machine."""

REFUSED = (
    "Only the administrator can do this: with the command line on the server, or on any page if "
    f"PosLens was started with {UPKEEP.name}=yes."
)


def person() -> str:
    """Identifies the logged-in person; empty without a login, and outside of pages."""
    if get_script_run_ctx(suppress_warning=True) is None:
        return ""
    settings = access.current
    if settings.proxies:
        return _of_proxy()
    if settings.login and st.user.get("is_logged_in") and st.user.get("sub"):
        return f"{st.user.get('iss', '')} {st.user.get('sub', '')}"
    return ""


def reader() -> str:
    """The owner of a run or a request: the person, else the browser tab; empty outside of pages."""
    context = get_script_run_ctx(suppress_warning=True)
    return "" if context is None else person() or context.session_id


def shown_name() -> str:
    """The person's display name."""
    if access.current.proxies:
        return _of_proxy()
    values = (st.user.get(key) for key in ("email", "preferred_username", "name", "sub"))
    return next((str(value) for value in values if value), "")


def may_enter() -> bool:
    """Whether `POSLENS_PEOPLE` admits the logged-in person. An empty list admits everyone.

    Names are compared exactly, except that ASCII letters match regardless of case.
    """
    if not PEOPLE.get().strip():
        return True
    if access.current.proxies:
        name: object = _of_proxy()
    elif unverified():
        return False  # such an address could be anyone's
    else:
        name = st.user.get("email")
    listed = (entry.strip() for entry in PEOPLE.get().split(","))
    return isinstance(name, str) and any(_admits(_folded(e), _folded(name)) for e in listed if e)


def unverified() -> bool:
    """Whether the identity provider doesn't confirm the address of the logged-in person."""
    return not access.current.proxies and st.user.get("email_verified") is not True


def _admits(entry: bytes, name: bytes) -> bool:
    """Whether an entry of the list admits a name: `@example.org` admits every valid address of that
    domain; any other entry admits only itself."""
    if not entry.startswith(b"@"):
        return name == entry
    address = _ADDRESS.fullmatch(name)
    return address is not None and address["domain"] == entry


def _folded(name: str) -> bytes:
    # Bytes are lowercased in ASCII only: str.lower() would turn the Kelvin sign into k.
    return name.encode("utf-8", "surrogatepass").lower()


def may_stop(run: Run) -> bool:
    """Whether this user may stop a run: anyone without a login, else only the person who started
    it."""
    return not access.current.knows_people or run.reader == reader()


def may_change() -> bool:
    """Whether this user may delete from, import into and compact the cache, and download models: as
    `POSLENS_UPKEEP` specifies, else only if the browser runs on this machine.

    Raises:
        UserError: the setting has an invalid value.
    """
    text = UPKEEP.get()
    return text == "yes" or (text == "auto" and _on_this_machine())


def _on_this_machine() -> bool:
    if access.current.beyond_this_machine:
        return False  # behind a local proxy every user seems to be local
    headers = st.context.headers
    return st.context.ip_address is None and not any(name in headers for name in _PASSED_ON)


def _of_proxy() -> str:
    return access_middleware.readable(str(st.user.get(NAME) or "").encode("latin-1"))

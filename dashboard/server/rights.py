"""Permissions of a user on shared resources: the cache, the models, the disk."""

from __future__ import annotations

import streamlit as st

from poslens.compute.settings import UPKEEP
from poslens.dashboard.server import access

_PASSED_ON = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via")
"""Headers added by proxies, behind which every user seems to be on this machine."""

REFUSED = (
    "Only the administrator can do this: on the server's own machine, or on any page if PosLens "
    f"was started with {UPKEEP.name}=yes."
)


def may_change() -> bool:
    """Whether this user may delete from, import into and compact the cache, and download models: as
    `POSLENS_UPKEEP` specifies, else only if the browser runs on this machine.

    Raises:
        UserError: the setting has an invalid value.
    """
    text = UPKEEP.get()
    return text == "yes" or (text == "auto" and _on_this_machine())


def _on_this_machine() -> bool:
    if access.current().beyond_this_machine:
        return False  # behind a local proxy every user seems to be local
    headers = st.context.headers
    return st.context.ip_address is None and not any(name in headers for name in _PASSED_ON)

"""What a reader may do to what all readers share: the cache, the models, the disk."""

from __future__ import annotations

import streamlit as st

from poslens.compute.settings import UPKEEP
from poslens.dashboard.server import access

_PASSED_ON = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via")
"""What proxies add, which make everybody seem to come from this machine."""

REFUSED = (
    "Only the administrator can do this: on the server's own machine, or on any page if PosLens "
    f"was started with {UPKEEP.name}=yes."
)


def may_change() -> bool:
    """Whether this reader may delete from, import into and compact the cache, and fetch models:
    as `POSLENS_UPKEEP` says, else where the browser runs on this machine.

    Raises:
        UserError: the setting holds a value that it does not take.
    """
    text = UPKEEP.get()
    return text == "yes" or (text == "auto" and _on_this_machine())


def _on_this_machine() -> bool:
    if access.current().beyond_this_machine:
        return False  # a proxy on this machine makes everybody seem to be
    headers = st.context.headers
    return st.context.ip_address is None and not any(name in headers for name in _PASSED_ON)

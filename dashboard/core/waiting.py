"""Wait on a page for what the device's queue computes, and let go of it when the page is gone."""

from __future__ import annotations

from typing import TypeVar

import streamlit as st

from dashboard.core.queue import Place

T = TypeVar("T")
_POLL_S = 0.15


def wait(place: Place[T]) -> T:
    """The result. Meanwhile the page says how many are served before it; closing the tab or
    changing a widget leaves the queue.

    Raises:
        whatever computing it raised.
    """
    box = st.empty()
    shown = -1
    try:
        while not place.wait(_POLL_S):
            # Streamlit ends a script whose tab was closed, or whose widgets changed, only where
            # the script calls it: reading the session's state is such a call.
            st.session_state.get("waiting")
            ahead = place.ahead
            if ahead != shown:
                shown = ahead
                box.caption(f"{ahead:,} before this one in the queue.") if ahead else box.empty()
        return place.result()
    finally:
        place.leave()
        if shown > 0:
            box.empty()

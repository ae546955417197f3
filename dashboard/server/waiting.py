"""Waiting on a page for the device queue, leaving the queue when the page is closed."""

from __future__ import annotations

import time
from typing import TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_requests import ScriptRequestType

from poslens.attribution.errors import Stopped
from poslens.compute.queue import Place
from poslens.compute.runs import duration
from poslens.figures.plain import plain

T = TypeVar("T")
STOPPED = "Stopped before the result was ready."
_POLL_S, _MOMENT_S = 0.15, 1.5


def wait(place: Place[T], stop_key: str = "") -> T:
    """The result. In the meantime the page shows the position in the queue and, if known, the
    progress. Closing the tab or changing a widget leaves the queue. With `stop_key`, a computation
    that takes longer than a moment gets a Stop button: see `stopped`.

    Raises:
        Exception: any exception raised by the computation.
        Stopped: the user has pressed Stop.
    """
    box = st.empty()
    line: DeltaGenerator | None = None
    shown = ""
    started = time.monotonic()
    try:
        while not place.wait(_POLL_S):
            # Streamlit ends a script whose tab was closed, or whose widgets changed, only inside a
            # call to Streamlit, such as reading the session state.
            st.session_state.get("waiting")
            if stop_key and _pressed(_button(stop_key)):
                raise Stopped(STOPPED)
            progress_text, share = _how_far(place)
            slow = bool(stop_key) and time.monotonic() - started > _MOMENT_S
            if line is None and (progress_text or slow):
                line = _line(box, stop_key)
            if line is not None and progress_text != shown:
                shown = progress_text
                if share is not None:
                    line.progress(share, text=plain(progress_text))
                elif progress_text:
                    line.caption(plain(progress_text))
                else:
                    line.empty()
        return place.result()
    finally:
        place.leave()
        if line is not None:
            box.empty()


def _how_far(place: Place[T]) -> tuple[str, float | None]:
    """The state of a request in words, and the share of it that is done, if known."""
    if ahead := place.ahead:
        return f"{ahead:,} ahead in the queue.", None
    progress = place.progress
    if progress is None:
        return "", None
    left = progress.remaining_seconds
    share = progress.done / progress.total
    parts = (place.doing, f"{share:.0%}", f"about {duration(left)} left" if left else "")
    return " · ".join(filter(None, parts)), share


def _line(box: DeltaGenerator, stop_key: str) -> DeltaGenerator:
    """A progress line with its Stop button."""
    row = box.container(horizontal=True, vertical_alignment="center")
    line = row.empty()
    if stop_key:
        row.button(
            "Stop",
            key=_button(stop_key),
            on_click=st.session_state.__setitem__,
            args=(stop_key, True),
        )
    return line


def _button(stop_key: str) -> str:
    return f"{stop_key}.button"


def _pressed(key: str) -> bool:
    """Whether the user has pressed the button with this key since the script started. If it is in a
    fragment, Streamlit doesn't end the script for it, as it does for other widgets: the fragment
    would run again only once the result is ready."""
    context = get_script_run_ctx(suppress_warning=True)
    requests = None if context is None else context.script_requests
    if requests is None or requests._state != ScriptRequestType.RERUN:
        return False
    states = requests._rerun_data.widget_states
    return states is not None and any(
        state.trigger_value and state.id.endswith(key) for state in states.widgets
    )


def stopped(stop_key: str) -> bool:
    """Whether the user has stopped the computation named by `stop_key`; if so, a button restarts
    it."""
    if stop_key not in st.session_state:
        return False
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(STOPPED, width="content")
        st.button(
            "Compute", key=f"{stop_key}.again", on_click=st.session_state.pop, args=(stop_key,)
        )
    return True

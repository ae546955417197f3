"""The token heatmap as a Streamlit element: one st.components.v2 component for all panes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import streamlit as st
from streamlit.components.v2 import component as register

from poslens.heatmap.assets import component_script, styles
from poslens.heatmap.data import Pane, View, payload

# Registered when this module is first imported, once a process: each further registration with
# other code makes Streamlit warn. Streamlit itself hands the definition on to a later runtime.
_mount = register("poslens_heatmap", css=styles(), js=component_script(), isolate_styles=True)

_MAX_ECHOES = 16
"""Views remembered for a page that never passes them back."""


def heatmap(panes: Sequence[Pane], view: View, key: str) -> View:
    """Draw the panes, a column per model, and return the view that its reader has chosen.

    The toggles act in the browser at once; each then starts a rerun in which this returns the
    new view. Pass a returned view in again (through the URL, say), or always the same one; another
    view than the one passed before is drawn and returned instead, if it is not such an echo.

    Raises:
        ValueError: see `payload`.
    """
    forced = _forced(view, key)
    held = dict(st.session_state.get(key) or {}).get("view")
    data: dict[str, Any] = payload(panes, View.from_dict(held or view.to_dict()))
    # the browser compares these instead of panes and views
    beside = [{"rail": pane["rail"], "head": pane["head"]} for pane in data["panes"]]
    texts = [{**pane, "rail": None, "head": None} for pane in data["panes"]]
    data["digest"] = _digest([texts, data["columns"]])
    data["beside"] = _digest(beside)
    data["forced"] = forced
    result = _mount(
        key=key, data=data, default={"view": view.to_dict()}, on_view_change=lambda: None
    )
    chosen = View.from_dict(result.get("view") or view.to_dict())
    returned = st.session_state.setdefault(f"{key}.returned", [])
    if returned[-1:] != [chosen]:
        returned.append(chosen)
        del returned[:-_MAX_ECHOES]
    return chosen


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def _forced(view: View, key: str) -> int:
    """How often the page, not its reader, has changed the view; counts this run's change.

    A page that keeps the view in its URL passes each of the reader's views one or more runs late:
    such an echo must not undo what the reader has chosen since. Echoes come in the order in which
    the views were returned, so what was returned before one is forgotten with it.
    """
    state = st.session_state
    passed, returned = state.get(f"{key}.passed"), state.get(f"{key}.returned", [])
    count = int(state.get(f"{key}.forced", 0))
    state[f"{key}.passed"] = view
    if view in returned:
        del returned[: returned.index(view)]
    elif passed is not None and view != passed:
        count += 1
        state[f"{key}.forced"] = count
        returned.clear()
        if state.get(key):
            state[key]["view"] = view.to_dict()
    return count

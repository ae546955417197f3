"""The token heatmap as a Streamlit element: one st.components.v2 component for all panes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import streamlit as st
from streamlit.components.v2 import component as register

from poslens.dashboard.server import first_heatmap
from poslens.heatmap.assets import component_script
from poslens.heatmap.data import Pane, View, payload

# Registered when this module is first imported, once per process: registering it again with other
# code makes Streamlit warn. Streamlit passes the definition on to a later runtime.
_mount = register("poslens_heatmap", js=component_script(), isolate_styles=True)

_MAX_ECHOES = 16
"""Number of returned views remembered, for pages that never pass them back."""


def heatmap(panes: Sequence[Pane], view: View, key: str) -> View:
    """Draw the panes, one column per model, and return the view that the user has selected.

    The toggles take effect in the browser immediately; each then triggers a rerun in which this
    returns the new view. Pass a returned view in again (for example through the URL), or always the
    same one. A view that differs from the one passed before, and is not such an echo, is drawn and
    returned.
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
    data["drawn"] = first_heatmap.address()
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
    """How often the page, as opposed to the user, has changed the view, including this run.

    A page that stores the view in its URL passes each of the user's views back one or more runs
    late. Such an echo must not undo what the user has selected since. Echoes arrive in the order in
    which the views were returned, so views returned before an echo are removed together with it.
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

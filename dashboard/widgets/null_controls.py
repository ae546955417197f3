"""Subtraction of null controls from curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import streamlit as st

from poslens.attribution.interventions.null_controls import (
    CONTROLS,
    Control,
    controls_for,
)
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.shipped.preferences import verdict
from poslens.dashboard.widgets import choices, say

_ASKED = "control.asked"
"""The session's key of a control that the switch will show."""


def switch(method: Method, specs: Sequence[RetrieverSpec]) -> Control | None:
    """Choose whether to subtract a null control from the method's curves of these models, and
    which."""
    labels = ["off", *(CONTROLS[kind] for kind in _fitting(method, specs))]
    if asked := st.session_state.pop(_ASKED, None):
        st.session_state["control"] = asked
    chosen = choices.one_of(
        "Subtract control",
        labels,
        "control",
        help="Subtracts from each pair's curve its curve under a control: an unrelated query, the "
        "document's sentences in random order, or neutral text instead of the document. What "
        "remains is due to what the control changes. For saliency, the query-free profile (the "
        "part that does not depend on the query) can be subtracted too.",
    )
    return _kind(chosen, method, specs)


def chosen(method: Method, specs: Sequence[RetrieverSpec]) -> Control | None:
    """The selected control; None if the switch has not been shown yet."""
    return _kind(st.session_state.get(_ASKED) or st.session_state.get("control"), method, specs)


def _fitting(method: Method, specs: Sequence[RetrieverSpec]) -> tuple[Control, ...]:
    return controls_for(method, map(family_of, specs))


def _kind(chosen: object, method: Method, specs: Sequence[RetrieverSpec]) -> Control | None:
    return next((kind for kind in _fitting(method, specs) if CONTROLS[kind] == chosen), None)


NOT_MEASURED = (
    "Subtract the curve of an unrelated query to see how much of a curve depends on the query."
)


def hint(
    method: Method,
    kind: Control | None,
    specs: Iterable[RetrieverSpec],
    *,
    offered: bool = True,
) -> None:
    """What the method itself prefers, what a curve of these models without a null control doesn't
    show, and a button that subtracts the control. `offered` is False for texts outside any data
    set, which have no control: then only what concerns the method."""
    if sentence := verdict(method, specs):
        say.caption(sentence)
    entry = METHODS[method.name]
    text = entry.caveat or (NOT_MEASURED if entry.needs_query and offered else "")
    if not text or kind is not None:
        return
    answer: Control = "shuffled" if entry.caveat else "unrelated"
    with st.container(horizontal=True, vertical_alignment="center"):
        say.caption(text, width="content")
        if offered and st.button(
            f"Subtract control: {CONTROLS[answer]}", key="null.subtract", type="tertiary"
        ):
            # The switch sets it: it can be outside the fragment, whose rerun would restore it.
            st.session_state[_ASKED] = CONTROLS[answer]
            st.rerun()

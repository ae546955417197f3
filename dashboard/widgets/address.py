"""Warnings about what the address names and PosLens doesn't know."""

from __future__ import annotations

import streamlit as st

from poslens.attribution import datasets
from poslens.attribution.methods import METHODS
from poslens.dashboard.server import own_texts
from poslens.dashboard.widgets import say


def report_unknown() -> None:
    """Warn if the address names a data set or a method that doesn't exist. For the main area: a
    warning next to its list would be hidden on phones, where the sidebar is closed. Call it before
    the page, whose widgets replace such names."""
    _report_data_set()
    _report_methods()


def _report_data_set() -> None:
    names = [*datasets.names(), *own_texts.uploads()]
    asked = st.query_params.get("dataset")
    if asked is None or asked in names:
        return
    hint = " Uploaded files belong to one browser session: upload the file again."
    say.warning(
        f"There is no data set {asked[:80]!r}, so the page opens with its default. Available data "
        f"sets: {', '.join(names)}.{hint if asked.startswith('upload-') else ''}"
    )


def _report_methods() -> None:
    asked = [*st.query_params.get_all("method"), *st.query_params.get_all("methods")]
    if unknown := [name for name in asked if name not in METHODS]:
        say.warning(
            f"There is no method {unknown[0][:80]!r}, so the page ignores it. Available methods: "
            f"{', '.join(METHODS)}."
        )

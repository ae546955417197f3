"""Warnings about what the address names and PosLens doesn't know."""

from __future__ import annotations

from difflib import get_close_matches

import streamlit as st

from poslens.attribution import datasets
from poslens.attribution.methods import METHODS
from poslens.compute.selection import FACETS
from poslens.dashboard.server import own_texts
from poslens.dashboard.widgets import links, say
from poslens.dashboard.widgets.choices import STATISTICS
from poslens.dashboard.widgets.typed_text import IN_ADDRESS
from poslens.heatmap.data import View
from poslens.studies import declared

NAMES = frozenset(
    "a axis b band color control corpus curves_of displace evidence filters item method methods "
    "model of order paint pair published rank ranking_against ranking_of search test text under "
    "versions".split()
)
"""Parameters of single pages and of selections that no study has."""

SIMILAR = 0.7
"""Minimum similarity of an unknown parameter to a known one, from 0 to 1, to be reported. Others,
such as those of a campaign or of a proxy's login, aren't meant for PosLens."""


def report_unknown() -> None:
    """Warn if the address has a misspelled parameter or names an unknown data set or method. For
    the main area, because phones hide the sidebar. Call it before the page, whose widgets replace
    such names."""
    _report_parameters()
    _report_data_set()
    _report_methods()


def _report_parameters() -> None:
    names = {*NAMES, *IN_ADDRESS, *FACETS, STATISTICS, *View().to_dict(), *links.shared()}
    if not (unknown := st.query_params.keys() - names):
        return
    # Only now, because importing all studies takes a moment.
    names |= {name for study in declared().values() for name in study.load().parameters}
    for name in sorted(unknown - names):
        if like := get_close_matches(name, names, cutoff=SIMILAR):
            say.warning(
                f"Unknown parameter {name[:80]!r} in the address; the page ignores it. Similar "
                f"parameters: {', '.join(like)}."
            )


def _report_data_set() -> None:
    names = [*datasets.names(), *own_texts.uploads()]
    asked = st.query_params.get("dataset")
    if not asked or asked in names:
        return
    hint = " Uploaded files belong to one browser session: upload the file again."
    say.warning(
        f"There is no data set {asked[:80]!r}, so the page opens with its default. Available data "
        f"sets: {', '.join(names)}.{hint if asked.startswith('upload-') else ''}"
    )


def _report_methods() -> None:
    asked = [*st.query_params.get_all("method"), *st.query_params.get_all("methods")]
    for name in dict.fromkeys(name for name in asked if name and name not in METHODS):
        say.warning(
            f"There is no method {name[:80]!r}, so the page ignores it. Available methods: "
            f"{', '.join(METHODS)}."
        )

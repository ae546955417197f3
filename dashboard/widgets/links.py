"""Links between pages that preserve the selected data set, pair, models and method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from poslens.attribution import datasets
from poslens.attribution.datasets import DataSet
from poslens.attribution.methods import CURVE_PARAMETERS, METHODS
from poslens.attribution.types import Method
from poslens.dashboard.server import access, own_texts
from poslens.dashboard.widgets import choices, url_state
from poslens.dashboard.widgets.tables import chosen_row
from poslens.dashboard.widgets.typed_text import OWN
from poslens.figures.plain import plain
from poslens.heatmap.data import MAX_COLUMNS

_Asked = dict[str, str | Sequence[str]]
_CARRIED = "to."
_SWITCHES = ("posir", "readable")


def open_pairs(
    frame: pd.DataFrame, dataset: str, models: Sequence[str], key: str, method: Method | None = None
) -> None:
    """A table of pairs (column `pair` contains their ids); selecting a row opens the pair in
    Explain."""
    row = chosen_row(frame, key, "pair", height=240)
    if row is not None:
        explain_link("Explain this pair", dataset, str(frame["pair"].iloc[row]), models, method)


def explain_link(
    label: str, dataset: str, pair: str, models: Sequence[str], method: Method | None = None
) -> None:
    """A link that opens a pair in Explain, under `method` with its current parameters."""
    asked: _Asked = {"pair": pair, "dataset": dataset, **_asked(models, method)}
    page_link("explain/page.py", label, ":material/highlight:", asked)


def other_views(
    here: str,
    data: DataSet | None,
    pair: str,
    models: Sequence[str],
    method: Method | None = None,
) -> None:
    """One line of links: the same pair, models and method on the other pages about a pair, and the
    data set on Curves and Ranking. `here` is the current page, which is omitted. Without `data`,
    the pair is the session's own texts."""
    of_data = {} if data is None else {"dataset": data.name}
    of_pair: _Asked = {"text": OWN} if data is None else {"pair": pair}
    asked, ranked = ({**of_data, **_asked(models, how)} for how in (method, None))
    with st.container(
        horizontal=True, gap="xsmall", vertical_alignment="center", key=f"{here}.other_views"
    ):
        st.caption("These texts:" if data is None else "This pair:", width="content")
        if here != "explain":
            page_link("explain/page.py", "Explain", "", {**of_pair, **asked})
        if here != "cause":
            page_link("cause/page.py", "Cause", "", {**of_pair, **asked})
        if here != "methods":
            tested: _Asked = {"methods": [method.name]} if method is not None else {}
            page_link("methods/page.py", "Methods", "", {**of_pair, **ranked, **tested})
        if data is not None:
            st.caption("Its data set:", width="content")
            page_link("curves/page.py", "Curves", "", asked)
            page_link("ranking/page.py", "Ranking", "", ranked)


def text_link(
    label: str,
    query: str,
    document: str,
    dataset: str,
    models: Sequence[str],
    *,
    evidence: str = "",
    page: str = "",
    icon: str = ":material/highlight:",
) -> None:
    """A link that opens a query with a document of a data set that are not one of its pairs, as
    typed texts: on the page of this path, or in Explain. BM25 scores them with the data set's word
    statistics, as in its rankings."""
    if not url_state.in_link(query, document, evidence):
        st.caption("The chosen document is too long for a link; copy its text to Explain.")
        return
    asked: _Asked = {"text": OWN, "q": query, "d": document}
    asked |= {"e": evidence} if evidence else {}
    if dataset in datasets.names():  # an upload belongs to this tab
        asked["dataset"] = dataset
    asked |= {**choices.statistics_in_link(models, dataset), "models": list(models)}
    address = urlencode(asked, doseq=True)
    st.link_button(
        plain(label),
        f"{access.current.root}{page}?{address}",
        icon=icon,
        help="Opens a new tab. Its address contains the query and the document.",
    )


def page_link(page: str, label: str, icon: str, asked: Mapping[str, str | Sequence[str]]) -> None:
    """A link to a page with the values `asked` for its widgets, by their names in the address.

    A link, not `st.switch_page`: a script can't set values that widgets of its page have bound to
    the address.
    """
    # Streamlit drops parameters from a link to another page that a widget of this page has bound.
    carried = {f"{_CARRIED}{k}" if k in shared() else k: v for k, v in asked.items()}
    st.page_link(page, label=plain(label), icon=icon or None, query_params=carried, width="content")


def carry() -> None:
    """Keep what the user chose on the page that was left, where the address doesn't say otherwise;
    call it when another page opens. Streamlit alone loses what a link has chosen."""
    if _CARRIED in st.query_params:
        return
    for name in shared() - {"tab"}:
        if name not in st.session_state or name in st.query_params:
            continue
        value = st.session_state[name]
        if value == st.session_state.get(url_state.DEFAULT.format(name)):
            del st.session_state[name]  # this page can have another default
        elif name in ("dataset", "models"):
            url_state.choose(name, value)
        else:  # not in the address, because few pages have this widget
            st.session_state[name] = value


def arrive() -> None:
    """Set widgets to the values in the link that was followed, or of the page to which the user
    returns; call it before any widget is created. Invalid values are ignored."""
    back = _CARRIED in st.query_params
    if back:
        for name in filter(str.isidentifier, map(str, list(st.session_state))):
            del st.session_state[name]  # of a widget bound to the address
        url_state.forget()  # what the page just left has stored, such as its method
    offered = [*datasets.names(), *own_texts.uploads()]
    entry = METHODS.get(st.query_params.get("method", ""))
    parameters = (*(entry.parameters if entry else ()), *CURVE_PARAMETERS)
    options: dict[str, Sequence[str]] = {"dataset": offered}
    options |= {parameter.name: parameter.choices for parameter in parameters}
    for name in shared():
        asked = st.query_params.get_all(f"{_CARRIED}{name}")
        if not asked:
            continue
        del st.query_params[f"{_CARRIED}{name}"]
        value: object = None
        if name == "models":
            value = asked = list(dict.fromkeys(asked))[:MAX_COLUMNS]
        elif name in _SWITCHES:
            value = asked[0] == "true"
        elif name == "tab" or asked[0] in options.get(name, ()):
            value = asked[0]
        if value is not None:
            url_state.choose(name, value)
    if back:
        for name in [name for name in st.query_params if name.startswith(_CARRIED)]:
            del st.query_params[name]
        # In this run, Streamlit would reset what it dropped from the address.
        st.rerun()


def shared() -> set[str]:
    """The parameters that widgets of several pages have in the address."""
    parameters = (*CURVE_PARAMETERS, *(p for entry in METHODS.values() for p in entry.parameters))
    return {"dataset", "models", "tab", *_SWITCHES, *(parameter.name for parameter in parameters)}


def _asked(models: Sequence[str], method: Method | None) -> _Asked:
    asked: _Asked = {"models": list(models)}
    if method is not None:
        values = {**method.params, **method.curve_params}
        offered = (*METHODS[method.name].parameters, *CURVE_PARAMETERS)
        asked["method"] = method.name
        asked |= {p.name: str(values[p.name]) for p in offered if len(p.choices) > 1}
    return asked

"""The pair that a page is about: from a data set, or typed in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from attribution.errors import UserError
from attribution.text import clean
from attribution.types import EvidenceSpan, Method, TextPair
from cache.storage.store import StoredCurves
from dashboard.core.own_texts import service_for
from dashboard.drawing.plain import plain
from dashboard.widgets import url_state
from dashboard.widgets.choices import (
    Selection,
    bucket_of,
    data_set,
    evidence_position,
    filters,
    spec,
    statistics,
)
from dashboard.widgets.orders import AS_GIVEN, ORDERS, SHUFFLED, arrange
from dashboard.widgets.orders import HELP as ORDER_HELP
from dashboard.widgets.tables import rows_key

_TYPED = "Own text"
_FROM_DATA = "Data set"


def choose_pair(
    models: Sequence[str] = (), method: Method | None = None, place: DeltaGenerator | None = None
) -> TextPair | None:
    """Choose a pair from a data set or type one; None until there is one.

    Pairs can be ordered by what is stored of `models` under `method`; what narrows them down stands
    in `place`, else in the sidebar.
    """
    place = place or st.sidebar.container()
    with place:
        source = st.segmented_control(
            "Text",
            [_FROM_DATA, _TYPED],
            default=_FROM_DATA,
            key="text",
            bind="query-params",
            required=True,
        )
    if source == _TYPED:
        typed = _typed_pair()
        if typed is not None:
            statistics(models, typed.dataset)
        return typed
    with place:
        data = data_set()
        with st.expander("Filter and order pairs", expanded=False):
            selection = filters(data)
            order = _order(method is not None)
    statistics(models, data.name)
    return _picked_pair(selection, order, models, method)


def _order(measured: bool) -> str:
    offered = ORDERS if measured else (AS_GIVEN, SHUFFLED)
    asked = url_state.get("order", AS_GIVEN)
    chosen = st.selectbox(
        "Order",
        offered,
        index=offered.index(asked) if asked in offered else 0,
        help=ORDER_HELP,
        key=f"order.{measured}",
    )
    url_state.put("order", chosen or AS_GIVEN, AS_GIVEN)
    return chosen or AS_GIVEN


def _ordered(
    selection: Selection, order: str, models: Sequence[str], method: Method | None
) -> tuple[tuple[TextPair, ...], Mapping[str, float]]:
    def stored(index: int) -> StoredCurves | None:
        if method is None or index >= len(models):
            return None
        model = service_for(selection.data.name).identify(spec(models[index], selection.data.name))
        return service_for(selection.data.name).store.curves(model.key, method, selection.pairs)

    try:
        return arrange(selection.pairs, order, stored)
    except UserError as error:
        st.warning(f"Pairs are in the order of the data set: {plain(error)}")
        return selection.pairs, {}


def _picked_pair(
    selection: Selection, order: str, models: Sequence[str], method: Method | None
) -> TextPair | None:
    if not selection.pairs:
        st.info("No pair passes the filters: widen them in the sidebar.")
        return None
    pairs, values = _ordered(selection, order, models, method)
    asked = url_state.get("pair")
    chosen: TextPair | None = None
    if asked:
        try:
            chosen = selection.data.pair(asked)
        except UserError as error:
            st.warning(plain(error))
    ids = [p.pair_id for p in pairs]
    if chosen is None:
        # A document that most models read whole makes the better first picture.
        short = (p for p in pairs if order == AS_GIVEN and bucket_of(p) == "Q1")
        chosen = next(short, pairs[0])
    url_state.put("pair", chosen.pair_id)
    at = ids.index(chosen.pair_id) if chosen.pair_id in ids else None

    def go(step: int) -> None:
        target = 0 if at is None else (at + step) % len(ids)
        url_state.put("pair", ids[target])

    with st.container(horizontal=True, wrap=False):
        with st.expander(f"Choose a pair · {len(pairs):,} of {len(selection.data.pairs):,}"):
            if order not in (AS_GIVEN, SHUFFLED) and len(values) < len(pairs):
                st.caption(
                    f"{len(pairs) - len(values):,} of {len(pairs):,} pairs have no {plain(order)} "
                    "yet and come last: compute them on the Curves page."
                )
            _pair_table(pairs, at, order, values)
        st.button(
            "",
            icon=":material/chevron_left:",
            key="previous",
            help="Previous pair (p)",
            on_click=go,
            args=(-1,),
            shortcut="p",
        )
        st.button(
            "",
            icon=":material/chevron_right:",
            key="next",
            help="Next pair (n)",
            on_click=go,
            args=(1,),
            shortcut="n",
        )
    if at is None:
        st.caption("This pair does not pass the filters.")
    return chosen


def _pair_table(
    pairs: Sequence[TextPair], at: int | None, order: str, values: Mapping[str, float]
) -> None:
    ids = tuple(p.pair_id for p in pairs)
    key = rows_key("pairs", ids)

    def choose() -> None:
        for row in st.session_state[key].selection.rows:
            if row in range(len(ids)):
                url_state.put("pair", ids[row])

    frame = pd.DataFrame(
        {
            "query": [p.query for p in pairs],
            "domain": [p.domain for p in pairs],
            "language": [p.language for p in pairs],
            "tokens": [p.document_tokens for p in pairs],
            "evidence": [
                None if (position := evidence_position(p)) is None else 100 * position
                for p in pairs
            ],
            "pair": ids,
        }
    )
    if values:
        frame.insert(0, order, [values.get(pair_id) for pair_id in ids])
    st.dataframe(
        frame,
        key=key,
        hide_index=True,
        height=280,
        on_select=choose,
        selection_mode="single-row",
        selection_default=None if at is None else {"selection": {"rows": [at]}},
        column_config={
            "query": st.column_config.TextColumn("Query", width="large"),
            "evidence": st.column_config.NumberColumn("Evidence at", format="%.0f%%"),
            "tokens": st.column_config.NumberColumn("Tokens", format="localized"),
        },
    )


def _typed_pair() -> TextPair | None:
    st.session_state.setdefault("typed.query", url_state.get("q"))
    st.session_state.setdefault("typed.document", url_state.get("d"))
    query = st.text_input("Query", key="typed.query", persist_state="session")
    document = st.text_area("Document", key="typed.document", height=180, persist_state="session")
    evidence = st.text_input(
        "Evidence (optional)",
        key="typed.evidence",
        persist_state="session",
        help="A passage of the document, letter for letter, that answers the query.",
    )
    fits = [url_state.text("q", query or ""), url_state.text("d", document or "")]
    if not all(fits):
        st.caption("These texts are too long for a link: the address does not hold them.")
    if not (query or document):
        st.info("Type a query and a document.")
        return None
    try:
        clean_query, clean_document = clean(query or "", "query"), clean(document or "", "document")
    except UserError as error:
        st.warning(plain(error))
        return None
    replaced = clean_query.n_replaced + clean_document.n_replaced
    if replaced:
        st.caption(
            f"{replaced:,} characters that are not text were replaced by \N{REPLACEMENT CHARACTER}."
        )
    span = None
    if evidence and evidence.strip():
        start = clean_document.text.find(evidence.strip())
        if start < 0:
            st.warning("The evidence does not occur in the document: copy it letter for letter.")
        else:
            span = EvidenceSpan(start, start + len(evidence.strip()))
    digest = hashlib.sha256(f"{clean_query.text}\0{clean_document.text}".encode()).hexdigest()[:12]
    return TextPair(f"typed-{digest}", clean_query.text, clean_document.text, span)

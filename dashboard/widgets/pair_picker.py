"""The pair picker, one line at the top of a page: a pair of a data set, or the user's own texts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted
from poslens.attribution.text import word_spans
from poslens.attribution.types import Method, TextPair
from poslens.cache.storage.store import ModelKey, StoredCurves
from poslens.compute.selection import (
    AS_GIVEN,
    FACETS,
    ORDERS,
    SHUFFLED,
    Filters,
    Selection,
    arrange,
    evidence_position,
    facet_labels,
    facets,
    pairs_read_unlike,
)
from poslens.compute.selection import HELP as ORDER_HELP
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import say, url_state
from poslens.dashboard.widgets.choices import filters, spec, specs, statistics
from poslens.dashboard.widgets.reading_panel import readable_pairs
from poslens.dashboard.widgets.tables import on_row, with_values
from poslens.dashboard.widgets.typed_text import OWN, typed_text
from poslens.figures.plain import plain

MAX_LISTED = 1000
"""Maximum number of pairs in the list, around the selected one. The table contains all pairs."""

_PICK, _FILTERS, _SHOWN = "pair.pick", "pair.filters", "pair.shown"


def choose_pair(
    data: DataSet, models: Sequence[str] = (), method: Method | None = None
) -> TextPair | None:
    """Choose a pair from a data set, or enter one; None until there is one.

    Pairs can be sorted by results of `models` under `method`, and restricted to pairs that these
    models can read (see `readable_pairs`).
    """
    bar = st.container(horizontal=True, vertical_alignment="center", gap="xsmall", key="pair_bar")
    with bar:
        # Containers first: the list's contents depend on the filters, which are drawn further down.
        before, listed, about, after, table, own = (
            st.container(width=width)
            for width in ("content", "stretch", "content", "content", "content", "content")
        )
    typed, asked_for_own = typed_text(own)
    with table:
        popover = st.popover(
            "Filters",
            icon=":material/tune:",
            key=_FILTERS,
            on_change="rerun",
            help="Filter and sort pairs, or show all of them in a table",
        )
    selection, order = facets(data).select(Filters()), AS_GIVEN
    rows: DeltaGenerator = popover
    if popover.open or _narrowed():
        with popover, st.container(key="pair_filters"):
            selection = filters(data)
            if models:
                readable, _ = readable_pairs(specs(models, data.name), selection.pairs)
                selection = selection.of(readable)
            orders = (AS_GIVEN, SHUFFLED) if method is None else ORDERS
            key = f"order.{method is not None}"
            order = url_state.option("Order", "order", orders, key=key, help=ORDER_HELP)
            rows = st.container()
    statistics(models, typed.dataset if typed and asked_for_own else data.name)
    ordered, values = _ordered(selection, order, models, method)
    chosen = _asked(ordered, order, asked_for_own)
    if chosen is not None:
        st.session_state[_SHOWN] = chosen.pair_id
        _bar(before, listed, about, after, ordered, chosen, typed, asked_for_own)
        if popover.open:
            with rows:
                _table(ordered, chosen, order, values)
    if asked_for_own:
        return typed
    if chosen is None:
        st.info("No pair matches the filters. Change them.")
    elif ordered.pairs.find(chosen.pair_id) is None:
        st.caption("This pair doesn't match the filters.")
    return chosen


def _narrowed() -> bool:
    """Whether any filter of the popover is set; if not, and the popover is closed, its widgets are
    not created."""
    bound = ("search", "evidence", "readable")
    return any(name in st.query_params for name in bound) or any(
        url_state.get(name) for name in (*FACETS, "order")
    )


def _ordered(
    selection: Selection, order: str, models: Sequence[str], method: Method | None
) -> tuple[Selection, Mapping[str, float]]:
    compute = service_for(selection.data.name)

    def key(index: int) -> ModelKey:
        return compute.identify(spec(models[index], selection.data.name)).key

    def stored(index: int) -> StoredCurves | None:
        if method is None or index >= len(models):
            return None
        return compute.store.curves(key(index), method, selection.pairs)

    def unlike(first: StoredCurves, second: StoredCurves) -> frozenset[str]:
        assert method is not None  # there are stored results
        both, curves = (key(0), key(1)), (first, second)
        return pairs_read_unlike(compute.store, both, method, selection.pairs, curves)

    try:
        pairs, values = arrange(selection.pairs, order, stored, unlike)
    except UserError as error:
        st.warning(f"The pairs keep the order of the data set: {plain(error)}")
        return selection, {}
    return selection.of(pairs), values


def _asked(selection: Selection, order: str, own: bool) -> TextPair | None:
    """The pair that the address names, else the first; None if no pair passes the filters. The
    address of the user's `own` texts names none: the session has the pair to return to."""
    missing = ""
    if own:
        st.query_params.pop("pair", None)
    if asked := "".join(url_state.stored("pair")) if own else url_state.get("pair"):
        try:
            return selection.data.pair(asked)
        except UserError as error:
            # The reader didn't ask for the pair that was shown before another data set was chosen.
            if asked != st.session_state.get(_SHOWN):
                missing = str(error)
    if not selection.pairs:
        return None
    # Prefer a document that most models read completely, for a better first impression.
    codes, buckets = facet_labels(selection.pairs, "bucket")
    short = np.flatnonzero(codes == buckets.index("Q1")) if order == AS_GIVEN else codes[:0]
    chosen = selection.pairs[int(short[0]) if len(short) else 0]
    if missing:
        say.warning(f"{missing} The pair {chosen.pair_id} is shown instead.")
    if not own:
        url_state.put("pair", chosen.pair_id)
    return chosen


def open_pair(pair_id: str) -> None:
    """Select this pair of the data set; for widget callbacks."""
    url_state.put("text", "")
    url_state.put("pair", pair_id)


def _bar(
    before: DeltaGenerator,
    listed: DeltaGenerator,
    about: DeltaGenerator,
    after: DeltaGenerator,
    selection: Selection,
    chosen: TextPair,
    typed: TextPair | None,
    own: bool,
) -> None:
    """Previous, the list, facts about the pair, next and random."""
    pairs = selection.pairs
    at = selection.pairs.find(chosen.pair_id)

    def go(step: int) -> None:
        if pairs:
            open_pair(pairs[0 if at is None else (at + step) % len(pairs)].pair_id)

    def jump() -> None:
        # Counted from the pair after the selected one, wrapping around.
        first = 0 if at is None else at + 1
        if others := len(pairs) - (0 if own or at is None else 1):
            open_pair(pairs[(first + random.randrange(others)) % len(pairs)].pair_id)

    def pick() -> None:
        if (picked := st.session_state.get(_PICK)) not in (None, OWN):
            open_pair(picked)

    start = max(0, (at or 0) - MAX_LISTED // 2) if len(pairs) > MAX_LISTED else 0
    names = _names(pairs[start : start + MAX_LISTED])
    names = names if at is not None else {chosen.pair_id: chosen.query} | names
    if own:
        names = {OWN: f"{typed.query} · own text" if typed else OWN} | names
    st.session_state[_PICK] = OWN if own else chosen.pair_id
    with before:
        st.button(
            "Previous",
            icon=":material/chevron_left:",
            key="previous",
            help="Previous pair (p)",
            on_click=go,
            args=(-1,),
            shortcut="p",
        )
    with listed:
        st.selectbox(
            "Pair (type to search)",
            list(names),
            key=_PICK,
            format_func=names.__getitem__,
            on_change=pick,
            label_visibility="collapsed",
            required=True,
        )
    with about:
        shown = typed if own else chosen
        say.caption(_facts(shown, at, len(pairs), len(selection.data.pairs), own))
    with after, st.container(horizontal=True, gap="xsmall", wrap=False):
        st.button(
            "Next",
            icon=":material/chevron_right:",
            key="next",
            help="Next pair (n)",
            on_click=go,
            args=(1,),
            shortcut="n",
        )
        st.button(
            "Random", icon=":material/shuffle:", key="random", help="A random pair", on_click=jump
        )


def _names(pairs: Sequence[TextPair]) -> dict[str, str]:
    """Distinct labels of the pairs, because the browser answers with the label."""
    names = {
        pair.pair_id: " · ".join(filter(None, (pair.query, pair.domain, pair.language)))
        for pair in pairs
    }
    often = Counter(names.values())
    return {
        pair_id: f"{name} · {pair_id}" if often[name] > 1 else name
        for pair_id, name in names.items()
    }


def _facts(pair: TextPair | None, at: int | None, n: int, total: int, own: bool) -> str:
    """Facts about a pair and its position in the list, on one line."""
    facts = []
    if pair is not None:
        facts = [pair.domain, pair.language, counted(len(word_spans(pair.document)), "word")]
        if (position := evidence_position(pair)) is not None:
            facts.append(f"evidence at {position:.0%} of the text")
    if not own:
        place = "–" if at is None else f"{at + 1:,}"
        unfiltered = f" ({total:,} without filters)" if n < total else ""
        facts.append(f"pair {place} of {n:,}{unfiltered}")
    return " · ".join(filter(None, facts))


def _table(selection: Selection, chosen: TextPair, order: str, values: Mapping[str, float]) -> None:
    """All pairs that pass the filters; selecting a row shows its pair."""
    pairs = selection.pairs
    if order not in (AS_GIVEN, SHUFFLED) and len(values) < len(pairs):
        st.caption(
            f"{len(pairs) - len(values):,} of {len(pairs):,} pairs have no {plain(order)} yet "
            "and are listed last. Compute them on the Curves page."
        )
    ids = tuple(p.pair_id for p in pairs)

    def choose(pair_id: str) -> None:
        open_pair(pair_id)
        st.session_state[_FILTERS] = False

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
    at = selection.pairs.find(chosen.pair_id)
    on_row(
        with_values(frame),
        "pairs",
        ids,
        choose,
        height=280,
        selection_default=None if at is None else {"selection": {"rows": [at]}},
        column_config={
            "query": st.column_config.TextColumn(width="large"),
            "evidence": st.column_config.NumberColumn("evidence position", format="%.0f%%"),
            "tokens": st.column_config.NumberColumn(format="localized"),
        },
    )

"""How much of the texts the selected models can read, and a switch that excludes pairs they can't
read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import streamlit as st

from poslens.attribution.errors import UserError
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.compute import coverage
from poslens.compute.compute import service
from poslens.dashboard.widgets import say
from poslens.figures.plain import plain

_TOLD_S = 0.25


@contextmanager
def told(doing: str) -> Iterator[coverage.Report]:
    """Show the progress of counting tokens. Drawing it also lets Streamlit end the script when the
    tab is closed or a widget changes: a large data set takes minutes."""
    place, last = st.empty(), time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > _TOLD_S:
            place.progress(done / total, plain(f"{done:,} of {total:,} pairs"))
            last = time.monotonic()

    try:
        with st.spinner(plain(doing)):
            yield report
    finally:
        place.empty()


def readable_pairs(specs: Sequence[RetrieverSpec], pairs: Sequence[TextPair]) -> tuple[Pairs, str]:
    """The pairs, and an empty string or a description of the pairs that were excluded. If the user
    turns on the switch, pairs are excluded whose evidence is past a model's context limit, even
    partly, or that have too many unknown tokens."""
    only = st.toggle(
        "Exclude pairs with truncated evidence",
        key="readable",
        bind="query-params",
        help="Excludes pairs whose evidence is partly or fully past a selected model's context "
        f"limit, and pairs whose document has more than {coverage.MAX_UNKNOWN:.0%} unknown "
        "tokens.",
    )
    pairs = pairs if isinstance(pairs, Pairs) else Pairs(pairs)
    if not only or not pairs:
        return pairs, ""
    try:
        with told("Tokenizing the documents") as report:
            chosen_pairs = coverage.readable(service(), specs, pairs, report)
    except UserError as error:
        say.warning(f"No pair is excluded: {error}")
        return pairs, ""
    return chosen_pairs, coverage.LEFT_OUT


def what_is_read(specs: Sequence[RetrieverSpec], pairs: Sequence[TextPair], key: str) -> None:
    """A line for each model that can't read all of `pairs`; a button counts the pairs whose token
    counts are unknown."""
    unknown = []
    for spec in specs:
        coverages = coverage.at_hand(service(), spec, pairs)
        if len(coverages) < len(pairs):
            unknown.append(spec)
        elif text := coverage.sentence(coverages):
            say.caption(f"{spec.name} misses text: {text}.")
    if unknown and st.button(
        "Count pairs with truncated evidence",
        key=f"{key}.reading",
        help="Counts unknown tokens, and pairs whose evidence is partly or fully past the context "
        "limit. Loads the models.",
    ):
        for spec in unknown:
            try:
                with told(f"Tokenizing the documents with {spec.name}") as report:
                    coverage.count(service(), spec, pairs, report)
            except UserError as error:
                say.warning(f"{spec.name}: {error}")
        st.rerun(scope="app")

"""Pairs as columns say what the pairs say, and are made once for each tuple."""

from __future__ import annotations

import weakref
from dataclasses import replace

from attribution.types import TextPair
from cache import recent
from cache.columns import PairColumns, columns_of
from cache.keys import text_fingerprint, text_number

PAIRS = (
    TextPair("a", "when", "Fog lifts.", dataset="one"),
    TextPair("b", "where \ud800", "النخلة 🚀", dataset="two"),
    TextPair("c", "why", "Fog lifts.", dataset="one"),
    TextPair("a", "how", "Ice melts.", dataset="two"),
)


def test_columns_are_those_of_the_pairs() -> None:
    columns = columns_of(PAIRS)
    assert columns.ids.tolist() == [pair.pair_id for pair in PAIRS]
    assert {name: places.tolist() for name, places in columns.places.items()} == {
        "one": [0, 2],
        "two": [1, 3],
    }
    numbers = [
        int.from_bytes(bytes.fromhex(text_fingerprint(p)), "big", signed=True) for p in PAIRS
    ]
    assert columns.texts.tolist() == numbers == [text_number(pair) for pair in PAIRS]
    assert PairColumns(list(PAIRS)).texts.tolist() == numbers
    assert columns.documents.tolist() == [0, 1, 0, 2]


def test_a_pair_that_is_there_twice_counts_once_with_its_last_texts() -> None:
    twice = (*PAIRS, replace(PAIRS[0], document="Fog stays."))
    once = columns_of(twice).once
    assert once.pairs == (twice[4], *PAIRS[1:])
    assert columns_of(PAIRS).once is columns_of(PAIRS)
    of_one = (PAIRS[0], PAIRS[2], replace(PAIRS[0], query="who"))
    assert columns_of(of_one).once.pairs == (of_one[2], PAIRS[2])


def test_those_of_a_tuple_are_kept_until_what_is_made_of_texts_is_forgotten() -> None:
    pairs = (*PAIRS, PAIRS[0])
    kept = columns_of(pairs)
    assert columns_of(pairs) is kept
    assert columns_of(list(pairs)) is not columns_of(list(pairs))
    other = (*PAIRS[:3], PAIRS[0])
    assert columns_of(other) is not kept
    recent.forget_made()
    assert columns_of(pairs) is not kept


def test_columns_go_with_whoever_asked_for_them() -> None:
    columns = PairColumns(list(PAIRS))
    assert columns.once is columns
    gone = weakref.ref(columns)
    del columns
    assert gone() is None

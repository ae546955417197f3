"""Columns of pairs equal the pairs, and are created once for pairs that are kept."""

from __future__ import annotations

import weakref
from dataclasses import replace

from poslens.attribution.datasets import DataSet
from poslens.attribution.pairs import Pairs, columns_of
from poslens.attribution.types import TextPair
from poslens.cache.keys import signed, text_fingerprint
from poslens.cache.lru_cache import forget_made
from poslens.compute.selection import Filters, facets

PAIRS = (
    TextPair("a", "when", "Fog lifts.", dataset="one"),
    TextPair("b", "where \ud800", "النخلة 🚀", dataset="two"),
    TextPair("c", "why", "Fog lifts.", dataset="one"),
    TextPair("a", "how", "Ice melts.", dataset="two"),
)


def test_columns_equal_the_fields_of_the_pairs() -> None:
    columns = columns_of(PAIRS)
    assert columns.ids.tolist() == [pair.pair_id for pair in PAIRS]
    assert {name: places.tolist() for name, places in columns.places.items()} == {
        "one": [0, 2],
        "two": [1, 3],
    }
    numbers = [
        int.from_bytes(bytes.fromhex(text_fingerprint(p)), "big", signed=True) for p in PAIRS
    ]
    assert columns.texts.tolist() == numbers == [signed(text_fingerprint(pair)) for pair in PAIRS]
    assert Pairs(PAIRS).texts.tolist() == numbers
    assert columns.documents.tolist() == [0, 1, 0, 2]


def test_a_repeated_pair_counts_once_with_its_last_texts() -> None:
    twice = (*PAIRS, replace(PAIRS[0], document="Fog stays."))
    once = columns_of(twice).once
    kept = Pairs(PAIRS)
    assert once == (twice[4], *PAIRS[1:])
    assert columns_of(kept).once is columns_of(kept)
    of_one = (PAIRS[0], PAIRS[2], replace(PAIRS[0], query="who"))
    assert columns_of(of_one).once == (of_one[2], PAIRS[2])


def test_columns_of_a_data_set_are_cached_as_long_as_it_exists() -> None:
    data = DataSet("one", "One", Pairs(PAIRS))
    columns = columns_of(data.pairs)
    assert columns_of(data.pairs) is columns
    assert columns_of(PAIRS) is not columns_of(PAIRS)
    chosen = facets(data).select(Filters(search="fog"))
    of_chosen = columns_of(chosen.pairs)
    assert of_chosen.ids.tolist() == ["a", "c"] and columns_of(chosen.pairs) is of_chosen
    gone = [weakref.ref(columns), weakref.ref(of_chosen)]
    del data, columns, chosen, of_chosen
    forget_made()
    assert [one() for one in gone] == [None, None]


def test_columns_of_a_temporary_selection_are_not_kept() -> None:
    """A page that repeats the same selection at every rerun would add one each time."""
    columns = columns_of(PAIRS[:3])
    gone = weakref.ref(columns)
    del columns
    assert gone() is None


def test_columns_are_freed_with_their_last_reference() -> None:
    columns = columns_of(list(PAIRS))
    assert columns.once is columns
    gone = weakref.ref(columns)
    del columns
    assert gone() is None

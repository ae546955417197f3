"""Orders of pairs, by hand."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from poslens.attribution.curves.positions import positions
from poslens.attribution.pairs import Pairs
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.cache.storage.store import StoredCurves
from poslens.compute import selection
from poslens.compute.selection import AS_GIVEN, ORDERS, SHUFFLED, in_span

PAIRS = Pairs(TextPair(name, "q", "x" * 100, evidence=EvidenceSpan(0, 10)) for name in "abcd")

arrange = partial(selection.arrange, unlike=lambda first, second: frozenset())


def stored(names: str, curves: np.ndarray, cut: tuple[int, ...] = ()) -> StoredCurves:
    flags = np.array([i in cut for i in range(len(names))])
    scores = np.arange(len(names), dtype=float)
    at = positions("bin_mean")
    # Signs cancel in curves, so orders use only magnitudes.
    return StoredCurves(tuple(names), -curves, curves, scores, flags, at, {})


def early_late() -> np.ndarray:
    """a: all in the first bin, b: even, c: all in the last."""
    curves = np.ones((3, 100))
    curves[0], curves[2] = 0, 0
    curves[0, 0] = curves[2, 99] = 2.0
    return curves


def ids(pairs: tuple[TextPair, ...]) -> str:
    return "".join(pair.pair_id for pair in pairs)


def test_pairs_without_a_value_come_last_in_their_original_order() -> None:
    under = stored("bca", early_late())
    ordered, values = arrange(PAIRS, "score", lambda _: under)
    assert ids(ordered) == "acbd" and values == {"b": 0, "c": 1, "a": 2}
    ordered, values = arrange(PAIRS, "score", lambda _: None)
    assert ids(ordered) == "abcd" and not values


def test_orders_by_center_of_mass_and_evidence() -> None:
    under = stored("abc", early_late())
    assert ids(arrange(PAIRS, "center of mass", lambda _: under)[0]) == "cbad"
    ordered, values = arrange(PAIRS, "smallest evidence share", lambda _: under)
    assert ids(ordered) == "cbad"
    assert values == {"a": pytest.approx(10), "b": pytest.approx(1), "c": 0}
    # The curve and the evidence of a truncated document are on different scales.
    cut = stored("abc", early_late(), cut=(2,))
    assert set(arrange(PAIRS, "smallest evidence share", lambda _: cut)[1]) == {"a", "b"}


@pytest.mark.parametrize("order", ["center of mass", "smallest evidence share", "disagreement"])
def test_a_curve_of_zeros_has_no_value_and_comes_last(order: str) -> None:
    curves = early_late()
    curves[0] = 0
    under = stored("abc", curves)
    ordered, values = arrange(PAIRS, order, lambda _: under)
    assert set(values) == {"b", "c"}
    assert ids(ordered[-2:]) == "ad"


def test_disagreement_is_half_the_distance_between_shares() -> None:
    first, second = stored("abc", early_late()), stored("ab", early_late()[::-1][:2])
    ordered, values = arrange(PAIRS, "disagreement", [first, second].__getitem__)
    assert values == {"a": pytest.approx(1), "b": pytest.approx(0)}
    assert ids(ordered) == "abcd"


def test_documents_that_models_read_differently_have_no_disagreement() -> None:
    first, second = stored("abc", early_late()), stored("abc", early_late()[::-1])
    ordered, values = arrange(
        PAIRS, "disagreement", [first, second].__getitem__, unlike=lambda *_: frozenset("a")
    )
    assert values == {"b": pytest.approx(0), "c": pytest.approx(1)}
    assert ids(ordered) == "cbad"


def test_the_share_in_the_span_weights_bins_by_overlap() -> None:
    share = np.zeros(100)
    share[0] = 1.0
    assert in_span(share, 0.005, 0.01) == pytest.approx(100)
    assert in_span(share, 0.005, 0.015) == pytest.approx(50)
    assert in_span(np.full(100, 0.01), 0.123, 0.456) == pytest.approx(1)


def test_random_order_is_reproducible_and_complete() -> None:
    assert arrange(PAIRS, AS_GIVEN, lambda _: None)[0] == PAIRS
    assert arrange(PAIRS, SHUFFLED, lambda _: None) == arrange(PAIRS, SHUFFLED, lambda _: None)
    for order in ORDERS:
        assert sorted(ids(arrange(PAIRS, order, lambda _: None)[0])) == list("abcd")

"""Changes of rankings, compared with counts by hand and plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from poslens.attribution.evaluation.ranking_change import (
    candidate,
    change,
    halves,
    harmonic_mean,
    quality,
)
from tests.support.plain_bootstrap import plain_bca

GENERATOR = np.random.default_rng(7)
N = 240
POSITIONS = GENERATOR.uniform(0, 1, N).tolist()
DOCUMENTS = [f"d{number // 4}" for number in range(N)]
BEFORE = np.clip(1 - np.array(POSITIONS) * 0.6 + GENERATOR.normal(0, 0.1, N), 0.05, 1)
AFTER = np.clip(0.8 - np.array(POSITIONS) * 0.1 + GENERATOR.normal(0, 0.1, N), 0.05, 1)


def bin_means(scores: np.ndarray, positions: list[float]) -> list[float]:
    """Mean score of each filled bin, one query at a time: bin b holds b/20 < r <= (b+1)/20."""
    filled: dict[int, list[float]] = {}
    for score, r in zip(scores, positions, strict=True):
        b = next(b for b in range(20) if r <= (b + 1) / 20)
        filled.setdefault(b, []).append(float(score))
    return [sum(values) / len(values) for values in filled.values()]


def harmonic(scores: np.ndarray, positions: list[float]) -> float:
    means = bin_means(scores, positions)
    return len(means) / sum(1 / mean for mean in means)


def psi(scores: np.ndarray, positions: list[float]) -> float:
    means = bin_means(scores, positions)
    return 1 - min(means) / max(means)


def test_measures_equal_counts_computed_by_hand() -> None:
    found = quality(BEFORE, POSITIONS, DOCUMENTS)
    assert found is not None and found.n == N
    assert found.mean.value == pytest.approx(BEFORE.mean())
    assert found.harmonic.value == pytest.approx(harmonic(BEFORE, POSITIONS))
    assert harmonic_mean(BEFORE, POSITIONS) == pytest.approx(found.harmonic.value)
    assert found.psi == pytest.approx(psi(BEFORE, POSITIONS))
    assert found.psi_under_permutation is not None and found.psi_under_permutation < found.psi
    assert found.harmonic.interval is not None and found.harmonic.n_resampled == N // 4


def test_a_change_is_after_minus_before() -> None:
    found = change(BEFORE, AFTER, POSITIONS, DOCUMENTS)
    assert found is not None and found.psi is not None
    assert found.mean.difference.value == pytest.approx((AFTER - BEFORE).mean())
    expected = harmonic(AFTER, POSITIONS) - harmonic(BEFORE, POSITIONS)
    assert found.harmonic.difference.value == pytest.approx(expected)
    assert found.psi.difference.value == pytest.approx(
        psi(AFTER, POSITIONS) - psi(BEFORE, POSITIONS)
    )
    assert found.psi.verdict == "lower"


def test_the_interval_of_a_change_equals_a_loop_over_resampled_documents() -> None:
    found = change(BEFORE, AFTER, POSITIONS, DOCUMENTS)
    assert found is not None
    measured = found.harmonic.difference
    rows = {d: [i for i, one in enumerate(DOCUMENTS) if one == d] for d in DOCUMENTS}
    generator, drawn = np.random.default_rng(3), []
    for _ in range(400):
        chosen = generator.choice(list(rows), len(rows))
        at = [i for d in chosen for i in rows[d]]
        places = [POSITIONS[i] for i in at]
        drawn.append(harmonic(AFTER[at], places) - harmonic(BEFORE[at], places))
    without = []
    for name in rows:
        at = [i for i, one in enumerate(DOCUMENTS) if one != name]
        places = [POSITIONS[i] for i in at]
        without.append(harmonic(AFTER[at], places) - harmonic(BEFORE[at], places))
    low, high = plain_bca(measured.value, drawn, without)
    width = high - low
    assert measured.low == pytest.approx(low, abs=0.25 * width)
    assert measured.high == pytest.approx(high, abs=0.25 * width)


def test_identical_rankings_leave_a_rare_change_possible() -> None:
    found = change(BEFORE, BEFORE, POSITIONS, DOCUMENTS)
    assert found is not None and found.psi is not None
    reach = 1 - 0.025 ** (1 / 60)
    assert found.mean.difference.interval == pytest.approx((-reach, reach))
    assert (found.mean.verdict, found.mean.needed) == ("too few documents", 299)
    for one in (found.harmonic, found.psi):
        assert one.difference.value == 0 and one.difference.n_resampled == 60
        assert one.difference.interval is None and one.p == 1
        assert (one.verdict, one.needed) == ("too few documents", None)
        assert "none of them differs, but rare differences are possible" in one.sentence


def test_a_bin_of_few_documents_can_change_completely() -> None:
    """300 documents, of which 3 are in one bin. If those three failed, the harmonic mean would be 0
    and PSI 1, although only 1% of the documents changed; so neither is equivalent, even where some
    documents change slightly in both directions."""
    positions = [0.975] * 3 + [0.025 + 0.05 * (n % 19) for n in range(297)]
    documents = list(range(300))
    before = np.ones(300)
    after = np.r_[np.zeros(3), np.ones(297)]
    failed = change(before, after, positions, documents)
    assert failed is not None and failed.psi is not None
    assert failed.harmonic.difference.value == -1 and failed.psi.difference.value == 1
    slightly = np.r_[np.ones(3), np.full(6, 0.98), np.ones(291)]
    for start, end in ((before, before), (slightly, slightly[::-1].copy())):
        unseen = change(start, end, positions, documents)
        assert unseen is not None and unseen.psi is not None
        assert unseen.mean.verdict == "equivalent"
        assert unseen.harmonic.verdict == unseen.psi.verdict == "too few documents"
        assert not unseen.harmonic.rules_out("lower") and not unseen.psi.rules_out("higher")


def test_a_bin_of_zeros_makes_the_harmonic_mean_zero() -> None:
    scores = np.where(np.array(POSITIONS) > 0.95, 0.0, 1.0)
    assert harmonic_mean(scores, POSITIONS) == 0


def test_halves_keep_a_documents_queries_together() -> None:
    chosen = halves(DOCUMENTS)
    assert chosen.sum() == N // 2
    for document in set(DOCUMENTS):
        own = {bool(c) for c, d in zip(chosen, DOCUMENTS, strict=True) if d == document}
        assert len(own) == 1
    order = np.random.default_rng(3).permutation(N)
    assert (halves([DOCUMENTS[row] for row in order]) == chosen[order]).all()
    # A split by order, such as into the first and the last documents, would not be random.
    assert 0.2 < chosen[: N // 2].mean() < 0.8
    assert halves([]).dtype == np.bool_ and not len(halves([]))


def test_the_candidate_is_the_most_even_point_and_the_first_among_equals() -> None:
    assert candidate([BEFORE, AFTER], POSITIONS) == 1
    assert candidate([BEFORE, BEFORE.copy(), BEFORE * 0.9], POSITIONS) == 0


def test_without_queries_there_are_no_measures() -> None:
    assert quality(np.zeros(0), [], []) is None
    assert change(np.zeros(0), np.zeros(0), [], []) is None

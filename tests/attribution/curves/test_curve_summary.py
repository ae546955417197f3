"""Mean curves with intervals: what is resampled, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS
from poslens.attribution.curves.curve_summary import CurveSummary, primacy_recency_index
from poslens.attribution.curves.curve_summary import summarize as summarize_curves
from poslens.attribution.curves.positions import (
    BANDS,
    band,
    document_curve,
    document_magnitudes,
    positions,
)
from poslens.attribution.methods import make_method
from poslens.attribution.types import Attribution, Token, TokenizedText
from tests.support.plain_bootstrap import plain_bca

METHOD = make_method("saliency")
GENERATOR = np.random.default_rng(7)


def summarize(curves: np.ndarray, groups: list[str] | None) -> CurveSummary:
    return summarize_curves(
        curves,
        groups,
        magnitudes=curves,
        model="m",
        dataset="d",
        method=METHOD,
        n_truncated=0,
        n_failed=0,
    )


def rising(n: int) -> np.ndarray:
    """n curves that rise by different amounts."""
    slopes = GENERATOR.normal(0.5, 0.4, size=(n, 1))
    return np.clip(1 + slopes * np.linspace(-1, 1, 100), 0, None)


def test_pairs_of_one_document_are_resampled_together() -> None:
    """Repeating each document five times adds no information, so bands and intervals don't change.
    Resampled by pair, they would be narrower by a factor of sqrt(5)."""
    curves = rising(40)
    once = summarize(curves, None)
    documents = [f"text {k}" for k in range(40) for _ in range(5)]
    often = summarize(np.repeat(curves, 5, axis=0), documents)
    by_pair = summarize(np.repeat(curves, 5, axis=0), None)
    assert (often.curve.n, often.curve.n_documents) == (200, 40)
    widths = []
    for found in (once, often, by_pair):
        assert found.curve.ci_low is not None and found.curve.ci_high is not None
        index = found.primacy_recency_index
        assert index is not None and index.interval is not None
        assert found.center_of_mass is not None and found.center_of_mass.interval is not None
        widths.append(
            [
                float((found.curve.ci_high - found.curve.ci_low).mean()),
                np.ptp(index.interval),
                np.ptp(found.center_of_mass.interval),
            ]
        )
    np.testing.assert_allclose(widths[1], widths[0], rtol=1e-5)
    np.testing.assert_allclose(widths[2], np.array(widths[0]) / 5**0.5, rtol=0.1)
    assert often.primacy_recency_index is not None
    assert often.primacy_recency_index.n == 200
    assert often.primacy_recency_index.n_resampled == 40


def test_the_interval_equals_that_of_a_plain_loop_over_documents() -> None:
    curves = rising(60)
    documents = [f"text {k % 20}" for k in range(60)]
    found = summarize(curves, documents).primacy_recency_index
    assert found is not None and found.low is not None and found.high is not None
    generator = np.random.default_rng(1)
    drawn = []
    for _ in range(2000):
        rows = np.concatenate([np.arange(60)[k::20] for k in generator.integers(0, 20, 20)])
        drawn.append(float(primacy_recency_index(curves[rows].mean(0))))
    without = [
        float(primacy_recency_index(curves[np.arange(60) % 20 != k].mean(0))) for k in range(20)
    ]
    low, high = plain_bca(found.value, drawn, without)
    assert found.low == pytest.approx(low, abs=0.15 * (high - low))
    assert found.high == pytest.approx(high, abs=0.15 * (high - low))


def test_few_documents_have_estimates_and_no_interval() -> None:
    """Even where they have many pairs."""
    curves = rising(90)
    few = summarize(curves, [f"text {k % (MIN_DOCUMENTS - 1)}" for k in range(90)])
    enough = summarize(curves, [f"text {k % MIN_DOCUMENTS}" for k in range(90)])
    assert few.curve.ci_low is None and few.curve.ci_high is None
    assert band(few.curve, BANDS[0]) is None and band(enough.curve, BANDS[0]) is not None
    assert band(few.curve, "standard deviation") is not None
    for one in (few.center_of_mass, few.primacy_recency_index):
        assert one is not None and one.interval is None and one.n == 90
    assert few.primacy_recency_index is not None and enough.primacy_recency_index is not None
    assert few.primacy_recency_index.value == enough.primacy_recency_index.value
    assert enough.primacy_recency_index.interval is not None


def test_a_curve_has_the_positions_of_its_resampling() -> None:
    for how in ("bin_mean", "point"):
        method = make_method("saliency", {"resampling": how})
        last = np.eye(1, 100, 99)
        found = summarize_curves(
            last,
            None,
            magnitudes=last,
            model="m",
            dataset="d",
            method=method,
            n_truncated=0,
            n_failed=0,
        )
        np.testing.assert_array_equal(found.curve.positions, positions(how))
        # All mass is in the last point, so the center of mass is its position.
        assert found.center_of_mass is not None
        assert found.center_of_mass.value == found.curve.positions[-1]


def test_curves_of_zeros_have_no_statistics_and_a_reason() -> None:
    zeros = summarize(np.zeros((30, 100)), None)
    assert zeros.center_of_mass is None and zeros.primacy_recency_index is None
    assert "No center of mass" in zeros.undefined
    # Documents with the same curve don't show how much others differ.
    same = summarize(np.tile(np.linspace(0.3, 0.7, 100), (30, 1)), None)
    for number in (same.center_of_mass, same.primacy_recency_index):
        assert number is not None and number.value > 0 and number.interval is None
    middle = np.zeros((30, 100))
    middle[:, 50] = 1.0
    found = summarize(middle, None)
    assert found.center_of_mass is not None and found.primacy_recency_index is None
    assert "No index" in found.undefined
    assert summarize(rising(30), None).undefined == ""


def test_an_index_carried_by_one_of_many_documents_is_left_out() -> None:
    """The index is carried by 1 of 30 documents, so a third of the resamples have nothing."""
    curves = np.zeros((30, 100))
    curves[:, 50] = 1.0
    curves[3, 0] = 1.0
    found = summarize(curves, None)
    assert found.primacy_recency_index is None and "not significantly above" in found.undefined
    curves[:12, 0] = 1.0
    assert summarize(curves, None).primacy_recency_index is not None


def test_noise_does_not_cancel_the_index_of_signed_scores() -> None:
    """Tokens have magnitude 3 in the first third and 1 elsewhere, with random signs: the index is
    (1 - 3) / (1 + 3). Computed from signed bins, it would be what the noise leaves."""
    method = make_method("decomposition", {"normalization": "none"})
    size = np.repeat([3.0, 1.0, 1.0], [660, 680, 660])
    tokens = tuple(Token("t", j, j + 1) for j in range(2000))
    text = TokenizedText.of(tokens, 2000, 4096)
    results = []
    for _ in range(40):
        scores = size * GENERATOR.choice([-1.0, 1.0], 2000)
        results.append(Attribution("m", method, "p", 0.5, text, text, np.zeros(2000), scores))
    curves = np.array([document_curve(one) for one in results])
    magnitudes = np.array([document_magnitudes(one) for one in results])
    found = summarize_curves(
        curves,
        None,
        magnitudes=magnitudes,
        model="m",
        dataset="d",
        method=method,
        n_truncated=0,
        n_failed=0,
    )
    assert found.primacy_recency_index is not None
    assert found.primacy_recency_index.value == pytest.approx(-0.5, abs=1e-6)
    assert found.curve.magnitudes is not None
    assert primacy_recency_index(found.curve.magnitudes) == pytest.approx(-0.5, abs=1e-6)
    # Unsigned scores are their own magnitudes.
    plain = replace(results[0], document_scores=np.abs(results[0].document_scores))
    np.testing.assert_array_equal(document_curve(plain), document_magnitudes(plain))
    np.testing.assert_array_equal(document_magnitudes(results[0]), document_magnitudes(plain))

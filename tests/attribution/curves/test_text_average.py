"""Mean curves over whole texts: by hand, and against plain loops."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from poslens.attribution.curves import bootstrap
from poslens.attribution.curves.bootstrap import N_BOOTSTRAP, SEED
from poslens.attribution.curves.positions import document_curve, resample
from poslens.attribution.curves.text_axis import average, curves_of, is_over_text, over_text
from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.types import (
    Attribution,
    Method,
    PositionCurve,
    Token,
    TokenizedText,
)
from tests.support.plain_bootstrap import plain_bca

PLAIN = make_method("saliency", {"normalization": "none"})
WHOLE = over_text(PLAIN)


def read(scores: list[float] | np.ndarray, width: int, full: int | None = None) -> Attribution:
    """A text of `full` tokens of `width` characters each, of which as many are read as there are
    scores."""
    content = tuple(Token("t", width * k, width * (k + 1)) for k in range(len(scores)))
    special = Token("[CLS]", 0, 0, True)
    text = TokenizedText.of((special, *content, special), full or len(scores), 512)
    values = np.array([9.0, *scores, 9.0])
    return Attribution("m", PLAIN, "p", 0.5, text, text, np.zeros(len(values)), values)


def averaged(curves: np.ndarray, groups: list[int]) -> PositionCurve:
    return average(curves, groups, model="m", dataset="d", method=WHOLE, n_truncated=0, n_failed=0)


# -- one document --------------------------------------------------------------------------------


def test_a_text_of_even_tokens_read_whole_has_the_same_curve_on_both_axes() -> None:
    draw = np.random.default_rng(1)
    for n in (7, 100, 340):
        one = read(draw.normal(size=n), 5)
        for found, expected in zip(
            curves_of(one, WHOLE, 5 * n), curves_of(one, PLAIN, 5 * n), strict=True
        ):
            assert_allclose(found, expected, atol=1e-5)
    point = make_method("saliency", {"normalization": "none", "resampling": "point"})
    sampled = read(draw.normal(size=340), 5)
    found = curves_of(sampled, over_text(point), 1700)[0]
    assert_allclose(found, document_curve(sampled, point), atol=1e-5)


def test_half_a_text_fills_half_of_the_axis_and_keeps_the_sum() -> None:
    scores = np.random.default_rng(2).normal(size=130)
    curve, magnitudes = curves_of(read(scores, 4, full=260), WHOLE, 1040)
    assert_array_equal(np.isfinite(curve), np.arange(100) < 50)
    assert_array_equal(np.isfinite(magnitudes), np.arange(100) < 50)
    assert_allclose(curve[:50], resample(scores, "bin_mean", 50), atol=1e-5)
    assert_allclose(magnitudes[:50], resample(np.abs(scores), "bin_mean", 50), atol=1e-5)
    assert curve[:50].mean() == pytest.approx(scores.mean(), abs=1e-5)


def test_a_bin_is_the_mean_of_its_tokens_whatever_their_length() -> None:
    """By hand: one token of half the text, then fifty of a hundredth each."""
    edges = [0, 50, *range(51, 101)]
    tokens = tuple(Token("t", a, b) for a, b in pairwise(edges))
    text = TokenizedText.of(tokens, len(tokens), 512)
    scores = np.arange(51.0)
    one = Attribution("m", PLAIN, "p", 0.5, text, text, np.zeros(51), scores)
    expected = np.concatenate([np.zeros(50), np.arange(1.0, 51.0)])
    assert_allclose(curves_of(one, WHOLE, 100)[0], expected, atol=1e-5)


@pytest.mark.parametrize("start", [0, 5, 80])
def test_tokens_that_share_characters_all_count(start: int) -> None:
    """The four byte tokens of one emoji, which is a fifth of the text."""
    before, after = [(0, start)] * (start > 0), [(start + 20, 100)] * (start < 80)
    spans = [*before, *[(start, start + 20)] * 4, *after]
    text = TokenizedText.of(tuple(Token("t", a, b) for a, b in spans), len(spans), 512)
    scores = np.zeros(len(spans))
    scores[len(before) : len(before) + 4] = 4, 8, 12, 16
    one = Attribution("m", PLAIN, "p", 0.5, text, text, np.zeros(len(spans)), scores)
    curve = curves_of(one, WHOLE, 100)[0]
    assert_allclose(curve[start + 1 : start + 20], 16, rtol=1e-6)
    # Tokens without width count at their start.
    at = max(start - 1, 0)
    width = {0: 1 / 20, 5: 1 / 5, 80: 1 / 80}[start]
    last = 16 * width if start == 0 else 0
    assert curve[at] == pytest.approx((4 + 8 + 12 + last) / (3 + width), rel=1e-5)


def test_space_around_a_text_belongs_to_its_first_and_last_tokens() -> None:
    spans = [(20, 50), (50, 90)]
    text = TokenizedText.of(tuple(Token("t", a, b) for a, b in spans), 2, 512)
    one = Attribution("m", PLAIN, "p", 0.5, text, text, np.zeros(2), np.array([1.0, 3.0]))
    assert_allclose(curves_of(one, WHOLE, 100)[0], [1.0] * 50 + [3.0] * 50)


def test_the_axis_is_part_of_the_curves_name_but_not_of_the_results_key() -> None:
    assert is_over_text(WHOLE) and not is_over_text(PLAIN)
    assert "axis=text" in repr(WHOLE) and WHOLE.core == PLAIN.core and WHOLE != PLAIN
    assert over_text(WHOLE) == WHOLE


# -- a data set ----------------------------------------------------------------------------------


def rows(n: int, n_documents: int, seed: int = 3) -> tuple[np.ndarray, list[int]]:
    """Curves of documents that are truncated at different positions."""
    draw = np.random.default_rng(seed)
    of = sorted(draw.integers(0, n_documents, n).tolist())
    until = draw.integers(30, 101, n_documents)
    until[: n_documents // 3] = 100
    values = draw.normal(1, 0.3, (n, 100)) + draw.normal(0, 0.3, n_documents)[of][:, None]
    values[np.arange(100) >= until[of][:, None]] = np.nan
    return values, of


def test_each_bin_averages_the_pairs_read_that_far() -> None:
    values, of = rows(90, 40)
    found = averaged(values, of)
    assert (found.n, found.n_documents) == (90, len(set(of)))
    assert found.n_read is not None and found.quartiles is not None
    for b in range(100):
        there = values[np.isfinite(values[:, b]), b]
        assert found.n_read[b] == len(there)
        assert found.mean[b] == pytest.approx(there.mean(), rel=1e-6)
        assert found.std[b] == pytest.approx(there.std(ddof=1), rel=1e-5)
        assert_allclose(found.quartiles[:, b], np.percentile(there, [25, 50, 75]), rtol=1e-5)


def test_averaging_does_not_copy_all_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_ROWS", 1_000)
    values, of = rows(60_000, 600)
    curves = values.astype(np.float32)
    averaged(curves[:2000], of[:2000])  # imports and caches on first use
    tracemalloc.start()
    try:
        averaged(curves, of)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < curves.nbytes


def test_intervals_equal_a_loop_over_resampled_documents() -> None:
    values, of = rows(120, 45)
    found = averaged(values, of)
    order = list(dict.fromkeys(of))
    of_document = [np.flatnonzero(np.array(of) == name) for name in order]
    draw = np.random.default_rng(SEED)
    drawn = []
    for _ in range(N_BOOTSTRAP):
        some = draw.integers(0, len(order), len(order), np.int32)
        drawn.append(np.nanmean(values[np.concatenate([of_document[k] for k in some])], axis=0))
    without = [np.nanmean(values[np.array(of) != name], axis=0) for name in order]
    mean = np.nanmean(values, axis=0)
    ends = [
        plain_bca(*one, [len(rows) for rows in of_document])
        for one in zip(mean, np.array(drawn).T, np.array(without).T, strict=True)
    ]
    assert found.ci_low is not None and found.ci_high is not None
    assert_allclose(np.transpose([found.ci_low, found.ci_high]), ends, rtol=1e-5)


def test_bins_that_few_documents_were_read_to_are_left_out() -> None:
    values = np.ones((40, 100))
    of = [k // 2 for k in range(40)]
    values[18:, 50:] = np.nan  # 18 pairs of 9 documents are longer
    values[:2, 50:70] = 1.0
    found = averaged(values, of)
    assert_array_equal(np.isfinite(found.mean), np.arange(100) < 50)
    for column in (found.std, found.ci_low, found.ci_high):
        assert column is not None
        assert_array_equal(np.isfinite(column), np.arange(100) < 50)
    assert found.n_read is not None and found.n_read[99] == 18
    # For five documents, only the bins that all five were read to are shown, without an interval.
    few = averaged(values[10:20], of[10:20])
    assert few.ci_low is None
    assert_array_equal(np.isfinite(few.mean), np.arange(100) < 50)


def test_gaps_are_allowed_only_in_curves_over_whole_texts() -> None:
    found = averaged(*rows(60, 25))
    with pytest.raises(UserError, match="not a finite number"):
        replace(found, mean=np.full(100, np.nan), n_read=None)
    with pytest.raises(UserError, match="not a finite number"):
        replace(found, mean=np.append(np.inf, found.mean[1:]))
    with pytest.raises(UserError, match="has no results"):
        averaged(np.zeros((0, 100)), [])


def test_truncation_adds_no_slope() -> None:
    """Documents with one level each, truncated anywhere: each curve is flat over what was read, and
    models that read different shares of the same documents agree in the bins that both read in
    every document."""
    draw = np.random.default_rng(5)
    lengths = draw.integers(60, 900, 80)
    for limit in (128, 512):
        curves = [
            curves_of(read([1.0] * min(n, limit), 5, full=int(n)), WHOLE, 5 * int(n))[0]
            for n in lengths
        ]
        found = averaged(np.array(curves), list(range(80)))
        shown = np.isfinite(found.mean)
        assert_allclose(found.mean[shown], 1.0, rtol=1e-5)
        assert found.n_read is not None and (np.diff(found.n_read) <= 0).all()
        assert found.n_read[0] == 80 and found.n_read[-1] == (lengths <= limit).sum()


def test_over_text_keeps_a_methods_other_parameters() -> None:
    method = Method("m", {"version": 2}, {"normalization": "max", "resampling": "point"})
    assert over_text(method).params == {"version": 2}
    assert over_text(method).curve_params["resampling"] == "point"

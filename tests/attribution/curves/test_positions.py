"""Resampling, curves and their statistics: by hand, by transcription, by laws."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import bootstrap, spearmanr

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.curve_summary import (
    center_of_mass,
    primacy_recency_index,
    summarize,
)
from poslens.attribution.curves.positions import (
    BANDS,
    BUCKET_WORDS,
    NORMALIZATIONS,
    RESAMPLINGS,
    Normalization,
    Resampling,
    band,
    curve_params,
    document_curve,
    evidence_share,
    length_bucket,
    normalize,
    positions,
    rank_correlation,
    rank_correlations,
    resample,
    score_curves,
    token_range,
    unit_scores,
    word_span_scores,
)
from poslens.attribution.errors import UserError
from poslens.attribution.methods import POSIR_CURVE, make_method
from poslens.attribution.text import words
from poslens.attribution.types import (
    Attribution,
    EvidenceSpan,
    Method,
    Token,
    TokenizedText,
)
from tests.support.plain_bootstrap import drawn_means, student_level

POINT = positions("point")
REFERENCE = Path(__file__).parents[4] / "shared" / "reference"


def document_scores(seed: int, n: int, zeros: float) -> np.ndarray:
    """n signed scores over four orders of magnitude, a share of them zero."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=n) * 10.0 ** generator.integers(-2, 3, size=n)
    return np.where(generator.random(n) < zeros, 0.0, values).astype(np.float32)


scores_of_a_document = st.builds(
    document_scores,
    st.integers(0, 2**32),
    st.one_of(st.integers(1, 5), st.integers(90, 110), st.integers(1, 2048)),
    st.sampled_from([0.0, 0.3, 0.995, 1.0]),
)


def words_text(n: int, *, n_full: int | None = None, width: int = 2) -> TokenizedText:
    """n content tokens of `width` characters each, without gaps, between [CLS] and [SEP]."""
    content = tuple(Token(f"t{j}", j * width, (j + 1) * width) for j in range(n))
    tokens = (Token("[CLS]", 0, 0, True), *content, Token("[SEP]", 0, 0, True))
    return TokenizedText.of(tokens, n_full or n, 512)


def attribution_of(content_scores, *, n_full: int | None = None, **curve: str) -> Attribution:
    """An attribution whose special tokens have scores of 1000, which must not affect any result."""
    text = words_text(len(content_scores), n_full=n_full)
    params = {"normalization": "p99", "resampling": "bin_mean"} | curve
    return Attribution(
        model="m",
        method=Method("saliency", {}, params),
        pair_id="p",
        score=0.5,
        query=words_text(1),
        document=text,
        query_scores=np.ones(3, dtype=np.float32),
        document_scores=np.array([1000.0, *content_scores, 1000.0], dtype=np.float32),
    )


# -- the PosIR protocol ------------------------------------------------------------------------


def posir_transcription(saliency: np.ndarray) -> np.ndarray:
    """Section 6 of docs/methods.md, transcribed literally."""
    p99 = np.percentile(saliency, 99)
    clipped = np.minimum(saliency, p99) / p99
    return np.interp(np.linspace(0, 1, 100), np.linspace(0, 1, len(saliency)), clipped)


@pytest.mark.parametrize("n", [1, 2, 3, 99, 100, 101, 510, 1400, 2046])
def test_posir_protocol_is_reproduced_bit_for_bit(n: int) -> None:
    saliency = np.random.default_rng(n).gamma(2.0, 0.01, n).astype(np.float32)
    expected = posir_transcription(saliency.astype(np.float64))
    found = resample(normalize(saliency, "p99"), "point")
    assert_array_equal(found, expected)
    curve = document_curve(attribution_of(saliency, **POSIR_CURVE))
    assert_array_equal(curve, expected.astype(np.float32))


def test_posir_protocol_looks_at_no_more_than_200_tokens() -> None:
    """Why bin_mean is the default: of 1,400 tokens, `point` reads at most 200."""
    seen = sum(bool(resample(np.eye(1, 1400, j)[0], "point").any()) for j in range(1400))
    assert 100 <= seen <= 200
    assert all(resample(np.eye(1, 1400, j)[0], "bin_mean").any() for j in range(0, 1400, 7))


# -- normalization -----------------------------------------------------------------------------


def test_normalizations_computed_by_hand() -> None:
    values = np.array([0.0, -2.0, 4.0], dtype=np.float32)
    assert_array_equal(normalize(values, "none"), [0.0, -2.0, 4.0])
    assert_array_equal(normalize(values, "max"), [0.0, -0.5, 1.0])
    # The 99th percentile of 0, 2, 4 lies at index 1.98: 2 + 0.98 * 2 = 3.96.
    assert_allclose(normalize(values, "p99"), [0.0, -2 / 3.96, 1.0], rtol=1e-12)
    for how in ("p99", "max", "none"):
        assert_array_equal(normalize(np.zeros(5, dtype=np.float32), how), np.zeros(5))


def test_one_score_among_very_many_zeros_is_kept() -> None:
    values = np.zeros(1000, dtype=np.float32)
    values[3] = 0.25
    assert np.percentile(values, 99) == 0
    assert normalize(values, "p99")[3] == 1.0


@given(scores_of_a_document, st.sampled_from(["p99", "max"]), st.sampled_from([0.125, 1.0, 64.0]))
def test_normalization_is_bounded_and_scale_invariant(values, how, factor) -> None:
    found = normalize(values, how)
    assert np.abs(found).max() <= 1.0
    assert_array_equal(np.sign(found), np.sign(values))
    assert_allclose(normalize(values * np.float32(factor), how), found, rtol=1e-6)


# -- resampling --------------------------------------------------------------------------------


def test_bin_mean_computed_by_hand() -> None:
    # Three tokens fill [0, 1/3), [1/3, 2/3), [2/3, 1): the first half is all of the first and
    # half of the second, weighted 2 to 1.
    assert_allclose(resample(np.array([3.0, 6.0, 12.0]), "bin_mean", 2), [4.0, 10.0])
    # Two tokens, three bins: the middle one straddles both.
    assert_allclose(resample(np.array([2.0, 8.0]), "bin_mean", 3), [2.0, 5.0, 8.0])
    # Four tokens, two bins.
    assert_allclose(resample(np.array([1.0, 3.0, 5.0, 7.0]), "bin_mean", 2), [2.0, 6.0])


def test_point_computed_by_hand() -> None:
    # Points at 0, 1/2 and 1 of two tokens at 0 and 1.
    assert_allclose(resample(np.array([2.0, 8.0]), "point", 3), [2.0, 5.0, 8.0])
    assert_allclose(resample(np.array([1.0, 9.0, 2.0, 4.0]), "point", 2), [1.0, 4.0])


@pytest.mark.parametrize("how", ["bin_mean", "point"])
def test_as_many_tokens_as_bins_are_unchanged(how) -> None:
    values = np.random.default_rng(0).normal(size=100)
    assert_allclose(resample(values, how), values, atol=1e-12)


@pytest.mark.parametrize("how", ["bin_mean", "point"])
def test_a_single_token_fills_every_bin(how) -> None:
    assert_allclose(resample(np.array([0.7]), how), np.full(100, 0.7), rtol=1e-12)


def test_resampling_no_tokens_raises_value_error() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        resample(np.array([]), "bin_mean")


def bin_mean_by_overlap(values: np.ndarray, bins: int) -> np.ndarray:
    """The definition in docs/methods.md, by overlaps [bins, D]."""
    n = len(values)
    token, edge = np.arange(n), np.arange(bins)[:, None]
    low = np.maximum(token / n, edge / bins)
    high = np.minimum((token + 1) / n, (edge + 1) / bins)
    overlap = np.clip(high - low, 0, None)
    return overlap @ values / overlap.sum(1)


@given(scores_of_a_document, st.sampled_from([1, 2, 7, 20, 100]))
def test_bin_mean_equals_its_definition(values, bins) -> None:
    scale = max(1.0, float(np.abs(values).max()))
    expected = bin_mean_by_overlap(values.astype(np.float64), bins)
    assert_allclose(resample(values, "bin_mean", bins), expected, atol=1e-9 * scale)


@given(scores_of_a_document)
def test_bin_mean_keeps_the_mean_and_the_range(values) -> None:
    found = resample(values, "bin_mean")
    slack = 1e-9 * max(1.0, float(np.abs(values).max()))
    assert abs(found.mean() - values.astype(np.float64).mean()) <= slack
    assert float(values.min()) - slack <= found.min()
    assert found.max() <= float(values.max()) + slack


@given(scores_of_a_document, st.sampled_from(["bin_mean", "point"]))
def test_resampling_a_mirrored_document_mirrors_the_curve(values, how) -> None:
    slack = 1e-9 * max(1.0, float(np.abs(values).max()))
    assert_allclose(resample(values[::-1], how), resample(values, how)[::-1], atol=slack)


@given(scores_of_a_document, st.integers(2, 4))
def test_bin_mean_does_not_depend_on_tokenization(values, times) -> None:
    """Splitting every token into `times` equal parts gives the same function on [0, 1]."""
    slack = 1e-9 * max(1.0, float(np.abs(values).max()))
    assert_allclose(
        resample(np.repeat(values, times), "bin_mean"), resample(values, "bin_mean"), atol=slack
    )


# -- a document's curve ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["bin_mean", "point"])
@pytest.mark.parametrize("normalization", ["p99", "max", "none"])
def test_special_tokens_are_left_out(how: str, normalization: str) -> None:
    scores = [0.1, 0.4, 0.2]
    curve = document_curve(attribution_of(scores, normalization=normalization, resampling=how))
    expected = resample(normalize(np.array(scores, dtype=np.float32), normalization), how)  # type: ignore[arg-type]
    assert_array_equal(curve, expected.astype(np.float32))
    assert curve.max() <= 1.0 and not curve.flags.writeable


def test_the_given_method_overrides_the_stored_one() -> None:
    result = attribution_of([1.0, 2.0], normalization="none", resampling="bin_mean")
    other = Method("saliency", {}, {"normalization": "max", "resampling": "point"})
    assert_allclose(document_curve(result)[[0, -1]], [1.0, 2.0])
    assert_allclose(document_curve(result, other)[[0, -1]], [0.5, 1.0])


# -- length buckets ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "bucket"),
    [
        (1, "Q1"),
        (512, "Q1"),
        (513, "Q2"),
        (1024, "Q2"),
        (1025, "Q3"),
        (1536, "Q3"),
        (1537, "Q4"),
        (100_000, "Q4"),
    ],
)
def test_length_buckets_of_posir(tokens: int, bucket: str) -> None:
    assert length_bucket(tokens) == bucket
    numbers = [int(n.replace(",", "")) for n in re.findall(r"[\d,]+", BUCKET_WORDS[bucket])]
    low = numbers[0] if "–" in BUCKET_WORDS[bucket] else 1 if bucket == "Q1" else numbers[0] + 1
    assert low <= tokens and (bucket == "Q4" or tokens <= numbers[-1]), "the words say the same"


# -- evidence ----------------------------------------------------------------------------------


def test_evidence_share_computed_by_hand() -> None:
    # Tokens of two characters: [0,2) [2,4) [4,6) [6,8); the evidence [3, 6) touches two of them.
    result = attribution_of([1.0, -2.0, 3.0, 2.0])
    share = evidence_share(result, EvidenceSpan(3, 6))
    assert share is not None
    assert share.share == pytest.approx(5 / 8)
    assert share.token_share == pytest.approx(2 / 4)
    assert share.enrichment == pytest.approx(1.25)
    assert token_range(result.document, EvidenceSpan(3, 6)) == (0.25, 0.75)


def test_evidence_touching_a_border_is_outside() -> None:
    result = attribution_of([1.0, 1.0, 1.0, 1.0])
    share = evidence_share(result, EvidenceSpan(2, 4))
    assert share is not None and share.token_share == 0.25
    assert token_range(result.document, EvidenceSpan(2, 4)) == (0.25, 0.5)


def test_uniform_scores_have_enrichment_one() -> None:
    share = evidence_share(attribution_of(np.full(12, 0.3)), EvidenceSpan(4, 13))
    assert share is not None and share.enrichment == pytest.approx(1.0)


def test_evidence_that_was_not_read_has_no_share() -> None:
    """Truncated: the evidence is after the last character that the model read."""
    result = attribution_of([1.0, 2.0], n_full=40)
    assert result.document.truncated and result.document.read_until == 4
    assert evidence_share(result, EvidenceSpan(4, 30)) is None
    assert token_range(result.document, EvidenceSpan(4, 30)) is None
    # Half of it was read, and that half counts.
    half = evidence_share(result, EvidenceSpan(3, 30))
    assert half is not None and half.share == pytest.approx(2 / 3)


def test_scores_of_zero_have_no_share() -> None:
    assert evidence_share(attribution_of([0.0, 0.0]), EvidenceSpan(0, 2)) is None


# -- comparing models with different tokenizers ------------------------------------------------


def test_unit_scores_computed_by_hand() -> None:
    #         0123456789
    # Text:  "un do redo"  with words [0,2) [3,5) [6,10)
    words = [(0, 2), (3, 5), (6, 10)]
    tokens = (
        Token("[CLS]", 0, 0, True),
        Token("u", 0, 1),
        Token("n", 1, 2),
        Token(" do", 2, 5),
        Token(" ", 5, 6),
        Token("re", 6, 8),
        Token("do", 8, 10),
        Token("[SEP]", 0, 0, True),
    )
    text = TokenizedText.of(tokens, 6, 512)
    scores = np.array([100, 1, 2, 4, 8, 16, 32, 100], dtype=np.float32)
    # " do" starts in the space before the word it belongs to, as does the lone space.
    assert_array_equal(unit_scores(text, scores, words, "sum"), [3.0, 4.0, 56.0])


def test_words_without_punctuation_marks_have_their_own_tokens_and_white_space() -> None:
    raw = " 5 °C .\n\nno ?\n"
    starts_and_ends = [(0, 1), (1, 2), (2, 3), (3, 5), (5, 6), (6, 7), (7, 8), (8, 8), (9, 11)]
    starts_and_ends += [(11, 12), (12, 13), (13, 14)]
    tokens = tuple(Token("t", *ends) for ends in starts_and_ends)
    text = TokenizedText.of(tokens, len(tokens), 512)
    scores = (2.0 ** np.arange(len(tokens))).astype(np.float32)
    # " 5"; " °C" without its space, which is before the mark; "\n\nno", of which one is empty.
    assert_array_equal(word_span_scores(text, scores, raw, "sum"), [3.0, 8.0, 64 + 128 + 256.0])
    of_words = unit_scores(text, scores, words(raw), "sum")
    assert np.nansum(of_words) == scores.sum() and of_words[-1] == 512 + 1024 + 2048


def test_units_that_were_not_read_are_nan() -> None:
    text = TokenizedText.of((Token("ab", 0, 2),), 9, 3)
    found = unit_scores(text, np.array([0.5], dtype=np.float32), [(0, 2), (3, 5)], "mean")
    assert found[0] == 0.5 and np.isnan(found[1])
    assert unit_scores(text, np.array([0.5], dtype=np.float32), [], "max").shape == (0,)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=30), st.data())
def test_unit_scores_add_up(widths, data) -> None:
    """Whatever tokens a text is cut into, the sum over words is the sum over tokens."""
    ends = np.cumsum(widths).tolist()
    # Every second word ends before the white space behind it, and the last one does.
    words = [(a, max(a + 1, b - n % 2)) for n, (a, b) in enumerate(pairwise([0, *ends]), len(ends))]
    cuts = sorted({0, ends[-1], *data.draw(st.lists(st.integers(0, ends[-1]), max_size=40))})
    tokens = tuple(Token("t", a, b) for a, b in pairwise(cuts))
    values = np.arange(1, len(tokens) + 1, dtype=np.float32)
    found = unit_scores(TokenizedText.of(tokens, len(tokens), 512), values, words, "sum")
    assert np.nansum(found) == values.sum()


def test_rank_correlations_equal_scipys_row_by_row() -> None:
    generator = np.random.default_rng(5)
    a = generator.normal(size=(40, 11))
    b = np.round(a + generator.normal(size=a.shape))  # with ties
    a[:20] = np.round(a[:20])
    found = rank_correlations(a, b)
    assert_allclose(found, [spearmanr(*rows).statistic for rows in zip(a, b, strict=True)])
    a[3], b[4] = 2.0, -1.0
    assert np.isnan(rank_correlations(a, b)).nonzero()[0].tolist() == [3, 4]


def test_rank_correlation_computed_by_hand() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0, np.nan])
    # Ranks 1 2 3 4 against 2 1 4 3: 1 - 6 * (1 + 1 + 1 + 1) / (4 * 15) = 0.6.
    b = np.array([20.0, 10.0, 40.0, 30.0, 5.0])
    assert rank_correlation(a, b) == pytest.approx(0.6)
    assert rank_correlation(a, -a) == pytest.approx(-1.0)
    assert rank_correlation(a, np.exp(a)) == pytest.approx(1.0)
    assert rank_correlation(a[:2], b[:2]) is None
    assert rank_correlation(a, np.array([1.0, 1.0, 1.0, 1.0, 7.0])) is None
    assert rank_correlation(a, np.array([1.0, 2.0, np.nan, np.nan, 7.0])) is None


# -- statistics of a curve ---------------------------------------------------------------------


def test_center_of_mass_and_index_computed_by_hand() -> None:
    first, last, middle = np.zeros(100), np.zeros(100), np.zeros(100)
    first[:33], last[-33:], middle[33:67] = 1.0, 1.0, 1.0
    assert center_of_mass(np.eye(1, 100, 0)[0], POINT) == 0.0
    assert center_of_mass(np.eye(1, 100, 99)[0], POINT) == 1.0
    assert center_of_mass(np.eye(1, 100, 0)[0], positions("bin_mean")) == 0.005
    assert center_of_mass(np.ones(100), POINT) == pytest.approx(0.5)
    assert center_of_mass(first, POINT) == pytest.approx(16 / 99)
    assert center_of_mass(first, positions("bin_mean")) == pytest.approx(0.165)
    assert primacy_recency_index(first) == -1.0
    assert primacy_recency_index(last) == 1.0
    assert primacy_recency_index(first + 3 * last) == pytest.approx(0.5)
    # Thirds of 100 points have 33 points each; the 34 in between belong to neither.
    ends = [float(primacy_recency_index(np.eye(1, 100, k)[0])) for k in (32, 33, 66, 67)]
    assert_array_equal(ends, [-1.0, np.nan, np.nan, 1.0])


def test_curves_of_zeros_have_no_statistics() -> None:
    middle = np.zeros(100)
    middle[33:67] = 1.0
    assert np.isnan(center_of_mass(np.zeros(100), POINT))
    assert np.isnan(primacy_recency_index(np.zeros(100)))
    assert np.isnan(primacy_recency_index(middle))
    assert center_of_mass(middle, POINT) == pytest.approx(0.5)


def test_statistics_of_signed_curves_are_refused() -> None:
    """Opposite signs cancel, so signed curves are refused."""
    signed = np.linspace(-1, 1, 100)
    for statistic in (partial(center_of_mass, x=POINT), primacy_recency_index):
        with pytest.raises(ValueError, match="negative"):
            statistic(signed)


def test_statistics_take_many_curves_at_once() -> None:
    curves = np.random.default_rng(1).random((5, 100))
    for statistic in (partial(center_of_mass, x=POINT), primacy_recency_index):
        assert_allclose(statistic(curves), [statistic(curve) for curve in curves])


@given(arrays(np.float64, 100, elements=st.floats(0, 1)))
def test_mirrored_curves_have_mirrored_statistics(curve) -> None:
    curve[[0, -1]] += 1.0  # a curve of zeros has neither
    assert -1 <= primacy_recency_index(curve) <= 1
    assert 0 <= center_of_mass(curve, POINT) <= 1
    assert primacy_recency_index(curve[::-1]) == pytest.approx(
        -primacy_recency_index(curve), abs=1e-9
    )
    for how in RESAMPLINGS:
        x = positions(how)
        assert center_of_mass(curve[::-1], x) == pytest.approx(
            1 - center_of_mass(curve, x), abs=1e-9
        )


@pytest.mark.parametrize(
    ("model", "start", "end", "mass", "sign"),
    [("Qwen3-Embedding-8B", 0.938, 0.671, 0.424, -1), ("NV-Embed-v2", 0.069, 0.562, 0.639, 1)],
)
def test_published_curves_give_the_published_numbers(
    model: str, start: float, end: float, mass: float, sign: int
) -> None:
    path = REFERENCE / f"posir_saliency_{model}.npz"
    if not path.is_file():
        pytest.skip("PosIR's published curves are not beside this repository (shared/reference)")
    curves = np.load(path, allow_pickle=False)["curves"]
    assert curves.shape == (3131, 100)
    summary = summarize(
        curves,
        None,
        magnitudes=curves,
        model=model,
        dataset="PosIR",
        method=make_method("saliency", POSIR_CURVE),
        n_truncated=0,
        n_failed=0,
    )
    assert summary.curve.mean[0] == pytest.approx(start, abs=5e-4)
    assert summary.curve.mean[-1] == pytest.approx(end, abs=5e-4)
    assert summary.center_of_mass is not None
    assert summary.center_of_mass.value == pytest.approx(mass, abs=5e-4)
    index = summary.primacy_recency_index
    assert index is not None and index.interval is not None
    assert np.sign([index.value, *index.interval]).tolist() == [sign] * 3
    assert_allclose(summary.curve.std, curves.std(0, ddof=1), rtol=1e-5)


# -- bootstrap ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def curves() -> np.ndarray:
    """40 noisy curves that fall from the beginning to the end."""
    noise = np.random.default_rng(3).gamma(2.0, 0.2, size=(40, 100))
    return noise * np.linspace(1.0, 0.4, 100)


def test_intervals_agree_with_scipy(curves: np.ndarray) -> None:
    summary = summarize(
        curves,
        None,
        magnitudes=curves,
        model="m",
        dataset="d",
        method=Method("saliency"),
        n_truncated=2,
        n_failed=1,
    )
    assert summary.curve.ci_low is not None and summary.curve.ci_high is not None
    options = {"n_resamples": 9999, "method": "BCa", "rng": 5}
    options["confidence_level"] = student_level(len(curves))
    expected = bootstrap((curves,), np.mean, axis=0, **options).confidence_interval
    width = expected.high - expected.low
    # 1,000 resamples estimate a tail with a standard error of about 4% of the interval's width.
    assert (np.abs(summary.curve.ci_low - expected.low) < 0.2 * width).all()
    assert (np.abs(summary.curve.ci_high - expected.high) < 0.2 * width).all()
    ratio = (summary.curve.ci_high - summary.curve.ci_low) / width
    assert ratio.mean() == pytest.approx(1.0, abs=0.05)
    for found, statistic in (
        (summary.center_of_mass, partial(center_of_mass, x=positions("bin_mean"))),
        (summary.primacy_recency_index, primacy_recency_index),
    ):
        assert found is not None and found.low is not None and found.high is not None
        assert (found.n, found.n_resampled, found.resampled) == (40, 40, "documents")
        index = (np.arange(len(curves)),)
        scipys = bootstrap(
            index, lambda i, f=statistic: f(curves[i].mean(0)), vectorized=False, **options
        ).confidence_interval
        span = scipys.high - scipys.low
        assert found.low == pytest.approx(scipys.low, abs=0.15 * span)
        assert found.high == pytest.approx(scipys.high, abs=0.15 * span)
        assert found.value == pytest.approx(float(statistic(curves.mean(0))))
        assert found.low < found.value < found.high


def test_bootstrap_is_seeded_and_centered(curves: np.ndarray) -> None:
    one, other = drawn_means(curves), drawn_means(curves)
    assert one.shape == (1000, 100)
    assert_array_equal(one, other)
    error = one.mean(0) - curves.mean(0)
    assert np.abs(error).max() < 0.2 * curves.std(0).max() / np.sqrt(len(curves))
    # The spread of a mean of n: the sample's (ddof=0) over sqrt(n).
    assert_allclose(one.std(0), curves.std(0) / np.sqrt(len(curves)), rtol=0.15)


def test_many_documents_are_resampled_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = np.random.default_rng(0).random((9000, 100)).astype(np.float32)
    found = drawn_means(curves, n_resamples=1000)
    assert found.shape == (1000, 100) and np.isfinite(found).all()
    assert np.abs(found - curves.mean(0)).max() < 0.05


def test_summary_of_one_curve_and_of_none() -> None:
    arguments = {"model": "m", "dataset": "d", "method": Method("saliency")}
    one = summarize(
        np.linspace(0, 1, 100)[None],
        ["text"],
        magnitudes=None,
        n_truncated=1,
        n_failed=2,
        **arguments,
    )
    assert_array_equal(one.curve.std, np.zeros(100))
    assert one.curve.ci_low is None and one.curve.ci_high is None
    assert (one.curve.n, one.curve.n_documents) == (1, 1)
    assert (one.curve.n_truncated, one.curve.n_failed) == (1, 2)
    with pytest.raises(UserError, match="m has no results for these pairs yet"):
        summarize(np.zeros((0, 100)), [], magnitudes=None, n_truncated=0, n_failed=0, **arguments)


def test_positions_are_where_the_resampling_samples() -> None:
    """In a text of 100 tokens each bin is one token, which fills [j/100, (j+1)/100). `point`
    samples at token indices scaled to [0, 1]."""
    assert_allclose(positions("bin_mean"), [(j + 0.5) / 100 for j in range(100)])
    assert_allclose(positions("point"), [j / 99 for j in range(100)])
    for how in RESAMPLINGS:
        line = resample(np.interp(np.linspace(0, 1, 100), [0, 1], [3.0, 5.0]), how)
        assert_allclose(line, 3.0 + 2.0 * np.arange(100) / 99)
    assert str(Estimate(0.42449, 0.4, 0.45)) == "0.424 [0.400, 0.450]"


def test_bands_have_the_edges_that_they_are_named_after() -> None:
    """The constant curves 1, 2, 3, 4 and 10, each twice, have quartiles 2, 3, 4 and standard
    deviation sqrt(2 * 50 / 9)."""
    curves = np.repeat([[1.0], [2.0], [3.0], [4.0], [10.0]], 100, axis=1)
    curve = summarize(
        np.repeat(curves, 2, axis=0),
        None,
        magnitudes=None,
        model="m",
        dataset="d",
        method=make_method("saliency"),
        n_truncated=0,
        n_failed=0,
    ).curve
    assert curve.ci_low is not None and curve.ci_high is not None
    assert curve.quartiles is not None
    np.testing.assert_array_equal(curve.quartiles[:, 7], [2, 3, 4])
    edges = {kind: [edge[5] for edge in band(curve, kind) or ()] for kind in BANDS}
    assert edges["quartiles"] == [2, 4]
    assert edges["standard deviation"] == pytest.approx(
        [4 - (100 / 9) ** 0.5, 4 + (100 / 9) ** 0.5]
    )
    assert edges["95% interval of the mean"] == [curve.ci_low[5], curve.ci_high[5]]
    assert band(dataclasses.replace(curve, quartiles=None), "quartiles") is None


@pytest.mark.parametrize("how", RESAMPLINGS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_batched_curves_equal_numpys_row_by_row_bit_for_bit(
    normalization: Normalization, how: Resampling
) -> None:
    """Batched computation equals `numpy.percentile` and `numpy.interp` of each row."""
    draw = np.random.default_rng(7)
    lengths = [1, 2, 3, 99, 100, 101, 200, *draw.integers(1, 900, 150)]
    documents = [draw.normal(size=n).astype(np.float32) for n in lengths]
    documents[5][:] = 0.0
    documents[6][:-1] = 0.0  # a percentile of zero, a maximum above it
    method = Method("m", {}, curve_params(normalization, how))
    found = score_curves(documents, method)
    for document, curve in zip(documents, found, strict=True):
        values, n = document.astype(np.float64), len(document)
        largest = np.abs(values).max()
        limit = np.percentile(np.abs(values), 99) if normalization == "p99" else largest
        limit = limit or largest
        if normalization != "none" and limit:
            values = np.clip(values, -limit, limit) / limit
        if how == "point":
            expected = np.interp(np.linspace(0, 1, 100), np.linspace(0, 1, n), values)
        else:
            filled = np.concatenate(([0.0], np.cumsum(values)))
            edges = np.interp(np.linspace(0, 1, 101), np.arange(n + 1) / n, filled)
            expected = np.diff(edges) * 100 / n
        np.testing.assert_array_equal(curve, expected.astype(np.float32))

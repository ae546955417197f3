"""Deletion and insertion: values by hand on a linear retriever, laws of orders, and planted
evidence."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.curves.positions import evidence_share
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.evaluation.deletion import by_position, deletion_insertion
from poslens.attribution.evaluation.faithfulness import (
    ERASER_FRACTIONS,
    FRACTIONS,
    ErasureParameters,
    Faithfulness,
    RandomOrders,
    position_order,
)
from poslens.attribution.evaluation.faithfulness_summary import summarize
from poslens.attribution.methods import make_method
from poslens.attribution.methods.saliency import attribute
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import (
    Attribution,
    EvidenceSpan,
    TextPair,
    Token,
    TokenizedText,
)

METHOD = make_method("decomposition")
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Linear:
    """A retriever whose score is a constant plus the sum of its words' weights. The embedding of a
    word is its weight, and that of padding is `padding`. A hyphen splits a word into tokens."""

    def __init__(
        self,
        weights: Mapping[str, float],
        constant: float = 0.0,
        padding: float = 0.0,
        limit: int = 512,
    ) -> None:
        self.weights, self.constant, self.padding, self.limit = weights, constant, padding, limit
        self.name, self.device, self.lock = "linear", torch.device("cpu"), threading.RLock()
        self.scored: list[int] = []
        self._read: Tensor | None = None

    def encode_texts(self, texts: list[str], side: str) -> Encoded:
        (text,) = texts
        tokens, start = [], 0
        for piece in text.replace("-", " -").split(" "):
            begin = text.index(piece, start)
            start = begin + len(piece)
            tokens.append(Token(piece, begin, start))
        read = tokens[: self.limit]
        special = Token("[CLS]", 0, 0, is_special=True)
        known = TokenizedText.of((special, *read), len(tokens), self.limit + 1)
        features = {"side": side, "words": [t.text for t in read]}
        return Encoded(features, (known,), (0,))

    def input_embeddings(self, encoded: Encoded) -> Tensor:
        values = [0.0, *(self.weights.get(w, 0.0) for w in encoded.features["words"])]
        return torch.tensor(values)[None, :, None]

    def baseline(self, encoded: Encoded) -> Tensor:
        inputs = torch.full_like(self.input_embeddings(encoded), self.padding)
        inputs[:, 0] = 0.0
        return inputs

    @contextmanager
    def override_embeddings(self, inputs: Tensor) -> Iterator[None]:
        self._read = inputs
        yield
        self._read = None

    def embed(self, encoded: Encoded) -> Tensor:
        if encoded.features["side"] == "query":
            return torch.ones(1, 1)
        assert self._read is not None
        self.scored.append(len(self._read))
        return self._read.sum(1) + self.constant

    def similarity(self, queries: Tensor, documents: Tensor) -> Tensor:
        return (queries * documents).sum(-1)


def linear(weights: Mapping[str, float], **options: float) -> DenseRetriever:
    return Linear(weights, **options)  # type: ignore[arg-type, return-value]


def attributed(
    retriever: DenseRetriever, pair: TextPair, scores: Mapping[str, float], **fields: object
) -> Attribution:
    """An attribution with the given score of each token."""
    query = retriever.encode_texts([pair.query], "query").texts[0]
    document = retriever.encode_texts([pair.document], "document").texts[0]
    values = [0.0 if t.is_special else scores.get(t.text, 0.0) for t in document.tokens]
    return Attribution(
        model=retriever.name,
        method=METHOD,
        pair_id=pair.pair_id,
        score=0.0,
        query=query,
        document=document,
        query_scores=np.zeros(len(query.tokens)),
        document_scores=np.array(values),
        **fields,  # type: ignore[arg-type]
    )


def trial(
    weights: Mapping[str, float],
    scores: Mapping[str, float] | None = None,
    document: str | None = None,
    *,
    retriever: DenseRetriever | None = None,
    evidence: EvidenceSpan | None = None,
    random_orders: RandomOrders | None = None,
    **options: object,
) -> Faithfulness:
    retriever = retriever or linear(weights)
    pair = TextPair("p", "query", document or " ".join(weights), evidence)
    attribution = attributed(retriever, pair, weights if scores is None else scores)
    parameters = ErasureParameters(**options)  # type: ignore[arg-type]
    return deletion_insertion(retriever, pair, attribution, parameters, random_orders=random_orders)


WEIGHTS = {"one": 1.0, "four": 4.0, "two": 2.0, "three": 3.0}


def at(result: Faithfulness, fractions: tuple[float, ...]) -> list[int]:
    return [result.parameters.fractions.index(fraction) for fraction in fractions]


# -- derived by hand ---------------------------------------------------------------------------


def test_areas_of_four_words() -> None:
    """Weights 4, 3, 2 and 1 sum to 10: deletion leaves 10, 6, 3, 1, 0; insertion gives 0, 4, 7, 9,
    10."""
    result = trial(WEIGHTS, fractions=QUARTERS)
    quarters = at(result, QUARTERS)
    assert result.deletion[quarters].tolist() == [10, 6, 3, 1, 0]
    assert result.insertion[quarters].tolist() == [0, 4, 7, 9, 10]
    assert (result.score, result.baseline, result.gap, result.n_units) == (10, 0, 10, 4)
    measures = result.measures
    assert measures is not None
    # Trapezoids of width 1/4: (1/2 + .6 + .3 + .1 + 0/2) / 4 and (0/2 + .4 + .7 + .9 + 1/2) / 4.
    assert measures.deletion_area == pytest.approx(0.375)
    assert measures.insertion_area == pytest.approx(0.625)
    # 1, 5, 10 and 20% of four words are one word, 50% two: four times 4 and once 7 of 10 fall,
    # four times 6 and once 3 are lacking.
    assert measures.comprehensiveness == pytest.approx((4 * 0.4 + 0.7) / 5)
    assert measures.sufficiency == pytest.approx((4 * 0.6 + 0.3) / 5)


def test_random_orders_of_a_linear_score_lie_on_the_diagonal() -> None:
    words = {f"w{n}": float(n % 7) for n in range(60)}
    result = trial(words, n_random=100)
    diagonal = 1 - result.removed
    assert np.abs(result.scaled(result.random_orders.deletion.mean(0)) - diagonal).max() < 0.03
    assert (
        np.abs(result.scaled(result.random_orders.insertion.mean(0)) - result.removed).max() < 0.03
    )
    random, gain, own = result.random, result.gain, result.measures
    assert random is not None and gain is not None and own is not None
    assert random.deletion_area == pytest.approx(0.5, abs=0.02)
    assert random.comprehensiveness == pytest.approx(
        result.removed[at(result, ERASER_FRACTIONS)].mean(), abs=0.02
    )
    assert gain.deletion_area == pytest.approx(random.deletion_area - own.deletion_area)
    assert gain.sufficiency == pytest.approx(random.sufficiency - own.sufficiency)
    for name in ("insertion_area", "comprehensiveness"):
        assert getattr(gain, name) == pytest.approx(getattr(own, name) - getattr(random, name))
    assert min(dataclasses.astuple(gain)) > 0


def test_the_mean_is_over_orders() -> None:
    result = trial(WEIGHTS, n_random=7)
    deletion = result.random_orders.deletion
    assert deletion.shape == (7, len(FRACTIONS))
    np.testing.assert_allclose(result.random_orders.deletion.mean(0), deletion.mean(0))


def test_a_constant_and_padding_change_no_measure() -> None:
    """Padding of weight 0.5 reduces every difference of 10 by 2. Scaling removes this, since every
    word loses the same."""
    plain = trial(WEIGHTS)
    raised = trial(WEIGHTS, retriever=linear(WEIGHTS, constant=5.0))
    assert raised.measures == plain.measures and raised.baseline == 5.0
    padded = trial(WEIGHTS, retriever=linear(WEIGHTS, padding=0.5), fractions=QUARTERS)
    assert padded.deletion[at(padded, QUARTERS)].tolist() == [10, 6.5, 4, 2.5, 2]


def test_a_document_that_scores_below_an_empty_one() -> None:
    """With only negative weights, deleting the most positive first raises the score."""
    weights = {word: -weight for word, weight in WEIGHTS.items()}
    result = trial(weights, fractions=QUARTERS)
    assert result.deletion[at(result, QUARTERS)].tolist() == [-10, -9, -7, -4, 0]
    assert result.gap == -10
    measures = result.measures
    assert measures is not None
    assert measures.comprehensiveness == pytest.approx((4 * -0.1 + -0.3) / 5)
    assert measures.deletion_area == pytest.approx((0.5 + 0.9 + 0.7 + 0.4) / 4)


@pytest.mark.parametrize("scores", [{"a": 1.0, "b": -1.0}, {"a": 0.0, "b": 0.0}])
def test_a_document_that_scores_like_an_empty_one_has_no_measures(scores: dict[str, float]) -> None:
    result = trial(scores)
    assert result.gap is result.measures is result.random is result.gain is None
    with pytest.raises(ValueError, match="same score"):
        result.scaled(result.deletion)


# -- laws of orders ----------------------------------------------------------------------------


def test_the_perfect_order_is_the_best_permutation() -> None:
    found = {}
    for order in itertools.permutations(WEIGHTS):
        scores = {word: float(len(order) - rank) for rank, word in enumerate(order)}
        measures = trial(WEIGHTS, scores, fractions=QUARTERS).measures
        assert measures is not None
        found[order] = measures
    perfect, worst = ("four", "three", "two", "one"), ("one", "two", "three", "four")
    best = found[perfect]
    assert min(m.deletion_area for m in found.values()) == best.deletion_area
    assert max(m.insertion_area for m in found.values()) == best.insertion_area
    assert max(m.comprehensiveness for m in found.values()) == best.comprehensiveness
    assert min(m.sufficiency for m in found.values()) == best.sufficiency
    assert sum(m.deletion_area == pytest.approx(best.deletion_area) for m in found.values()) == 1
    assert max(m.deletion_area for m in found.values()) == found[worst].deletion_area
    # For a sum, an order has the deletion area that its reverse has as insertion area.
    for order, measures in found.items():
        assert measures.deletion_area + found[order[::-1]].insertion_area == pytest.approx(
            2 * measures.deletion_area
        )


@given(
    weights=st.lists(st.integers(-9, 9), min_size=1, max_size=40),
    scores=st.lists(st.integers(-3, 3), min_size=40, max_size=40),
)
def test_curves_equal_sums_over_the_remaining_units(weights: list[int], scores: list[int]) -> None:
    names = [f"w{n}" for n in range(len(weights))]
    by_name = dict(zip(names, map(float, weights), strict=True))
    result = trial(by_name, dict(zip(names, map(float, scores), strict=False)), n_random=1)
    np.testing.assert_allclose(result.deletion + result.insertion, sum(weights), atol=1e-4)
    assert result.deletion[0] == result.insertion[-1] == pytest.approx(sum(weights))
    counts = result.parameters.counts(result.n_units)
    assert (np.diff(counts) >= 0).all() and counts[0] == 0 and counts[-1] == len(weights)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, [0, 1, 1, 1, 1, 1, 1, 1, 1]),
        (2, [0, 1, 1, 1, 1, 1, 1, 1, 2]),
        (20, [0, 1, 1, 2, 4, 10, 16, 19, 20]),
        (465, [0, 5, 23, 47, 93, 233, 372, 460, 465]),
        (1000, [0, 10, 50, 100, 200, 500, 800, 990, 1000]),
    ],
)
def test_fractions_are_rounded_to_whole_units(n: int, expected: list[int]) -> None:
    parameters = ErasureParameters(fractions=(0.8, 0.99))
    assert parameters.fractions == (0, 0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.99, 1)
    assert parameters.counts(n).tolist() == expected


def test_ties_are_broken_at_random_and_not_in_reading_order() -> None:
    """Of 40 tied words only the first matters: in reading order it would always be deleted
    first."""
    words = {f"w{n}": 0.0 for n in range(40)} | {"w0": 1.0}
    falls = []
    for seed in range(60):
        result = trial(words, dict.fromkeys(words, 0.3), seed=seed, n_random=1)
        again = trial(words, dict.fromkeys(words, 0.3), seed=seed, n_random=1)
        assert result.deletion.tolist() == again.deletion.tolist()
        falls.append(float(result.deletion[at(result, (0.5,))[0]]))
    assert 0.25 < np.mean(falls) < 0.75


def test_a_tie_does_not_affect_units_above_and_below() -> None:
    scores = {"one": 1.0, "four": 5.0, "two": 2.0, "three": 2.0}
    for seed in range(5):
        result = trial(WEIGHTS, scores, seed=seed, fractions=QUARTERS)
        left = result.deletion[at(result, QUARTERS)]
        assert left[1] == 6 and left[2] in (3, 4) and left[3] == 1


# -- units -------------------------------------------------------------------------------------


def test_a_single_word() -> None:
    result = trial({"word": 3.0})
    assert result.n_units == 1
    assert result.deletion.tolist() == [3.0] + [0.0] * (len(FRACTIONS) - 1)
    measures = result.measures
    assert measures == result.random and measures is not None
    assert dataclasses.astuple(measures) == (0.5, 0.5, 1.0, 0.0)
    assert dataclasses.astuple(result.gain) == (0.0,) * 4  # type: ignore[arg-type]


def test_words_are_deleted_with_all_their_tokens() -> None:
    """`c-d` is one word of two tokens with weights 3 and 2, so 5 together."""
    weights, text = {"a": 4.0, "b": 1.0, "c": 3.0, "-d": 2.0}, "a b c-d"
    words = trial(weights, document=text, fractions=(1 / 3, 2 / 3))
    assert words.n_units == 3
    assert words.deletion[at(words, (1 / 3, 2 / 3))].tolist() == [5, 1]
    tokens = trial(weights, document=text, unit="token", fractions=QUARTERS)
    assert tokens.n_units == 4
    assert tokens.deletion[at(tokens, QUARTERS)].tolist() == [10, 6, 3, 1, 0]
    assert tokens.insertion[at(tokens, QUARTERS)].tolist() == [0, 4, 7, 9, 10]


def test_a_truncated_document_has_only_the_units_that_were_read() -> None:
    words = {f"w{n}": 1.0 for n in range(10)}
    result = trial(words, retriever=linear(words, limit=4))
    assert result.truncated and result.n_units == 4 and result.score == 4
    assert not trial(words).truncated


def test_evidence_and_seconds_are_taken_from_the_attribution() -> None:
    retriever = linear(WEIGHTS)
    text = " ".join(WEIGHTS)  # one four two three
    pair = TextPair("p", "query", text, EvidenceSpan(4, 8))
    attribution = attributed(retriever, pair, WEIGHTS, seconds=0.25)
    result = deletion_insertion(retriever, pair, attribution)
    share = evidence_share(attribution, pair.evidence)  # type: ignore[arg-type]
    assert share is not None and result.enrichment == share.enrichment == pytest.approx(0.4 / 0.25)
    assert result.attribution_seconds == 0.25 and result.seconds > 0
    assert (result.model, result.method, result.pair_id) == ("linear", METHOD, "p")
    assert trial(WEIGHTS).enrichment is None


# -- cost, random orders, stopping ----------------------------------------------------------------


@pytest.mark.parametrize("n_random", [1, 5])
@pytest.mark.parametrize("n_units", [1, 3, 20, 465])
def test_no_more_documents_are_scored_than_stated(n_units: int, n_random: int) -> None:
    words = {f"w{n}": float(n) for n in range(n_units)}
    retriever = linear(words)
    result = trial(words, retriever=retriever, n_random=n_random)
    inner = len(FRACTIONS) - 2
    scored = sum(retriever.scored)  # type: ignore[attr-defined]
    assert scored <= 2 + 2 * inner * (1 + n_random)
    if n_random == 5:
        assert scored <= 95
    batch = 8192 // (n_units + 1)
    assert len(retriever.scored) <= -(-scored // batch)  # type: ignore[attr-defined]
    retriever = linear(words)
    shared = trial(
        words, retriever=retriever, n_random=n_random, random_orders=result.random_orders
    )
    assert sum(retriever.scored) <= 2 + 2 * inner  # type: ignore[attr-defined]
    assert shared.random_orders is result.random_orders
    assert (shared.measures, shared.random) == (result.measures, result.random)


def test_random_orders_depend_only_on_seed_and_document() -> None:
    words = {f"w{n}": float(n) for n in range(30)}
    first, again = trial(words), trial(words, {"w3": 1.0})
    assert first.random_orders.deletion.tobytes() == again.random_orders.deletion.tobytes()
    assert first.random_orders.insertion.tobytes() == again.random_orders.insertion.tobytes()
    other = trial(words, seed=1)
    assert first.random_orders.deletion.tobytes() != other.random_orders.deletion.tobytes()
    renamed = trial({f"v{n}": float(n) for n in range(30)})
    assert first.random_orders.deletion.tobytes() != renamed.random_orders.deletion.tobytes()
    assert len({row.tobytes() for row in first.random_orders.deletion}) == 5


def test_a_baseline_of_other_parameters_is_refused() -> None:
    random_orders = trial(WEIGHTS).random_orders
    with pytest.raises(ValueError, match="other parameters"):
        trial(WEIGHTS, random_orders=random_orders, n_random=3)
    with pytest.raises(ValueError, match="differ"):
        RandomOrders(random_orders.deletion, random_orders.insertion[:2])


def test_it_can_be_stopped_before_each_batch() -> None:
    words = {f"w{n}": float(n) for n in range(2000)}  # four copies a batch
    for allowed in (0, 3):
        retriever = linear(words, limit=2000)
        answers = iter([False] * allowed + [True])
        with pytest.raises(Stopped), stoppable(lambda answers=answers: next(answers)):
            trial(words, retriever=retriever)
        assert retriever.scored == [4] * allowed  # type: ignore[attr-defined]
        assert retriever.lock.acquire(blocking=False)
        retriever.lock.release()


def test_another_documents_attribution_is_refused() -> None:
    retriever = linear(WEIGHTS)
    attribution = attributed(retriever, TextPair("p", "query", "one two"), WEIGHTS)
    with pytest.raises(ValueError, match="not of this document"):
        deletion_insertion(retriever, TextPair("p", "query", "one four"), attribution)


@pytest.mark.parametrize(
    "options",
    [
        {"fractions": (0.5, 1.1)},
        {"fractions": (float("nan"),)},
        {"unit": "letter"},
        {"n_random": 0},
        {"n_random": 101},
    ],
)
def test_invalid_parameters_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UserError):
        trial(WEIGHTS, **options)


def test_the_repr_is_the_identity() -> None:
    parameters = ErasureParameters()
    assert repr(parameters) == (
        "deletion_insertion(unit=word, n_random=5, seed=20260101, "
        "fractions=0.0/0.01/0.05/0.1/0.2/0.3/0.4/0.5/0.6/0.7/0.8/0.9/1.0, version=2)"
    )
    assert ErasureParameters(fractions=(0.3,)) == ErasureParameters(fractions=(0.3, 0.0, 1.0))
    others = [
        ErasureParameters(fractions=(0.3,)),
        ErasureParameters(unit="token"),
        ErasureParameters(n_random=4),
        ErasureParameters(seed=1),
    ]
    assert len({repr(p) for p in (parameters, *others)}) == 5
    # Fractions that look equal when rounded are still distinct.
    close = (0.3, 0.3 + 1e-9)
    assert repr(ErasureParameters(fractions=close[:1])) != repr(
        ErasureParameters(fractions=close[1:])
    )


# -- averages ----------------------------------------------------------------------------------


def several(n: int = 12) -> list[Faithfulness]:
    generator = np.random.default_rng(5)
    results = []
    for _ in range(n):
        weights = {f"w{k}": float(w) for k, w in enumerate(generator.gamma(1, 1, 25))}
        noisy = {word: weight + generator.normal() for word, weight in weights.items()}
        results.append(trial(weights, noisy, evidence=EvidenceSpan(0, 2)))
    return results


def test_averages_are_means_and_intervals_contain_them() -> None:
    results = several()
    summary = summarize(results, range(len(results)))
    assert (summary.n, summary.n_equal, summary.n_below, summary.n_truncated) == (12, 0, 0, 0)
    assert summary.enrichment is not None and summary.enrichment.n == 12
    for name, expected in {
        "deletion_area": [r.measures.deletion_area for r in results],
        "insertion_area": [r.measures.insertion_area for r in results],
        "comprehensiveness": [r.measures.comprehensiveness for r in results],
        "sufficiency": [r.measures.sufficiency for r in results],
        "deletion_gain": [r.gain.deletion_area for r in results],
        "insertion_gain": [r.gain.insertion_area for r in results],
        "comprehensiveness_gain": [r.gain.comprehensiveness for r in results],
        "sufficiency_gain": [r.gain.sufficiency for r in results],
        "enrichment": [r.enrichment for r in results],
        "seconds": [r.attribution_seconds for r in results],
    }.items():  # type: ignore[union-attr]
        estimate = getattr(summary, name)
        assert estimate.value == pytest.approx(np.mean(expected)), name
        assert estimate.low <= estimate.value <= estimate.high, name
        # The percentile interval of a mean is about 1.96 standard errors to either side.
        error = np.std(expected) / np.sqrt(12)
        assert estimate.high - estimate.low == pytest.approx(3.92 * error, rel=0.25), name
    scaled = [r.scaled(r.deletion) for r in results]
    np.testing.assert_allclose(summary.deletion.mean[[0, -1]], [1, 0], atol=1e-6)
    half = at(results[0], (0.2,))[0]  # 20% of 25 words are five, so nothing is interpolated
    assert summary.deletion.mean[half] == pytest.approx(np.mean([c[half] for c in scaled]))
    assert (summary.random_insertion.low <= summary.random_insertion.high).all()
    again = summarize(results, range(len(results)))
    assert again.deletion_area == summary.deletion_area


def test_pairs_of_one_document_do_not_narrow_the_intervals() -> None:
    """Repeating each document's pair adds no information."""
    results, ids = several(), range(12)
    once, twice = summarize(results, ids), summarize([*results, *results], [*ids, *ids])
    assert (twice.n, twice.n_documents) == (24, 12)
    for name in ("deletion_area", "sufficiency", "insertion_gain", "enrichment", "seconds"):
        assert getattr(once, name).interval is not None
        assert getattr(twice, name).interval == pytest.approx(getattr(once, name).interval), name
    for name in ("deletion", "insertion", "random_deletion"):
        for end in ("low", "high"):
            of_once, of_twice = (getattr(getattr(one, name), end) for one in (once, twice))
            np.testing.assert_allclose(of_twice, of_once, atol=1e-6)


def test_pairs_that_score_like_an_empty_document_are_counted_and_left_out() -> None:
    results = several(3)
    equal, below = trial({"a": 1.0, "b": -1.0}), trial({"a": -1.0})
    summary = summarize([*results, equal, below], range(5))
    assert (summary.n, summary.n_equal, summary.n_below) == (3, 1, 1)
    assert summary.deletion_area == summarize(results, range(len(results))).deletion_area
    with pytest.raises(UserError, match=f"{equal.model}: no document scores higher"):
        summarize([equal, below], range(2))
    with pytest.raises(ValueError, match="no results"):
        summarize([], [])


def test_documents_of_few_units_are_interpolated() -> None:
    """A fifth of two equal words is not a whole word; interpolated between 1 and 0.5, it gives
    0.8."""
    result = trial({"a": 1.0, "b": 1.0})
    summary = summarize([result], ["d"])
    np.testing.assert_allclose(summary.deletion.mean, 1 - np.array(FRACTIONS), atol=1e-6)
    np.testing.assert_allclose(summary.insertion.mean, np.array(FRACTIONS), atol=1e-6)
    assert summary.enrichment is None


def test_results_of_different_tests_are_not_averaged() -> None:
    with pytest.raises(ValueError, match="several"):
        summarize([trial(WEIGHTS), trial(WEIGHTS, unit="token")], range(2))


# -- a real model ------------------------------------------------------------------------------

ANSWER = "Fog forms over cold water when moist air cools."
FILLER = (
    "The parliament voted on a new budget for schools. Guitar strings are made of steel or nylon. "
)
PLANTED = TextPair(
    "planted",
    "how does fog form over cold water",
    FILLER + ANSWER,
    EvidenceSpan(len(FILLER), len(FILLER + ANSWER)),
)


def graded(retriever: DenseRetriever, inside: float, outside: float) -> Attribution:
    """An attribution of one value inside the evidence and one outside."""
    (real,) = attribute(retriever, make_method("saliency"), [PLANTED])
    span = PLANTED.evidence
    assert span is not None
    scores = [
        0.0 if t.is_special else inside if t.start >= span.start else outside
        for t in real.document.tokens
    ]
    return dataclasses.replace(real, document_scores=np.array(scores))


def test_evidence_first_beats_random_order_which_beats_evidence_last(
    minilm: DenseRetriever,
) -> None:
    first, last = (
        deletion_insertion(minilm, PLANTED, graded(minilm, *values), ErasureParameters(n_random=3))
        for values in ((1.0, 0.0), (0.0, 1.0))
    )
    good, bad, random = first.measures, last.measures, first.random
    assert good is not None and bad is not None and random is not None
    assert good.deletion_area < random.deletion_area < bad.deletion_area
    assert good.insertion_area > random.insertion_area > bad.insertion_area
    assert good.comprehensiveness > random.comprehensiveness > bad.comprehensiveness
    assert good.sufficiency < random.sufficiency < bad.sufficiency
    # Deleting more of the answer lowers the score; deleting the filler does not.
    tenths = at(first, (0.1, 0.2, 0.3))
    assert (np.diff(first.deletion[tenths]) < 0).all()
    assert last.deletion[: tenths[-1] + 1].min() > first.deletion[tenths[-1]]
    assert first.gain is not None and first.gain.comprehensiveness > 0.1
    assert first.score == pytest.approx(
        attribute(minilm, make_method("saliency"), [PLANTED])[0].score, abs=1e-5
    )


def test_scores_equal_those_of_the_padded_document(minilm: DenseRetriever) -> None:
    """The same document with [PAD] in place of the deleted units, encoded as usual."""
    attribution = graded(minilm, 1.0, 0.0)
    result = deletion_insertion(
        minilm, PLANTED, attribution, ErasureParameters(unit="sentence", n_random=1)
    )
    assert result.n_units == 3
    encoded = minilm.encode_texts([PLANTED.document], "document")
    span, ids = PLANTED.evidence, encoded.features["input_ids"].clone()
    assert span is not None
    for position, token in enumerate(encoded.texts[0].tokens):
        if not token.is_special and token.start >= span.start:
            ids[0, position] = minilm.model.tokenizer.pad_token_id
    padded = dataclasses.replace(encoded, features={**encoded.features, "input_ids": ids})
    with torch.no_grad():
        query = minilm.embed(minilm.encode_texts([PLANTED.query], "query"))
        expected = float(minilm.similarity(query, minilm.embed(padded)))
    (tenth,) = at(result, (0.1,))
    assert result.deletion[tenth] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["bert", "qwen3-left", "roberta"])
def test_any_architecture_can_be_tested_on_a_truncated_document(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    retriever = tiny(name, max_length=24)
    pair = TextPair("p", "tide", "the Moon pulls the water nearer to it " * 6)
    (attribution,) = attribute(retriever, make_method("saliency"), [pair])
    by_word, by_token = (
        deletion_insertion(retriever, pair, attribution, ErasureParameters(unit=unit, n_random=2))
        for unit in ("word", "token")
    )  # type: ignore[misc]
    assert by_word.truncated and by_word.n_units <= by_token.n_units
    assert by_token.n_units == int(attribution.document.content.sum())
    for result in (by_word, by_token):
        assert result.score == pytest.approx(attribution.score, abs=1e-5)
        assert result.insertion[0] == result.baseline and result.insertion[-1] == result.score
    again = deletion_insertion(retriever, pair, attribution, ErasureParameters(n_random=2))
    assert again.deletion.tobytes() == by_word.deletion.tobytes()
    assert retriever.embeddings._forward_hooks == {}


def test_batch_size_does_not_change_results(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = tiny("bert")
    pair = TextPair("p", "tide", "the Moon pulls the water nearer to it")
    (attribution,) = attribute(retriever, make_method("saliency"), [pair])
    whole = deletion_insertion(retriever, pair, attribution)
    monkeypatch.setattr("poslens.attribution.methods.perturbation.BATCH_TOKENS", 1)
    single = deletion_insertion(retriever, pair, attribution)
    np.testing.assert_allclose(single.deletion, whole.deletion, atol=1e-5)
    np.testing.assert_allclose(
        single.random_orders.insertion, whole.random_orders.insertion, atol=1e-5
    )


# -- orders by position ----------------------------------------------------------------------------


def test_orders_by_position_of_four_words() -> None:
    """Weights 1, 4, 2, 3 in reading order: front to back leaves 10, 9, 5, 3, 0, and back to front
    10, 7, 5, 1, 0; insertion adds the same words."""
    retriever, pair = linear(WEIGHTS), TextPair("p", "query", " ".join(WEIGHTS))
    parameters = ErasureParameters(QUARTERS, n_random=1)
    own = trial(WEIGHTS, fractions=QUARTERS, n_random=1)
    for start, left in (("front", [10, 9, 5, 3, 0]), ("back", [10, 7, 5, 1, 0])):
        result = by_position(retriever, pair, start, parameters, random_orders=own.random_orders)
        quarters = at(result, QUARTERS)
        assert result.deletion[quarters].tolist() == left
        assert result.insertion[quarters].tolist() == [10 - score for score in left]
        assert result.method == position_order(start) and result.enrichment is None
        assert result.random_orders is own.random_orders


def test_a_score_by_position_is_no_more_faithful_than_its_order() -> None:
    """A method that scores only by position has the same curves as the order by position."""
    words = {f"w{n}": float(n % 7) for n in range(30)}
    retriever, pair = linear(words), TextPair("p", "query", " ".join(words))
    ranked = trial(words, {word: -float(n) for n, word in enumerate(words)})
    parameters = ErasureParameters()
    front = by_position(retriever, pair, "front", parameters, random_orders=ranked.random_orders)
    assert front.deletion.tolist() == ranked.deletion.tolist()
    assert front.insertion.tolist() == ranked.insertion.tolist()
    assert front.measures == ranked.measures

"""Preferences of methods: an order-blind encoder, indices by hand, excerpts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from poslens.attribution.batching import estimated_tokens
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.evaluation.preferences import (
    CONDITIONS,
    CURVES,
    EXCERPT_TOKENS,
    ORDER_BLIND,
    STRENGTHS,
    Condition,
    Thirds,
    make_order_blind,
    pairs_for,
    position,
    preference,
    thirds,
    with_query,
)
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.dense import FAMILY, DenseRetriever
from poslens.attribution.text import sentences
from poslens.attribution.types import TextPair

METHOD = make_method("saliency")
WORDS = ("the", "moon", "pulls", "water", "up", "twice", "a", "day")
FORWARD = TextPair("p", "what pulls water", " ".join(WORDS))
BACKWARD = TextPair("q", "what pulls water", " ".join(reversed(WORDS)))


@pytest.fixture(scope="module")
def blind(tiny: Callable[..., DenseRetriever]) -> DenseRetriever:
    retriever = tiny("bert")
    make_order_blind(retriever)
    return retriever


# -- the order-blind encoder -----------------------------------------------------------------------


def test_attention_is_the_mean_over_tokens(blind: DenseRetriever) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    layers = blind.of("document").backbone.encoder.layer
    attention = layers[-1].attention.self

    def compare(module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: object) -> None:
        mixed = output[0] if isinstance(output, tuple) else output
        seen.append((attention.value(args[0]).mean(1, keepdim=True), mixed))

    hook = attention.register_forward_hook(compare)
    with torch.no_grad():
        blind.embed(blind.encode_texts([FORWARD.document], "document"))
    hook.remove()
    ((mean, mixed),) = seen
    torch.testing.assert_close(mixed, mean.expand_as(mixed))


def test_the_order_blind_encoder_ignores_word_order(
    blind: DenseRetriever, tiny: Callable[..., DenseRetriever]
) -> None:
    both = [FORWARD.document, BACKWARD.document]
    for retriever, same in ((blind, True), (tiny("bert"), False)):
        with torch.no_grad():
            a, b = retriever.embed(retriever.encode_texts(both, "document"))
        assert torch.allclose(a, b, atol=1e-5) is same


@pytest.mark.parametrize("name", [n for n, e in METHODS.items() if e.fits(FAMILY)])
def test_a_words_value_does_not_depend_on_its_position(name: str, blind: DenseRetriever) -> None:
    """On a model without positions, every method gives a word the same value at any position."""
    method = make_method(name)
    ahead, back = (METHODS[name].compute(blind, method, [pair])[0] for pair in (FORWARD, BACKWARD))
    ahead_of, back_of = (
        dict(zip(one.document.texts, one.document_scores.tolist(), strict=True))
        for one in (ahead, back)
    )
    assert back_of == pytest.approx(ahead_of, abs=2e-3 * max(map(abs, ahead_of.values())))


# -- indices ---------------------------------------------------------------------------------------


def measured(index: Callable[[Condition, int], float], n: int = 12) -> Mapping[Condition, Thirds]:
    """Thirds of n documents with these indices; their sums are 2."""
    last = {c: np.array([1 + index(c, k) for k in range(n)]) for c in CONDITIONS}
    return {
        c: Thirds(np.tile(2 - values, (len(CURVES), 1)), np.tile(values, (len(CURVES), 1)))
        for c, values in last.items()
    }


def test_slope_detection_limits_and_the_share_without_the_query() -> None:
    """Index 0.1 without positions and 0.3 a at strength a; half of it with an unrelated query."""

    def index(condition: Condition, k: int) -> float:
        if condition.strength is None:
            return 0.1
        return condition.strength * (0.15 if condition.unrelated else 0.3)

    whole = preference(METHOD, measured(index), range(12))
    assert whole.order_blind.value == pytest.approx(0.1) and whole.n_documents == 12
    found = whole.planted
    assert found is not None
    assert [i.value for i in found.indices] == pytest.approx([0.3 * a for a in STRENGTHS])
    assert found.slope.value == pytest.approx(0.3)
    assert found.rank_correlation is not None and found.rank_correlation.value == 1
    assert found.query_free is not None and found.query_free.value == pytest.approx(0.5)
    # -0.15 - 0.1 and 0.15 - 0.1 are already distinguishable from 0.
    assert (found.primacy, found.recency) == (0.5, 0.5)
    alone = preference(METHOD, {ORDER_BLIND: measured(index)[ORDER_BLIND]}, range(12))
    assert alone.order_blind == whole.order_blind and alone.planted is None


def test_detection_limits_are_paired_by_document() -> None:
    """Primacy is lost in noise at half strength, and recency is not detected at all, although the
    level of a document, which both conditions share, is far larger than the noise."""
    noise = np.random.default_rng(0).normal(size=(len(CONDITIONS), 40))
    level = np.random.default_rng(1).normal(size=40)

    def index(condition: Condition, k: int) -> float:
        planted = {-1.0: -0.05, -0.5: -0.001}.get(condition.strength or 0.0, 0.0)
        return planted + 0.2 * level[k] / 3 + 0.02 * noise[CONDITIONS.index(condition), k]

    found = preference(METHOD, measured(index, 40), range(40)).planted
    assert found is not None and (found.primacy, found.recency) == (1.0, None)


def test_a_method_that_ignores_the_model_is_reported() -> None:
    whole = preference(METHOD, measured(lambda condition, k: 0.2), range(12))
    found = whole.planted
    assert found is not None and whole.order_blind.value == pytest.approx(0.2)
    assert found.slope.value == pytest.approx(0)
    assert found.rank_correlation is None and found.query_free is None
    assert (found.primacy, found.recency) == (None, None)


def test_scores_of_zero_have_no_index() -> None:
    zeros = np.zeros((len(CURVES), 12))
    with pytest.raises(UserError, match="its scores are 0"):
        preference(METHOD, dict.fromkeys(CONDITIONS, Thirds(zeros, zeros)), range(12))


# -- measurements ----------------------------------------------------------------------------------


def test_thirds_equal_sums_over_the_curves(tiny: Callable[..., DenseRetriever]) -> None:
    retriever = tiny("bert")
    found = thirds(retriever, METHOD, [FORWARD, BACKWARD])
    (one,) = METHODS["saliency"].compute(retriever, METHOD, [FORWARD])
    scores = one.document_scores[one.document.content]
    unscaled = CURVES.index({**METHOD.curve_params, "normalization": "none"})
    # n tokens fill 100 n cells, of which a bin has n.
    bins = np.repeat(scores, 100).reshape(100, len(scores)).mean(1)
    assert found.first[unscaled][0] == pytest.approx(bins[:33].sum(), rel=1e-5)
    assert found.last[unscaled][0] == pytest.approx(bins[-33:].sum(), rel=1e-5)
    with stoppable(lambda: True), pytest.raises(Stopped):
        thirds(retriever, METHOD, [FORWARD])


def test_a_pair_that_fails_fails_the_measurement(tiny: Callable[..., DenseRetriever]) -> None:
    with pytest.raises(UserError):
        thirds(tiny("bert"), METHOD, [FORWARD, TextPair("bad", "\u200b", "the moon")])


# -- texts -----------------------------------------------------------------------------------------


def test_excerpts_are_whole_sentences_and_keep_the_evidences_relative_position(
    sample: DataSet,
) -> None:
    pairs = pairs_for(sample, 12)
    originals = {pair.pair_id: pair for pair in sample.pairs}
    assert len({pair.document for pair in pairs}) == 12
    positions = [position(pair) for pair in pairs]
    assert 0.35 < np.mean(positions) < 0.65 and min(positions) < 0.2 and max(positions) > 0.8
    for pair in pairs:
        original = originals[pair.pair_id.removesuffix("#excerpt")]
        assert pair.evidence is not None and original.evidence is not None
        assert (
            pair.document[pair.evidence.start : pair.evidence.end]
            == original.document[original.evidence.start : original.evidence.end]
        )
        start = original.document.index(pair.document)
        spans = sentences(original.document, original.language)
        assert start in {a for a, _ in spans}
        assert start + len(pair.document) in {b for _, b in spans}
        assert estimated_tokens(pair.document) < 2 * EXCERPT_TOKENS
        assert abs(position(pair) - position(original)) < 0.35
    assert pairs == pairs_for(sample, 12)


def test_conditions_name_their_models_and_queries(sample: DataSet) -> None:
    models = [Condition(strength).model for strength in STRENGTHS]
    assert models == [
        "MiniLM-primacy",
        "MiniLM-primacy@0.5",
        "MiniLM",
        "MiniLM-recency@0.5",
        "MiniLM-recency",
    ]
    assert ORDER_BLIND.model == "MiniLM" and len({c.name for c in CONDITIONS}) == len(CONDITIONS)
    pairs = pairs_for(sample, 3)
    assert with_query(Condition(1.0), pairs, sample.pairs) == list(pairs)
    for own, other in zip(
        pairs, with_query(Condition(1.0, unrelated=True), pairs, sample.pairs), strict=True
    ):
        assert other.document == own.document and other.query != own.query
        whole = sample.pair(own.pair_id.removesuffix("#excerpt")).document
        assert own.document != whole and not sample.pairs.joins(other.query, whole)
    about = TextPair("b", "about fog", "Fog lifts. The tide rises. Tea is hot.")
    whole = replace(about, pair_id="a", query="does fog lift")
    other = TextPair("c", "who drinks tea", "Tea is hot.")
    part = replace(whole, pair_id="a#excerpt", document="Fog lifts.")
    among = Pairs([whole, *[about] * 20, other])
    (null,) = with_query(Condition(1.0, unrelated=True), [part], among)
    assert (null.query, null.document) == (other.query, part.document)


def test_a_data_set_without_evidence_is_refused() -> None:
    data = DataSet("mine", "Mine", Pairs((FORWARD,)))
    with pytest.raises(UserError, match="no English pairs with marked evidence"):
        pairs_for(data, 3)

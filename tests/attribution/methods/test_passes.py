"""Pairs that share texts share forward passes, with the same results as alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from poslens.attribution.batching import batches, estimated_tokens
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import Stopped
from poslens.attribution.methods import (
    METHODS,
    integrated_gradients,
    make_method,
    pair_batches,
)
from poslens.attribution.methods.passes import distinct, encode_once, planned
from poslens.attribution.methods.run import SHARING
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair, Token, TokenizedText
from tests.support import tiny_families, tiny_models

QUERIES = ("tide rises", "lazy dogs jump over", "fox", "why does the water rise twice")
DOCUMENTS = (
    "The tide rises twice a day because the Moon pulls the water.",
    "A quick brown fox, jumping over lazy dogs. " * 2,
    "a fox",
)
# Documents with different numbers of queries, one query twice, and queries with many documents.
PAIRS = [
    TextPair(f"{d}-{q}-{n}", QUERIES[q], DOCUMENTS[d])
    for n, (d, q) in enumerate(
        [(0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (0, 3), (1, 3), (0, 0), (1, 1)]
    )
]
FAMILIES: dict[str, tuple[str, Callable[[Path, Path], Path]]] = {
    "dense": ("dense", lambda raw, at: tiny_models.build("bert", at)),
    "left padding": ("dense", lambda raw, at: tiny_models.build("qwen3-left", at)),
    "late interaction": ("late_interaction", tiny_families.late_interaction),
    "sparse": ("sparse", tiny_families.sparse),
    "cross-encoder": ("cross_encoder", tiny_families.cross_encoder),
}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("model")
    tiny_models.build("bert", root / "bert")
    family, build = FAMILIES[request.param]
    source = f"folder:{build(root / 'bert' / 'raw', root / 'family')}"
    return load(RetrieverSpec(request.param, request.param, family, source), device="cpu")


@pytest.fixture
def asymmetric(tiny_folder: Callable[..., Path]) -> DenseRetriever:
    from sentence_transformers import SentenceTransformer

    source = str(tiny_folder("bert"))
    query, document = (SentenceTransformer(source, device="cpu") for _ in range(2))
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in query.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    spec = RetrieverSpec("two", "two", "dense", f"folder:{source}")
    return DenseRetriever(document, spec, "float32", query)


def by_autograd(model: Any, pair: TextPair) -> dict[str, Tensor]:
    """Gradients [T, H] at both sides' word embeddings and the embeddings, of one pair by itself."""
    joint = hasattr(model, "encode_pairs")
    encoded = (
        dict(zip(("query", "document"), model.encode_pairs([pair]), strict=True))
        if joint
        else {
            side: model.encode_texts([getattr(pair, side)], side) for side in ("query", "document")
        }
    )
    found = {}
    for side, text in encoded.items():
        inputs = model.input_embeddings(text).clone().requires_grad_()
        with model.override_embeddings(inputs):
            vectors = model.embed(text)
        if joint:
            score = vectors[0]
        else:
            other = "document" if side == "query" else "query"
            with torch.no_grad():
                constant = model.embed(encoded[other])
            both = {side: vectors, other: constant}
            score = model.similarity(both["query"], both["document"])[0]
        (gradient,) = torch.autograd.grad(score, inputs)
        found[side] = text.row(gradient, 0)
        found[f"{side} inputs"] = text.row(inputs.detach(), 0)
    return found


def check_against_autograd(model: Any) -> None:
    for name in ("saliency", "input_x_gradient"):
        results = METHODS[name].compute(model, make_method(name), PAIRS)
        assert [r.pair_id for r in results] == [p.pair_id for p in PAIRS]
        for pair, result in zip(PAIRS, results, strict=True):
            alone = by_autograd(model, pair)
            for side in ("query", "document"):
                gradient = alone[side]
                wanted = (
                    gradient.norm(dim=-1)
                    if name == "saliency"
                    else (gradient * alone[f"{side} inputs"]).sum(-1)
                ).numpy()
                found = getattr(result, f"{side}_scores")
                limit = 1e-5 * max(abs(wanted).max(), 1e-3)
                np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)


def test_batched_gradients_equal_those_of_each_pair_alone(model: Any) -> None:
    check_against_autograd(model)


def test_batched_gradients_of_two_encoders_equal_those_of_each_pair_alone(
    asymmetric: DenseRetriever,
) -> None:
    check_against_autograd(asymmetric)


@pytest.mark.parametrize("matrix", ["no", "yes"])
@pytest.mark.parametrize("biases", ["explicit", "decompx"])
def test_batched_decompositions_equal_those_of_each_pair_alone(
    asymmetric: DenseRetriever, matrix: str, biases: str
) -> None:
    method = make_method("decomposition", {"matrix": matrix, "biases": biases})
    compute = METHODS["decomposition"].compute
    # The oracle uses no matrix: shares come from a separate backward pass.
    plain = make_method("decomposition", {"biases": biases})
    for pair, together in zip(PAIRS, compute(asymmetric, method, PAIRS), strict=True):
        (alone,) = compute(asymmetric, plain, [pair])
        assert together.score == pytest.approx(alone.score, abs=1e-6)
        assert together.bias_share == pytest.approx(alone.bias_share, abs=1e-5)
        assert together.completeness_error == pytest.approx(0, abs=1e-5)
        for side in ("query_scores", "document_scores"):
            wanted = getattr(alone, side)
            found = getattr(together, side)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * abs(wanted).max())
        if matrix == "yes":
            (by_itself,) = compute(asymmetric, method, [pair])
            assert together.matrix is not None and by_itself.matrix is not None
            limit = 1e-5 * abs(by_itself.matrix).max()
            np.testing.assert_allclose(together.matrix, by_itself.matrix, rtol=0, atol=limit)


@pytest.fixture
def bert(tiny: Callable[..., DenseRetriever]) -> DenseRetriever:
    return tiny("bert")


@pytest.fixture
def rows_run(bert: DenseRetriever) -> Iterator[list[int]]:
    """Number of texts in each forward pass of the model's layers."""
    counted: list[int] = []

    def count(_module: object, args: tuple[Tensor, ...], _output: object) -> None:
        counted.append(len(args[0]))

    layer: Any = bert.backbone.get_submodule("encoder.layer.0")
    hook = layer.register_forward_hook(count)
    yield counted
    hook.remove()


@pytest.mark.parametrize("name", ["saliency", "input_x_gradient", "decomposition", "matrix"])
def test_a_document_of_many_queries_is_run_once(
    bert: DenseRetriever, rows_run: list[int], name: str
) -> None:
    documents = [f"Harbour {n}: {DOCUMENTS[0]} " * 9 for n in range(3)]
    pairs = [
        TextPair(f"{n}-{k}", f"{query} {n}", document)
        for n, document in enumerate(documents)
        for k, query in enumerate(QUERIES)
    ]
    method = make_method(*(("decomposition", {"matrix": "yes"}) if name == "matrix" else (name,)))
    METHODS[method.name].compute(bert, method, pairs)
    assert sum(rows_run) == len(pairs) + len(documents), "each query and each document once"


@pytest.mark.parametrize("model", ["late interaction", "sparse"], indirect=True)
def test_a_text_of_many_pairs_is_run_once_for_its_exact_shares(model: Any) -> None:
    method = make_method("maxsim" if model.family == "late_interaction" else "terms")
    pairs = [
        TextPair(f"{n}-{k}", query, document)
        for n, document in enumerate(DOCUMENTS[:2])
        for k, query in enumerate(QUERIES)
    ]
    compute = METHODS[method.name].compute
    alone = [compute(model, method, [pair])[0] for pair in pairs]
    counted: list[int] = []

    def count(_module: object, _args: object, output: Tensor) -> None:
        counted.append(len(output))

    hook = model.embeddings.register_forward_hook(count)
    try:
        together = compute(model, method, pairs)
    finally:
        hook.remove()
    assert sum(counted) == len(QUERIES) + 2
    for one, found in zip(alone, together, strict=True):
        assert found.pair_id == one.pair_id and found.document == one.document
        assert found.score == pytest.approx(one.score, rel=1e-5)
        for name in ("query_scores", "document_scores", "matrix"):
            actual, expected = getattr(found, name), getattr(one, name)
            np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("model", ["late interaction"], indirect=True)
def test_exact_shares_of_many_pairs_can_be_stopped(model: Any) -> None:
    pairs = [TextPair(str(k), query, DOCUMENTS[0]) for k, query in enumerate(QUERIES)]
    with pytest.raises(Stopped), stoppable(lambda: True):
        METHODS["maxsim"].compute(model, make_method("maxsim"), pairs)


def test_the_profile_of_a_text_can_be_stopped(tiny: Callable[..., DenseRetriever]) -> None:
    retriever = tiny("bert")
    with pytest.raises(Stopped), stoppable(lambda: True):
        METHODS["profile"].compute(retriever, make_method("profile"), [PAIRS[0]])


def test_no_two_pairs_share_a_row_in_a_round() -> None:
    @given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 400))
    def law(choices: list[int], least: int) -> None:
        texts, places = distinct([str(n) for n in choices])
        token = TokenizedText.of((Token("x", 0, 1),), 1, 8)
        encoded = Encoded(
            {"input_ids": torch.arange(len(texts))[:, None]},
            (token,) * len(texts),
            (0,) * len(texts),
        )
        found, rounds = planned(encoded, places, 20, least)
        ids = found.features["input_ids"][:, 0].tolist()
        assert [texts[ids[row]] for row in rounds.rows] == [str(n) for n in choices]
        assert sorted(p for pairs in rounds.rounds for p in pairs) == list(range(len(choices)))
        for pairs in rounds.rounds:
            used = [rounds.rows[pair] for pair in pairs]
            assert len(used) == len(set(used)) > 0
        # No more tokens are encoded than with a separate row for each pair.
        n = len(found.texts)
        assert max(n * 20, least) * (1 + len(rounds.rounds)) <= 2 * max(len(choices) * 20, least)

    law()


def test_short_texts_of_many_pairs_get_rows_rather_than_rounds(minilm: DenseRetriever) -> None:
    """A pass over one short query takes as long as a pass over several."""
    _, rounds = encode_once(minilm, ["fox"] * 8, "query")
    assert len(rounds.rounds) <= 2
    _, rounds = encode_once(minilm, [DOCUMENTS[0] * 20] * 8, "document")
    assert len(rounds.rounds) == 8 and set(rounds.rows) == {0}


# -- batches -----------------------------------------------------------------------------------


def test_pairs_of_a_document_are_in_one_batch(sample: DataSet) -> None:
    found = list(pair_batches(sample.pairs, "cpu", 512))
    assert Counter(p.pair_id for b in found for p in b) == Counter(p.pair_id for p in sample.pairs)
    homes: dict[str, set[int]] = {}
    for number, batch in enumerate(found):
        for pair in batch:
            homes.setdefault(pair.document, set()).add(number)
    assert all(len(numbers) == 1 for numbers in homes.values())
    assert max(len({pair.document for pair in batch}) for batch in found) > 1
    # A stopped run resumes with exactly the remaining batches.
    left = [pair for pair in sample.pairs if pair not in [p for b in found[:9] for p in b]]
    assert list(pair_batches(left, "cpu", 512)) == found[9:]


def test_pairs_of_a_document_with_very_many_queries_are_split_into_batches() -> None:
    document = "word " * 400
    pairs = [TextPair(str(n), f"query {n}", document) for n in range(30)]
    sizes = [len(batch) for batch in pair_batches(pairs, "cpu", 4096)]
    assert sizes == [SHARING, SHARING, SHARING, 6]
    assert [len(b) for b in pair_batches(pairs, "cpu", 4096, jointly=True)] == [4] * 7 + [2]


def test_methods_that_read_one_text_at_a_time_get_pairs_of_one_document() -> None:
    pairs = [TextPair(f"{n}", f"query {n}", f"tide {n % 3} " * 9) for n in range(12)]
    whole = pair_batches(pairs, "cpu", 512)
    assert [len(batch) for batch in whole] == [12]
    apart = list(pair_batches(pairs, "cpu", 512, one_document=True))
    assert [len({pair.document for pair in batch}) for batch in apart] == [1, 1, 1]
    assert sorted(pair.pair_id for batch in apart for pair in batch) == sorted(
        pair.pair_id for pair in pairs
    )
    alone = {name for name, entry in METHODS.items() if entry.one_document}
    assert alone == {"occlusion", "integrated_gradients", "integrated_jacobians"}


@given(st.lists(st.integers(1, 400), max_size=60, unique=True), st.integers(1, 4000))
def test_pairs_that_share_nothing_are_batched_by_length(lengths: list[int], budget: int) -> None:
    pairs = [TextPair(str(n), "q", f"{n} " * n) for n in lengths]

    def length(pair: TextPair) -> int:
        return min(estimated_tokens(pair.document), 300)

    for jointly in (False, True):
        found = list(pair_batches(pairs, "cpu", 300, budget, jointly=jointly))
        assert [[length(p) for p in b] for b in found] == [
            [length(p) for p in b] for b in batches(pairs, length, budget)
        ]
    assert math.isfinite(sum(map(length, pairs)))


@pytest.mark.parametrize("level", ["word", "sentence"])
def test_occluded_documents_are_embedded_once_for_all_queries(
    asymmetric: DenseRetriever, level: str
) -> None:
    method = make_method("occlusion", {"level": level})
    compute = METHODS["occlusion"].compute
    run: list[int] = []
    layer: Any = asymmetric.backbone.get_submodule("encoder.layer.0")
    layer.register_forward_hook(lambda _module, args, _output: run.append(len(args[0])))
    alone = {pair.pair_id: compute(asymmetric, method, [pair])[0] for pair in PAIRS}
    run.clear()
    firsts = {pair.document: pair for pair in reversed(PAIRS)}.values()
    for pair in firsts:
        compute(asymmetric, method, [pair])
    once = sum(run) - len(firsts)  # a pair's document is also encoded unchanged, for its query
    run.clear()
    together = compute(asymmetric, method, PAIRS)
    assert sum(run) == once + len(PAIRS)
    for pair, found in zip(PAIRS, together, strict=True):
        wanted = alone[pair.pair_id]
        assert found.pair_id == pair.pair_id and found.score == wanted.score
        np.testing.assert_array_equal(found.document_scores, wanted.document_scores)
        np.testing.assert_array_equal(found.query_scores, wanted.query_scores)


def check_integrated_alone(model: Any) -> None:
    method = make_method("integrated_gradients", {"steps": "16"})
    compute = METHODS["integrated_gradients"].compute
    for pair, found in zip(PAIRS, compute(model, method, PAIRS), strict=True):
        (alone,) = compute(model, method, [pair])
        assert found.pair_id == pair.pair_id
        for name in ("score", "bias_share", "completeness_error"):
            assert getattr(found, name) == pytest.approx(getattr(alone, name), abs=1e-6)
        for side in ("query_scores", "document_scores"):
            wanted = getattr(alone, side)
            assert abs(wanted).max() > 0
            np.testing.assert_allclose(
                getattr(found, side), wanted, rtol=0, atol=1e-5 * abs(wanted).max()
            )


def test_batched_integrated_gradients_equal_those_of_each_pair_alone(model: Any) -> None:
    check_integrated_alone(model)


def test_batched_integrated_gradients_of_two_encoders_equal_those_of_each_pair_alone(
    asymmetric: DenseRetriever,
) -> None:
    check_integrated_alone(asymmetric)


def test_the_path_to_a_text_is_run_once(bert: DenseRetriever, rows_run: list[int]) -> None:
    method = make_method("integrated_gradients", {"steps": "16"})
    METHODS[method.name].compute(bert, method, PAIRS)
    texts = len({p.query for p in PAIRS}) + len({p.document for p in PAIRS})
    assert sum(rows_run) == texts * (16 + 2), "its steps and both ends"


def test_pairs_of_a_document_stop_at_their_own_number_of_steps(
    bert: DenseRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = METHODS["integrated_gradients"].compute
    by_16 = compute(bert, make_method("integrated_gradients", {"steps": "16"}), PAIRS)
    missed = sorted(abs(r.completeness_error or 0) / abs(r.score) for r in by_16)
    monkeypatch.setattr(integrated_gradients, "DELTA", missed[len(missed) // 2])
    monkeypatch.setattr(integrated_gradients, "STEPS", (16, 32))  # up to 512 would be slow
    auto = make_method("integrated_gradients")
    together = compute(bert, auto, PAIRS)
    same = [
        np.array_equal(a.document_scores, b.document_scores)
        for a, b in zip(by_16, together, strict=True)
    ]
    assert any(same) and not all(same)
    for pair, found in zip(PAIRS, together, strict=True):
        (alone,) = compute(bert, auto, [pair])
        wanted = alone.document_scores
        np.testing.assert_allclose(
            found.document_scores, wanted, rtol=0, atol=1e-5 * abs(wanted).max()
        )

"""Sparse encoders: shared terms with their weights, and the tokens that determine them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.deletion import deletion_insertion
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.detect import family_of_folder
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.sparse import SparseRetriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Attribution, TextPair
from tests.support import tiny_families

PAIRS = [
    TextPair("a", "the tide rises", "The tide rises twice a day because the Moon pulls the water."),
    TextPair("b", "lazy dogs", "a quick brown fox, jumping over 12 lazy dogs; isn't it? naïve."),
    TextPair("c", "piñas", "El niño comió piñas."),
]
Make = Callable[..., SparseRetriever]


@pytest.fixture(scope="module")
def make(tiny_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Make:
    def build(name: str, **options: object) -> SparseRetriever:
        raw = tiny_folder(name).parent / "raw"
        folder = tiny_families.sparse(raw, tmp_path_factory.mktemp("sparse"), **options)
        return load(RetrieverSpec("tiny-sparse", "s", "sparse", f"folder:{folder}"), "cpu")

    return build


@pytest.fixture(scope="module", params=["bert", "distilbert", "roberta"])
def sparse(request: pytest.FixtureRequest, make: Make) -> SparseRetriever:
    return make(request.param)


def attribute(retriever: SparseRetriever, name: str, pairs: list[TextPair]) -> list[Attribution]:
    return METHODS[name].compute(retriever, make_method(name), pairs)


def vectors(retriever: SparseRetriever, pair: TextPair) -> list[torch.Tensor]:
    """The library's vectors as dense arrays."""
    model = retriever.model
    found = [model.encode_query([pair.query]), model.encode_document([pair.document])]
    retriever.model[1].train()
    return [v.to_dense()[0].clone() for v in found]


def test_scores_equal_the_librarys(sparse: SparseRetriever) -> None:
    for pair in PAIRS:
        query, document = vectors(sparse, pair)
        expected = float(query @ document)
        assert expected > 0 and (query == 0).any()
        for name in ("terms", "saliency", "occlusion"):
            found = attribute(sparse, name, [pair])[0].score
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert check_retriever(sparse).library.distance < 1e-5 and not check_retriever(sparse).unfit


def test_shared_terms_add_up_to_the_score(sparse: SparseRetriever) -> None:
    for pair in PAIRS:
        query, document = vectors(sparse, pair)
        terms = sparse.terms(pair)
        names = sparse.model.tokenizer.convert_ids_to_tokens((query * document).nonzero()[:, 0])
        assert sorted(t.text for t in terms) == sorted(names)
        assert [t.share for t in terms] == sorted((t.share for t in terms), reverse=True)
        (found,) = attribute(sparse, "terms", [pair])
        assert sum(t.share for t in terms) == pytest.approx(found.score, rel=1e-6)
        assert found.document_scores.sum() == pytest.approx(found.score, rel=1e-5)
        assert found.query_scores.sum() == pytest.approx(found.score, rel=1e-5)


def test_weights_come_from_the_token_whose_logit_is_largest(sparse: SparseRetriever) -> None:
    """Lowering the logits of every other token changes nothing; lowering this token's does."""
    pair = PAIRS[1]
    terms = sparse.terms(pair)
    documents = sparse.encode_texts([pair.document], "document")
    names = sparse.model.tokenizer.convert_tokens_to_ids([t.text for t in terms])
    with torch.no_grad():
        logits = sparse.model[0](dict(documents.features))["token_embeddings"][0]
    for term, number in list(zip(terms, names, strict=True))[:20]:
        column = logits[:, number]
        assert float(torch.log1p(column[term.document_token])) == pytest.approx(
            term.document_weight, rel=1e-5
        )
        others = torch.cat([column[: term.document_token], column[term.document_token + 1 :]])
        assert column[term.document_token] >= others.max()


def test_saliency_equals_a_direct_loop(sparse: SparseRetriever) -> None:
    pair = PAIRS[0]
    (found,) = attribute(sparse, "saliency", [pair])
    query, _ = vectors(sparse, pair)
    features = sparse.model.preprocess([pair.document])
    words = sparse.embeddings(features["input_ids"]).detach().requires_grad_()
    hook = sparse.embeddings.register_forward_hook(lambda *_: words)
    try:
        logits = sparse.model[0](features)["token_embeddings"][0]
    finally:
        hook.remove()
    score = (torch.log1p(torch.relu(logits)).amax(0) * query).sum()
    (gradient,) = torch.autograd.grad(score, words)
    assert found.document_scores.any()
    np.testing.assert_allclose(
        found.document_scores, gradient[0].norm(dim=-1), rtol=1e-3, atol=1e-6
    )


def test_deletion_is_supported(sparse: SparseRetriever) -> None:
    (found,) = attribute(sparse, "terms", PAIRS[:1])
    result = deletion_insertion(sparse, PAIRS[0], found)
    assert result.score == pytest.approx(found.score, rel=1e-5)


def test_other_poolings_than_max_are_refused(make: Make) -> None:
    with pytest.raises(UserError, match="max pooling"):
        make("bert", strategy="sum")


def test_a_sparse_folder_is_detected(sparse: SparseRetriever) -> None:
    assert family_of_folder(Path(sparse.spec.source.removeprefix("folder:"))).name == "sparse"

"""The query-free profile compared with full Jacobians, computed without the method's code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from poslens.attribution.batching import Halving
from poslens.attribution.checkpoints import reporting
from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.methods import profile as profile_module
from poslens.attribution.methods.profile import FIRST, MOST, TOLERANCE, attribute, profile
from poslens.attribution.methods.run import attribute_batch
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import TextPair
from poslens.cache.storage.codec import decode, encode, identity_of

METHOD = make_method("profile")
TEXT = "The tide rises twice a day because the Moon pulls the water nearer to it."
SHORT = "a quick brown fox"


def jacobian_norms(retriever: DenseRetriever, text: str) -> np.ndarray:
    """||dv/de_j||_F of each token, from each row of the Jacobian in float64, with explicit mean
    pooling and normalization."""
    tokenizer, model = retriever.model.tokenizer, retriever.model.transformers_model
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    twin = type(model)(model.config).double().eval()
    twin.load_state_dict(model.state_dict())
    inputs = twin.get_input_embeddings()(ids).detach().requires_grad_()
    mean = twin(inputs_embeds=inputs).last_hidden_state[0].mean(0)
    rows = [
        torch.autograd.grad(value, inputs, retain_graph=True)[0][0] for value in mean / mean.norm()
    ]
    return torch.stack(rows).pow(2).sum((0, 2)).sqrt().numpy()


def test_all_unit_cotangents_give_the_exact_norm(tiny: Callable[..., DenseRetriever]) -> None:
    retriever = tiny("bert")
    encoded = retriever.encode_texts([TEXT], "document")
    width = retriever.model.get_embedding_dimension()
    norms, _, _ = profile(retriever, encoded, torch.eye(width) * width**0.5)
    expected = jacobian_norms(retriever, TEXT)
    found = encoded.row(norms, 0).numpy()
    assert np.abs(found - expected).max() <= 1e-4 * expected.max()


def test_random_cotangents_are_within_their_stated_error(
    tiny: Callable[..., DenseRetriever],
) -> None:
    retriever = tiny("bert")
    encoded = retriever.encode_texts([TEXT], "document")
    norms, errors, _ = profile(retriever, encoded)
    expected = jacobian_norms(retriever, TEXT)
    found = encoded.row(norms, 0).numpy()
    error = float(errors[0])
    assert 0 < error < 0.5
    # The mean magnitude of a normal error is 0.8 standard errors.
    assert np.abs(found - expected).mean() / expected.mean() < 2.5 * error


@pytest.mark.parametrize("name", ["bert", "bert-cls", "qwen3-left", "t5"])
def test_a_padded_batch_equals_each_text_alone(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    retriever = tiny(name)
    pairs = [TextPair("long", SHORT, TEXT), TextPair("short", "fox", SHORT)]
    together = attribute(retriever, METHOD, pairs)
    for pair, result in zip(pairs, together, strict=True):
        (alone,) = attribute(retriever, METHOD, [pair])
        largest = alone.document_scores.max()
        assert largest > 0
        assert np.abs(alone.document_scores - result.document_scores).max() <= 1e-3 * largest
        assert alone.standard_error == pytest.approx(result.standard_error, rel=1e-2)
        assert alone.score == pytest.approx(result.score, abs=1e-5)


def test_a_document_of_several_pairs_is_read_once(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = tiny("bert")
    read: list[tuple[int, str]] = []
    whole = profile_module.profile

    def counted(retriever: DenseRetriever, encoded: Encoded) -> tuple[Tensor, Tensor, Tensor]:
        read.append((len(encoded.texts), encoded.side))
        return whole(retriever, encoded)

    monkeypatch.setattr(profile_module, "profile", counted)
    pairs = [TextPair("a", SHORT, TEXT), TextPair("b", "fox", TEXT), TextPair("c", SHORT, SHORT)]
    results = attribute(retriever, METHOD, pairs)
    assert read == [(2, "document"), (2, "query")]
    for pair, result in zip(pairs, results, strict=True):
        (alone,) = attribute(retriever, METHOD, [pair])
        assert alone.score == pytest.approx(result.score, abs=1e-5)
        np.testing.assert_allclose(alone.document_scores, result.document_scores, rtol=1e-3)
        assert [t.text for t in alone.query.tokens] == [t.text for t in result.query.tokens]


def test_the_query_has_no_influence(tiny: Callable[..., DenseRetriever]) -> None:
    retriever = tiny("bert")
    first, second = (
        attribute(retriever, METHOD, [TextPair(query, query, TEXT)])[0]
        for query in ("lazy dogs", "twice a day")
    )
    np.testing.assert_array_equal(first.document_scores, second.document_scores)
    assert first.score != second.score


def test_a_document_needs_no_query(tiny: Callable[..., DenseRetriever]) -> None:
    retriever = tiny("bert")
    asked, alone = TextPair("a", SHORT, TEXT), TextPair("b", "", TEXT)
    with_query, without = attribute(retriever, METHOD, [asked, alone])
    np.testing.assert_allclose(without.document_scores, with_query.document_scores, rtol=1e-5)
    assert without.query.tokens == () and without.query_scores.shape == (0,)
    assert without.score == pytest.approx(1, abs=1e-5), "a vector's cosine with itself"
    (only,) = attribute(retriever, METHOD, [alone])
    np.testing.assert_allclose(only.document_scores, without.document_scores, rtol=1e-4)
    assert with_query.score != pytest.approx(1, abs=1e-3) and with_query.query.tokens
    kept = decode(encode(only, alone), only.model, METHOD, "b", identity_of(alone))
    assert kept.query.tokens == () and kept.score == only.score


def test_other_methods_report_a_missing_query(tiny: Callable[..., DenseRetriever]) -> None:
    pairs = [TextPair("a", "", TEXT), TextPair("b", SHORT, TEXT)]
    first, second = attribute_batch(tiny("bert"), make_method("saliency"), pairs, Halving())
    assert first.attribution is None and second.attribution is not None
    assert first.reason == (
        "Gradient saliency needs a query, but this document has none: choose Query-free profile, "
        "or use Audit, which searches the documents for their own sentences."
    )


def test_the_number_of_cotangents_doubles_until_the_error_is_met(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = tiny("bert")
    real, calls = torch.autograd.grad, []

    def counted(*args: object, **kwargs: object) -> object:
        calls.append(1)
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.autograd, "grad", counted)
    encoded = retriever.encode_texts([TEXT], "document")
    for tolerance, expected in ((10.0, FIRST), (0.0, MOST)):
        calls.clear()
        monkeypatch.setattr("poslens.attribution.methods.profile.TOLERANCE", tolerance)
        _, errors, _ = profile(retriever, encoded)
        assert len(calls) == expected and float(errors[0]) > 0
    assert TOLERANCE == 0.05


def test_each_side_reports_its_progress(tiny: Callable[..., DenseRetriever]) -> None:
    told: dict[str, list[float]] = {}
    with reporting(lambda share, doing, before: told.setdefault(doing, []).append(share)):
        attribute(tiny("bert"), METHOD, [TextPair("p", SHORT, TEXT)])
    assert list(told) == [
        f"{side}, at most {MOST} random directions" for side in ("Document", "Query")
    ]
    for shares in told.values():
        assert shares == [number / MOST for number in range(len(shares))] and len(shares) >= FIRST


def test_the_error_is_stored_with_the_result(tiny: Callable[..., DenseRetriever]) -> None:
    pair = TextPair("p", SHORT, TEXT)
    (result,) = attribute(tiny("bert"), METHOD, [pair])
    again = decode(encode(result, pair), result.model, METHOD, "p", identity_of(pair))
    assert again.standard_error == result.standard_error and again.standard_error


def test_a_distance_has_no_profile(tiny: Callable[..., DenseRetriever]) -> None:
    retriever = tiny("bert")
    retriever.model.similarity_fn_name = "euclidean"
    with pytest.raises(UserError, match="euclidean distance"):
        attribute(retriever, METHOD, [TextPair("p", SHORT, TEXT)])

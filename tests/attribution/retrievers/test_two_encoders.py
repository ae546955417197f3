"""Retrievers with a separate encoder for queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.dense import FAMILY, DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import locate
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Attribution, TextPair
from poslens.cache.keys import files_fingerprint

PAIR = TextPair("p", "why twice a day", "The tide rises twice a day because the Moon pulls it.")
OTHER = TextPair("o", "fox", "lazy dogs jumping over a quick brown fox")


@pytest.fixture
def spec(tiny_folder: Callable[..., Path]) -> RetrieverSpec:
    """Two tiny BERTs with different weights, first-token pooling and dot product, like DRAGON."""
    return RetrieverSpec(
        "two",
        "two",
        "dense",
        f"folder:{tiny_folder('bert')}",
        pooling="cls",
        similarity="dot",
        query_source=f"folder:{tiny_folder('bert', seed=8)}",
    )


@pytest.fixture
def two(spec: RetrieverSpec) -> DenseRetriever:
    return load(spec, device="cpu")


class Encoder:
    """One of the two encoders loaded by transformers, without PosLens and sentence-transformers."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModel.from_pretrained(folder).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def inputs(self, text: str) -> torch.Tensor:
        ids = self.tokenizer(text, return_tensors="pt")["input_ids"]
        return self.model.get_input_embeddings()(ids).detach().requires_grad_()

    def embed(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs_embeds=inputs).last_hidden_state[0, 0]


@pytest.fixture
def encoders(tiny_folder: Callable[..., Path]) -> dict[str, Encoder]:
    return {
        "query": Encoder(tiny_folder("bert", seed=8)),
        "document": Encoder(tiny_folder("bert")),
    }


def compute(two: DenseRetriever, name: str, *pairs: TextPair, **options: str) -> list[Attribution]:
    return METHODS[name].compute(two, make_method(name, options), pairs)


def values(result: Attribution, side: str) -> np.ndarray:
    return result.query_scores if side == "query" else result.document_scores


def each_side(encoders: dict[str, Encoder], pair: TextPair):
    """(side, inputs, score as a function of the inputs), with the other side's vector constant."""
    for side, other in (("query", "document"), ("document", "query")):
        constant = encoders[other].embed(encoders[other].inputs(getattr(pair, other))).detach()
        own = encoders[side]
        yield side, own.inputs(getattr(pair, side)), lambda x, o=own, c=constant: o.embed(x) @ c


def test_the_score_is_the_dot_product_of_the_two_encoders_vectors(
    two: DenseRetriever, encoders: dict[str, Encoder]
) -> None:
    assert two.asymmetric and not torch.equal(
        two.of("query").embeddings.weight,  # type: ignore[arg-type]
        two.of("document").embeddings.weight,  # type: ignore[arg-type]
    )
    for method in (name for name, entry in METHODS.items() if entry.fits(FAMILY)):
        for result, pair in zip(compute(two, method, PAIR, OTHER), (PAIR, OTHER), strict=True):
            q, d = (
                encoders[s].embed(encoders[s].inputs(getattr(pair, s)))
                for s in ("query", "document")
            )
            # Weights differ between runs with the tokenizer, so the product may be small.
            close = pytest.approx(float(q @ d), abs=1e-4 * float(q.norm() * d.norm()))
            assert result.score == close, method
    n = sum(p.numel() for e in encoders.values() for p in e.model.parameters())
    assert two.weight_bytes == 4 * n


def test_saliency_and_input_x_gradient_equal_a_direct_loop(
    two: DenseRetriever, encoders: dict[str, Encoder]
) -> None:
    norms, products = compute(two, "saliency", PAIR, OTHER), compute(two, "input_x_gradient", PAIR)
    for side, inputs, score in each_side(encoders, PAIR):
        (gradient,) = torch.autograd.grad(score(inputs), inputs)
        expected = gradient[0].norm(dim=-1).numpy()
        np.testing.assert_allclose(values(norms[0], side), expected, rtol=1e-3, atol=1e-4)
        signed = (gradient * inputs)[0].sum(-1).detach().numpy()
        scale = np.abs(signed).max()
        np.testing.assert_allclose(values(products[0], side), signed, rtol=1e-3, atol=1e-4 * scale)


def test_occlusion_uses_each_encoders_padding_token(
    two: DenseRetriever, encoders: dict[str, Encoder]
) -> None:
    (result,) = compute(two, "occlusion", PAIR, level="token")
    for side, inputs, score in each_side(encoders, PAIR):
        own = encoders[side]
        padding = own.model.get_input_embeddings().weight[own.tokenizer.pad_token_id]
        whole = float(score(inputs))
        expected = np.zeros(inputs.shape[1])
        for j in range(1, inputs.shape[1] - 1):  # without [CLS] and [SEP]
            changed = inputs.detach().clone()
            changed[0, j] = padding
            expected[j] = whole - float(score(changed))
        np.testing.assert_allclose(values(result, side), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("biases", ["explicit", "decompx", "absdot"])
def test_decomposition_is_complete_on_both_sides(two: DenseRetriever, biases: str) -> None:
    from poslens.attribution.methods.decomposition import spread_vectors
    from tests.support.linear_shares import shares

    (result,) = compute(two, "decomposition", PAIR, matrix="yes", biases=biases)
    assert abs(result.completeness_error or 0.0) <= 1e-5 * abs(result.document_scores).sum()
    queries = two.encode_texts([PAIR.query], "query")
    documents = two.encode_texts([PAIR.document], "document")
    with torch.no_grad():
        q, d = two.embed(queries), two.embed(documents)
    if biases == "absdot":
        torch.testing.assert_close(spread_vectors(two, queries).sum(0), q[0], rtol=1e-3, atol=1e-3)
        return
    of_queries = shares(two, queries, d, biases)
    assert abs(float(of_queries.error)) <= 1e-5 * float(of_queries.tokens.abs().sum())
    torch.testing.assert_close(of_queries.directions, q, rtol=1e-4, atol=1e-4)
    wanted = of_queries.tokens[0].numpy()  # by a separate backward pass
    np.testing.assert_allclose(result.query_scores, wanted, rtol=0, atol=1e-5 * abs(wanted).max())


def test_integrated_gradients_add_up_on_both_sides(
    two: DenseRetriever, encoders: dict[str, Encoder]
) -> None:
    from poslens.attribution.methods.perturbation import Perturbed

    (result,) = compute(two, "integrated_gradients", PAIR, steps="512")
    for side in ("query", "document"):
        text = Perturbed(two, PAIR, side)
        with torch.no_grad():
            gap = float(
                text.compare(text.embed(text.inputs)) - text.compare(text.embed(text.baseline))
            )
        assert values(result, side).sum() == pytest.approx(gap, abs=0.02 * abs(result.score))


def test_the_check_covers_both_encoders(two: DenseRetriever) -> None:
    checked = check_retriever(two)
    assert (
        checked.unfit == {}
        and checked.library.distance < 1e-5
        and (checked.completeness or 0) < 1e-5
    )
    # A query encoder that PosLens encodes differently than sentence-transformers is detected.
    query_model = two.of("query").model
    encode = query_model.encode
    query_model.encode = lambda *a, **k: encode(*a, **k) * 1.1  # type: ignore[method-assign, assignment, operator]
    with pytest.raises(UserError, match="embeds the same text differently"):
        check_retriever(two)


def test_a_router_is_loaded_as_two_encoders(
    spec: RetrieverSpec, two: DenseRetriever, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Router

    query, document = (
        list(SentenceTransformer(str(folder), device="cpu").children())
        for folder in (tiny_folder("bert", seed=8), tiny_folder("bert"))
    )
    router = Router.for_query_document(query_modules=query, document_modules=document)
    model = SentenceTransformer(modules=[router, Normalize()], device="cpu")
    model.save_pretrained(str(tmp_path / "router"))
    routed = load(RetrieverSpec("r", "r", "dense", f"folder:{tmp_path / 'router'}"), device="cpu")
    assert routed.asymmetric
    q, d = model.encode_query([PAIR.query]), model.encode_document([PAIR.document])
    for method in ("saliency", "decomposition"):
        (result,) = compute(routed, method, PAIR)
        assert result.score == pytest.approx(float(q[0] @ d[0]), abs=1e-5)
    (mean,) = compute(load(replace(spec, pooling=None, similarity=None), "cpu"), "saliency", PAIR)
    assert result.score == pytest.approx(mean.score, abs=1e-5)
    model.truncate_dim = 8
    model.save_pretrained(str(tmp_path / "router"))
    short = load(RetrieverSpec("short", "short", "dense", f"folder:{tmp_path / 'router'}"), "cpu")
    q, d = model.encode_query([PAIR.query]), model.encode_document([PAIR.document])
    (result,) = compute(short, "saliency", PAIR)
    assert q.shape == (1, 8) and result.score == pytest.approx(
        float(q[0] @ d[0] / np.linalg.norm(q) / np.linalg.norm(d)), abs=1e-5
    )


def test_swapped_encoders_are_another_model(spec: RetrieverSpec) -> None:
    assert spec.query_source is not None
    turned = replace(spec, source=spec.query_source, query_source=spec.source)
    single = replace(spec, query_source=None)
    found = {files_fingerprint(locate(each)) for each in (spec, turned, single)}
    assert len(found) == 3


def test_each_encoder_has_its_own_prompts(
    spec: RetrieverSpec, tiny_folder: Callable[..., Path]
) -> None:
    queries = tiny_folder("bert", seed=8, prompts=(("query", "query: "), ("document", "no: ")))
    found = load(replace(spec, query_source=f"folder:{queries}"), device="cpu")
    assert found.prompts == {"query": "query: ", "document": ""}


def test_encoders_of_different_widths_are_refused(
    spec: RetrieverSpec, tiny_folder: Callable[..., Path]
) -> None:
    with pytest.raises(UserError, match="queries in 24 dimensions but documents in 32"):
        load(replace(spec, query_source=f"folder:{tiny_folder('labse')}"), device="cpu")

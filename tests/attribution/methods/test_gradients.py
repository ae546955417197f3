"""Input x gradient and integrated gradients, compared with loops that follow their definitions."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from poslens.attribution.checkpoints import reporting
from poslens.attribution.datasets import DataSet
from poslens.attribution.methods import (
    input_x_gradient,
    integrated_gradients,
    make_method,
    perturbation,
)
from poslens.attribution.methods.integrated_gradients import DELTA
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.resolve import minilm_folder
from poslens.attribution.types import Attribution, TextPair

PRODUCT = make_method("input_x_gradient")
INTEGRATED = make_method("integrated_gradients")
PAIRS = (
    TextPair("a", "why does the tide rise?", "The Moon pulls the water nearer to it."),
    TextPair("b", "fog", "Fog forms over cold water when moist air drifts in, and lifts by noon."),
)


class Plain:
    """MiniLM without PosLens: mean pooling and cosine by hand, one text, no padding."""

    def __init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
        self.model = AutoModel.from_pretrained(minilm_folder()).eval().requires_grad_(False)
        self.words = self.model.get_input_embeddings().weight

    def inputs(self, text: str) -> tuple[Tensor, Tensor]:
        """Word embeddings [T, H], and the baseline with padding between the special tokens."""
        ids = self.tokenizer(text, return_tensors="pt")["input_ids"][0]
        neutral = self.words[ids].clone()
        neutral[1:-1] = self.words[self.tokenizer.pad_token_id]
        return self.words[ids], neutral

    def vector(self, inputs: Tensor) -> Tensor:
        return self.model(inputs_embeds=inputs[None]).last_hidden_state[0].mean(0)

    def gradient(self, inputs: Tensor, other: Tensor) -> Tensor:
        inputs = inputs.clone().requires_grad_()
        score = torch.cosine_similarity(self.vector(inputs), other, dim=0)
        return torch.autograd.grad(score, inputs)[0]


@pytest.fixture(scope="module")
def plain(one_thread: None) -> Plain:
    return Plain()


def sides(plain: Plain, pair: TextPair, result: Attribution):
    """(inputs, neutral, other side's vector, result) of both sides."""
    document, query = plain.inputs(pair.document), plain.inputs(pair.query)
    yield *document, plain.vector(query[0]), result.document_scores
    yield *query, plain.vector(document[0]), result.query_scores


def test_input_x_gradient_equals_a_loop(minilm: DenseRetriever, plain: Plain) -> None:
    for pair, result in zip(PAIRS, input_x_gradient.attribute(minilm, PRODUCT, PAIRS), strict=True):
        for inputs, _, other, found in sides(plain, pair, result):
            expected = (inputs * plain.gradient(inputs, other)).sum(-1)
            np.testing.assert_allclose(found, expected, atol=1e-5 * float(expected.abs().max()))
        assert (result.document_scores < 0).any() and (result.document_scores > 0).any()
        assert result.bias_share is None and result.completeness_error is None


def test_integrated_gradients_equal_a_loop(minilm: DenseRetriever, plain: Plain) -> None:
    """Gauss-Legendre points on the straight path, mapped from [-1, 1] to [0, 1]."""
    points, weights = np.polynomial.legendre.leggauss(16)
    method = make_method("integrated_gradients", {"steps": "16"})
    (result,) = integrated_gradients.attribute(minilm, method, PAIRS[:1])
    for inputs, neutral, other, found in sides(plain, PAIRS[0], result):
        total = torch.zeros_like(inputs)
        for point, weight in zip(points, weights, strict=True):
            at = neutral + (point + 1) / 2 * (inputs - neutral)
            total += weight / 2 * plain.gradient(at, other)
        expected = ((inputs - neutral) * total).sum(-1)
        np.testing.assert_allclose(found, expected, atol=1e-5 * float(expected.abs().max()))
    (_, neutral), (query, _) = plain.inputs(PAIRS[0].document), plain.inputs(PAIRS[0].query)
    baseline = torch.cosine_similarity(plain.vector(neutral), plain.vector(query), dim=0)
    assert result.bias_share == pytest.approx(float(baseline), abs=1e-6)


def test_integrated_gradients_are_complete(minilm: DenseRetriever, sample: DataSet) -> None:
    """With the default number of steps the shares sum to within 0.1% of the score, and the stated
    error is exact."""
    documents = {p.document: p for p in sample.pairs if p.language == "eng"}
    shortest = sorted(documents.values(), key=lambda p: len(p.document))[:3]
    pairs = [TextPair(p.pair_id, p.query[:50], p.document[:90]) for p in shortest]
    for result in integrated_gradients.attribute(minilm, INTEGRATED, pairs):
        assert result.bias_share is not None and result.completeness_error is not None
        missed = result.score - result.document_scores.sum() - result.bias_share
        assert missed == pytest.approx(result.completeness_error, abs=1e-5)
        assert abs(result.completeness_error) <= DELTA * abs(result.score)


def test_auto_doubles_the_steps_until_it_is_complete(
    minilm: DenseRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = TextPair("p", "fog", "Fog forms over cold water.")

    def run(steps: str) -> Attribution:
        return integrated_gradients.attribute(
            minilm, make_method("integrated_gradients", {"steps": steps}), [pair]
        )[0]

    by_16, by_32 = run("16"), run("32")
    errors = [abs(r.completeness_error or 0) / abs(r.score) for r in (by_16, by_32)]
    assert errors[0] > errors[1]
    monkeypatch.setattr(integrated_gradients, "DELTA", (errors[0] + errors[1]) / 2)
    np.testing.assert_array_equal(run("auto").document_scores, by_32.document_scores)
    monkeypatch.setattr(integrated_gradients, "DELTA", errors[0] * 1.01)
    np.testing.assert_array_equal(run("auto").document_scores, by_16.document_scores)
    # If no number of steps is enough, the largest is used and the error is stated.
    monkeypatch.setattr(integrated_gradients, "DELTA", 0.0)
    monkeypatch.setattr(integrated_gradients, "STEPS", (4, 16))
    last = run("auto")
    np.testing.assert_array_equal(last.document_scores, by_16.document_scores)
    assert last.completeness_error == by_16.completeness_error


@pytest.mark.parametrize("name", ["bert", "roberta", "qwen3-left"])
def test_special_tokens_and_prompts_have_no_share(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    """The baseline keeps them, so integrated gradients give them no share."""
    retriever = tiny(name, document_prompt="query: fox ", query_prompt="instruct: ")
    pair = TextPair("p", "twice a day", "The tide rises twice a day")
    method = make_method("integrated_gradients", {"steps": "16"})
    (result,) = integrated_gradients.attribute(retriever, method, [pair])
    for text, scores in (
        (result.query, result.query_scores),
        (result.document, result.document_scores),
    ):
        assert 1 <= (~text.content).sum() < len(text.tokens)
        assert (scores[~text.content] == 0).all()
        assert (scores[text.content] != 0).all()


def test_batching_does_not_change_results(
    minilm: DenseRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither padding pairs to one length nor running steps one by one changes results."""
    for pair, padded in zip(PAIRS, input_x_gradient.attribute(minilm, PRODUCT, PAIRS), strict=True):
        (alone,) = input_x_gradient.attribute(minilm, PRODUCT, [pair])
        np.testing.assert_allclose(padded.document_scores, alone.document_scores, atol=1e-6)
        np.testing.assert_allclose(padded.query_scores, alone.query_scores, atol=1e-6)
    method = make_method("integrated_gradients", {"steps": "16"})
    (together,) = integrated_gradients.attribute(minilm, method, PAIRS[:1])
    monkeypatch.setattr(perturbation, "BATCH_TOKENS", 1)
    (one_by_one,) = integrated_gradients.attribute(minilm, method, PAIRS[:1])
    np.testing.assert_allclose(together.document_scores, one_by_one.document_scores, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "first", "second"),
    [("integrated_gradients", 16, 32), ("integrated_jacobians", 8, 16)],
)
def test_each_attempt_to_integrate_reports_its_progress(
    tiny: Callable[..., DenseRetriever],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    first: int,
    second: int,
) -> None:
    """A page restarts its estimate when the text changes."""
    module: Any = import_module(f"poslens.attribution.methods.{method}")
    monkeypatch.setattr(module, "DELTA", 0.0)  # the first attempt isn't enough
    monkeypatch.setattr(module, "STEPS", (first, second))
    monkeypatch.setattr(perturbation, "BATCH_TOKENS", 1)
    told: dict[str, list[float]] = {}
    with reporting(lambda share, doing, before: told.setdefault(doing, []).append(share)):
        module.attribute(tiny("bert"), make_method(method), PAIRS[:1])
    assert set(told) == {
        f"{side}, {steps} steps" for side in ("Query", "Document") for steps in (first, second)
    }
    for shares in told.values():
        assert shares == sorted(shares) and shares[0] == 0 and 0.8 < shares[-1] < 1

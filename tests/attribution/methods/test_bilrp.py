"""BiLRP: explicit relevance propagation as oracle, conservation, a linear layer by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.methods.bilrp import attribute
from poslens.attribution.methods.decomposition import attribute as decompose
from poslens.attribution.methods.frozen import gamma_rule
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import TextPair
from tests.support.literal_bilrp import relevance
from tests.support.literal_decompx import Bert

PAIR = TextPair("p", "tide rises", "The tide rises twice a day because the Moon pulls the water.")
OTHER = TextPair("q", "lazy dogs", "A quick brown fox.")
GAMMAS = ("0", "0.1", "0.25", "1")


@pytest.fixture
def lively(tiny: Callable[..., DenseRetriever]) -> DenseRetriever:
    """A tiny BERT in float64 whose biases and norm weights differ from initial values (0 and 1)."""
    retriever = tiny("bert")
    torch.manual_seed(3)
    for parameter in retriever.model.double().parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter) * 0.3)
    retriever.precision = "float64"
    return retriever


@pytest.mark.parametrize("gamma", ["0", "0.25"])
def test_equals_explicit_relevance_propagation(lively: DenseRetriever, gamma: str) -> None:
    config = lively.backbone.config
    bert = Bert(
        lively.backbone.state_dict(),
        config.num_attention_heads,
        config.layer_norm_eps,
    )
    query, document = (
        relevance(
            bert,
            lively.encode_texts([text], side).features["input_ids"][0].tolist(),
            float(gamma),
        )
        for text, side in ((PAIR.query, "query"), (PAIR.document, "document"))
    )
    (result,) = attribute(lively, make_method("bilrp", {"gamma": gamma}), [PAIR])
    assert result.matrix is not None
    # Rows are the query's tokens, columns the document's.
    assert result.matrix.shape == (len(result.query), len(result.document))
    expected = (query @ document.T).numpy()
    np.testing.assert_allclose(result.matrix, expected, atol=1e-6 * np.abs(expected).max())


def test_without_gamma_it_equals_the_decomposition_matrix(lively: DenseRetriever) -> None:
    (bilrp,) = attribute(lively, make_method("bilrp", {"gamma": "0"}), [PAIR])
    (whole,) = decompose(lively, make_method("decomposition", {"matrix": "yes"}), [PAIR])
    assert bilrp.matrix is not None and whole.matrix is not None
    np.testing.assert_array_equal(bilrp.matrix, whole.matrix)
    assert bilrp.score == whole.score
    (other,) = attribute(lively, make_method("bilrp"), [PAIR])
    assert other.matrix is not None
    assert not np.allclose(other.matrix, whole.matrix, atol=1e-3 * np.abs(whole.matrix).max())


@pytest.mark.parametrize("name", ["bert", "mpnet", "qwen3-right", "gpt_neo", "t5"])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_relevance_is_conserved(name: str, gamma: str, tiny: Callable[..., DenseRetriever]) -> None:
    for result in attribute(tiny(name), make_method("bilrp", {"gamma": gamma}), [PAIR, OTHER]):
        assert result.matrix is not None and result.bias_share is not None
        parts = np.abs(result.matrix).sum() + abs(result.bias_share)
        missing = result.score - float(result.matrix.sum()) - result.bias_share
        assert abs(missing) < 1e-5 * parts
        assert abs(result.completeness_error or 0.0) < 1e-5 * parts
        np.testing.assert_allclose(result.query_scores, result.matrix.sum(1), atol=1e-5 * parts)
        np.testing.assert_allclose(result.document_scores, result.matrix.sum(0), atol=1e-5 * parts)


def test_the_gamma_rule_computed_by_hand() -> None:
    """One output, 1 * 3 + (-2) * 1 + 0.5 = 1.5. With gamma 1 its positive parts count twice:
    6 - 2 + 1 = 5, so inputs get 6 / 5 and -2 / 5 of the output, and the bias gets 1 / 5."""
    x = torch.tensor([[[1.0, -2.0]]], requires_grad=True)
    constants: list[torch.Tensor] = []

    def attach(y: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        assert bias is not None
        constants.append(bias)
        return y

    weight, bias = torch.tensor([[3.0, 1.0]]), torch.tensor([0.5])
    y = gamma_rule(x, weight, bias, 1.0, attach)
    assert y.item() == pytest.approx(1.5)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    shares = (x * gradient).flatten().tolist()
    assert shares == pytest.approx([1.5 * 6 / 5, 1.5 * -2 / 5])
    assert constants[0].item() == 1.0 and sum(shares) + 1.5 / 5 == pytest.approx(1.5)


def test_an_output_of_zero_gets_no_relevance() -> None:
    x = torch.tensor([[[1.0, 1.0]]], requires_grad=True)
    y = gamma_rule(x, torch.tensor([[1.0, -1.0], [0.0, 0.0]]), None, 0.25, lambda y, _: y)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert y.tolist() == [[[0.0, 0.0]]] and gradient.abs().sum() == 0


def test_a_distance_is_refused(tiny: Callable[..., DenseRetriever]) -> None:
    with pytest.raises(UserError, match="not a sum over tokens"):
        attribute(tiny("bert", similarity="euclidean"), make_method("bilrp"), [PAIR])

"""Integrated Jacobians: a linear encoder by hand, whole Jacobians as oracle, completeness."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy.special import roots_legendre
from torch import Tensor

from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.methods.integrated_jacobians import DELTA, attribute
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import Side, TextPair, Token, TokenizedText

PAIR = TextPair("p", "tide rises", "The tide rises twice a day because the Moon pulls the water.")
OTHER = TextPair("q", "why", PAIR.document)
WORDS = {"a": (1.0, 0.0), "b": (0.0, 2.0), "c": (1.0, 1.0), "pad": (0.5, 0.0)}


class Linear:
    """The vector of a text is the sum of its words' vectors, the n-th times n."""

    name, device, max_length = "linear", torch.device("cpu"), 16

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._inputs: Tensor | None = None

    def encode_texts(self, texts: Sequence[str], side: Side) -> Encoded:
        (text,) = texts
        starts = [2 * n for n in range(len(text.split()))]
        tokens = [Token(w, s, s + 1) for w, s in zip(text.split(), starts, strict=True)]
        known = TokenizedText.of(tokens, len(tokens), 16)
        return Encoded({"words": text.split()}, (known,), (0,), side)

    def input_embeddings(self, encoded: Encoded) -> Tensor:
        return torch.tensor([[WORDS[word] for word in encoded.features["words"]]])

    def baseline(self, encoded: Encoded) -> Tensor:
        return torch.tensor([[WORDS["pad"] for _ in encoded.features["words"]]])

    @contextmanager
    def override_embeddings(self, inputs: Tensor) -> Iterator[None]:
        self._inputs = inputs
        yield
        self._inputs = None

    def embed(self, encoded: Encoded) -> Tensor:
        assert self._inputs is not None
        weights = torch.arange(1.0, 1 + self._inputs.shape[1])
        return torch.einsum("nte,t->ne", self._inputs, weights)

    def directions(self, vectors: Tensor) -> Tensor:
        return vectors


@pytest.mark.parametrize("steps", ["auto", "8"])
def test_shares_of_a_linear_encoder_computed_by_hand(steps: str) -> None:
    """Differences from padding, times position: query `a b` has (0.5, 0) and (-1, 4), document
    `c a b` has (0.5, 1), (1, 0) and (-1.5, 6)."""
    method = make_method("integrated_jacobians", {"matrix": "yes", "steps": steps})
    pair = TextPair("p", "a b", "c a b")
    (result,) = attribute(Linear(), method, [pair])  # type: ignore[arg-type]
    expected = [[0.25, 0.5, -0.75], [3.5, -1.0, 25.5]]
    assert result.matrix is not None
    np.testing.assert_allclose(result.matrix, expected, atol=1e-5)
    assert result.query_scores.tolist() == pytest.approx([0.0, 28.0], abs=1e-5)
    assert result.document_scores.tolist() == pytest.approx([3.75, -0.5, 24.75], abs=1e-5)
    # s = (1, 4) . (3, 7) = 31; padding alone: query (1.5, 0), document (3, 0).
    assert result.score == pytest.approx(31)
    assert result.bias_share == pytest.approx(1 * 3 + 1.5 * 3 - 1.5 * 3)
    assert result.completeness_error == pytest.approx(0, abs=1e-4)
    (sums,) = attribute(  # type: ignore[arg-type]
        Linear(), make_method("integrated_jacobians", {"steps": steps}), [pair]
    )
    assert sums.matrix is None
    np.testing.assert_allclose(sums.query_scores, result.query_scores, atol=1e-5)
    np.testing.assert_allclose(sums.document_scores, result.document_scores, atol=1e-5)


def whole_jacobian(
    retriever: DenseRetriever, text: str, side: Side, n_steps: int
) -> tuple[Tensor, Tensor]:
    """The whole Jacobian averaged over the path [H, T, E], and the difference [T, E]."""
    encoded = retriever.encode_texts([text], side)
    inputs, baseline = retriever.input_embeddings(encoded), retriever.baseline(encoded)

    def vector(embeddings: Tensor) -> Tensor:
        with retriever.override_embeddings(embeddings[None]):
            return retriever.directions(retriever.embed(encoded))[0]

    nodes, weights = roots_legendre(n_steps)
    total = sum(
        w
        / 2
        * torch.autograd.functional.jacobian(
            vector, (baseline + (n + 1) / 2 * (inputs - baseline))[0]
        )
        for n, w in zip(nodes, weights, strict=True)
    )
    assert isinstance(total, Tensor)
    return total, (inputs - baseline)[0]


def test_equals_whole_jacobians_averaged_along_the_path(
    tiny: Callable[..., DenseRetriever],
) -> None:
    retriever = tiny("bert")
    method = make_method("integrated_jacobians", {"matrix": "yes", "steps": "8"})
    (result,) = attribute(retriever, method, [PAIR])
    vectors = []
    for text, side in ((PAIR.query, "query"), (PAIR.document, "document")):
        jacobian, difference = whole_jacobian(retriever, text, side, 8)  # type: ignore[arg-type]
        vectors.append(torch.einsum("hte,te->th", jacobian, difference))
    expected = (vectors[0] @ vectors[1].T).numpy()
    assert result.matrix is not None
    assert result.matrix.shape == (len(result.query), len(result.document))
    np.testing.assert_allclose(result.matrix, expected, atol=1e-4 * np.abs(expected).max())
    # The baseline keeps special tokens, so they have no share.
    assert not result.matrix[result.query.special].any()


@pytest.mark.parametrize("name", ["bert", "mpnet", "bert-cls", "modernbert"])
def test_matrix_and_reference_terms_sum_to_the_score(
    name: str, tiny: Callable[..., DenseRetriever]
) -> None:
    retriever = tiny(name)
    matrix = make_method("integrated_jacobians", {"matrix": "yes", "steps": "64"})
    sums = make_method("integrated_jacobians", {"steps": "64"})
    both = (attribute(retriever, method, [PAIR, OTHER]) for method in (matrix, sums))
    for pair, result, alone in zip((PAIR, OTHER), *both, strict=True):
        query, document = (
            retriever.encode_texts([text], side)
            for text, side in ((pair.query, "query"), (pair.document, "document"))
        )
        ends = []
        for encoded in (query, document):
            for embeddings in (retriever.input_embeddings(encoded), retriever.baseline(encoded)):
                with torch.no_grad(), retriever.override_embeddings(embeddings):
                    ends.append(retriever.directions(retriever.embed(encoded))[0])
        q, no_q, d, no_d = ends
        references = float(q @ no_d + no_q @ d - no_q @ no_d)
        assert result.matrix is not None and result.bias_share == pytest.approx(
            references, abs=1e-5
        )
        assert result.score == pytest.approx(float(q @ d), abs=1e-5)
        scale = np.abs(result.matrix).sum()
        assert abs(result.score - references - result.matrix.sum()) < 1e-3 * scale
        assert abs(result.completeness_error or 0.0) < 1e-3 * scale
        np.testing.assert_allclose(alone.document_scores, result.matrix.sum(0), atol=2e-3 * scale)
        np.testing.assert_allclose(alone.query_scores, result.matrix.sum(1), atol=2e-3 * scale)


def test_auto_doubles_the_steps_until_it_is_nearly_complete(
    tiny: Callable[..., DenseRetriever],
) -> None:
    retriever = tiny("bert")
    for matrix in ("no", "yes"):
        options = {"matrix": matrix}
        (result,) = attribute(retriever, make_method("integrated_jacobians", options), [PAIR])
        assert result.bias_share is not None and result.completeness_error is not None
        wanted = abs(result.score - result.bias_share)
        assert abs(result.completeness_error) <= 2 * DELTA * wanted


@pytest.mark.parametrize("matrix", ["no", "yes"])
def test_a_pair_has_the_same_shares_alone_and_with_others(
    minilm: DenseRetriever, matrix: str
) -> None:
    """With 8 steps the error of the second pair alone, and not that of both, exceeds the limit."""
    document = "The Moon pulls the water nearer to it."
    pairs = [TextPair(query, query, document) for query in ("tide rises", "who pulls the water?")]
    method = make_method("integrated_jacobians", {"matrix": matrix})
    for pair, result in zip(pairs, attribute(minilm, method, pairs), strict=True):
        (alone,) = attribute(minilm, method, [pair])
        largest = np.abs(alone.document_scores).max()
        np.testing.assert_allclose(
            result.document_scores, alone.document_scores, atol=1e-4 * largest
        )
        assert result.bias_share is not None and result.completeness_error is not None
        wanted = abs(result.score - result.bias_share)
        assert abs(result.completeness_error) <= DELTA * wanted


def test_a_distance_is_refused(tiny: Callable[..., DenseRetriever]) -> None:
    with pytest.raises(UserError, match="not a sum over tokens"):
        attribute(tiny("bert", similarity="euclidean"), make_method("integrated_jacobians"), [PAIR])

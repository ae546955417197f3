"""Token decomposition: DecompX's forward propagation as oracle, sums by hand, refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from poslens.attribution.checkpoints import reporting, stoppable
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.methods import attribute_batches, make_method
from poslens.attribution.methods.decomposition import attribute, position_shares
from poslens.attribution.methods.passes import one_round
from poslens.attribution.methods.shares import share_matrices
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import Side, TextPair, Token, TokenizedText
from tests.support.linear_shares import shares
from tests.support.literal_decompx import (
    Bert,
    decompose,
    decompose_absdot,
    decompose_positions,
)

METHOD = make_method("decomposition")
MATRIX = make_method("decomposition", {"matrix": "yes"})
DECOMPX = make_method("decomposition", {"matrix": "yes", "biases": "decompx"})

LONG = (
    "Tides are the rise and fall of sea levels caused by the combined effects of the gravitational "
    "forces exerted by the Moon, and to a much lesser extent the Sun, and are also caused by the "
    "Earth and Moon orbiting one another. Tide tables can be used for any given locale to find the "
    "predicted times."
)
PAIRS = (
    TextPair("short", "why does the tide rise?", "The Moon pulls the water nearer to it."),
    TextPair("unrelated", "fog", "A recipe for bread: flour, water, salt and yeast."),
    TextPair("long", "what are tide tables used for", LONG),
)


@pytest.fixture(scope="module")
def exact(minilm: DenseRetriever) -> DenseRetriever:
    """MiniLM in float64."""
    from poslens.attribution.retrievers.load import load

    return load(minilm.spec, device="cpu", precision="float64")


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


def literal(retriever: DenseRetriever, first_position: int = 0) -> Bert:
    config = retriever.backbone.config
    return Bert(
        retriever.backbone.state_dict(),
        config.num_attention_heads,
        config.layer_norm_eps,
        first_position,
    )


def ids(retriever: DenseRetriever, text: str, side: Side) -> list[int]:
    encoded = retriever.encode_texts([text], side)
    return encoded.features["input_ids"][0].tolist()


# -- DecompX's propagation as the oracle -----------------------------------------------------------


def interactions(
    retriever: DenseRetriever, pair: TextPair, biases: str
) -> tuple[Tensor, Tensor, Tensor, float]:
    """M [Q, D], <Q_bias, D_j> [D], <Q_i, D_bias> [Q] and <Q_bias, D_bias>, from the shares of both
    sides and the matrix."""
    (_, queries), (_, documents), (matrix,) = share_matrices(retriever, [pair], biases)
    of_query_bias = documents.tokens[0] - matrix.sum(0)
    of_document_bias = queries.tokens[0] - matrix.sum(1)
    return matrix, of_query_bias, of_document_bias, float(queries.bias[0] - of_query_bias.sum())


@pytest.mark.parametrize(
    ("pair", "biases"),
    # The long text needs 64 x 64 x 384 numbers per layer, so one is enough.
    [(PAIRS[0], "explicit"), (PAIRS[0], "decompx"), (PAIRS[1], "decompx"), (PAIRS[2], "explicit")],
    ids=lambda value: value if isinstance(value, str) else value.pair_id,
)
def test_equals_decompx_forward_propagation(
    exact: DenseRetriever, pair: TextPair, biases: str
) -> None:
    to_source = biases == "decompx"
    bert = literal(exact)
    document_ids = ids(exact, pair.document, "document")
    assert len(document_ids) <= 64
    q, q_constant = decompose(bert, ids(exact, pair.query, "query"), to_source)
    d, d_constant = decompose(bert, document_ids, to_source)
    query, document = q.sum(0) + q_constant, d.sum(0) + d_constant
    encoded = exact.encode_texts([pair.document], "document")
    torch.testing.assert_close(exact.directions(exact.embed(encoded))[0], document)

    found = shares(exact, encoded, query[None], biases)
    torch.testing.assert_close(found.tokens[0], d @ query, rtol=0, atol=1e-8)
    torch.testing.assert_close(found.bias[0], d_constant @ query, rtol=0, atol=1e-8)
    matrix, of_query_bias, of_document_bias, of_both = interactions(exact, pair, biases)
    torch.testing.assert_close(matrix, q @ d.T, rtol=0, atol=1e-8)
    torch.testing.assert_close(of_query_bias, d @ q_constant, rtol=0, atol=1e-8)
    torch.testing.assert_close(of_document_bias, q @ d_constant, rtol=0, atol=1e-8)
    assert of_both == pytest.approx(float(q_constant @ d_constant), abs=1e-8)
    # The constants are not negligible, so that a mistake in them would be noticed.
    assert abs(of_both) > 0.05


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize("biases", ["explicit", "decompx"])
def test_the_bert_family_equals_the_propagation(
    tiny: Callable[..., DenseRetriever], name: str, biases: str
) -> None:
    retriever = tiny(name)
    torch.manual_seed(5)
    for parameter in retriever.model.double().parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter) * 0.3)
    first = 0 if name == "bert" else retriever.backbone.config.pad_token_id + 1
    bert = literal(retriever, first)
    texts = ["The tide rises twice a day", "lazy dogs"]
    encoded = retriever.encode_texts(texts, "document")
    torch.manual_seed(6)
    other = torch.nn.functional.normalize(torch.randn(2, 32, dtype=torch.float64), dim=-1)
    found = shares(retriever, encoded, other, biases)
    positions = position_shares(retriever, encoded, one_round(2), other)
    for b, text in enumerate(texts):
        alone = ids(retriever, text, "document")
        d, constant = decompose(bert, alone, biases == "decompx")
        torch.testing.assert_close(encoded.row(found.tokens, b), d @ other[b], rtol=0, atol=1e-10)
        torch.testing.assert_close(found.bias[b], constant @ other[b], rtol=0, atol=1e-10)
        torch.testing.assert_close(
            encoded.row(positions, b),
            decompose_positions(bert, alone) @ other[b],
            rtol=0,
            atol=1e-10,
        )
    assert found.bias.abs().min() > 1e-3
    # Padding has no share.
    padding = encoded.features["attention_mask"] == 0
    assert padding.any() and (found.tokens[padding] == 0).all()


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
def test_spread_biases_equal_the_propagation(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    retriever = tiny(name)
    torch.manual_seed(5)
    for parameter in retriever.model.double().parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter) * 0.3)
    retriever.precision = "float64"
    first = 0 if name == "bert" else retriever.backbone.config.pad_token_id + 1
    bert = literal(retriever, first)
    q = decompose_absdot(bert, ids(retriever, PAIRS[0].query, "query"))
    d = decompose_absdot(bert, ids(retriever, PAIRS[0].document, "document"))
    method = make_method("decomposition", {"biases": "absdot", "matrix": "yes"})
    found, twin = attribute(retriever, method, [PAIRS[0], PAIRS[0]])
    np.testing.assert_allclose(found.matrix, (q @ d.T).numpy(), atol=1e-6)
    np.testing.assert_allclose(found.document_scores, (d @ q.sum(0)).numpy(), atol=1e-6)
    np.testing.assert_allclose(found.query_scores, (q @ d.sum(0)).numpy(), atol=1e-6)
    np.testing.assert_array_equal(found.document_scores, twin.document_scores)
    assert found.bias_share == 0 and abs(found.completeness_error or 0) < 1e-10
    # Spreading makes a clear difference.
    (explicit,) = attribute(retriever, METHOD, [PAIRS[0]])
    assert np.abs(explicit.document_scores - found.document_scores).max() > 1e-3


def test_spread_biases_on_minilm_add_up_and_have_limits(
    exact: DenseRetriever, minilm: DenseRetriever
) -> None:
    method = make_method("decomposition", {"biases": "absdot"})
    expected = decompose_absdot(literal(exact), ids(exact, PAIRS[0].document, "document"))
    query = exact.directions(exact.embed(exact.encode_texts([PAIRS[0].query], "query")))[0]
    (found,) = attribute(exact, method, PAIRS[:1])
    np.testing.assert_allclose(found.document_scores, (expected @ query).numpy(), atol=1e-7)
    (single,) = attribute(minilm, method, PAIRS[:1])
    np.testing.assert_allclose(single.document_scores, found.document_scores, atol=1e-5)
    with pytest.raises(UserError, match="whole shares"):
        attribute(minilm, make_method("decomposition", {"biases": "absdot", "part": "word"}), PAIRS)


def test_texts_too_long_for_spread_biases_are_refused(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poslens.attribution.methods.propagation.MAX_TOKENS", 8)
    with pytest.raises(UserError, match="supports up to 8 tokens"):
        attribute(tiny("bert"), make_method("decomposition", {"biases": "absdot"}), PAIRS[:1])


@pytest.mark.parametrize("name", ["mpnet", "distilbert", "modernbert", "qwen3-right"])
def test_spreading_needs_a_model_built_like_bert(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    with pytest.raises(UserError, match="BERT-like model"):
        attribute(tiny(name), make_method("decomposition", {"biases": "absdot"}), PAIRS[:1])


def test_decompx_moves_only_the_first_value_bias(lively: DenseRetriever) -> None:
    (explicit,), (decompx,) = (attribute(lively, m, PAIRS[:1]) for m in (MATRIX, DECOMPX))
    assert explicit.bias_share is not None and decompx.bias_share is not None
    moved = decompx.document_scores - explicit.document_scores
    assert np.abs(moved).max() > 1e-3
    assert moved.sum() == pytest.approx(explicit.bias_share - decompx.bias_share, abs=1e-5)
    first, second = (layer.attention.self.value.bias for layer in lively.backbone.encoder.layer)
    second.zero_()
    (explicit,), (decompx,) = (attribute(lively, m, PAIRS[:1]) for m in (MATRIX, DECOMPX))
    assert np.abs(explicit.document_scores - decompx.document_scores).max() > 1e-3
    first.zero_()
    (explicit,), (decompx,) = (attribute(lively, m, PAIRS[:1]) for m in (MATRIX, DECOMPX))
    np.testing.assert_allclose(explicit.document_scores, decompx.document_scores, atol=1e-6)
    np.testing.assert_allclose(explicit.matrix, decompx.matrix, atol=1e-6)
    assert explicit.bias_share == pytest.approx(decompx.bias_share, abs=1e-6)


@pytest.mark.parametrize("name", ["mpnet", "distilbert", "modernbert", "qwen3-right"])
def test_decompx_needs_a_model_built_like_bert(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    retriever = tiny(name)
    with pytest.raises(UserError, match="BERT-like model"):
        attribute(retriever, DECOMPX, PAIRS[:1])


def test_explicit_biases_are_the_default() -> None:
    assert METHOD.params["biases"] == "explicit"
    assert "biases=explicit" in repr(METHOD) and repr(METHOD) != repr(
        make_method("decomposition", {"biases": "decompx"})
    )


# -- worked out by hand ----------------------------------------------------------------------------


class _Entry(nn.Module):
    """Word plus position, as BERT's embedding layer without its norm."""

    def __init__(self, words: Sequence[Sequence[float]], places: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding.from_pretrained(torch.tensor(words))
        self.position_embeddings = nn.Embedding.from_pretrained(torch.tensor(places))

    def forward(self, ids: Tensor) -> Tensor:
        places = self.position_embeddings(torch.arange(ids.shape[1])[None])
        return self.word_embeddings(ids) + places


class Toy(DenseRetriever):
    """Texts of the letters a, b and c, a linear layer, the mean and the dot product. Vectors have
    two dimensions, so that shares can be computed by hand."""

    name, precision = "toy", "float64"

    def __init__(self, words, places, weight, bias) -> None:
        self.lock = threading.RLock()
        self.entry = _Entry(words, places).double()
        self.embeddings = self.entry.word_embeddings
        self.layer = nn.Linear(2, 2).double()
        self.layer.weight = nn.Parameter(torch.tensor(weight).double(), requires_grad=False)
        self.layer.bias = nn.Parameter(torch.tensor(bias).double(), requires_grad=False)

    @property
    def backbone(self) -> nn.Module:
        return self.layer

    def encode_texts(self, texts: Sequence[str], side: Side) -> Encoded:
        tokenized = tuple(
            TokenizedText.of(tuple(Token(c, i, i + 1) for i, c in enumerate(text)), len(text), 9)
            for text in texts
        )
        found = torch.tensor([["abc".index(c) for c in text] for text in texts])
        return Encoded({"input_ids": found}, tokenized, (0,) * len(texts))

    def embed(self, encoded: Encoded) -> Tensor:
        return self.layer(self.entry(encoded.features["input_ids"])).mean(1)

    def directions(self, vectors: Tensor) -> Tensor:
        return vectors


A, B, C = [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]
NOWHERE = [[0.0, 0.0]] * 3


def fractions(*values: str) -> list[float]:
    return [float(Fraction(value)) for value in values]


def test_shares_of_three_tokens_computed_by_hand() -> None:
    """W a = (1, 0), W b = (1, 1), W c = (2, 1). Query "ab": shares (1/2, 0), (1/2, 1/2), constant
    (1, -1), so q = (2, -1/2). Document "abc": (1/3, 0), (1/3, 1/3), (2/3, 1/3), constant (1, -1),
    so d = (7/3, -1/3). Score 14/3 + 1/6 = 29/6."""
    toy = Toy([A, B, C], NOWHERE, [[1.0, 1.0], [0.0, 1.0]], [1.0, -1.0])
    matrix, of_query_bias, of_document_bias, of_both = interactions(
        toy, TextPair("t", "ab", "abc"), "explicit"
    )
    expected = [fractions("1/6", "1/6", "1/3"), fractions("1/6", "1/3", "1/2")]
    np.testing.assert_allclose(matrix, expected, atol=1e-15)
    np.testing.assert_allclose(of_query_bias, fractions("1/3", "0", "1/3"), atol=1e-15)
    np.testing.assert_allclose(of_document_bias, fractions("1/2", "0"), atol=1e-15)
    assert of_both == pytest.approx(2, rel=1e-15)
    (result,) = attribute(toy, MATRIX, [TextPair("t", "ab", "abc")])
    assert result.score == pytest.approx(29 / 6, rel=1e-15)
    assert result.bias_share == pytest.approx(2 + 1 / 2)
    np.testing.assert_allclose(result.document_scores, fractions("2/3", "1/2", "7/6"), rtol=1e-6)
    np.testing.assert_allclose(result.query_scores, fractions("7/6", "1"), rtol=1e-6)
    np.testing.assert_allclose(result.matrix, expected, rtol=1e-6)


def test_matrix_rows_are_query_tokens() -> None:
    """With orthogonal words only equal letters interact."""
    toy = Toy([A, B, C], NOWHERE, [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    (result,) = attribute(toy, MATRIX, [TextPair("t", "ab", "bab")])
    assert result.matrix is not None
    np.testing.assert_allclose(result.matrix, np.array([[0, 1, 0], [1, 0, 1]]) / 6, rtol=1e-6)
    assert result.bias_share == 0


def test_position_shares_computed_by_hand() -> None:
    """W p = (2, 0), (0, 0), (3, 3) at the three places; with q = (1, 2) and the mean of three: 2/3,
    0, 9/3. Words contribute 1/3, 3/3 and 4/3, and the constant -1."""
    places = [[2.0, 0.0], [0.0, 0.0], [0.0, 3.0]]
    toy = Toy([A, B, C], places, [[1.0, 1.0], [0.0, 1.0]], [1.0, -1.0])
    other = torch.tensor([[1.0, 2.0]]).double()
    encoded = toy.encode_texts(["abc"], "document")
    of_places = position_shares(toy, encoded, one_round(1), other)
    np.testing.assert_allclose(of_places[0], fractions("2/3", "0", "3"), atol=1e-15)
    whole = shares(toy, encoded, other)
    of_words = fractions("1/3", "1", "4/3")
    np.testing.assert_allclose(whole.tokens[0] - of_places[0], of_words, atol=1e-15)
    assert float(whole.bias) == -1


def test_batched_position_shares_equal_those_of_each_row(lively: DenseRetriever) -> None:
    """Position embeddings are looked up once for a batch, but each row has its own shares."""
    encoded = lively.encode_texts([pair.document for pair in PAIRS[:2]], "document")
    torch.manual_seed(1)
    other = torch.randn(2, 32).double()
    together = position_shares(lively, encoded, one_round(2), other)
    for b, pair in enumerate(PAIRS[:2]):
        alone = lively.encode_texts([pair.document], "document")
        one = position_shares(lively, alone, one_round(1), other[b : b + 1])
        torch.testing.assert_close(encoded.row(together, b), one[0])
    lively.entry.position_embeddings.weight.zero_()
    gone = position_shares(lively, encoded, one_round(2), other)
    assert gone.abs().max() == 0


@pytest.mark.parametrize(
    ("name", "present"),
    [
        ("bert", True),
        ("roberta", True),
        ("xlm-roberta", True),
        ("distilbert", True),
        # Besides relative positions, MPNet adds absolute ones to its words.
        ("mpnet", True),
        ("modernbert", False),
        ("qwen3-left", False),
        ("llama-right", False),
    ],
)
def test_models_with_absolute_positions_have_position_shares(
    tiny: Callable[..., DenseRetriever], name: str, present: bool
) -> None:
    retriever = tiny(name)
    encoded = retriever.encode_texts(["tide", "The tide rises"], "document")
    torch.manual_seed(2)
    other = torch.randn(2, 32)
    if not present:
        with pytest.raises(UserError, match="adds no position embeddings"):
            position_shares(retriever, encoded, one_round(2), other)
        return
    found = position_shares(retriever, encoded, one_round(2), other)
    assert found.shape == encoded.features["input_ids"].shape
    assert encoded.row(found, 0).abs().max() > 1e-3


# -- laws of the result ----------------------------------------------------------------------------


def test_matrix_and_shares_agree(minilm: DenseRetriever) -> None:
    for result, pair in zip(attribute(minilm, MATRIX, PAIRS), PAIRS, strict=True):
        (alone,) = attribute(minilm, METHOD, [pair])  # shares from a separate backward pass
        assert result.matrix is not None and result.bias_share is not None
        assert result.matrix.shape == (len(result.query.tokens), len(result.document.tokens))
        np.testing.assert_allclose(result.query_scores, alone.query_scores, atol=2e-6)
        np.testing.assert_allclose(result.document_scores, alone.document_scores, atol=2e-6)
        assert result.bias_share == pytest.approx(alone.bias_share, abs=2e-6)
        matrix, of_query_bias, of_document_bias, of_both = interactions(minilm, pair, "explicit")
        np.testing.assert_allclose(result.matrix, matrix, atol=1e-6)
        total = float(matrix.sum() + of_query_bias.sum() + of_document_bias.sum()) + of_both
        assert total == pytest.approx(result.score, abs=3e-6)
        assert abs(result.completeness_error or 0) < 2e-6


def test_a_batch_equals_single_pairs(minilm: DenseRetriever) -> None:
    together = attribute(minilm, MATRIX, PAIRS)
    for pair, padded in zip(PAIRS, together, strict=True):
        (alone,) = attribute(minilm, MATRIX, [pair])
        largest = np.abs(alone.document_scores).max()
        assert np.abs(padded.document_scores - alone.document_scores).max() <= 1e-4 * largest
        assert np.abs(padded.query_scores - alone.query_scores).max() <= 1e-4 * largest
        np.testing.assert_array_equal(padded.matrix, alone.matrix)
        assert padded.bias_share == pytest.approx(alone.bias_share, abs=1e-5)


def test_removing_the_tokens_with_the_largest_shares_lowers_the_score(
    minilm: DenseRetriever, sample: DataSet
) -> None:
    """A share is not an effect, but its sign must be right: the score falls without the fifth of a
    document's tokens with the most positive shares, and falls more than without the fifth with the
    least."""
    documents: dict[str, TextPair] = {}
    for pair in sorted(sample.pairs, key=lambda pair: len(pair.document)):
        if pair.language == "eng" and pair.document not in documents:
            documents[pair.document] = pair
    pairs = list(documents.values())[:10]
    pairs = [TextPair(p.pair_id, p.query, p.document[:400]) for p in pairs]
    falls, further = 0, 0
    for result, pair in zip(attribute(minilm, METHOD, pairs), pairs, strict=True):
        content = [i for i, token in enumerate(result.document.tokens) if not token.is_special]
        order = sorted(content, key=lambda i: result.document_scores[i])
        fifth = len(order) // 5
        encoded = minilm.encode_texts([pair.document], "document")
        queries = minilm.encode_texts([pair.query], "query")

        def without(chosen: list[int], encoded=encoded, queries=queries) -> float:
            inputs = minilm.input_embeddings(encoded).clone()
            inputs[0, chosen] = minilm.embeddings(torch.tensor(0))
            with torch.no_grad(), minilm.override_embeddings(inputs):
                document = minilm.embed(encoded)
            with torch.no_grad():
                return float(minilm.similarity(minilm.embed(queries), document))

        best, least = without(order[-fifth:]), without(order[:fifth])
        falls += best < result.score
        further += best < least
    assert (falls, further) >= (9, 9), (falls, further)


# -- refusals --------------------------------------------------------------------------------------


def plant(
    retriever: DenseRetriever, monkeypatch: pytest.MonkeyPatch, function: Callable[[Tensor], Tensor]
) -> None:
    """`function` after the last layer of a BERT."""
    layer = retriever.backbone.encoder.layer[-1]
    real = layer.forward

    def forward(*args: object, **kwargs: object) -> Tensor:
        return function(real(*args, **kwargs))

    monkeypatch.setattr(layer, "forward", forward)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (torch.nn.functional.softplus, "can't be linearized"),
        (torch.nn.functional.elu, "can't be linearized"),
        (torch.square, "can't be linearized"),
        (lambda x: x.clamp(-1, 1), "can't be linearized"),
        (lambda x: x + 1.0, "can't be linearized"),
        (lambda x: (x @ x.transpose(-1, -2)) @ x, "can't be linearized"),
        (lambda x: x * x, "can't tell which one is a gate"),
        (lambda x: x * torch.nn.functional.linear(x, torch.eye(32)), "can't tell"),
        # Everything is frozen, so nothing comes from the tokens.
        (torch.sigmoid, "can't be linearized"),
        (lambda x: torch.softmax(x, -1), "can't be linearized"),
        # Rows and positions in one dimension, with a bias.
        (
            lambda x: torch.nn.functional.linear(
                x.flatten(0, 1), torch.eye(32), torch.ones(32)
            ).view_as(x),
            "mixes the rows",
        ),
        # A constant added in place would not be counted.
        (lambda x: x.clone().add_(torch.ones(32)), "can't be linearized"),
    ],
)
def test_an_unhandled_nonlinearity_is_refused(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch, function, sentence: str
) -> None:
    retriever = tiny("bert")
    plant(retriever, monkeypatch, function)
    with pytest.raises(UserError, match=sentence):
        attribute(retriever, METHOD, PAIRS[:2])
    assert torch.overrides._get_current_function_mode() is None
    outcomes = [o for batch in attribute_batches(retriever, METHOD, PAIRS[:2]) for o in batch]
    assert all(o.attribution is None and "choose saliency" in o.reason for o in outcomes)


@pytest.mark.parametrize(
    "function",
    [
        torch.nn.functional.leaky_relu,
        torch.tanh,
        lambda x: torch.nn.functional.relu(x, inplace=True),
        lambda x: x * torch.sigmoid(x),
        lambda x: torch.tanh(x) * torch.nn.functional.linear(x, torch.eye(32)),
        lambda x: torch.nn.functional.linear(input=x, weight=torch.eye(32), bias=torch.ones(32)),
        lambda x: torch.ones(32) + x,
        # In place, on the output of a handled function.
        lambda x: torch.nn.functional.linear(x, torch.eye(32), torch.ones(32)).add_(x),
    ],
)
def test_functions_that_are_linear_once_frozen_are_accepted(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch, function
) -> None:
    retriever = tiny("bert")
    plant(retriever, monkeypatch, function)
    for result in attribute(retriever, MATRIX, PAIRS[:2]):
        assert abs(result.completeness_error or 0) < 1e-5


def test_a_nonlinearity_on_the_query_side_alone_is_refused(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nonlinearity that only the query reaches: the document's shares add up, the query's
    don't."""
    retriever = tiny("bert")
    pair = TextPair("p", "tide", "The Moon pulls the water.")
    plant(retriever, monkeypatch, lambda x: torch.sin(x) if x.shape[1] == 3 else x)
    assert len(ids(retriever, pair.query, "query")) == 3
    with pytest.raises(UserError, match="can't be linearized"):
        attribute(retriever, METHOD, [pair])


def test_a_distance_is_refused(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = tiny("bert")
    retriever.model.similarity_fn_name = "euclidean"
    with pytest.raises(UserError, match="euclidean distance"):
        attribute(retriever, METHOD, PAIRS[:1])
    retriever.model.similarity_fn_name = "dot"
    (result,) = attribute(retriever, METHOD, PAIRS[:1])
    assert abs(result.completeness_error or 0) < 1e-5 * abs(result.score)


def test_completeness_has_a_larger_tolerance_in_bfloat16(
    tiny: Callable[..., DenseRetriever],
) -> None:
    retriever = tiny("bert")
    retriever.model.bfloat16()
    retriever.precision = "bfloat16"
    (result,) = attribute(retriever, MATRIX, PAIRS[:1])
    parts = np.abs(result.document_scores).sum() + abs(result.bias_share or 0)
    assert 0 < abs(result.completeness_error or 0) <= 0.05 * parts


def test_a_matrix_reports_progress_and_can_be_stopped(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever, told = tiny("bert"), list[float]()
    monkeypatch.setattr("poslens.attribution.methods.shares.batch_tokens", lambda device: 1)
    pair = TextPair("p", "when do the tides rise and fall", "The tide rises twice a day.")
    with reporting(lambda share, doing, before: told.append(share)):
        attribute(retriever, MATRIX, [pair])
    assert told == sorted(told) and told[0] == 0 and told[-1] == pytest.approx(1)
    assert len(told) > 3
    with (
        reporting(lambda share, doing, before: told.append(share)),
        stoppable(lambda: told[-1] != 1),
        pytest.raises(Stopped),
    ):
        attribute(retriever, MATRIX, [pair])
    assert told[-1] < 1

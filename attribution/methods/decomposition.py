"""Token decomposition: each token's exact, signed share of the score (DecompX, Modarressi et al.
2023; used on retrievers by Fayyaz et al. 2025), from the linearised network.

contribution_j = <x_j, d s_frozen / d x_j>, x_j what token j brings into the encoder. Shares and the
bias share add up to the score. A share is not an effect: taking the token out would change the
frozen weights too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attribution.batching import checkpoint
from attribution.errors import UserError
from attribution.methods.base import Clock, MethodEntry, Parameter, build_batch, register
from attribution.methods.gradients import times_gradient
from attribution.methods.linearised import linearised
from attribution.methods.propagation import bert_layers, propagate
from attribution.retrievers.base import Retriever
from attribution.retrievers.cross_encoder import CrossEncoderRetriever
from attribution.retrievers.dense import DenseRetriever
from attribution.retrievers.encoded import Encoded
from attribution.retrievers.family import Capability
from attribution.types import Attribution, Method, Side, TextPair

TOLERANCE = 1e-3
"""Largest completeness error, relative to the score's parts, of a model that counts as linearised;
float32 leaves about 1e-6, 16 bit formats about 1e-2 (`_tolerance`)."""

MATRIX_CHUNK = 16
"""Query tokens whose gradients run through the document encoder together."""

BIASES = ("explicit", "decompx", "absdot")
"""Where constants go: all into the bias share; the first layer's value bias to the token whose
value vector it is part of, as in DecompX's code; or every one to the tokens by |<bias, vector>|
too, DecompX's reference configuration."""

PARTS = ("whole", "word", "position")
"""What of a token's share is kept: all of it, or what its position embedding brings or not."""

_JOINTLY = {"matrix": "no", "biases": BIASES[0], "part": PARTS[0]}
"""The parameters that models that read both texts together have."""

_FIRST_VALUE = "encoder.layer.0.attention.self.value"


@dataclass(frozen=True, slots=True)
class Shares:
    """One side's shares of the score, the other side's vector held constant.

    `tokens` [B, T], `bias` [B], `scores` [B], all float32 or wider on the CPU; `directions` [B, H]
    is this side's pooled vector, scaled so that the score is an inner product.
    """

    tokens: Tensor
    bias: Tensor
    scores: Tensor
    directions: Tensor

    @property
    def error(self) -> Tensor:
        """score - sum of shares - bias share [B]; rounding, where nothing was missed."""
        return self.scores - self.tokens.sum(-1) - self.bias


def attribute(
    retriever: DenseRetriever | CrossEncoderRetriever, method: Method, pairs: Sequence[TextPair]
) -> list[Attribution]:
    """Shares of every document and every query token of a batch of pairs; with `matrix=yes` the
    share of each query token with each document token too. `part=position` keeps what the tokens'
    position embeddings bring of their shares and `part=word` all the rest: together they are the
    whole, each alone makes no claim of completeness.

    Raises:
        UserError: the model cannot be linearised, its score is no inner product, or
            `biases=decompx` is asked of a model that is not built like BERT, or a part of one
            that adds no position embeddings.
        torch.OutOfMemoryError: the batch does not fit.
    """
    if isinstance(retriever, CrossEncoderRetriever):
        return _attribute_jointly(retriever, method, pairs)
    clock = Clock()
    biases = str(method.params.get("biases", BIASES[0]))
    part = str(method.params.get("part", PARTS[0]))
    whole = part == PARTS[0]
    wants_matrix = method.params.get("matrix") == "yes"
    if not whole and wants_matrix:
        raise UserError("The matrix is one of whole shares: choose part = whole, or matrix = no.")
    if not whole and biases == "absdot":
        raise UserError(
            "Biases are spread over whole shares: choose part = whole, or another way with biases."
        )
    if biases == "absdot" and len(pairs) > 1:  # T x T x H numbers for each text: one at a time
        return [result for pair in pairs for result in attribute(retriever, method, [pair])]
    with retriever.lock:
        queries = retriever.encode_texts([pair.query for pair in pairs], "query")
        documents = retriever.encode_texts([pair.document for pair in pairs], "document")
        with torch.no_grad():
            constant = retriever.directions(retriever.embed(queries))
        matrices: list[Tensor | None] = [None] * len(pairs)
        if biases == "absdot":
            of_documents, of_queries, of_both = _spread(retriever, queries, documents)
            matrices = [of_both if wants_matrix else None]
        else:
            of_documents = shares(retriever, documents, constant, biases)
            of_queries = shares(retriever, queries, of_documents.directions, biases)
            if wants_matrix:
                matrices = [interactions(retriever, pair, biases)[0] for pair in pairs]
        tokens = {"document": of_documents.tokens, "query": of_queries.tokens}
        if not whole:
            tokens["document"] = _part(retriever, documents, constant, of_documents, part)
            tokens["query"] = _part(retriever, queries, of_documents.directions, of_queries, part)
    for b in range(len(pairs)):
        for side in (of_documents, of_queries):
            _require_complete(retriever, side, b)
    return build_batch(
        retriever,
        method,
        pairs,
        clock,
        scores=of_documents.scores,
        queries=queries,
        documents=documents,
        query_scores=tokens["query"],
        document_scores=tokens["document"],
        matrices=matrices,
        bias_shares=of_documents.bias if whole else None,
        completeness_errors=of_documents.error if whole else None,
    )


def _attribute_jointly(
    retriever: CrossEncoderRetriever, method: Method, pairs: Sequence[TextPair]
) -> list[Attribution]:
    """Shares of the tokens of texts that are read together, head included: those of both sides
    and the constants' add up to the logit."""
    clock = Clock()
    if any(method.params.get(name, value) != value for name, value in _JOINTLY.items()):
        raise UserError(
            f"{retriever.name} reads query and document together, so it has whole shares alone: "
            "choose matrix = no, biases = explicit, part = whole."
        )

    def score(inputs: Tensor, bias_scale: Tensor) -> Tensor:
        with (
            linearised(retriever.backbone, bias_scale),
            retriever.override_embeddings(inputs, retriever.entry),
        ):
            found = retriever.embed(queries)
        seen["scores"] = found.detach()
        scores: Tensor = found + 0 * (bias_scale + inputs.flatten(1).sum(1))
        return scores

    seen: dict[str, Tensor] = {}
    with retriever.lock:
        queries, documents = retriever.encode_pairs(pairs)
        inputs = retriever.entering(queries, retriever.entry).clone().requires_grad_()
        ones = inputs.new_ones(len(pairs)).requires_grad_()
        products, bias = times_gradient(score, (inputs, ones))
    tokens = products.sum(-1, dtype=torch.float32).cpu()
    scores = seen["scores"].float().cpu()
    found = Shares(tokens, bias.float().cpu(), scores, seen["scores"])
    for b in range(len(pairs)):
        _require_complete(retriever, found, b)
    return build_batch(
        retriever,
        method,
        pairs,
        clock,
        scores=scores,
        queries=queries,
        documents=documents,
        query_scores=tokens,
        document_scores=tokens,
        bias_shares=found.bias,
        completeness_errors=found.error,
    )


def shares(
    retriever: DenseRetriever, encoded: Encoded, other: Tensor, biases: str = BIASES[0]
) -> Shares:
    """Shares of one side's tokens in the inner product with `other` [B, H]: Captum's
    InputXGradient on the linearised encoder, with the constants as further inputs of ones."""
    seen: dict[str, Tensor] = {}

    def score(*leaves: Tensor) -> Tensor:
        directions = _linear_directions(retriever, encoded, *leaves)
        seen["directions"] = directions.detach()
        seen["scores"] = (directions * other).sum(-1)
        return seen["scores"]

    leaves = _leaves(retriever, encoded, biases)
    products, bias, *credited = times_gradient(score, leaves)
    wide = torch.float64 if products.dtype == torch.float64 else torch.float32
    return Shares(
        sum(credited, products.sum(-1, dtype=wide)).cpu(),
        bias.to(wide).cpu(),
        seen["scores"].detach().to(wide).cpu(),
        seen["directions"],
    )


def interactions(
    retriever: DenseRetriever, pair: TextPair, biases: str = BIASES[0]
) -> tuple[Tensor, Tensor, Tensor, float]:
    """The score as a sum over pairs of tokens: M [Q, D] with M_ij = <Q_i, D_j>, where Q_i (D_j) is
    the share of query token i (document token j) in the pooled vector; special tokens included.

    Returns M, <Q_bias, D_j> [D], <Q_i, D_bias> [Q] and <Q_bias, D_bias>; all together they sum to
    the score. No array of D x D x H is made: Q vectors run backwards through the document encoder.
    """
    queries = retriever.encode_texts([pair.query], "query")
    documents = retriever.encode_texts([pair.document], "document")
    vectors = token_vectors(retriever, queries, biases)  # [Q + 1, H], the last of the constants
    leaves = _leaves(retriever, documents, biases)
    directions = _linear_directions(retriever, documents, *leaves)
    rows, constants = [], []
    for start in range(0, len(vectors), MATRIX_CHUNK):
        checkpoint()
        part = vectors[start : start + MATRIX_CHUNK]
        last = start + MATRIX_CHUNK >= len(vectors)
        gradients, bias, *credited = _gradients(directions, leaves, part[:, None, :], not last)
        products = torch.einsum("kth,th->kt", gradients[:, 0], leaves[0].detach()[0])
        rows.append(sum((c[:, 0] for c in credited), products))
        constants.append(bias[:, 0])
    matrix, bias_column = torch.cat(rows).cpu(), torch.cat(constants).cpu()
    return matrix[:-1], matrix[-1], bias_column[:-1], float(bias_column[-1])


def token_vectors(retriever: DenseRetriever, encoded: Encoded, biases: str = BIASES[0]) -> Tensor:
    """Each token's vector in the pooled, scaled embedding of one text [T + 1, H]; the last row is
    the constants'. Rows add up to the embedding.

    With u any vector, <x_i, J_i^T u> is linear in u; its gradient by u is J_i x_i. So T + 1
    vectors come from one backward pass that is differentiated once more.
    """
    leaves = _leaves(retriever, encoded, biases)
    directions = _linear_directions(retriever, encoded, *leaves)
    probe = torch.zeros_like(directions).requires_grad_()
    gradients, bias, *credited = torch.autograd.grad(directions, leaves, probe, create_graph=True)
    tokens = sum(credited, (gradients * leaves[0].detach()).sum(-1))
    products = torch.cat([tokens[0], bias])
    each = torch.eye(len(products), device=products.device, dtype=products.dtype)
    (vectors,) = _gradients(products, (probe,), each)
    return vectors[:, 0].detach()


def spread_vectors(retriever: DenseRetriever, encoded: Encoded) -> Tensor:
    """`token_vectors` with every constant of the layers spread over the tokens by |<bias, vector>|
    [T + 1, H]; in the last row stays what comes after the layers, zero for most models.

    The vectors are carried up to the last layer; from there on the output is linear in them.
    """
    hidden, vectors = propagate(retriever, encoded, spread=True)
    last = bert_layers(retriever, encoded.side)[-1]
    leaf = hidden[None].clone().requires_grad_()
    ones = leaf.new_ones(1).requires_grad_()
    with (
        linearised(retriever.backbone_of(encoded.side), ones),
        retriever.override_embeddings(leaf, last),
    ):
        directions = retriever.directions(retriever.embed(encoded))
    directions = directions + 0 * ones[:, None]  # most models have no constants so late
    probe = torch.zeros_like(directions).requires_grad_()
    gradient, bias = torch.autograd.grad(directions, (leaf, ones), probe, create_graph=True)
    products = torch.cat([torch.einsum("th,tkh->k", gradient[0], vectors), bias])
    rows = []
    for each in torch.eye(len(products), device=products.device).to(products.dtype).split(32):
        (found,) = _gradients(products, (probe,), each, keep=True)
        rows.append(found[:, 0].detach())
    return torch.cat(rows)


def _spread(
    retriever: DenseRetriever, queries: Encoded, documents: Encoded
) -> tuple[Shares, Shares, Tensor]:
    """Both sides' shares and the matrix [Q, D] of one pair."""
    q, d = (spread_vectors(retriever, encoded) for encoded in (queries, documents))
    with torch.no_grad():
        query, document = (retriever.directions(retriever.embed(e)) for e in (queries, documents))
    score = (query * document).sum(-1).cpu()
    of_documents, of_queries = (d @ query[0]).cpu()[None], (q @ document[0]).cpu()[None]
    return (
        Shares(of_documents[:, :-1], of_documents[:, -1], score, document),
        Shares(of_queries[:, :-1], of_queries[:, -1], score, query),
        (q[:-1] @ d[:-1].T).cpu(),
    )


def position_shares(retriever: DenseRetriever, encoded: Encoded, other: Tensor) -> Tensor | None:
    """How much of each token's share [B, T] its position embedding brings; None where the
    embedding layer adds none to its words (relative and rotary positions; GPT-2's are added behind
    it and count to the bias share)."""
    module = getattr(retriever.entry_of(encoded.side), "position_embeddings", None)
    if not isinstance(module, nn.Embedding):
        return None

    def score(inputs: Tensor, bias_scale: Tensor) -> Tensor:
        with (
            linearised(retriever.backbone_of(encoded.side), bias_scale),
            retriever.override_embeddings(inputs, module),
        ):
            directions = retriever.directions(retriever.embed(encoded))
        return (directions * other).sum(-1)

    positions = retriever.entering(encoded, module)
    batch = len(other)
    # The embedding of positions is looked up once for the whole batch; each row needs its own.
    inputs = positions.expand(batch, *positions.shape[1:]).clone().requires_grad_()
    bias_scale = torch.ones(batch, device=inputs.device, dtype=inputs.dtype).requires_grad_()
    products, _ = times_gradient(score, (inputs, bias_scale))
    return products.sum(-1).cpu()


def _part(
    retriever: DenseRetriever, encoded: Encoded, other: Tensor, found: Shares, part: str
) -> Tensor:
    positions = position_shares(retriever, encoded, other)
    if positions is None:
        raise UserError(
            f"{retriever.name} adds no position embeddings to its words, so shares have no "
            "position part: choose part = whole."
        )
    return positions if part == "position" else found.tokens - positions


def _leaves(retriever: DenseRetriever, encoded: Encoded, biases: str) -> tuple[Tensor, ...]:
    """What the output is affine in: the tokens [B, T, H], ones [B] for the constants and, with
    `biases=decompx`, ones [B, T] for the first layer's value bias at each token."""
    inputs = retriever.entering(encoded, retriever.entry_of(encoded.side))
    ones = inputs.new_ones(inputs.shape[:2])
    scales = (ones[:, 0].clone(), ones) if biases == "decompx" else (ones[:, 0].clone(),)
    return tuple(leaf.requires_grad_() for leaf in (inputs, *scales))


def _linear_directions(
    retriever: DenseRetriever,
    encoded: Encoded,
    inputs: Tensor,
    bias_scale: Tensor,
    value_scale: Tensor | None = None,
) -> Tensor:
    apart = (
        None if value_scale is None else (_first_value_bias(retriever, encoded.side), value_scale)
    )
    with (
        linearised(retriever.backbone_of(encoded.side), bias_scale, apart),
        retriever.override_embeddings(inputs, retriever.entry_of(encoded.side)),
    ):
        directions = retriever.directions(retriever.embed(encoded))
    # What the output does not depend on has a share of zero, where autograd would refuse: many
    # models have no constants, and one that freezes as a whole is found incomplete.
    return directions + 0 * (bias_scale + inputs.flatten(1).sum(1))[:, None]


def _gradients(
    output: Tensor, leaves: tuple[Tensor, ...], many: Tensor, keep: bool = False
) -> tuple[Tensor, ...]:
    """Products of `many` vectors [K, ...] with the Jacobian, K at once. `torch.func.vmap`, not
    `is_grads_batched`: that one's older batching knows fewer operations and no rules of ours."""
    return torch.func.vmap(lambda v: torch.autograd.grad(output, leaves, v, retain_graph=keep))(
        many
    )


def _first_value_bias(retriever: DenseRetriever, side: Side) -> Tensor:
    try:
        bias = retriever.backbone_of(side).get_submodule(_FIRST_VALUE).bias
    except AttributeError:
        bias = None
    if not isinstance(bias, Tensor):
        raise UserError(
            f"DecompX's treatment of biases is defined for models built like BERT, and "
            f"{retriever.name} is not: choose biases = explicit."
        )
    return bias


def _require_complete(retriever: Retriever, side: Shares, row: int) -> None:
    error = float(side.error[row])
    parts = float(side.tokens[row].abs().sum() + side.bias[row].abs())
    if abs(error) > _tolerance(retriever) * max(parts, 1e-6):
        raise UserError(
            f"{retriever.name} has layers that cannot be linearised (shares miss the score by "
            f"{error:.2g}): choose saliency, integrated gradients or occlusion."
        )


def _tolerance(retriever: Retriever) -> float:
    return 0.05 if retriever.precision in ("bfloat16", "float16") else TOLERANCE


register(
    MethodEntry(
        name="decomposition",
        title="Token decomposition",
        help="Each token's exact, signed share of the score, with attention, norms and activations "
        "frozen at their values for this input; shares and the bias share add up to the score.",
        axis="Contribution",
        unit="share of the score",
        signed=True,
        additive=True,
        needs=Capability.LINEAR,
        version=1,
        compute=attribute,
        order=1,
        citation="Modarressi et al. 2023, arXiv 2306.02873 (DecompX)",
        primary=True,
        parameters=(
            Parameter(
                "matrix",
                ("no", "yes"),
                "Also the share of each query token with each document token.",
            ),
            Parameter(
                "biases",
                BIASES,
                "Where constants go: explicit, all into the bias share; decompx, the first layer's "
                "value bias to its token; absdot, every one to the tokens by |bias · vector|, as "
                "DecompX is configured (BERT-like models; texts of up to 512 tokens).",
            ),
            Parameter(
                "part",
                PARTS,
                "position keeps what the tokens' position embeddings bring of their shares (models "
                "that add them), word all the rest: how much hangs on where a token stands.",
            ),
        ),
    )
)

"""Token decomposition: each token's exact, signed share of the score, from the linearized network
(DecompX, Modarressi et al. 2023; applied to retrievers by Fayyaz et al. 2025).

contribution_j = <x_j, d s_frozen / d x_j>, where x_j is the output of the embedding layer for token
j. The shares and the bias share sum to the score. A share is not a causal effect: without the
token, the frozen weights would be different.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from poslens.attribution.errors import UserError
from poslens.attribution.methods.base import MethodEntry, MethodParameter, build_batch, register
from poslens.attribution.methods.linearized import dependent, linearized
from poslens.attribution.methods.passes import Rounds, encode_once, one_round, texts_of
from poslens.attribution.methods.propagation import bert_layers, propagate
from poslens.attribution.methods.shares import (
    BIASES,
    Shares,
    many_gradients,
    read_linear,
    share_matrices,
    shares_of,
)
from poslens.attribution.retrievers.base import Encoded, Retriever, encode
from poslens.attribution.retrievers.cross_encoder import CrossEncoderRetriever
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.types import Attribution, Method, Side, TextPair

PARTS = ("whole", "word", "position")
"""Which part of a token's share to return: all, or the part from its position embedding or not."""

_JOINTLY = {"matrix": "no", "biases": BIASES[0], "part": PARTS[0]}
"""The parameters of models that read both texts together."""


def attribute(
    retriever: DenseRetriever | CrossEncoderRetriever, method: Method, pairs: Sequence[TextPair]
) -> list[Attribution]:
    """Shares of every document and query token of a batch of pairs. With `matrix=yes`, also the
    share of each query token with each document token. `part=position` returns the part of the
    shares that position embeddings contribute and `part=word` the rest. The two parts add up to the
    whole; neither alone sums to the score. Shares of texts that are read together include the head.

    Raises:
        UserError: the model cannot be linearized, or its score is not an inner product;
            `biases=decompx` for a model not built like BERT; or a part for a model that adds no
            position embeddings.
        torch.OutOfMemoryError: the batch does not fit.
    """
    if isinstance(retriever, CrossEncoderRetriever) and any(
        method.params.get(name, value) != value for name, value in _JOINTLY.items()
    ):
        raise UserError(
            f"{retriever.name} reads query and document together, so it supports only the default "
            "parameters: choose matrix = no, biases = explicit, part = whole."
        )
    biases = str(method.params.get("biases", BIASES[0]))
    part = str(method.params.get("part", PARTS[0]))
    whole = part == PARTS[0]
    wants_matrix = method.params.get("matrix") == "yes"
    if not whole and wants_matrix:
        raise UserError("The matrix needs whole shares: choose part = whole, or matrix = no.")
    if not whole and biases == "absdot":
        raise UserError(
            "biases = absdot needs whole shares: choose part = whole, or another value of biases."
        )
    if biases == "absdot" and len(pairs) > 1:  # T x T x H numbers per text: one at a time
        return [result for pair in pairs for result in attribute(retriever, method, [pair])]
    matrices: Sequence[Tensor | None] = [None] * len(pairs)
    parts: dict[Side, Tensor] = {}
    with retriever.lock, torch.enable_grad():
        if isinstance(retriever, CrossEncoderRetriever):
            queries, documents = retriever.encode_pairs(pairs)
            both = read_linear(retriever, queries, one_round(len(pairs)), biases)
            of_queries = shares_of(both, both.vectors.detach().new_ones(len(pairs), 1))
            of_documents = of_queries
        elif biases == "absdot":
            queries, documents = encode(retriever, pairs)
            of_documents, of_queries, of_both = _spread(retriever, queries, documents)
            matrices = [of_both if wants_matrix else None]
        elif wants_matrix:
            (queries, of_queries), (documents, of_documents), matrices = share_matrices(
                retriever, pairs, biases
            )
        else:
            query, document = (
                read_linear(retriever, *encode_once(retriever, texts, side), biases)
                for side, texts in texts_of(pairs)
            )
            queries, documents = query.of_pairs(), document.of_pairs()
            of_documents = shares_of(document, query.constant(range(len(pairs))))
            document = document.detached()
            of_queries = shares_of(query, of_documents.directions)
            if not whole:
                for own, shares, other in (
                    (document, of_documents, of_queries),
                    (query, of_queries, of_documents),
                ):
                    side = own.encoded.side
                    positions = position_shares(
                        retriever, own.encoded, own.rounds, other.directions
                    )
                    parts[side] = positions if part == "position" else shares.tokens - positions
    require_complete(retriever, of_documents, of_queries)
    return build_batch(
        retriever,
        method,
        pairs,
        scores=of_documents.scores,
        queries=queries,
        documents=documents,
        query_scores=parts.get("query", of_queries.tokens),
        document_scores=parts.get("document", of_documents.tokens),
        matrices=matrices,
        bias_shares=of_documents.bias if whole else None,
        completeness_errors=of_documents.error if whole else None,
    )


def spread_vectors(retriever: DenseRetriever, encoded: Encoded) -> Tensor:
    """Each token's vector in the embedding of one text [T + 1, H], with the constants of all layers
    distributed over the tokens by |<bias, vector>|. The last row has the constants after the
    layers, zero for most models.

    The vectors are propagated through the last layer; after it the output is linear in them.
    """
    hidden, vectors = propagate(retriever, encoded, spread=True)
    last = bert_layers(retriever, encoded.side)[-1]
    leaf = hidden[None].clone().requires_grad_()
    values = leaf.new_ones(1).requires_grad_()
    with (
        linearized(retriever.of(encoded.side).backbone, values),
        retriever.override_embeddings(leaf, last),
    ):
        directions = retriever.directions(retriever.embed(encoded))
    directions = dependent(directions, values)
    probe = torch.zeros_like(directions).requires_grad_()
    gradient, bias = torch.autograd.grad(directions, (leaf, values), probe, create_graph=True)
    products = torch.cat([torch.einsum("th,tkh->k", gradient[0], vectors), bias])
    rows = []
    for each in torch.eye(len(products), device=products.device).to(products.dtype).split(32):
        (array,) = many_gradients(products, (probe,), each, keep=True)
        rows.append(array[:, 0].detach())
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


def position_shares(
    retriever: DenseRetriever, encoded: Encoded, rounds: Rounds, other: Tensor
) -> Tensor:
    """The part of each token's share [P, T] from its position embedding.

    Raises:
        UserError: the embedding layer adds no position embeddings.
    """
    table = retriever.of(encoded.side).positions
    if table is None:
        raise UserError(
            f"{retriever.name} adds no position embeddings to its token embeddings, so shares have "
            "no position part: choose part = whole."
        )
    read = read_linear(retriever, encoded, rounds, BIASES[0], module=table)
    return shares_of(read, other).tokens


def tolerance(retriever: Retriever) -> float:
    """Largest relative error that rounding explains: float32 leaves about 1e-6, 16-bit formats
    about 1e-2."""
    return 0.05 if retriever.precision in ("bfloat16", "float16") else 1e-3


def require_complete(retriever: Retriever, *sides: Shares) -> None:
    """Refuse shares that, with the bias share, miss the score of a pair.

    Raises:
        UserError: the model has layers that are not linearized.
    """
    for row, side in product(range(len(sides[0].scores)), sides):
        error = float(side.error[row])
        parts = float(side.tokens[row].abs().sum() + side.bias[row].abs())
        if abs(error) > tolerance(retriever) * max(parts, 1e-6):
            raise UserError(
                f"{retriever.name} has layers that can't be linearized (completeness error "
                f"{error:.2g}): choose saliency, integrated gradients or occlusion."
            )


register(
    MethodEntry(
        name="decomposition",
        title="Token decomposition",
        help="Each token's signed share of the score, exact once attention weights, normalization "
        "scales and activation ratios are frozen. Shares plus the bias share equal the score.",
        axis="Contribution",
        unit="share of the score",
        signed=True,
        additive=True,
        needs=Capability.LINEAR,
        compute=attribute,
        order=1,
        citation="Modarressi et al. 2023, arXiv 2306.02873 (DecompX)",
        parameters=(
            MethodParameter(
                "matrix",
                ("no", "yes"),
                "Also compute the share of every pair of a query token and a document token.",
            ),
            MethodParameter(
                "biases",
                BIASES,
                "Where the model's bias terms go. explicit: all into one bias share. decompx: the "
                "first layer adds its value-projection bias to the value vector of each token, and "
                "each token keeps its copy; all other biases go into the bias share. absdot: each "
                "bias is divided among the tokens in proportion to |bias · the token's part of the "
                "vector that the bias is added to|, as in DecompX's reference configuration "
                "(BERT-like models, up to 512 tokens).",
            ),
            MethodParameter(
                "part",
                PARTS,
                "Which part of each share to show, for models that add position embeddings. "
                "position: the part that the position embedding contributes. word: the rest.",
            ),
        ),
    )
)

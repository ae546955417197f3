"""Shares of tokens, and of pairs of tokens, in the inner product of both sides' linearized
embeddings.

A pair's share is M_ij = <Q_i, D_j>, with Q_i (D_j) the share of query token i (document token j) in
the pooled vector. The vectors Q_i are propagated backward through the document encoder, so no
D x D x H array is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from poslens.attribution.batching import batch_tokens
from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.errors import UserError
from poslens.attribution.methods.gradients import times_gradient
from poslens.attribution.methods.linearized import dependent, linearized
from poslens.attribution.methods.passes import Read, Rounds, distinct, one_round
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.embedding_hooks import EmbeddingHooks
from poslens.attribution.types import Side, TextPair

BIASES = ("explicit", "decompx", "absdot")
"""Where constants go: all into the bias share; the first layer's value bias to its own token, as in
DecompX's code; or all of them to the tokens by |<bias, vector>|, as in DecompX's reference
configuration."""

_FIRST_VALUE = "encoder.layer.0.attention.self.value"

LEAST = 8
"""Minimum number of query tokens whose gradients run through the document encoder together. They
share each layer's attention weights, whose size grows with the square of the text's length."""


@dataclass(frozen=True, slots=True)
class Shares:
    """One side's shares of the score, with the other side's vector constant.

    `tokens` [B, T], `bias` [B], `scores` [B], all float32 or wider on the CPU; `directions` [B, H]
    is this side's pooled vector, scaled so that the score is an inner product.
    """

    tokens: Tensor
    bias: Tensor
    scores: Tensor
    directions: Tensor

    @property
    def error(self) -> Tensor:
        """score - sum of shares - bias share [B]: rounding, if the linearization is complete."""
        return self.scores - self.tokens.sum(-1) - self.bias


def read_linear(
    retriever: EmbeddingHooks,
    encoded: Encoded,
    rounds: Rounds,
    biases: str,
    gamma: float = 0.0,
    module: nn.Module | None = None,
) -> Read:
    """The linearized forward pass of one side's texts from the output of `module`, by default the
    module in which the encoder begins. Its leaves are this output [R, T, H], ones [R] for the
    constants and, with `biases=decompx`, ones [R, T] for the first layer's value bias at each
    token. Its vectors are scaled so that the score is an inner product."""
    side, batch = encoded.side, len(encoded.texts)
    module = retriever.of(side).entry if module is None else module
    inputs = retriever.entering(encoded, module)
    # Position embeddings are looked up once per batch; each row needs its own.
    inputs = inputs.expand(batch, *inputs.shape[1:]).contiguous().requires_grad_()
    bias_scale = inputs.new_ones(batch).requires_grad_()
    leaves: tuple[Tensor, ...] = (inputs, bias_scale)
    apart = None
    if biases == "decompx":
        value_scale = inputs.new_ones(inputs.shape[:2]).requires_grad_()
        leaves, apart = (*leaves, value_scale), (_first_value_bias(retriever, side), value_scale)
    with (
        linearized(retriever.of(side).backbone, bias_scale, apart, gamma),
        retriever.override_embeddings(inputs, module),
    ):
        directions = retriever.directions(retriever.embed(encoded))
    return Read(encoded, rounds, leaves, dependent(directions, bias_scale, inputs))


def shares_of(own: Read, other: Tensor) -> Shares:
    """Shares of the P pairs' texts of one side, with the other side's vectors [P, H]."""

    def of_round(pairs: Sequence[int], rows: Sequence[int]) -> tuple[Tensor, ...]:
        directions = own.vectors[rows]
        scores = (directions * other[list(pairs)]).sum(-1)
        products, bias, *credited = times_gradient(scores, own.leaves)
        wide = torch.float64 if products.dtype == torch.float64 else torch.float32
        tokens = sum(credited, products.sum(-1, dtype=wide))
        return tokens[rows], bias[rows].to(wide), scores.detach().to(wide), directions.detach()

    tokens, bias, scores, directions = own.rounds.gather(of_round)
    return Shares(tokens.cpu(), bias.cpu(), scores.cpu(), directions)


def _first_value_bias(retriever: EmbeddingHooks, side: Side) -> Tensor:
    try:
        bias = retriever.of(side).backbone.get_submodule(_FIRST_VALUE).bias
    except AttributeError:
        bias = None
    if not isinstance(bias, Tensor):
        raise UserError(
            f"biases = decompx needs a BERT-like model, which {retriever.name} is not: choose "
            "biases = explicit."
        )
    return bias


def _rows(document: Read, vectors: Tensor, advance: Callable[[int], None]) -> tuple[Tensor, Tensor]:
    """Products of `vectors` [K, H] with each token's share of one document's vector [K, D] and with
    the constants' share [K]; `advance` is called with the number of vectors that are done."""
    leaves = document.leaves
    rows, constants = [], []
    # As many tokens as a batch has: more at a time exceed the processor's caches.
    most = max(LEAST, batch_tokens(vectors.device.type) // leaves[0].shape[1])
    parts = vectors.tensor_split(-(-len(vectors) // most))
    for number, part in enumerate(parts, start=1):
        checkpoint()
        gradients, bias, *credited = many_gradients(
            document.vectors, leaves, part[:, None, :], number < len(parts)
        )
        products = torch.einsum("kth,th->kt", gradients[:, 0], leaves[0].detach()[0])
        rows.append(sum((c[:, 0] for c in credited), products))
        constants.append(bias[:, 0])
        advance(len(part))
    wide = torch.float64 if leaves[0].dtype == torch.float64 else torch.float32
    return torch.cat(rows).to(wide).cpu(), torch.cat(constants).to(wide).cpu()


def share_matrices(
    retriever: DenseRetriever, pairs: Sequence[TextPair], biases: str, gamma: float = 0.0
) -> tuple[tuple[Encoded, Shares], tuple[Encoded, Shares], list[Tensor]]:
    """Queries and documents of pairs with their shares, and the pairs' matrices [Q, D], including
    special tokens. Shares are row and column sums of the matrices plus each token's product with
    the other side's constants. Each text is read once.

    With `gamma`, linear layers follow the gamma rule (`linearized`).

    Scores come from the texts' whole vectors, so `Shares.error` is the completeness error.
    """
    asked, asked_at = distinct([pair.query for pair in pairs])
    unique, known_at = distinct([pair.document for pair in pairs])

    def read(text: str, side: Side) -> Read:
        encoded = retriever.encode_texts([text], side)
        return read_linear(retriever, encoded, one_round(1), biases, gamma)

    queries, vectors = [], []
    for text in asked:
        query = read(text, "query")
        vectors.append(_vectors_of(query))
        queries.append(query.detached())
    documents: list[Read] = []
    rows: dict[int, Tensor] = {}
    columns: dict[int, Tensor] = {}
    # A step is a query token's backward pass through a document, or a document's forward pass.
    total, done = len(unique) + sum(len(vectors[at]) for at in asked_at), 0

    def advance(steps: int) -> None:
        nonlocal done
        done += steps
        checkpoint(done / total)

    advance(0)
    for place, text in enumerate(unique):
        document = read(text, "document")
        advance(1)
        sharing = [pair for pair, at in enumerate(known_at) if at == place]
        each = [vectors[asked_at[pair]] for pair in sharing]
        for arrays, parts in zip(
            (rows, columns), _rows(document, torch.cat(each), advance), strict=True
        ):
            arrays.update(zip(sharing, parts.split([len(values) for values in each]), strict=True))
        documents.append(document.detached())
    n = range(len(pairs))
    query_vectors = torch.cat([queries[at].vectors for at in asked_at])
    document_vectors = torch.cat([documents[at].vectors for at in known_at])
    scores = (query_vectors * document_vectors).sum(-1).to(rows[0].dtype).cpu()
    of_queries = Shares(
        _padded([rows[p][:-1].sum(1) + columns[p][:-1] for p in n]),
        torch.stack([rows[p][-1].sum() + columns[p][-1] for p in n]),
        scores,
        query_vectors,
    )
    of_documents = Shares(
        _padded([rows[p].sum(0) for p in n]),
        torch.stack([columns[p].sum() for p in n]),
        scores,
        document_vectors,
    )
    return (
        (_joined([queries[at].encoded for at in asked_at]), of_queries),
        (_joined([documents[at].encoded for at in known_at]), of_documents),
        [rows[p][:-1] for p in n],
    )


def _padded(rows: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _joined(each: list[Encoded]) -> Encoded:
    """The tokens of texts that were read one by one."""
    texts = tuple(encoded.texts[0] for encoded in each)
    offsets = tuple(encoded.offsets[0] for encoded in each)
    return Encoded({}, texts, offsets, each[0].side)


def _vectors_of(text: Read) -> Tensor:
    """Each token's vector in the pooled, scaled embedding of one text [T + 1, H]; the last row is
    the constants'. Rows sum to the embedding.

    For any vector u, <x_i, J_i^T u> is linear in u, and its gradient with respect to u is J_i x_i.
    So one backward pass, differentiated again, gives all T + 1 vectors.
    """
    probe = torch.zeros_like(text.vectors).requires_grad_()
    gradients, bias, *credited = torch.autograd.grad(
        text.vectors, text.leaves, probe, create_graph=True
    )
    tokens = sum(credited, (gradients * text.leaves[0].detach()).sum(-1))
    products = torch.cat([tokens[0], bias])
    each = torch.eye(len(products), device=products.device, dtype=products.dtype)
    (vectors,) = many_gradients(products, (probe,), each)
    return vectors[:, 0].detach()


def many_gradients(
    output: Tensor, leaves: tuple[Tensor, ...], many: Tensor, keep: bool = False
) -> tuple[Tensor, ...]:
    """Products of `many` vectors [K, ...] with the Jacobian, K at once. `torch.func.vmap` supports
    more operations than `is_grads_batched`, and our own rules."""
    return torch.func.vmap(lambda v: torch.autograd.grad(output, leaves, v, retain_graph=keep))(
        many
    )

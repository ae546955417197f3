"""An explicit implementation of DecompX's forward propagation for BERT: the oracle of the
decomposition.

Every position holds one vector for each source, and all of them are carried through every layer
(Modarressi et al. 2023, equations 3-11, and `modeling_bert.py` of the authors' repository, with
biases kept in a vector of their own instead of being spread over tokens). Nothing of PosLens is
used, no autograd and no transformers module: only weights. Costs T x T x H numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bert:
    """Weights by their names in transformers, and settings that are not in the weights."""

    weights: Mapping[str, Tensor]
    heads: int
    eps: float
    first_position: int = 0  # RoBERTa-like models number positions from padding_idx + 1

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[name].double()

    @property
    def layers(self) -> int:
        return 1 + max(int(n.split(".")[2]) for n in self.weights if n.startswith("encoder.layer."))


def _norm(bert: Bert, name: str, vectors: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """LayerNorm of a sum as a sum: each part minus its mean is divided by the standard deviation of
    the whole; beta is a constant."""
    whole = vectors.sum(1) + bias
    std = (whole.var(-1, unbiased=False) + bert.eps).sqrt()
    gamma, beta = bert[f"{name}.weight"], bert[f"{name}.bias"]
    vectors = (vectors - vectors.mean(-1, keepdim=True)) / std[:, None, None] * gamma
    bias = (bias - bias.mean(-1, keepdim=True)) / std[:, None] * gamma + beta
    return vectors, bias


def embedded(bert: Bert, ids: list[int]) -> tuple[Tensor, Tensor]:
    """Output of the embedding layer [T, H], and the part that comes from positions."""
    t = len(ids)
    words = bert["embeddings.word_embeddings.weight"][ids]
    places = bert["embeddings.position_embeddings.weight"][bert.first_position :][:t]
    kinds = bert["embeddings.token_type_embeddings.weight"][0].expand_as(words)
    parts = torch.stack([words, places, kinds], 1)  # [T, 3, H]
    parts, beta = _norm(bert, "embeddings.LayerNorm", parts, torch.zeros_like(words))
    return parts.sum(1) + beta, parts[:, 1]


def diagonal(vectors: Tensor) -> Tensor:
    """[T, T, H]: at the start, each position contains only its own source."""
    return torch.diag_embed(vectors.T).permute(1, 2, 0)


def propagate(
    bert: Bert, vectors: Tensor, bias: Tensor, value_bias_to_source: bool = False
) -> tuple[Tensor, Tensor]:
    """Carry sources [T, K, H] and a remainder [T, H], which sum to the embedding layer's output,
    through all layers. `value_bias_to_source` is DecompX's first layer, whose value vectors are
    taken with their bias; K must be T."""
    t = len(bias)
    for n in range(bert.layers):
        name = f"encoder.layer.{n}"

        def linear(x: Tensor, part: str, name: str = name) -> Tensor:
            return x @ bert[f"{name}.{part}.weight"].T

        def constant(part: str, name: str = name) -> Tensor:
            return bert[f"{name}.{part}.bias"]

        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (bert.heads, -1))

        whole = vectors.sum(1) + bias
        query, key = (
            split(linear(whole, f"attention.self.{k}") + constant(f"attention.self.{k}"))
            for k in ("query", "key")
        )
        logits = torch.einsum("thv,shv->hts", query, key) / query.shape[-1] ** 0.5
        attention = logits.softmax(-1)

        values, value_bias = (linear(x, "attention.self.value") for x in (vectors, bias))
        if value_bias_to_source and n == 0:
            values = values + diagonal(constant("attention.self.value").expand(t, -1))
        else:
            value_bias = value_bias + constant("attention.self.value")
        mixed = torch.einsum("hts,skhv->tkhv", attention, split(values)).flatten(-2)
        mixed_bias = torch.einsum("hts,shv->thv", attention, split(value_bias)).flatten(-2)
        vectors = vectors + linear(mixed, "attention.output.dense")
        bias = bias + linear(mixed_bias, "attention.output.dense")
        bias = bias + constant("attention.output.dense")
        vectors, bias = _norm(bert, f"{name}.attention.output.LayerNorm", vectors, bias)

        inner, inner_bias = (linear(x, "intermediate.dense") for x in (vectors, bias))
        inner_bias = inner_bias + constant("intermediate.dense")
        # gelu(x) / x
        ratio = 0.5 * (1 + torch.erf((inner.sum(1) + inner_bias) / 2**0.5))
        vectors = vectors + linear(inner * ratio[:, None], "output.dense")
        bias = bias + linear(inner_bias * ratio, "output.dense") + constant("output.dense")
        vectors, bias = _norm(bert, f"{name}.output.LayerNorm", vectors, bias)
    return vectors, bias


def pooled(vectors: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over positions, divided by the norm of the whole: shares [K, H] and constant [H]
    of an embedding of length 1."""
    shares, constant = vectors.mean(0), bias.mean(0)
    norm = (shares.sum(0) + constant).norm()
    return shares / norm, constant / norm


def decompose(
    bert: Bert, ids: list[int], value_bias_to_source: bool = False
) -> tuple[Tensor, Tensor]:
    """Each token's vector in the text's embedding [T, H], and the constants' [H]."""
    start, _ = embedded(bert, ids)
    return pooled(*propagate(bert, diagonal(start), torch.zeros_like(start), value_bias_to_source))


def spread(vectors: Tensor, bias: Tensor) -> Tensor:
    """A constant [H] distributed to the sources of each position by |<bias, vector>|."""
    weights = torch.einsum("tkh,h->tk", vectors, bias).abs()
    return vectors + torch.einsum("tk,h->tkh", weights / weights.sum(1, keepdim=True), bias)


def decompose_absdot(bert: Bert, ids: list[int]) -> Tensor:
    """Each token's vector in the text's embedding [T, H] with every bias spread over the tokens,
    `bias_decomp_type="absdot"` with `FFN_approx_type="GeLU_ZO"` of the authors' code."""
    start, _ = embedded(bert, ids)
    vectors = diagonal(start)

    def norm(name: str, vectors: Tensor) -> Tensor:
        std = (vectors.sum(1).var(-1, unbiased=False) + bert.eps).sqrt()
        vectors = vectors - vectors.mean(-1, keepdim=True)
        vectors = vectors / std[:, None, None] * bert[f"{name}.weight"]
        return spread(vectors, bert[f"{name}.bias"])

    for n in range(bert.layers):
        name = f"encoder.layer.{n}"
        w = {
            part: bert[f"{name}.{part}.weight"]
            for part in (
                "attention.self.query",
                "attention.self.key",
                "attention.self.value",
                "attention.output.dense",
                "intermediate.dense",
                "output.dense",
            )
        }
        b = {part: bert[f"{name}.{part}.bias"] for part in w}
        x = vectors.sum(1)
        query, key = (
            (x @ w[f"attention.self.{k}"].T + b[f"attention.self.{k}"]).unflatten(
                -1, (bert.heads, -1)
            )
            for k in ("query", "key")
        )
        attention = (torch.einsum("thv,shv->hts", query, key) / query.shape[-1] ** 0.5).softmax(-1)
        values = vectors @ w["attention.self.value"].T
        constant = b["attention.output.dense"]
        if n == 0:
            values = values + diagonal(b["attention.self.value"].expand(len(ids), -1))
        else:
            constant = constant + w["attention.output.dense"] @ b["attention.self.value"]
        values = values.unflatten(-1, (bert.heads, -1))
        mixed = torch.einsum("hts,skhv->tkhv", attention, values).flatten(-2)
        vectors = spread(vectors + mixed @ w["attention.output.dense"].T, constant)
        vectors = norm(f"{name}.attention.output.LayerNorm", vectors)
        inner = spread(vectors @ w["intermediate.dense"].T, b["intermediate.dense"])
        ratio = 0.5 * (1 + torch.erf(inner.sum(1) / 2**0.5))
        fed = (inner * ratio[:, None]) @ w["output.dense"].T
        vectors = norm(f"{name}.output.LayerNorm", vectors + spread(fed, b["output.dense"]))
    return pooled(vectors, torch.zeros_like(start))[0]


def decompose_positions(bert: Bert, ids: list[int]) -> Tensor:
    """The vector that each token's position embedding contributes to the text's embedding [T,
    H]."""
    start, places = embedded(bert, ids)
    return pooled(*propagate(bert, diagonal(places), start - places))[0]

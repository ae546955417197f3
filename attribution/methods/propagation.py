"""Token decomposition by forward propagation, as in DecompX (Modarressi et al. 2023): every
position has one vector per input token, and all of them go through every layer with frozen
attention weights, norms and activations.

Only needed if biases are distributed over tokens by |<bias, vector>| (`absdot`): the distribution
depends on intermediate vectors, which a backward pass does not have. Takes T x T x H numbers, hence
the limit `MAX_TOKENS`; for all other settings `decomposition` gives the same numbers at a lower
cost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.calibrated_attention import Calibrator, calibrate, calibrator_of
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import Side

MAX_TOKENS = 512
"""Maximum text length: 512 tokens take about one gigabyte for MiniLM, two for a base-sized BERT."""

ROW_CHUNK = 32
"""Positions whose feed-forward layers run together."""


def propagate(
    retriever: DenseRetriever, encoded: Encoded, *, spread: bool
) -> tuple[Tensor, Tensor]:
    """Output of the last layer [T, H] of a single text, and the vectors [T, K, H] that sum to it:
    one for each of the K = T input tokens and, without `spread`, one more for all constants.

    With `spread`, each constant is distributed over the tokens in proportion to
    |<constant, vector>|, and the first layer's value bias goes to its own token, as in DecompX's
    default (`bias_decomp_type="absdot"`, `FFN_approx_type="GeLU_ZO"` of the authors' code).

    Raises:
        UserError: a model not built like BERT, or a text of more than MAX_TOKENS tokens.
    """
    layers = bert_layers(retriever, encoded.side)
    calibrator = calibrator_of(retriever.of(encoded.side).backbone)
    with torch.no_grad():
        hidden = retriever.entering(encoded, retriever.of(encoded.side).entry)[0]  # [T, H]
        n, width = hidden.shape
        if n > MAX_TOKENS:
            raise UserError(
                f"biases = absdot supports up to {MAX_TOKENS} tokens, but this text has {n}: "
                "choose biases = explicit."
            )
        vectors = hidden.new_zeros(n, n if spread else n + 1, width)
        vectors[torch.arange(n), torch.arange(n)] = hidden
        for number, layer in enumerate(layers):
            applied = calibrator if calibrator and calibrator.applies(number) else None
            # Layers of a model that is spread over devices may be on different ones.
            device = layer.output.dense.weight.device
            hidden, vectors = hidden.to(device), vectors.to(device)
            hidden, vectors = _layer(layer, hidden, vectors, spread, number == 0, applied)
    return hidden, vectors


def bert_layers(retriever: DenseRetriever, side: Side) -> Any:
    """Layers of one side's encoder: a BERT, RoBERTa or XLM-R, for which DecompX is defined."""
    backbone: Any = retriever.of(side).backbone
    if getattr(backbone.config, "model_type", "") not in ("bert", "roberta", "xlm-roberta"):
        raise UserError(
            f"biases = absdot needs a BERT-like model, which {retriever.name} is not: choose "
            "biases = explicit."
        )
    return backbone.encoder.layer


def _layer(
    layer: Any, x: Tensor, v: Tensor, spread: bool, first: bool, calibrator: Calibrator | None
) -> tuple[Tensor, Tensor]:
    attention, out = layer.attention.self, layer.attention.output
    n, k = v.shape[:2]
    heads = attention.num_attention_heads

    def split(y: Tensor) -> Tensor:
        by_head: Tensor = y.unflatten(-1, (heads, -1)).transpose(0, 1)  # [A, T, E]
        return by_head

    query, key, value = (split(p(x)) for p in (attention.query, attention.key, attention.value))
    weights = torch.softmax(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, -1)
    if calibrator is not None:
        real = torch.ones((1, n), dtype=torch.bool, device=weights.device)
        weights = calibrate(weights[None], real, calibrator.rows, calibrator.calibration)[0]
    total = out.dense((weights @ value).transpose(0, 1).flatten(1)) + x
    mixed = v @ attention.value.weight.T
    bias = out.dense.bias
    if spread and first:
        mixed[torch.arange(n), torch.arange(n)] += attention.value.bias
    else:
        # Attention weights sum to one: a value bias reaches each position whole.
        bias = bias + out.dense.weight @ attention.value.bias
    mixed = mixed.unflatten(-1, (heads, -1))  # [T, K, A, E]
    for a in range(heads):
        # In place, head by head: only one head needs its values.
        mixed[:, :, a] = (weights[a] @ mixed[:, :, a].reshape(n, -1)).view(n, k, -1)
    mixed = mixed.flatten(2)
    rows = [slice(start, start + ROW_CHUNK) for start in range(0, n, ROW_CHUNK)]
    for part in rows:
        brought = mixed[part] @ out.dense.weight.T + v[part]
        mixed[part] = _norm(out.LayerNorm, total[part], _add(brought, bias, spread), spread)
    total = out.LayerNorm(total)
    up, down = layer.intermediate.dense, layer.output
    inner = up(total)
    active = layer.intermediate.intermediate_act_fn(inner)
    ratio = torch.where(inner == 0, 0, active / inner)
    final = down.dense(active) + total
    for part in rows:
        brought = _add(mixed[part] @ up.weight.T, up.bias, spread)
        brought *= ratio[part][:, None]
        brought = _add(brought @ down.dense.weight.T, down.dense.bias, spread)
        brought += mixed[part]
        mixed[part] = _norm(down.LayerNorm, final[part], brought, spread)
    return down.LayerNorm(final), mixed


def _norm(norm: Any, total: Tensor, parts: Tensor, spread: bool) -> Tensor:
    """LayerNorm with its scale taken from `total` [t, H], for the parts [t, K, H] of it."""
    scale = torch.rsqrt(total.var(-1, unbiased=False) + norm.eps)
    parts -= parts.mean(-1, keepdim=True)
    parts *= scale[:, None, None] * norm.weight
    return _add(parts, norm.bias, spread)


def _add(parts: Tensor, bias: Tensor, spread: bool) -> Tensor:
    """Add a constant in place to the last of parts [t, K, H], or to all by |<bias, part>|."""
    if not spread:
        parts[:, -1] += bias
        return parts
    weights = (parts @ bias).abs()
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
    parts += weights[..., None] * bias
    return parts

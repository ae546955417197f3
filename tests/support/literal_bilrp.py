"""An explicit implementation of BiLRP with the gamma rule for BERT: the oracle of `bilrp`.

Every dimension of the pooled vector starts with its own value as relevance, which each layer hands
to its inputs in proportion to their contributions (Eberle et al. 2020, equations 4-6). Nothing of
PosLens is used, no autograd and no transformers module: only weights. All contributions x_j w_kj of
a linear layer are laid out one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.support.literal_decompx import Bert, embedded


def relevance(bert: Bert, ids: list[int], gamma: float) -> Tensor:
    """Relevance of each token for each dimension of the embedding of length 1 [T, M]."""
    x = embedded(bert, ids)[0]
    steps: list[tuple[str, str, Tensor, Tensor, Tensor]] = []
    attentions: list[Tensor] = []
    for n in range(bert.layers):
        name = f"encoder.layer.{n}"

        def linear(y: Tensor, part: str, name: str = name) -> Tensor:
            return y @ bert[f"{name}.{part}.weight"].T + bert[f"{name}.{part}.bias"]

        def norm(y: Tensor, part: str, name: str = name) -> Tensor:
            scale = (y.var(-1, unbiased=False, keepdim=True) + bert.eps).rsqrt()
            centered = (y - y.mean(-1, keepdim=True)) * scale
            return centered * bert[f"{name}.{part}.weight"] + bert[f"{name}.{part}.bias"]

        query, key, value = (linear(x, f"attention.self.{k}") for k in ("query", "key", "value"))
        split = [y.unflatten(-1, (bert.heads, -1)) for y in (query, key, value)]
        logits = torch.einsum("thv,shv->hts", split[0], split[1]) / split[0].shape[-1] ** 0.5
        attentions.append(logits.softmax(-1))
        mixed = torch.einsum("hts,shv->thv", attentions[-1], split[2]).flatten(-2)
        out = linear(mixed, "attention.output.dense")
        first = norm(x + out, "attention.output.LayerNorm")
        inner = linear(first, "intermediate.dense")
        active = torch.nn.functional.gelu(inner)
        final = linear(active, "output.dense")
        steps.append((name, "layer", x, value, mixed))
        steps.append((name, "block", out, first, inner))
        steps.append((name, "end", active, final, final))
        x = norm(first + final, "output.LayerNorm")
    pooled = x.mean(0)
    n_tokens, width = x.shape
    # R[m, t, c]: dimension m of the pooled vector, its mean over tokens and its norm.
    r = torch.zeros(width, n_tokens, width, dtype=torch.float64)
    for m in range(width):
        r[m, :, m] = x[:, m] / n_tokens / pooled.norm()
    for n in reversed(range(bert.layers)):
        (name, _, entered, value, mixed), (_, _, out, first, inner), (_, _, active, final, _) = (
            steps[3 * n : 3 * n + 3]
        )
        r = _norm(bert, f"{name}.output.LayerNorm", first + final, r)
        r_first, r_final = (_share(part, first + final, r) for part in (first, final))
        r_active = _linear(bert, f"{name}.output.dense", active, r_final, gamma)
        # The activation passes all relevance on.
        r = r_first + _linear(bert, f"{name}.intermediate.dense", first, r_active, gamma)
        r = _norm(bert, f"{name}.attention.output.LayerNorm", entered + out, r)
        r_entered, r_out = (_share(part, entered + out, r) for part in (entered, out))
        r_mixed = _linear(bert, f"{name}.attention.output.dense", mixed, r_out, gamma)
        heads = (bert.heads, -1)
        ratio = (r_mixed / mixed).unflatten(-1, heads)
        r_value = torch.einsum("hts,mthv->mshv", attentions[n], ratio) * value.unflatten(-1, heads)
        r = r_entered + _linear(
            bert, f"{name}.attention.self.value", entered, r_value.flatten(-2), gamma
        )
    return r.sum(-1).T


def _share(part: Tensor, whole: Tensor, r: Tensor) -> Tensor:
    return part / whole * r


def _linear(bert: Bert, name: str, x: Tensor, r: Tensor, gamma: float) -> Tensor:
    weight, bias = bert[f"{name}.weight"], bert[f"{name}.bias"]
    contributions = x[:, None, :] * weight  # [T, K, J]
    y = contributions.sum(-1) + bias
    agree = torch.sign(contributions) == torch.sign(y)[..., None]
    contributions = contributions * (1 + gamma * agree)
    constant = bias * (1 + gamma * (torch.sign(bias) == torch.sign(y)))
    shares = contributions / (contributions.sum(-1) + constant)[..., None]
    return torch.einsum("mtk,tkj->mtj", r, shares)


def _norm(bert: Bert, name: str, x: Tensor, r: Tensor) -> Tensor:
    weight, width = bert[f"{name}.weight"], x.shape[-1]
    scale = (x.var(-1, unbiased=False, keepdim=True) + bert.eps).rsqrt()
    centering = torch.eye(width, dtype=torch.float64) - 1 / width
    contributions = weight[:, None] * centering * scale[..., None] * x[:, None, :]  # [T, K, J]
    y = contributions.sum(-1) + bert[f"{name}.bias"]
    return torch.einsum("mtk,tkj->mtj", r, contributions / y[..., None])

"""Frozen nonlinearities: autograd functions that return the forward value and treat a part of it as
constant in the backward pass, and activations as ratios f(x)/x in closed form, without 0/0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)


def gelu_ratio(x: Tensor, approximate: str) -> Tensor:
    """GELU(x) / x; `approximate` as in torch."""
    if approximate == "none":
        return torch.erf(x * _SQRT_HALF).add_(1).mul_(0.5)
    return torch.tanh(_TANH_SCALE * (x + 0.044715 * x * x * x)).add_(1).mul_(0.5)


def tanh_ratio(x: Tensor) -> Tensor:
    """tanh(x) / x."""
    small = x.abs() < 1e-4
    return torch.where(small, 1 - x * x / 3, torch.tanh(x) / torch.where(small, 1.0, x))


def relu_ratio(x: Tensor) -> Tensor:
    """ReLU(x) / x."""
    return (x > 0).to(x.dtype)


def gamma_rule(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gamma: float,
    attach: Callable[[Tensor, Tensor | None], Tensor],
) -> Tensor:
    """A linear layer's output y = W x + b as a constant ratio times z = W x + b + gamma (their part
    with the sign of y), so that gradient times input distributes y by the gamma rule of layer-wise
    relevance propagation (Montavon et al. 2019), for inputs of both signs. Contributions to y get
    1 + gamma times as much weight as those against it. |z| is at least |y|, so no value is
    amplified. `attach` attributes the constants in z."""
    linear = torch.nn.functional.linear
    y = linear(x, weight, bias).detach()
    positive, negative = weight.clamp(min=0), weight.clamp(max=0)
    above, below = x.clamp(min=0), x.clamp(max=0)
    aligned = torch.where(
        y > 0,
        linear(above, positive) + linear(below, negative),
        linear(above, negative) + linear(below, positive),
    )
    z = linear(x, weight) + gamma * aligned
    if bias is not None:
        constant = torch.where(y * bias > 0, bias * (1 + gamma), bias)
        z = attach(z + constant, constant)
    total = z.detach()
    return z * torch.where(total == 0, 0, y / torch.where(total == 0, 1, total))


def apply(function: type[Function], *arguments: object) -> Tensor:
    """`Function.apply`, which torch leaves untyped."""
    apply: Callable[..., Tensor] = function.apply
    return apply(*arguments)


class Scaled(Function):
    """`y`, computed from `x` elsewhere, as ratio * x with a constant ratio."""

    @staticmethod
    def forward(x: Tensor, y: Tensor, ratio: Tensor) -> Tensor:
        return y.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient * ctx.saved_tensors[0], None, None


class Attached(Function):
    """`y` with the constant `bias` [H] attributed separately: it was added once at every position.

    `scale` is [B], or [B, T] if each position's share is requested.
    """

    @staticmethod
    def forward(y: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
        return y.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.kept = inputs[2].dim()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        (bias,) = ctx.saved_tensors
        if bias.dim() == 1:  # as a matrix product, without an array of the gradient's size
            share = gradient @ bias
            rest = tuple(range(ctx.kept, share.dim()))
            return gradient, None, share.sum(rest) if rest else share
        share = (gradient * bias).sum(tuple(range(ctx.kept, gradient.dim())))
        return gradient, None, share


class FrozenLayerNorm(Function):
    """LayerNorm with constant 1/std; subtracting the mean stays linear."""

    @staticmethod
    def forward(
        x: Tensor, shape: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        y, _, scale = torch.native_layer_norm(x, shape, weight, bias, eps)
        return y, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[2], output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _scale: Tensor) -> tuple[Any, ...]:
        weight, scale = ctx.saved_tensors
        weighted = gradient if weight is None else gradient * weight
        centered = weighted - weighted.mean(-1, keepdim=True)
        return centered.mul_(scale), None, None, None, None


KEPT_BYTES = 2**24
"""Attention weights of a layer up to this size are stored for further gradients."""

PART_BYTES = 2**26
"""Attention weights computed at a time, unless those of one head are larger."""


class Weights:
    """A layer's attention weights [B, A, T, S], recomputed on demand from queries [B, A, T, E] and
    keys [B, A, S, E], a few heads at a time, so that long texts fit into memory."""

    def __init__(
        self, query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float | None
    ) -> None:
        self._query = query * (scale or query.shape[-1] ** -0.5)
        self._key, self._mask, self._causal = key, mask, causal
        self._heads = query.shape[-3]
        self._bytes = query[..., 0].numel() * key.shape[-2] * query.element_size()
        self._kept: Tensor | None = None

    def times(self, right: Tensor, *, transposed: bool) -> Tensor:
        """weights @ right, or their transpose @ right, for `right` [B, A, T or S, N]."""
        if self._bytes <= KEPT_BYTES:
            if self._kept is None:
                self._kept = self._of(0, self._heads)
            return (self._kept.transpose(-1, -2) if transposed else self._kept) @ right
        heads = max(1, self._heads * PART_BYTES // self._bytes)
        parts = []
        for first in range(0, self._heads, heads):
            part = self._of(first, first + heads)
            part = part.transpose(-1, -2) if transposed else part
            parts.append(part @ right[..., first : first + heads, :, :])
        return torch.cat(parts, -3)

    def _of(self, first: int, last: int) -> Tensor:
        """Weights of these heads."""
        keys = self._key
        if keys.shape[-3] != self._heads:  # grouped heads share their keys
            group = torch.arange(first, min(last, self._heads), device=keys.device)
            keys = keys[..., group // (self._heads // keys.shape[-3]), :, :]
        else:
            keys = keys[..., first:last, :, :]
        logits = self._query[..., first:last, :, :] @ keys.transpose(-1, -2)
        if self._causal:
            allowed = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device)
            logits.masked_fill_(~allowed.tril(), -torch.inf)
        mask = self._mask
        if mask is None:
            return torch.softmax(logits, -1)
        if mask.dim() > 2 and mask.shape[-3] > 1:
            mask = mask[..., first:last, :, :]
        if mask.dtype == torch.bool:
            logits.masked_fill_(~mask, -torch.inf)
        else:
            logits += mask
        # Rows without visible positions (padding) are zeros, as in the fused kernel.
        return torch.softmax(logits, -1).nan_to_num_(0.0)


class Mixed(Function):
    """Attention's output as constant weights times values; the fused kernel's result is used."""

    @staticmethod
    def forward(values: Tensor, output: Tensor, weights: Weights, groups: int) -> Tensor:
        return output.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.weights, ctx.groups = inputs[2], inputs[3]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        mixed = apply(_MixedBack, gradient, ctx.weights)
        if ctx.groups > 1:
            # Grouped heads share their values, so their gradients add up.
            mixed = mixed.unflatten(-3, (-1, ctx.groups)).sum(-3)
        return mixed, None, None, None


class _MixedBack(Function):
    """weights^T g, with a vmap rule for many gradients: they become columns of one product instead
    of copies of the weights."""

    @staticmethod
    def forward(gradient: Tensor, weights: Weights) -> Tensor:
        return weights.times(gradient, transposed=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.weights = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.weights.times(gradient, transposed=False), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], gradient: Tensor, weights: Any) -> Any:
        dim = in_dims[0]
        assert dim is not None
        many = gradient.movedim(dim, -2)  # [B, A, T, K, E]
        columns = weights.times(many.flatten(-2), transposed=True)
        return columns.unflatten(-1, many.shape[-2:]).movedim(-2, 0), 0

"""A transformer with frozen nonlinearities: the same forward values, an affine map backward.

Inside `linearized(...)`, attention weights, the scales of LayerNorm, RMSNorm and vector
normalization, and activation ratios f(x)/x are constants of this input. The output is then affine
in the input embeddings, so gradient times input is an exact decomposition (DecompX, Modarressi et
al. 2023, without distributing biases over tokens). A `TorchFunctionMode` reaches every architecture
without changing its code; it is thread-local, like autograd's own modes.

`bias_scale`, a leaf of ones [B], verifies completeness: every additive constant is attached to it,
so its gradient is the constants' share of the score. The tokens' shares and this one sum to the
score only if no nonlinear operation was missed; callers check that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from poslens.attribution.errors import UserError
from poslens.attribution.methods.frozen import (
    Attached,
    FrozenLayerNorm,
    Mixed,
    Scaled,
    Weights,
    apply,
    gamma_rule,
    gelu_ratio,
    relu_ratio,
    tanh_ratio,
)

Op = Callable[..., Tensor]
"""A torch function call."""

Handler = TypeVar("Handler", bound=Callable[..., Any])

_handlers: dict[Any, Callable[..., Any]] = {}


def _handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register a method of `_Linearized` for calls of these torch functions."""

    def register(handler: Handler) -> Handler:
        _handlers.update(dict.fromkeys(functions, handler))
        return handler

    return register


class _Linearized(TorchFunctionMode):
    """See the module's docstring; use `linearized`."""

    def __init__(
        self, bias_scale: Tensor, apart: tuple[Tensor, Tensor] | None, gamma: float
    ) -> None:
        super().__init__()
        self.bias_scale = bias_scale
        self.gamma = gamma
        self.apart = apart
        # Outputs of activations, by identity: in a gated product they are the constant side.
        # References are stored, because another tensor could get the id of a freed one.
        self._activations: dict[int, Tensor] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        handler = _handlers.get(func)
        kwargs = dict(kwargs or {})
        if handler is None:
            return func(*args, **kwargs)
        if "input" in kwargs:
            args = (kwargs.pop("input"), *args)
        return handler(self, func, *args, **kwargs)

    def attach(self, y: Tensor, bias: Tensor | None) -> Tensor:
        """Attribute the constant `bias` in `y` [B, ...] separately from the tokens."""
        if bias is None or not y.requires_grad:
            return y
        # A layer of a model that is spread over devices may be on another device than its leaves.
        if self.apart is not None and bias is self.apart[0]:
            return apply(Attached, y, bias, self.apart[1].to(y.device))
        if y.shape[0] != self.bias_scale.shape[0]:
            raise UserError(
                "This model mixes the rows of a batch with the positions of a text, so it can't be "
                "linearized: choose saliency, integrated gradients or occlusion."
            )
        return apply(Attached, y, bias, self.bias_scale.to(y.device))

    def activated(self, x: Tensor, y: Tensor, ratio: Callable[[Tensor], Tensor]) -> Tensor:
        """`y` = f(x) as a constant ratio times `x`."""
        if not x.requires_grad:
            return y
        out = apply(Scaled, x, y.detach(), ratio(x.detach()))
        self._activations[id(out)] = out
        return out

    # -- linear operations with a constant part --

    @_handles(F.linear)
    def _linear(self, func: Op, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.gamma and x.requires_grad:
            return gamma_rule(x, weight, bias, self.gamma, self.attach)
        return self.attach(func(x, weight, bias), bias)

    @_handles(torch.addmm)
    def _addmm(self, func: Op, bias: Tensor, x: Tensor, weight: Tensor, **rest: Any) -> Tensor:
        # transformers' Conv1D (GPT-2) flattens batch and positions into rows first.
        batch = self.bias_scale.shape[0]
        if self.gamma and x.requires_grad:
            rows = x.unflatten(0, (batch, -1))
            return gamma_rule(rows, weight.T, bias, self.gamma, self.attach).flatten(0, 1)
        y = func(bias, x, weight, **rest)
        if not y.requires_grad:
            return y
        return self.attach(y.unflatten(0, (batch, -1)), bias).flatten(0, 1)

    @_handles(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
    def _add(self, func: Any, a: Any, b: Any, **rest: Any) -> Any:
        y = func(a, b, **rest)
        if isinstance(a, Tensor) and isinstance(b, Tensor) and y.requires_grad:
            constant = b if not b.requires_grad else a if not a.requires_grad else None
            if constant is not None and constant.is_floating_point():
                return self.attach(y, constant.expand_as(y) if constant.dim() > 1 else constant)
        return y

    # -- frozen operations --

    @_handles(F.layer_norm)
    def _layer_norm(
        self,
        func: Op,
        x: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if not x.requires_grad:
            return func(x, normalized_shape, weight, bias, eps)
        y = apply(FrozenLayerNorm, x, tuple(normalized_shape), weight, bias, eps)[0]
        return self.attach(y, bias)

    @_handles(F.rms_norm)
    def _rms_norm(
        self,
        func: Op,
        x: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        y = func(x, normalized_shape, weight, eps)
        if not x.requires_grad:
            return y
        wide = x.detach() if x.dtype == torch.float64 else x.detach().float()
        epsilon = torch.finfo(x.dtype).eps if eps is None else eps
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon).to(x.dtype)
        return apply(Scaled, x, y.detach(), scale if weight is None else scale * weight)

    @_handles(F.scaled_dot_product_attention)
    def _attention(
        self,
        func: Op,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **rest: Any,
    ) -> Tensor:
        query, key = query.detach(), key.detach()
        output = func(query, key, value.detach(), attn_mask, dropout_p, is_causal, **rest)
        if not value.requires_grad:
            return output
        weights = Weights(query, key, attn_mask, is_causal, rest.get("scale"))
        return apply(Mixed, value, output, weights, query.shape[-3] // value.shape[-3])

    @_handles(F.softmax, torch.softmax, Tensor.softmax)
    def _softmax(self, func: Op, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if x.dtype == torch.float64:
            # Explicit attention code casts to float32; a float64 check needs float64 throughout.
            kwargs["dtype"] = torch.float64
        return func(x.detach(), *args, **kwargs)

    @_handles(torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt)
    @_handles(torch.norm, Tensor.norm, torch.linalg.norm, torch.linalg.vector_norm)
    @_handles(torch.sigmoid, Tensor.sigmoid, F.sigmoid)
    def _constant(self, func: Op, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return func(x.detach(), *args, **kwargs)

    @_handles(F.normalize)
    def _normalize(
        self,
        func: Op,
        x: Tensor,
        p: float = 2.0,
        dim: int = 1,
        eps: float = 1e-12,
        out: Tensor | None = None,
    ) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(x.detach(), p, dim, keepdim=True).clamp_min(eps)
        return x / norm

    @_handles(F.gelu)
    def _gelu(self, func: Op, x: Tensor, approximate: str = "none") -> Tensor:
        return self.activated(
            x, func(x.detach(), approximate=approximate), lambda t: gelu_ratio(t, approximate)
        )

    @_handles(F.silu)
    def _silu(self, func: Op, x: Tensor, inplace: bool = False) -> Tensor:
        return self.activated(x, func(x.detach()), torch.sigmoid)

    @_handles(F.relu, torch.relu, Tensor.relu)
    def _relu(self, func: Op, x: Tensor, inplace: bool = False) -> Tensor:
        return self.activated(x, torch.relu(x.detach()), relu_ratio)

    @_handles(torch.tanh, Tensor.tanh, F.tanh)
    def _tanh(self, func: Op, x: Tensor) -> Tensor:
        return self.activated(x, func(x.detach()), tanh_ratio)

    @_handles(torch.mul, torch.multiply, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
    def _mul(self, func: Any, a: Any, b: Any, **rest: Any) -> Any:
        both = isinstance(a, Tensor) and isinstance(b, Tensor)
        if not both or not (a.requires_grad and b.requires_grad):
            return func(a, b, **rest)
        gate_a, gate_b = id(a) in self._activations, id(b) in self._activations
        if gate_a == gate_b:
            raise UserError(
                "This model multiplies two activations, and PosLens can't tell which one is a "
                "gate, so it can't be linearized: choose saliency, integrated gradients or "
                "occlusion."
            )
        return func(a.detach(), b, **rest) if gate_a else func(a, b.detach(), **rest)

    @_handles(torch.div, torch.true_divide, Tensor.div, Tensor.__truediv__)
    def _div(self, func: Any, a: Any, b: Any, **rest: Any) -> Any:
        return func(a, b.detach() if isinstance(b, Tensor) else b, **rest)

    @_handles(torch.pow, Tensor.pow, Tensor.__pow__)
    def _pow(self, func: Op, x: Any, exponent: Any, **rest: Any) -> Any:
        # x ** -0.5 is a scale. Other powers only occur as inputs to one, which detaches them.
        frozen = isinstance(x, Tensor) and exponent == -0.5
        return func(x.detach() if frozen else x, exponent, **rest)

    # -- casts to float32 in models, which would cost a float64 check its digits --

    @_handles(Tensor.float)
    def _float(self, func: Op, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x if x.dtype == torch.float64 else func(x, *args, **kwargs)

    @_handles(Tensor.to)
    def _to(self, func: Op, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        narrow = torch.float32 in args or kwargs.get("dtype") == torch.float32
        return x if x.dtype == torch.float64 and narrow else func(x, *args, **kwargs)


def dependent(output: Tensor, *leaves: Tensor) -> Tensor:
    """`output` [B, ...], unchanged, with gradients of zero for those of `leaves` [B, ...] that it
    does not depend on, where autograd would raise: many models have no constants, and a model
    frozen as a whole fails the completeness check."""
    nothing = sum(0 * leaf.flatten(1).sum(1) if leaf.dim() > 1 else 0 * leaf for leaf in leaves)
    assert isinstance(nothing, Tensor)
    return output + nothing.to(output.device).view(-1, *[1] * (output.dim() - 1))


# Activations that transformers computes by formulas: the whole is one ratio. Identified by class
# name, because releases move and rename them.
_FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(
        ("NewGELUActivation", "FastGELUActivation", "PytorchGELUTanh", "GELUTanh"),
        partial(gelu_ratio, approximate="tanh"),
    ),
    "QuickGELUActivation": lambda x: torch.sigmoid(1.702 * x),
}


@contextmanager
def linearized(
    model: nn.Module,
    bias_scale: Tensor,
    apart: tuple[Tensor, Tensor] | None = None,
    gamma: float = 0.0,
) -> Iterator[None]:
    """Run `model` with frozen nonlinearities while the context is open.

    `bias_scale` [B], ones that require a gradient, collects the constants' share of each row.
    `apart` is the bias of one linear layer and ones [B, T] that collect its share per position
    instead. With `gamma`, linear layers distribute values by the gamma rule of layer-wise relevance
    propagation instead of in proportion to each input. Hooks are attached to the model's
    activations meanwhile: hold the model's lock.

    Raises:
        UserError: raised by the forward pass if a product of two token-dependent parts has no gate.
    """
    mode = _Linearized(bias_scale, apart, gamma)
    hooks = []
    inputs: dict[int, Tensor] = {}

    def enter(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        inputs[id(module)] = args[0]
        return (args[0].detach(), *args[1:])

    def leave(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return mode.activated(inputs.pop(id(module)), output, _FORMULAS[type(module).__name__])

    try:
        for module in model.modules():
            if type(module).__name__ in _FORMULAS:
                hooks.append(module.register_forward_pre_hook(enter))
                hooks.append(module.register_forward_hook(leave))
        with mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()

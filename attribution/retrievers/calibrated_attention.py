"""Attention calibration: attention weights are redistributed after the softmax, so that every block
of a text gets the same share (Schuhmacher et al. 2026, arXiv 2601.16934; Michail et al. 2026, arXiv
2606.02737). Implemented from these descriptions.

The pooling determines which rows are calibrated. Some tokens of a row can be excluded; all others
are divided, in order, into blocks of B tokens, and every block that the row can attend to gets the
same share of the remaining weight. Proportions within a block do not change.

| rows | calibrated | excluded |
|---|---|---|
| `mean` | every row | none |
| `first` | the first token's | the first token, which keeps its weight |
| `last` | the last token's | the first token, which keeps its weight; the last, which gets 1/n |

n is the number of blocks and excluded tokens. A text of less than one block is not changed.

Calibration is attached through transformers' attention interface (`attach`). If every row is
calibrated, the weights are not materialized: within a block they are the softmax over its keys
alone, so the average of attention to each block separately is the same, and uses the kernels of
plain attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.calibration import Calibration

Rows = Literal["mean", "first", "last"]

ROWS: dict[str, Rows] = {
    "cls": "first",
    "lasttoken": "last",
    "mean": "mean",
    "weightedmean": "mean",
    "mean_sqrt_len_tokens": "mean",
    "max": "mean",
}
"""The rows through which a pooling of sentence-transformers reads the text; `mean` for all rows."""

_EXCLUDED: dict[Rows, tuple[Rows, ...]] = {
    "mean": (),
    "first": ("first",),
    "last": ("first", "last"),
}

NAME = "poslens_calibrated"
"""The name of this attention in transformers' interface."""

_ATTACHED = "poslens_calibration"


def calibrate(weights: Tensor, real: Tensor, rows: Rows, calibration: Calibration) -> Tensor:
    """Calibrated attention of whole texts.

    Args:
        weights: attention after the softmax [B, A, T, T]; rows sum to 1, masked keys are 0.
        real: True for tokens, False for padding [B, T].

    Returns:
        Weights [B, A, T, T].
    """
    if rows == "mean":
        return redistribute(weights, real, rows, calibration)
    at = _row_of(real, rows)
    new = redistribute(_take(weights, at), real, rows, calibration)
    return torch.where(_at_row(at, weights.shape[2])[:, None, :, None], new, weights)


def redistribute(weights: Tensor, real: Tensor, rows: Rows, calibration: Calibration) -> Tensor:
    """Calibrated rows of attention.

    Args:
        weights: rows after the softmax [B, A, R, S]; each sums to 1 (or to 0, and is not changed),
            masked keys are 0.
        real: True for tokens, False for padding among the keys [B, S].

    Returns:
        strength * calibrated + (1 - strength) * plain [B, A, R, S]; rows sum to 1, masked keys are
            0.
    """
    strength, block = calibration.strength, calibration.block
    if strength == 0:
        return weights
    excluded = [_at_row(_row_of(real, which), real.shape[1]) for which in _EXCLUDED[rows]]
    content = real
    for token in excluded:
        content = content & ~token
    count = content.sum(-1)  # [B]
    order = content.long().cumsum(-1) - 1
    number = int(-(-int(count.max()) // block)) if count.numel() else 0
    member = F.one_hot(torch.where(content, order // block, number), number + 1)[..., :number]
    member = member[:, None].to(weights.dtype)  # [B, 1, S, N]
    sums = weights @ member  # [B, A, R, N]
    seen = (sums > 0).to(weights.dtype)
    target, values = _left(weights, excluded, -(-count // block))
    share = target / seen.sum(-1, keepdim=True).clamp_min(1)  # [B, A, R, 1]
    # A block whose weights are all 0 gets no share, because scaling leaves it at 0.
    factor = share / torch.where(sums > 0, sums, 1.0)
    changed = weights * (factor @ member.transpose(-1, -2)) + values
    total = changed.sum(-1, keepdim=True)
    changed = changed / torch.where(total > 0, total, 1.0)
    mixed = strength * changed + (1 - strength) * weights
    short = (count < block)[:, None, None, None]
    return torch.where(short | (weights.sum(-1, keepdim=True) == 0), weights, mixed)


def _left(weights: Tensor, excluded: Sequence[Tensor], blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The total weight of the blocks [B, A, R, 1], and the weights of the excluded tokens [B, A,
    R, S]."""
    nothing = torch.zeros_like(weights)
    if not excluded:
        return weights.sum(-1, keepdim=True), nothing
    first, *last = (token[:, None, None] for token in excluded)
    values = torch.where(first, weights, nothing)
    target = 1 - values.sum(-1, keepdim=True)
    for token in last:
        last_share = (1 / (blocks + 2)).to(weights.dtype)[:, None, None, None]
        values = values + torch.where(token, last_share, nothing)
        # A first token with nearly all weight may leave less than the last token's share.
        target = (target - last_share).clamp_min(0)
    return target, values


def _row_of(real: Tensor, rows: Rows) -> Tensor:
    """Position of the first or the last token of each text [B]."""
    if rows == "first":
        return real.long().argmax(-1)
    return real.shape[1] - 1 - real.long().flip(-1).argmax(-1)


def _at_row(at: Tensor, length: int) -> Tensor:
    """True at position `at` [B] of `length` [B, length]."""
    return torch.arange(length, device=at.device) == at[:, None]


def _take(values: Tensor, at: Tensor) -> Tensor:
    """Row at[b] of each values[b] [B, A, 1, F]; values shared by all texts have the shape [1,
    ...]."""
    values = values.expand(len(at), *values.shape[1:])
    return values[torch.arange(len(at), device=at.device), :, at][:, :, None]


# -- within a model --------------------------------------------------------------------------------


@dataclass(slots=True)
class Calibrator:
    """The calibration attached to a transformer: its settings, calibrated rows and layers."""

    calibration: Calibration
    rows: Rows
    n_layers: int = 0
    first: int = 0

    def applies(self, layer: int) -> bool:
        """Whether this layer, counted from 0, is calibrated."""
        return layer >= self.first and self.calibration.strength > 0


@dataclass(slots=True)
class _Pass:
    """One forward pass of a transformer: its padding mask, and the number of layers so far.
    Layers are counted because several may share one module (ALBERT)."""

    calibrator: Calibrator
    real: Tensor | None
    layer: int = field(default=0)


# The current forward pass of this thread: a transformer's hook sets it, its layers read it.
_at_work: ContextVar[_Pass | None] = ContextVar("calibrated_pass", default=None)


def calibrator_of(backbone: object) -> Calibrator | None:
    """The calibration attached to a transformer; None if there is none."""
    calibrator: Calibrator | None = getattr(backbone, _ATTACHED, None)
    return calibrator


def attach(module: Any, calibration: Calibration, rows: Rows, name: str) -> Calibrator:
    """Calibrate `module`, a loaded transformer of sentence-transformers, permanently.

    Raises:
        UserError: its attention is not accessible, it has too few layers, or it is already
            calibrated.
    """
    backbone = module.model
    if calibrator_of(backbone) is not None:
        raise UserError(f"{name} is already calibrated: remove the suffix of its name.")
    unreachable = UserError(
        f"{name} computes its attention by itself, not through transformers' attention interface, "
        "so it cannot be calibrated: choose another model."
    )
    calibrator = Calibrator(calibration, rows)
    before = backbone.config._attn_implementation
    try:
        _register()
        backbone.set_attn_implementation(NAME)
    except (ValueError, ImportError, AttributeError) as error:
        raise unreachable from error

    # sentence-transformers calls a method of the transformer instead of the transformer itself, so
    # hooks on the transformer would not run.
    def begin(_module: nn.Module, args: tuple[Any, ...]) -> None:
        mask = args[0].get("attention_mask")
        _at_work.set(_Pass(calibrator, mask.bool() if isinstance(mask, Tensor) else None))

    def end(_module: nn.Module, _args: object, _output: object) -> None:
        done = _at_work.get()
        # Later passes may end early, so their number of layers means nothing.
        calibrator.n_layers = max(calibrator.n_layers, 0 if done is None else done.layer)
        _at_work.set(None)

    hooks = [
        module.register_forward_pre_hook(begin),
        module.register_forward_hook(end, always_call=True),
    ]
    try:
        ids = torch.zeros((1, 2), dtype=torch.long, device=backbone.device)
        with torch.no_grad():  # counts the layers
            module({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        if calibrator.n_layers == 0:
            raise unreachable
        calibrator.first = calibration.first_of(calibrator.n_layers, name)
    except BaseException:
        for hook in hooks:
            hook.remove()
        backbone.set_attn_implementation(before)
        raise
    # Not registered as a module attribute, so that saving and moving the model ignore it.
    object.__setattr__(backbone, _ATTACHED, calibrator)
    return calibrator


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: queries [B, A, T, E], keys and values [B, G, S, E], a
    mask that broadcasts to [B, A, T, S]; returns [B, T, A, E]."""
    output = _plain_attention(module, query, key, value, attention_mask, **rest)
    run = _at_work.get()
    if run is None:
        raise RuntimeError("a calibrated transformer was run past its sentence-transformers module")
    layer, run.layer = run.layer, run.layer + 1
    calibrator = run.calibrator
    length = key.shape[2]
    applies = calibrator.n_layers > 0 and calibrator.applies(layer)
    if not applies or length < calibrator.calibration.block:
        return output, None
    real = torch.ones((len(key), length), dtype=torch.bool) if run.real is None else run.real
    real = real.to(key.device)
    causal = rest.pop("is_causal", None)
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if attention_mask is None and causal:
        values = torch.ones(query.shape[2], length, dtype=torch.bool, device=key.device)
        attention_mask = values.tril()[None, None]
    if calibrator.rows == "mean":
        changed = _by_block(module, query, key, value, attention_mask, real, calibrator, rest)
        strength = calibrator.calibration.strength
        return strength * changed + (1 - strength) * output, None
    at = _row_of(real, calibrator.rows)
    row = _one_row(query, key, value, attention_mask, real, at, calibrator, rest)
    return torch.where(_at_row(at, output.shape[1])[:, :, None, None], row, output), None


def _one_row(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    real: Tensor,
    at: Tensor,
    calibrator: Calibrator,
    rest: dict[str, Any],
) -> Tensor:
    """Calibrated attention output of the token `at` [B] of each text [B, 1, A, E]."""
    groups = query.shape[1] // key.shape[1]
    keys, values = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (key, value))
    scale = rest.get("scaling") or query.shape[-1] ** -0.5
    logits = _take(query, at) @ keys.transpose(-1, -2) * scale
    if (bias := rest.get("position_bias")) is not None:
        logits = logits + _take(bias, at)
    if mask is not None:
        row = _take(mask, at)
        allowed = row.dtype == torch.bool
        logits = logits.masked_fill(~row, -torch.inf) if allowed else logits + row
    weights = F.softmax(logits, dim=-1)
    weights = redistribute(weights, real, calibrator.rows, calibrator.calibration)
    return (weights @ values).transpose(1, 2)


def _by_block(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    real: Tensor,
    calibrator: Calibrator,
    rest: dict[str, Any],
) -> Tensor:
    """Attention output of every token with equal weight for each block [B, T, A, E]."""
    bias = rest.pop("position_bias", None)
    start = _row_of(real, "first")
    if bool((start > 0).any()):
        # Left padding: rotated, so that every text's blocks begin at position 0.
        places = (torch.arange(real.shape[1], device=real.device) + start[:, None]) % real.shape[1]
        key, value = (_turned(t, places, -2) for t in (key, value))
        mask, bias = (None if t is None else _turned(t, places, -1) for t in (mask, bias))
        real = real.gather(1, places)
    total: Tensor | None = None
    count: Tensor | float = 0.0
    length = int(real.sum(-1).max())
    for begin in range(0, length, calibrator.calibration.block):
        part = slice(begin, min(begin + calibrator.calibration.block, length))
        block_mask, seen = _part_of_mask(mask, part)
        values = _plain_attention(
            module,
            query,
            key[:, :, part],
            value[:, :, part],
            block_mask,
            is_causal=False,
            **rest,
            **({} if bias is None else {"position_bias": bias[..., part]}),
        )
        if seen is not None:
            # [B, 1 or A, T, 1] transposed to the layout of outputs: [B, T, 1 or A, 1].
            weight = seen.transpose(1, 2).to(values.dtype)
            values, count = values * weight, count + weight
        else:
            count = count + 1.0
        total = values if total is None else total + values
    assert total is not None
    return total / (count.clamp_min(1) if isinstance(count, Tensor) else count)


def _part_of_mask(mask: Tensor | None, part: slice) -> tuple[Tensor | None, Tensor | None]:
    """A mask for one block, boolean or additive like the full mask, and the rows that can attend
    to any of its keys [B, 1 or A, T, 1]. A row with no visible key is unmasked, because softmax
    over nothing is NaN; its weight of 0 cancels the result."""
    if mask is None:
        return None, None
    block_mask = mask[..., part]
    if block_mask.dtype == torch.bool:
        seen = block_mask.any(-1, keepdim=True)
        return block_mask | ~seen, seen
    seen = (block_mask > torch.finfo(block_mask.dtype).min / 2).any(-1, keepdim=True)
    return torch.where(seen, block_mask, 0.0), seen


def _turned(values: Tensor, places: Tensor, dim: int) -> Tensor:
    """values [B, ...] with their axis `dim` reordered by `places` [B, S], separately for each
    text."""
    values = values.expand(len(places), *values.shape[1:])
    shape = [1] * values.dim()
    shape[0], shape[dim] = places.shape
    return values.gather(dim, places.view(shape).expand_as(values))


@cache
def _register() -> None:
    """Register calibrated attention with transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface  # here: slow to import
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def _plain_attention(*args: Any, **rest: Any) -> Tensor:
    """Attention as transformers computes it without calibration [B, T, A, E]."""
    from transformers.integrations.sdpa_attention import (  # here: slow to import
        sdpa_attention_forward,
    )

    output, _ = sdpa_attention_forward(*args, **rest)
    return output

"""Models with layers on both simulated devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from tests.support.simulated_device import FIRST, SECOND


@contextmanager
def layers_on_both() -> Iterator[list[torch.nn.Module]]:
    """While this is open, models that PosLens spreads over devices get the first half of their
    layers on one and the rest on the other; yields these models. accelerate itself would divide
    them by GPU memory."""
    models: list[torch.nn.Module] = []

    def divide(model: torch.nn.Module, *_: Any) -> dict[str, torch.device]:
        models.append(model)
        return _halves(model)

    with patch("transformers.modeling_utils._get_device_map", divide):
        yield models


def _halves(module: torch.nn.Module, prefix: str = "") -> dict[str, torch.device]:
    """The parts of a transformers model, in order, and their devices."""
    places: dict[str, torch.device] = {}
    for name, part in module.named_children():
        path = prefix + name
        if isinstance(part, torch.nn.ModuleList):
            middle = (len(part) + 1) // 2
            places |= {f"{path}.{n}": FIRST if n < middle else SECOND for n in range(len(part))}
        elif any(isinstance(inner, torch.nn.ModuleList) for inner in part.modules()):
            places |= _halves(part, f"{path}.")
        else:
            places[path] = SECOND if SECOND in places.values() else FIRST
    return places

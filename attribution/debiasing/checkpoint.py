"""Checkpoints of a training: adapter, optimizer and validation checks in one safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from poslens.attribution.curves.bootstrap import Estimate


@dataclass(frozen=True, slots=True)
class ValidationCheck:
    """The position effect on the validation texts after `step` steps, and the mean loss since
    the previous check."""

    step: int
    loss: float
    effect: Estimate | None


@dataclass(frozen=True, slots=True)
class TrainingState:
    """The contents of a checkpoint: weights by path, the optimizer's moments by path and name,
    the number of steps completed, the last step, the checks so far, and the sum of losses since
    the last check."""

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Mapping[str, Tensor]]
    step: int
    end: int
    checks: tuple[ValidationCheck, ...]
    loss: float


def write_checkpoint(path: Path, owner: str, state: TrainingState) -> None:
    """Replace the file atomically; `owner` identifies the training."""
    tensors = {f"weight/{name}": value.contiguous() for name, value in state.weights.items()}
    for weight, moments in state.moments.items():
        for name, value in moments.items():
            tensors[f"{name}/{weight}"] = value.detach().cpu().contiguous()
    about = {
        "step": state.step,
        "end": state.end,
        "checks": [asdict(check) for check in state.checks],
        "loss": state.loss,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}.new")
    save_file(tensors, new, {"owner": owner, "state": json.dumps(about)})
    new.replace(path)


def read_checkpoint(path: Path, owner: str) -> TrainingState | None:
    """The stored state; None if the file is missing, damaged, or belongs to another training."""
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            if about.get("owner") != owner:
                return None
            state = json.loads(about["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        weights: dict[str, Tensor] = {}
        moments: dict[str, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            kind, _, weight = name.partition("/")
            if kind == "weight":
                weights[weight] = value
            else:
                moments.setdefault(weight, {})[kind] = value
        checks = tuple(
            ValidationCheck(
                check["step"],
                check["loss"],
                Estimate(**check["effect"]) if check["effect"] else None,
            )
            for check in state["checks"]
        )
        return TrainingState(weights, moments, state["step"], state["end"], checks, state["loss"])
    except (OSError, SafetensorError, ValueError, LookupError, TypeError):
        return None

"""Checkpoints of a training: adapter, optimizer and validation checks in one safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from poslens.attribution.curves.bootstrap import Estimate

Moments = Mapping[str, Mapping[str, Tensor]]


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

    weights: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]
    step: int
    end: int
    checks: tuple[ValidationCheck, ...]
    loss: float


class Checkpoint:
    """A checkpoint file, always replaced atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(
        self,
        owner: str,
        weights: Mapping[str, Tensor],
        moments: Moments,
        step: int,
        end: int,
        checks: Sequence[ValidationCheck],
        loss: float,
    ) -> None:
        """Replace the file; `owner` identifies the training."""
        tensors = {f"weight/{path}": value.contiguous() for path, value in weights.items()}
        for path, named in moments.items():
            for name, value in named.items():
                tensors[f"{name}/{path}"] = value.detach().cpu().contiguous()
        about = {
            "step": step,
            "end": end,
            "checks": [asdict(check) for check in checks],
            "loss": loss,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(f".{os.getpid()}.new")
        save_file(tensors, new, {"owner": owner, "state": json.dumps(about)})
        new.replace(self._path)

    def read(self, owner: str) -> TrainingState | None:
        """The stored state; None if the file is missing, damaged, or belongs to another
        training."""
        try:
            with safe_open(self._path, "pt") as file:
                about = file.metadata() or {}
                if about.get("owner") != owner:
                    return None
                state = json.loads(about["state"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            weights: dict[str, Tensor] = {}
            moments: dict[str, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                kind, _, path = name.partition("/")
                if kind == "weight":
                    weights[path] = value
                else:
                    moments.setdefault(path, {})[kind] = value
            checks = _checks(state["checks"])
            return TrainingState(
                weights, moments, state["step"], state["end"], checks, state["loss"]
            )
        except (OSError, SafetensorError, ValueError, LookupError, TypeError):
            return None


def _checks(checks: Sequence[Mapping[str, Any]]) -> tuple[ValidationCheck, ...]:
    return tuple(
        ValidationCheck(
            check["step"], check["loss"], Estimate(**check["effect"]) if check["effect"] else None
        )
        for check in checks
    )

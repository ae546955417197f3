"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) on every linear layer of an encoder's
stack, by peft."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from poslens.attribution.errors import UserError


def linear_layers(backbone: nn.Module, name: str) -> list[str]:
    """Names of the linear layers within the encoder's stack of blocks. A pooler or head outside the
    stack does not affect how tokens are read.

    Raises:
        UserError: the model has none.
    """
    from transformers.pytorch_utils import Conv1D

    stacks = tuple(
        f"{path}." for path, module in backbone.named_modules() if isinstance(module, nn.ModuleList)
    )
    layers = [
        path
        for path, module in backbone.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and path.startswith(stacks)
    ]
    if not layers:
        raise UserError(
            f"{name} has no transformer blocks with linear layers to train an adapter on: choose a "
            "transformer encoder."
        )
    return layers


class Adapter:
    """An untrained adapter on a backbone, which is modified in place until `merge`."""

    def __init__(self, backbone: Any, name: str, rank: int, alpha: int) -> None:
        # Pages and commands that show stored results import this module, and importing peft takes
        # two seconds. While another thread imports transformers, it can also fail.
        from peft import LoraConfig, get_peft_model

        # About a call from one library to another, which users cannot change.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        layers = linear_layers(backbone, name)
        config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=layers)
        self._model: Any = get_peft_model(backbone, config)
        self.weights: dict[str, nn.Parameter] = {
            path: weight for path, weight in self._model.named_parameters() if weight.requires_grad
        }

    def disabled(self) -> Any:
        """Context in which the backbone computes without the adapter."""
        return self._model.disable_adapter()

    def save(self, folder: Path, base: str) -> None:
        """Write the adapter alone in peft's format; `base` is the name of the model it belongs
        to."""
        self._model.peft_config["default"].base_model_name_or_path = base
        # "auto" would ask a hub whether the vocabulary has grown, but no embedding was trained.
        self._model.save_pretrained(str(folder), save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # an empty template
        settings = folder / "adapter_config.json"
        config = json.loads(settings.read_text(encoding="utf-8"))
        settings.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")

    def merge(self) -> None:
        """Add the adapter to the backbone's weights, in place; this object cannot be used
        afterwards."""
        self._model.merge_and_unload()

"""The families besides dense encoders, by name."""

from __future__ import annotations

from typing import Any

import torch

from attribution.errors import UserError
from attribution.retrievers.registry import ModelFiles, RetrieverSpec


def load(spec: RetrieverSpec, files: ModelFiles, device: torch.device, precision: str) -> Any:
    """The retriever of `spec`'s family, from its files.

    Raises:
        UserError: an unknown family, or files that are none of it.
    """
    if spec.family == "lexical":
        from attribution.retrievers.lexical import LexicalRetriever

        return LexicalRetriever(spec, files)
    raise UserError(f"{spec.name} is of the family {spec.family!r}, which PosLens does not read.")

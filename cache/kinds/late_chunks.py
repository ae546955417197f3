"""Stored vectors of late chunks, by text digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from poslens.cache.storage.results import Key, Results
from poslens.cache.storage.schema import Packed, Schema, register


@dataclass(frozen=True, slots=True)
class ChunkVectors:
    """Vectors [W, H] of a text's late chunks; `width` is H."""

    width: int
    vectors: Annotated[NDArray[np.float32], Packed()]

    def __post_init__(self) -> None:
        object.__setattr__(self, "vectors", self.vectors.reshape(-1, self.width))


CHUNK_VECTORS = register(Schema(ChunkVectors, "late_chunks"))


def late_chunks(root: Path) -> Results[str, ChunkVectors]:
    """The vectors stored below a folder."""
    return Results(root, CHUNK_VECTORS, key=lambda digest: Key("", digest, ""))

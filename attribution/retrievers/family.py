"""Declaration of model families. Each family's module registers its record; `detect` imports all of
them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Literal

import torch

from poslens.attribution.names import declare
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.model_folder import Contents
from poslens.attribution.retrievers.specs import ModelFiles, RetrieverSpec
from poslens.attribution.types import Array


class Capability(StrEnum):
    """What a family can do and a method can require."""

    REMOVAL = "removal"
    """Units can be removed from its texts: it overwrites their input embeddings or leaves them
    out."""
    GRADIENTS = "gradients"
    """Its score has a gradient with respect to its input embeddings."""
    VECTOR = "vector"
    """Each text becomes one vector."""
    JACOBIAN = "jacobian"
    """Each text becomes one vector, from an encoder with gradients."""
    LINEAR = "linear"
    """Its network can be linearized."""
    TERMS = "terms"
    """Its score is a sum over terms that occur in both texts."""
    MAXSIM = "maxsim"
    """Its score is a sum over query tokens of their best document token."""


Search = Literal["vectors", "token_vectors", "term_weights", "index", "rerank"]
"""How a corpus is searched: by one vector per text, by one vector per token, by weights of terms,
by an inverted index of words; or not at all, only by reranking."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Device and precision of a model; `asked` is the requested device, `auto` or a name."""

    device: torch.device
    precision: str
    asked: str = "auto"


Loader = Callable[[RetrieverSpec, ModelFiles, Placement], Retriever]


@dataclass(frozen=True, slots=True)
class Family:
    """A family of retrievers.

    `name` is the name in specs, `title` the name in sentences, and `order` the position in lists.
    `load` builds a retriever from checked files. It may raise UserError; any other exception
    becomes one. A folder belongs to this family if its configuration names the
    sentence-transformers class `library_class`, or if `recognizes` is true of its files. With
    `has_weights`, there are files to check and a device to select; with `has_statistics`, scores
    depend on word statistics of a data set. `why_not` is the part of a sentence that explains why a
    method with further requirements is unavailable. For families without files, `probe` returns
    numbers [H] that identify the model behind a name; they replace the digests of files.
    """

    name: str
    title: str
    order: int
    capabilities: frozenset[Capability]
    search: Search
    load: Loader
    library_class: str = ""
    recognizes: Callable[[Contents], bool] = lambda _files: False
    has_weights: bool = True
    has_statistics: bool = False
    why_not: str = ""
    probe: Callable[[RetrieverSpec], Array] | None = None

    @property
    def order_blind(self) -> bool:
        """Whether scores cannot depend on the order of words, because only their counts matter."""
        return self.search == "index"


FAMILIES: dict[str, Family] = {}
"""Every family by name, in display order; complete once `detect` is imported."""


register = partial(declare, FAMILIES)

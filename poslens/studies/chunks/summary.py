"""The result of a chunk plan for one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import Collection
from poslens.attribution.evaluation.chunk_plan import (
    MEASURES,
    IndexSetting,
    Name,
    SettingChoice,
    Tried,
)
from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.evaluation.recommendation import Recommendation, setting_recommendation
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.kinds.chunk_plan import ChunkPlanStore
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity

Changes = Mapping[Name, Comparison | None]


@dataclass(frozen=True)
class ChunkPlan:
    """The corpus and the settings that are tried for one model; whole documents come first."""

    spec: RetrieverSpec
    collection: Collection
    settings: tuple[IndexSetting, ...]
    top: int

    @property
    def unit(self) -> str:
        """The unit of window sizes: tokens, or words if the tokenizer is not on this machine."""
        dense = family_of(self.spec).search == "vectors" and not self.spec.without_files
        return "tokens" if dense else "words"


@dataclass(frozen=True)
class ChunkSummary:
    """The results of one model: the settings that were `tried`, and the reasons why others were
    `left_out`. `changes` are paired differences on held-out documents, the chosen setting minus its
    reference."""

    asked: ChunkPlan
    model: ModelIdentity
    tried: tuple[Tried, ...]
    left_out: Mapping[str, str]
    choice: SettingChoice | None
    changes: Changes

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.spec.name

    @cached_property
    def recommendation(self) -> Recommendation:
        """Whether the chosen setting is recommended instead of its reference."""
        if self.choice is None:
            return Recommendation(False, "There is no other setting, or no second document.")
        return setting_recommendation(
            {
                MEASURES[name].title: (MEASURES[name].wanted, change)
                for name, change in self.changes.items()
            }
        )

    @property
    def held_out(self) -> tuple[str, ...]:
        """The documents on which settings are evaluated; none without a choice."""
        return () if self.choice is None else self.choice.held_out

    def share(self, tried: Tried, name: Name) -> Estimate | None:
        """A measure of a setting over the held-out documents; None if those have nothing to
        count."""
        return MEASURES[name].share(tried, self.held_out, self.asked.top)

    @property
    def decided(self) -> bool:
        """Whether any measure differs on held-out documents."""
        return any(
            change and change.verdict in ("higher", "lower") for change in self.changes.values()
        )

    @property
    def plan(self) -> Tried:
        """The setting to use: the recommended one, or whole documents."""
        if self.choice is not None and self.recommendation.recommended:
            return self.choice.chosen
        return self.tried[0]


_stores: LRUCache[ChunkPlanStore] = LRUCache(8)


def store_of(compute: Compute, collection: Collection) -> ChunkPlanStore:
    """The store of a corpus, cached because its fingerprint and keys need a pass over the
    corpus."""
    key = (str(compute.root), collection.digest)
    return _stores.get(key, lambda: ChunkPlanStore(compute.root, collection))

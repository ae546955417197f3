"""The result of a chunk plan for one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from poslens.attribution.datasets import Collection
from poslens.attribution.evaluation.chunk_plan import (
    MEASURES,
    IndexSetting,
    Name,
    SettingChoice,
    Tried,
    choose,
)
from poslens.attribution.evaluation.comparison import Comparison, adjusted
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
    """What is tried for one model: a corpus and settings, whole documents first."""

    spec: RetrieverSpec
    collection: Collection
    settings: tuple[IndexSetting, ...]
    top: int

    @property
    def unit(self) -> str:
        """What window sizes count: words where the tokenizer is not here."""
        dense = family_of(self.spec).search == "vectors" and not self.spec.without_files
        return "tokens" if dense else "words"


@dataclass(frozen=True)
class ChunkSummary:
    """The results of one model: what was `tried`, and why other settings were `left_out`.
    `changes` are paired, of the chosen setting minus its reference on held-out documents."""

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
    def decided(self) -> bool:
        """Whether any measure differs on held-out documents."""
        return any(
            change and change.verdict in ("higher", "lower") for change in self.changes.values()
        )

    @property
    def plan(self) -> Tried:
        """The setting to use: the recommended one, else whole documents."""
        if self.choice is not None and self.recommendation.recommended:
            return self.choice.chosen
        return self.tried[0]


def summary_of(
    asked: ChunkPlan, model: ModelIdentity, tried: Sequence[Tried], left_out: Mapping[str, str]
) -> ChunkSummary:
    """The result of what was tried."""
    choice = choose(tried, asked.top)
    changes = {} if choice is None else choice.changes(asked.top)
    return ChunkSummary(asked, model, tuple(tried), left_out, choice, changes)


def with_holm(summaries: Sequence[ChunkSummary]) -> list[ChunkSummary]:
    """The results with Holm's p over all of their comparisons."""
    together = iter(adjusted([each for summary in summaries for each in summary.changes.values()]))
    return [
        replace(summary, changes={name: next(together) for name in summary.changes})
        for summary in summaries
    ]


_stores: LRUCache[ChunkPlanStore] = LRUCache(8)


def store_of(compute: Compute, collection: Collection) -> ChunkPlanStore:
    """The store of a corpus, made once: its fingerprint and keys take a pass over the corpus."""
    key = (str(compute.root), collection.digest)
    return _stores.get(key, lambda: ChunkPlanStore(compute.root, collection))

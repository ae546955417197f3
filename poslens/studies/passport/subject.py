"""What a passport is of, and the form of its parts. No Streamlit here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.interventions.relocation import movable
from poslens.attribution.interventions.segments import documents_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance, TextPair
from poslens.compute.compute import Compute
from poslens.compute.runs import Job
from poslens.figures.curves import Style
from poslens.studies.cause.service import DEFAULT_PAIRS

MAX_PAIRS = 500
"""Pairs that are attributed at most. What takes longer is over as many as Cause begins with."""


@dataclass(frozen=True, slots=True)
class Item:
    """A measure of one pair, query or document. `fingerprint` changes with whatever the value
    depends on besides the model: texts, evidence, corpus. `document` is what intervals resample."""

    item_id: str
    fingerprint: str
    document: str
    value: float


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a part, with its interval. `key` is its name in files, `name` that for readers,
    `note` what it must be compared with. `items` are what it is the mean of, for the numbers that
    `check` compares. `unit` is what the estimate's n counts, in the plural; by default the
    part's."""

    key: str
    name: str
    estimate: Estimate
    form: str = "+.3f"
    note: str = ""
    items: tuple[Item, ...] = ()
    unit: str = ""

    @property
    def text(self) -> str:
        """Value, interval, what was counted and resampled, and note in words."""
        estimate = self.estimate
        resampled = (
            f", {estimate.resampled}: {estimate.n_resampled:,}"
            if estimate.interval and estimate.n_resampled and estimate.resampled != self.unit
            else ""
        )
        n = f" ({self.unit}: {estimate.n:,}{resampled})" if estimate.n else ""
        return f"{estimate.text(self.form)}{n}" + (f"; {self.note}" if self.note else "")


@dataclass(frozen=True)
class Part:
    """One question of a passport. `finding` is its answer in a sentence, `limits` what that does
    not show. Its numbers count `unit`s, in the plural. Without numbers `absent` says why; `jobs`
    compute what is missing."""

    key: str
    title: str
    limits: str
    unit: str
    finding: str = ""
    numbers: tuple[Number, ...] = ()
    draw: Callable[[Style], go.Figure] | None = None
    provenance: tuple[Provenance, ...] = ()
    absent: str = ""
    jobs: tuple[Job, ...] = ()


@dataclass(frozen=True)
class Subject:
    """A model and what of a data set its passport is over: `pairs` whose attributions are averaged,
    `moved` whose evidence is moved, `documents` by themselves, one pair of each in `of_each`."""

    compute: Compute
    spec: RetrieverSpec
    data: DataSet
    pairs: tuple[TextPair, ...]
    moved: tuple[TextPair, ...]
    documents: tuple[TextPair, ...]
    of_each: tuple[TextPair, ...]

    @property
    def has_queries(self) -> bool:
        """Whether there are queries, and not documents alone."""
        return any(pair.query for pair in self.pairs)

    @property
    def scope(self) -> str:
        """What tells this choice of pairs from those of other runs."""
        return f"{self.data.name}: passport"

    def words(self, chosen: Sequence[TextPair], all_of: int) -> str:
        """A choice of pairs in words; empty where it is all of them."""
        return "" if len(chosen) == all_of else f"{len(chosen):,} pairs spread evenly"


def subject(
    compute: Compute,
    spec: RetrieverSpec,
    data: DataSet,
    limit: int = MAX_PAIRS,
    moved: int | Collection[str] = DEFAULT_PAIRS,
) -> Subject:
    """A model and at most `limit` pairs of a data set, spread evenly; `moved` are the ids of the
    pairs whose evidence is moved, or how many at most."""
    documents = documents_of(data.pairs)
    usable, _ = movable(data.pairs)
    firsts = {pair.document: pair for pair in reversed(data.pairs)}
    return Subject(
        compute,
        spec,
        data,
        tuple(spread_evenly(data.pairs, min(limit, len(data.pairs)))),
        tuple(spread_evenly(usable, min(moved, len(usable))))
        if isinstance(moved, int)
        else tuple(pair for pair in usable if pair.pair_id in moved),
        tuple(spread_evenly(documents, min(DEFAULT_PAIRS, len(documents)))),
        tuple(spread_evenly(list(firsts.values()), min(DEFAULT_PAIRS, len(firsts)))),
    )

"""Rankings by groups of queries, as position-aware benchmarks compare them.

The groups are the data set's own (SQuAD-PosQ: by the answer's first character; FineWeb-PosQ: by the
third of the passage; arXiv 2505.13950). Each group has Recall and nDCG at six cutoffs. Over the
groups, there are PSI of nDCG@10 with its mean under permutation, and the harmonic mean (Michail et
al. 2026, arXiv 2606.02737). Questions about one passage are not independent, so intervals resample
documents, each with all its queries.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import Estimate, Values, estimate, estimates, ratios
from poslens.attribution.curves.proportions import even_if_constant
from poslens.attribution.datasets.corpus import Query
from poslens.attribution.datasets.types import Groups
from poslens.attribution.evaluation.evidence_profile import EvidenceProfile, profile_over
from poslens.attribution.evaluation.ranking_measures import (
    CUTOFF_MEASURES,
    NDCG,
)
from poslens.attribution.types import Array


@dataclass(frozen=True, slots=True)
class GroupMeasures:
    """A group's queries and the documents that answer them, and each of CUTOFF_MEASURES with its
    interval; no measures of an empty group."""

    name: str
    n: int
    n_documents: int
    measures: Mapping[str, Estimate]


@dataclass(frozen=True, slots=True)
class GroupedRanking:
    """A ranking's measures group by group. `profile` has a bin for each group, `harmonic` is the
    harmonic mean of their nDCG@10, 0 where one of them is 0. `n_outside` queries are in none."""

    groups: Groups
    measures: tuple[GroupMeasures, ...]
    profile: EvidenceProfile
    harmonic: Estimate
    n_outside: int


def grouped(
    per_query: Mapping[str, Array],
    queries: Sequence[Query],
    groups: Groups,
    read: Mapping[str, float] | None = None,
) -> GroupedRanking | None:
    """Measures [n] of `queries` by group; None if no query is in a group. `read` is the share of
    the evidence that the model read, by query id; it is unknown unless every query has one."""
    at = [row for row, query in enumerate(queries) if set(query.groups) & set(groups.names)]
    if not at:
        return None
    placed = [queries[row] for row in at]
    documents = np.array([query.document for query in placed])
    member = np.array([[float(name in query.groups) for name in groups.names] for query in placed])
    scores = np.asarray(per_query[NDCG], dtype=np.float64)[at]
    shares = [read[query.query_id] for query in placed if query.query_id in read] if read else []
    harmonic = harmonic_estimate(group_rows(scores, member), documents.tolist())
    assert harmonic is not None  # a group is filled, and nDCG is finite
    every = np.stack([np.asarray(per_query[name], np.float64)[at] for name in CUTOFF_MEASURES], 1)
    measures = []
    for name, inside in zip(groups.names, member.T > 0, strict=True):
        group_documents = documents[inside].tolist()
        means = map(even_if_constant, estimates(every[inside], group_documents))
        of_group = dict(zip(CUTOFF_MEASURES, means, strict=False))
        measures.append(
            GroupMeasures(name, len(group_documents), len(set(group_documents)), of_group)
        )
    return GroupedRanking(
        groups,
        tuple(measures),
        profile_over(
            scores, member, documents.tolist(), shares if len(shares) == len(placed) else None
        ),
        harmonic,
        len(queries) - len(at),
    )


def group_rows(scores: NDArray[np.floating], member: NDArray[np.float64]) -> Values:
    """Each query's score in the columns of its groups, and 1 in the same columns of the second
    half [n, 2 x groups]: `ratios` of the mean rows are the groups' means, in any resample. `member`
    [n, groups] is 1 if a query is in a group."""
    column = np.asarray(scores, dtype=np.float64)[:, None]
    return np.concatenate([member * column, member], axis=1)


def harmonic_estimate(rows: Values, documents: Sequence[Hashable]) -> Estimate | None:
    """`harmonic_of_groups` of the mean of rows [n, 2 x groups]; None if it is undefined. Without an
    interval if it is the same in every resample, such as 0 because one group has the score 0
    throughout: that does not show which scores the group can have in other documents."""
    harmonic = estimate(rows, documents, harmonic_of_groups)
    if harmonic is None or harmonic.low != harmonic.high:
        return harmonic
    return replace(harmonic, low=None, high=None)


def harmonic_of_groups(drawn: Values) -> Values:
    """Harmonic mean [R] over the filled groups of the groups' mean scores; 0 where one of them is
    0."""
    means = ratios(drawn)
    with np.errstate(divide="ignore"):
        inverse = np.nansum(1 / means, axis=1)
    return np.asarray((~np.isnan(means)).sum(1) / inverse)

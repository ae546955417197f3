"""Rankings before and after a change to a model, query by query.

All numbers are of nDCG@10 over the queries whose evidence position is known. Intervals resample
documents, each with all its queries (curves/bootstrap.py); those of a change resample the same
queries before and after. The harmonic mean over position groups is by Michail et al. 2026 (arXiv
2606.02737), PSI by PosIR; here both use the same 20 bins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import SEED, Estimate, Values, ratios
from poslens.attribution.curves.proportions import mean_share
from poslens.attribution.evaluation.comparison import Comparison, paired, paired_statistics
from poslens.attribution.evaluation.evidence_profile import (
    bin_members,
    evidence_profile,
    psi_of_bins,
)
from poslens.attribution.evaluation.position_groups import (
    group_rows,
    harmonic_estimate,
    harmonic_of_groups,
)
from poslens.attribution.evaluation.recommendation import MARGIN

Scores = NDArray[np.floating]
Defined = TypeVar("Defined")

NO_MARGIN = 0.0
"""Two models are never equivalent in the harmonic mean or in PSI: a bin can have few queries, so
documents that are too rare to be in the sample could change either by almost 1."""


@dataclass(frozen=True, slots=True)
class Quality:
    """nDCG@10 of `n` queries and how evenly it is spread over evidence positions.

    `harmonic` is the harmonic mean over the nonempty bins: the worst bins weigh most. PSI and PSI
    under permutation are as in `EvidenceProfile`; PSI has no interval, because few queries per bin
    raise it.
    """

    n: int
    mean: Estimate
    harmonic: Estimate
    psi: float | None
    psi_under_permutation: float | None
    p: float | None

    def worse_on_both(self, other: Quality) -> bool:
        """Whether it has a higher PSI than `other`, and a lower nDCG@10 or harmonic mean."""
        if self.psi is None or other.psi is None or self.psi <= other.psi:
            return False
        return self.mean.value < other.mean.value or self.harmonic.value < other.harmonic.value


@dataclass(frozen=True, slots=True)
class Change:
    """After minus before, over the same queries. `psi` is None if it is undefined for one. The
    harmonic mean and PSI are never equivalent (NO_MARGIN)."""

    mean: Comparison
    harmonic: Comparison
    psi: Comparison | None


def quality(
    scores: Scores, positions: Sequence[float], documents: Sequence[Hashable]
) -> Quality | None:
    """How high scores [n] are and how even over the evidence's positions [n], each in [0, 1]; None
    without queries. Intervals resample `documents` [n]."""
    profile = evidence_profile(scores, positions, documents)
    if profile is None:
        return None
    rows = _rows(scores, positions)
    return Quality(
        len(scores),
        _some(mean_share(scores, documents)),
        _some(harmonic_estimate(rows, documents)),
        profile.psi,
        profile.psi_under_permutation,
        profile.p,
    )


def change(
    before: Scores, after: Scores, positions: Sequence[float], documents: Sequence[Hashable]
) -> Change | None:
    """What changed between two scores [n] of the same queries; None without queries."""
    if not len(before):
        return None
    rows = _rows(before, positions), _rows(after, positions)
    return Change(
        _some(paired(before, after, documents, MARGIN, largest=1.0)),
        _some(_seen(paired_statistics(*rows, documents, NO_MARGIN, harmonic_of_groups))),
        # A minimum over a maximum is not smooth.
        _seen(paired_statistics(*rows, documents, NO_MARGIN, _psi, kind="percentile")),
    )


def halves(documents: Sequence[Hashable]) -> NDArray[np.bool_]:
    """Which queries [n] belong to the half that a point is chosen on, by a digest of the ids of
    their `documents` [n] and the seed, so the order of documents doesn't matter. All queries of a
    document are in one half, because otherwise the other half is not independent."""

    def drawn(document: Hashable) -> bytes:
        return hashlib.sha256(f"{SEED}\0{document}".encode("utf-8", "replace")).digest()

    distinct = sorted(set(documents), key=drawn)
    chosen = set(distinct[: len(distinct) // 2])
    return np.array([document in chosen for document in documents], dtype=np.bool_)


def candidate(scores: Sequence[Scores], positions: Sequence[float]) -> int:
    """The point to test on held-out queries: the one whose scores [n] have the highest harmonic
    mean over position groups; the first among equals, so put the plain model first.

    Raises:
        ValueError: there is no point, or no query.
    """
    return int(np.argmax([harmonic_mean(score, positions) for score in scores]))


def harmonic_mean(scores: Scores, positions: Sequence[float]) -> float:
    """Harmonic mean over the nonempty bins of the bins' mean scores; 0 if one of them is 0."""
    return float(harmonic_of_groups(_rows(scores, positions).mean(0)[None])[0])


def _rows(scores: Scores, positions: Sequence[float]) -> Values:
    """`group_rows` [n, 40] of the 20 bins."""
    return group_rows(scores, bin_members(positions))


def _psi(means: Values) -> Values:
    return psi_of_bins(ratios(means))


def _seen(comparison: Comparison | None) -> Comparison | None:
    """The comparison, without an interval if no document differs: see NO_MARGIN."""
    if comparison is None or comparison.narrow != (0, 0):
        return comparison
    unbounded = replace(comparison.difference, low=None, high=None)
    return replace(comparison, difference=unbounded, narrow=None)


def _some(result: Defined | None) -> Defined:
    assert result is not None  # there are queries, and nDCG is finite
    return result

"""What a change to a model does to its rankings: before and after, query by query.

All numbers are of nDCG@10 over the queries whose evidence has a place. Intervals resample
documents, each with all its queries (curves/bootstrap.py); those of a change resample the same
queries before and after. Harmonic mean over position groups: Michail et al. 2026, arXiv 2606.02737;
PSI: PosIR; their groups are the same 20 bins here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import (
    SEED,
    Estimate,
    Statistic,
    Values,
    estimate,
    numbered,
)
from poslens.attribution.evaluation.evidence_profile import (
    N_EVIDENCE_BINS,
    evidence_bin,
    evidence_profile,
    psi_of_bins,
)
from poslens.attribution.evaluation.position_groups import (
    group_means,
    group_rows,
    harmonic_of_groups,
)
from poslens.attribution.evaluation.ranking_measures import NDCG

Scores = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Quality:
    """nDCG@10 of `n` queries and how evenly it is spread over the evidence's place.

    `harmonic` is the harmonic mean over the filled bins: the worst bins weigh most. PSI and what
    chance gives are as in `EvidenceProfile`; PSI has no interval of its own, since few queries a
    bin raise it.
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
    """After less before, over the same queries. `psi` is None where one of them has none."""

    mean: Estimate
    harmonic: Estimate
    psi: Estimate | None

    def measures(self) -> dict[str, tuple[Estimate | None, int]]:
        """Each measure by name, with the sign of an improvement: +1 where higher is better."""
        return {
            NDCG: (self.mean, 1),
            "the harmonic mean": (self.harmonic, 1),
            "PSI": (self.psi, -1),
        }

    def excluding_zero(self, direction: int) -> list[str]:
        """Measures whose interval lies on one side of 0: the better (+1) or the worse (-1)."""
        return [
            name
            for name, (found, sign) in self.measures().items()
            if found is not None
            and found.interval is not None
            and min(direction * sign * end for end in found.interval) > 0
        ]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a setting is recommended, and why in one sentence."""

    recommended: bool
    reason: str


def decide(held_out: Change, plain: Quality, changed: Quality) -> Decision:
    """Whether a setting chosen on other queries is better than the plain model.

    `held_out` is the paired change on the queries that it was not chosen on; `plain` and `changed`
    are both models' quality over all queries. A setting is recommended where the interval of the
    harmonic mean or of PSI excludes 0 on the better side, no interval excludes 0 on the worse side,
    and it is not worse over all queries in both PSI and nDCG@10, arithmetic or harmonic mean.
    """
    if held_out.harmonic.interval is None:
        return Decision(False, "Too few documents to decide.")
    if worse := held_out.excluding_zero(-1):
        return Decision(False, f"Worse on the held-out queries: {', '.join(worse)}.")
    better = [name for name in held_out.excluding_zero(1) if name != NDCG]
    if not better:
        return Decision(
            False, "The intervals of the harmonic mean and of PSI show no improvement there."
        )
    if changed.worse_on_both(plain):
        return Decision(False, f"Over all queries it is worse in both PSI and {NDCG}.")
    return Decision(True, f"Better on the held-out queries: {', '.join(better)}; nothing is worse.")


def quality(
    scores: Scores, positions: Sequence[float], documents: Sequence[Hashable]
) -> Quality | None:
    """How good and how even scores [n] are over the evidence's positions [n], each in [0, 1];
    None of no query. `documents` [n] are what intervals resample."""
    profile = evidence_profile(scores, positions, documents)
    if profile is None:
        return None
    rows = _rows(scores, positions)
    return Quality(
        len(scores),
        _some(estimate(np.asarray(scores)[:, None], documents)),
        _some(estimate(rows, documents, harmonic_of_groups)),
        profile.psi,
        profile.psi_under_permutation,
        profile.p,
    )


def change(
    before: Scores, after: Scores, positions: Sequence[float], documents: Sequence[Hashable]
) -> Change | None:
    """What changed between two scores [n] of the same queries; None of no query."""
    if not len(before):
        return None
    difference = (np.asarray(after, dtype=np.float64) - np.asarray(before))[:, None]
    rows = np.concatenate([_rows(before, positions), _rows(after, positions)], axis=1)
    return Change(
        _some(estimate(difference, documents)),
        _some(estimate(rows, documents, _less(harmonic_of_groups))),
        # A minimum over a maximum is not smooth.
        estimate(rows, documents, _less(_psi), kind="percentile"),
    )


def _less(statistic: Statistic) -> Statistic:
    """A statistic of the columns after less that of those before."""
    width = 2 * N_EVIDENCE_BINS
    return lambda means: statistic(means[:, width:]) - statistic(means[:, :width])


def halves(documents: Sequence[Hashable]) -> NDArray[np.bool_]:
    """Which queries [n] belong to the half that a point is chosen on; drawn at random, seeded. All
    queries of a document are on one side, or the other half would know it already."""
    index = numbered(documents)
    n = int(index.max()) + 1 if len(index) else 0
    chosen = np.zeros(n, dtype=np.bool_)
    chosen[np.random.default_rng(SEED).permutation(n)[: n // 2]] = True
    result: NDArray[np.bool_] = chosen[index]
    return result


def candidate(scores: Sequence[Scores], positions: Sequence[float]) -> int:
    """The point to test on held-out queries: the one whose scores [n] have the highest harmonic
    mean over position groups; the first among equals, so put the plain model first.

    Raises:
        ValueError: there is no point, or no query.
    """
    return int(np.argmax([harmonic_mean(one, positions) for one in scores]))


def harmonic_mean(scores: Scores, positions: Sequence[float]) -> float:
    """Harmonic mean over the filled bins of the bins' mean scores; 0 where one of them is 0."""
    return float(harmonic_of_groups(_rows(scores, positions).mean(0)[None])[0])


def _rows(scores: Scores, positions: Sequence[float]) -> Values:
    """`group_rows` [n, 40] of the 20 bins."""
    member = np.zeros((len(scores), N_EVIDENCE_BINS))
    member[np.arange(len(scores)), [evidence_bin(position) for position in positions]] = 1.0
    return group_rows(scores, member)


def _psi(means: Values) -> Values:
    return psi_of_bins(group_means(means))


def _some(found: Estimate | None) -> Estimate:
    assert found is not None  # there are queries, and nDCG is finite
    return found

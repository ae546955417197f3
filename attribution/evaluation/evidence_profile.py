"""nDCG@10 by the position of the evidence, and PSI, PosIR's position sensitivity index, with its
permutation test.

A query's score depends on its document. Queries of one document that share a bin are therefore
permuted as one block: permuting them separately would turn differences between documents into an
apparent position effect.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import SEED, Values, divided, numbered

N_EVIDENCE_BINS = 20
N_SHUFFLES = 999


@dataclass(frozen=True, slots=True)
class EvidenceProfile:
    """nDCG@10 over bins: 20 equal bins of the evidence's relative position (as in PosIR: bin b is
    b / 20 < r <= (b + 1) / 20, and r = 0 is in the first), or a benchmark's groups of queries.

    `means` [bins] is None for empty bins, `counts` [bins] are numbers of queries. `psi` is
    1 - min / max over nonempty bins; None if all means are 0 or only one bin is nonempty. It cannot
    be negative, so few queries per bin raise it without any bias: `psi_under_permutation` is its
    mean over 999 permutations of the positions, and `p` the share of permutations that reach `psi`
    (the data itself counts as one). Queries of one document in the same bin are permuted together.
    PSI has no bootstrap interval, because resampling would add the same noise again. `mean` is over
    queries; `mean_of_bins`, over nonempty bins, is what PosIR publishes for a length bucket. `read`
    [bins] is the mean share of the evidence that the model read in each bin, None if unknown: a bin
    scores lower if its evidence is past the context limit.
    """

    means: tuple[float | None, ...]
    counts: tuple[int, ...]
    psi: float | None
    psi_under_permutation: float | None
    p: float | None
    mean: float
    read: tuple[float | None, ...] = (None,) * N_EVIDENCE_BINS

    @property
    def n(self) -> int:
        """Queries with an evidence position, counted once in each of their bins."""
        return sum(self.counts)

    @property
    def n_empty(self) -> int:
        """Number of empty bins."""
        return sum(count == 0 for count in self.counts)

    @property
    def mean_read(self) -> float | None:
        """Mean share of the evidence that the model read, over queries."""
        measured = [(r, n) for r, n in zip(self.read, self.counts, strict=True) if r is not None]
        return sum(r * n for r, n in measured) / self.n if measured else None

    @property
    def mean_of_bins(self) -> float:
        """Mean over the nonempty bins."""
        return float(np.mean([mean for mean in self.means if mean is not None]))


def evidence_bin(position: float) -> int:
    """The bin, 0 to 19, of a relative position in [0, 1]."""
    return min(N_EVIDENCE_BINS - 1, max(0, math.ceil(position * N_EVIDENCE_BINS - 1e-9) - 1))


def bin_members(positions: Sequence[float]) -> Values:
    """1 in the bin of each relative position [n, 20], 0 elsewhere."""
    return np.eye(N_EVIDENCE_BINS)[[evidence_bin(position) for position in positions]]


def evidence_profile(
    values: NDArray[np.floating],
    positions: Sequence[float],
    documents: Sequence[Hashable] | None,
    read: Sequence[float] | None = None,
) -> EvidenceProfile | None:
    """nDCG@10 [n] by the evidence's relative position [n]; None without queries.

    `documents` [n] contain the evidence; None if each query has its own document. `read` [n] are
    the shares of the evidence that the model read, if known.
    """
    if not len(values):
        return None
    return profile_over(values, bin_members(positions), documents, read)


def profile_over(
    values: NDArray[np.floating],
    member: Values,
    documents: Sequence[Hashable] | None,
    read: Sequence[float] | None = None,
) -> EvidenceProfile:
    """nDCG@10 [n] by bin: `member` [n, bins] is 1 if a query counts in a bin. At least one query is
    required; the rest is as for `evidence_profile`."""
    scores = np.asarray(values, dtype=np.float64)
    counts = member.sum(0)
    means = divided(scores @ member, counts)
    psi = float(psi_of_bins(means[None])[0]) if (counts > 0).sum() > 1 else np.nan
    shares = np.asarray([] if read is None else read, dtype=np.float64)
    chance, p = None, None
    if np.isfinite(psi):
        by_chance = _permuted(scores, member, documents)
        chance = float(by_chance.mean())
        p = float(1 + (by_chance >= psi - 1e-12).sum()) / (1 + N_SHUFFLES)
    return EvidenceProfile(
        tuple(None if np.isnan(mean) else float(mean) for mean in means),
        tuple(int(count) for count in counts),
        psi if np.isfinite(psi) else None,
        chance,
        p,
        float(scores.mean()),
        tuple(
            float(shares[column > 0].mean()) if len(shares) and column.any() else None
            for column in member.T
        ),
    )


def _permuted(scores: Values, member: Values, documents: Sequence[Hashable] | None) -> Values:
    """PSI [N_SHUFFLES] after permuting scores [n] among the rows of `member` [n, bins] (seeded).

    A block is all queries of one document that count in the same bins. A permutation moves each
    block, with all its scores, to the bins of another.
    """
    document_of = range(len(scores)) if documents is None else documents
    inside = (tuple(np.flatnonzero(row).tolist()) for row in member)
    block = numbered(list(zip(document_of, inside, strict=True)))
    firsts = np.unique(block, return_index=True)[1]
    sizes = np.bincount(block).astype(np.float64)
    sums, bins = np.bincount(block, scores), member[firsts]
    return np.concatenate(
        [
            psi_of_bins(divided(sums[order] @ bins, sizes[order] @ bins))
            for order in _orders(len(sums))
        ]
    )


def _orders(n: int) -> Iterator[NDArray[np.int64]]:
    """N_SHUFFLES permutations of n blocks (seeded), in portions [m, n] of 64 MiB at most."""
    generator = np.random.default_rng(SEED)
    at_once = max(1, 8_000_000 // n)
    for start in range(0, N_SHUFFLES, at_once):
        drawn = (generator.permutation(n) for _ in range(min(at_once, N_SHUFFLES - start)))
        yield np.array(list(drawn))


def psi_of_bins(means: Values) -> Values:
    """1 - min / max of each row [r, bins]; NaN where the largest mean is 0."""
    low, high = np.nanmin(means, axis=1), np.nanmax(means, axis=1)
    return 1 - divided(low, high)

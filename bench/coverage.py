"""How often do 95% intervals contain the true value, and how often is p at most 0.05 by chance?

    python -m bench.coverage [--rounds 1000]

The population is the 68 documents of the bundled sample, each with all its pairs; the statistics
are computed from the included results. Each round draws documents with replacement, computes the
interval over them and compares it with the statistic of the population. Three populations of
simulated documents are normal and strongly skewed (log-normal) with 1 to 9 pairs each, and normal
with very different numbers of pairs.
`percentile` is the plain percentile interval of the same resamples.

The second table has simulated data sets in which position has no effect: 68 documents of different
difficulty, 5 queries each. It shows the share with p <= 0.05 in PSI's permutation test, which
permutes the queries of one document in the same bin together, and in one that permutes each query.

The third table has simulated differences with mean 0, one per document except in its last row. It
shows the share with p < 0.05: by the BCa bootstrap, and by Student's t, which PosLens uses.

The fourth table has simulated losses whose mean is MARGIN. It shows how often a loss of MARGIN is
ruled out: by the 90% BCa interval, and by PosLens.

The fifth table has simulated effects, whose size increases by SIZE_MARGIN. It shows how often such
an increase is ruled out: by the 90% percentile interval of the difference of sizes, and by PosLens.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.options import run
from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import (
    SEED,
    Kind,
    Statistic,
    Values,
    estimate,
    interval,
    numbered,
    p_value,
    ratios,
)
from poslens.attribution.curves.curve_summary import primacy_recency_index
from poslens.attribution.curves.positions import rank_correlations, resample
from poslens.attribution.evaluation.comparison import paired
from poslens.attribution.evaluation.evidence_profile import (
    bin_members,
    evidence_profile,
    psi_of_bins,
)
from poslens.attribution.evaluation.position_groups import (
    group_rows,
    harmonic_of_groups,
)
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.evaluation.sizes import paired_sizes
from poslens.attribution.interventions.agreement import N_GRID
from poslens.attribution.interventions.null_controls import shape_distance
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import N_BINS
from poslens.compute.compute import Compute
from poslens.studies.curves import null_controls
from poslens.studies.ranking import service as rankings

SIZES = (10, 12, 20, 30, 60)
MODELS = ("MiniLM", "MiniLM-primacy", "MiniLM-recency")
QUERIES = 5
MARGIN = 0.01
SIZE_MARGIN = 0.05
LOSERS = (0.02, 0.05, 0.1, 0.2, 0.3)
Null = tuple[Values, NDArray[np.int64]]


@dataclass(frozen=True)
class Population:
    """Rows [n, K] of pairs, the documents [n] to which they belong, and a statistic of the mean
    row."""

    name: str
    rows: Values
    documents: NDArray[np.int64]
    statistic: Statistic
    kind: Kind = "bca"

    def covered(self, n: int, rounds: int, generator: np.random.Generator) -> tuple[float, ...]:
        """Share of rounds in which the interval over `n` documents contains the true value: for the
        percentile interval, and for that of PosLens."""
        true = self.statistic(self.rows.mean(0)[None])[0]
        order = np.argsort(self.documents, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(self.documents))[:-1])
        drawn: list[Values] = []

        def watched(means: Values) -> Values:
            drawn.append(self.statistic(means))
            return drawn[-1]

        hits = np.zeros((rounds, 2))
        for hit in hits:
            chosen = generator.integers(len(parts), size=n)
            rows = np.concatenate([parts[k] for k in chosen])
            groups = np.repeat(np.arange(n), [len(parts[k]) for k in chosen]).tolist()
            drawn.clear()
            interval = estimate(self.rows[rows], groups, watched, kind=self.kind)
            low, high = np.nanpercentile(max(drawn, key=len), [2.5, 97.5])
            hit[0] = low <= true <= high
            hit[1] = interval is not None and interval.interval is not None
            if interval is not None and interval.interval is not None:
                hit[1] = interval.interval[0] <= true <= interval.interval[1]
        return tuple(hits.mean(0).tolist())


def first_column(means: Values) -> Values:
    """The mean of the first column [B]."""
    return means[:, 0]


def index_difference(means: Values) -> Values:
    """The index of the first 100 columns minus that of the others."""
    return primacy_recency_index(means[:, :N_BINS]) - primacy_recency_index(means[:, N_BINS:])


def psi_change(means: Values) -> Values:
    """PSI of one model minus that of another."""
    values, other = (psi_of_bins(ratios(side)) for side in np.split(means, 2, axis=1))
    return values - other


def rank_agreement(means: Values) -> Values:
    """Rank correlation of two mean curves at N_GRID positions."""
    return rank_correlations(means[:, :N_GRID], means[:, N_GRID:])


def populations(compute: Compute) -> Iterator[Population]:
    """The populations of the first table."""
    data = datasets.read(datasets.SAMPLE)
    setup = rankings.RankingSetup(rankings.collection_of(data))
    of_queries = numbered([query.document for query in setup.queries])
    scores = {}
    for name in MODELS:
        ranked = rankings.ranked(compute, resolve(name), setup)
        assert ranked is not None  # it ships
        scores[name] = np.asarray(ranked.evaluation.per_query[NDCG], np.float64)[:, None]
    for name in MODELS[:2]:
        yield Population(f"nDCG@10, {name}", scores[name], of_queries, first_column)
    difference = scores["MiniLM"] - scores["MiniLM-recency"]
    yield Population("nDCG@10, difference of two models", difference, of_queries, first_column)
    positions = [query.evidence or 0.0 for query in setup.queries]
    member = bin_members(positions)
    sides = [group_rows(scores[name][:, 0], member) for name in ("MiniLM", "MiniLM-recency")]
    yield Population("harmonic mean of nDCG@10", sides[0], of_queries, harmonic_of_groups)
    both = np.concatenate(sides, axis=1)
    yield Population("PSI, difference of two models", both, of_queries, psi_change, "percentile")
    document = {pair.pair_id: pair.document for pair in data.pairs}
    method, magnitudes = make_method("saliency"), {}
    for name in MODELS:
        key = compute.identify(resolve(name)).key
        curves = compute.store.curves(key, method, list(data.pairs))
        of_pairs = numbered([document[pair_id] for pair_id in curves.pair_ids])
        magnitudes[name] = np.asarray(curves.magnitudes, np.float64)
        yield Population(f"index, {name}", magnitudes[name], of_pairs, primacy_recency_index)
    both = np.concatenate([magnitudes["MiniLM"], magnitudes["MiniLM-primacy"]], axis=1)
    yield Population("index, difference of two models", both, of_pairs, index_difference)
    coarse = [
        np.array([resample(row, "bin_mean", N_GRID) for row in magnitudes[name]])
        for name in ("MiniLM", "MiniLM-primacy")
    ]
    both = np.concatenate(coarse, axis=1)
    yield Population(
        "rank correlation of two mean curves", both, of_pairs, rank_agreement, "percentile"
    )
    key = compute.identify(resolve("MiniLM")).key
    nulls = null_controls.controls("unrelated", data.pairs, data.pairs)
    original, null = (compute.store.curves(key, method, list(some)) for some in (data.pairs, nulls))
    both = np.concatenate([original.curves, null.curves], axis=1, dtype=np.float64)
    yield Population("distance from a control", both, of_pairs, shape_distance, "upper")
    generator = np.random.default_rng(SEED)
    n = 20_000
    documents = np.repeat(np.arange(n), generator.integers(1, 10, n))
    for name, levels in (
        ("mean, normal", generator.normal(0, 1, n)),
        ("mean, log-normal", generator.lognormal(0, 1, n)),
    ):
        yield Population(name, levels[documents][:, None], documents, first_column)
    documents = uneven_documents(n, generator)
    levels = generator.normal(0, 1, n)[documents][:, None]
    yield Population("mean, normal, uneven documents", levels, documents, first_column)


def uneven_documents(n: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Documents of pairs: half of the documents have 1 to 3 pairs, one of 40 has 28 or more."""
    return np.repeat(np.arange(n), np.ceil(generator.lognormal(1.0, 1.2, n)).astype(np.int64))


def apart(generator: np.random.Generator) -> Null:
    """A position of its own for each query."""
    return generator.random(68 * QUERIES), np.repeat(np.arange(68), QUERIES)


def shared(generator: np.random.Generator) -> Null:
    """One position for all queries of a document."""
    return np.repeat(generator.random(68), QUERIES), np.repeat(np.arange(68), QUERIES)


def half(generator: np.random.Generator) -> Null:
    """Three of a document's queries share a position."""
    positions = generator.random((68, QUERIES))
    positions[:, 1:3] = positions[:, :1]
    return positions.ravel(), np.repeat(np.arange(68), QUERIES)


def uneven(generator: np.random.Generator) -> Null:
    """One position for all queries of a document, which has 1 to 9."""
    documents = np.repeat(np.arange(68), generator.integers(1, 10, 68))
    return generator.random(68)[documents], documents


def false_alarms(make: Callable[[np.random.Generator], Null], rounds: int) -> tuple[float, float]:
    """Share of null data sets with p <= 0.05: each query permuted, and documents as blocks."""
    generator, hits = np.random.default_rng(SEED), np.zeros((rounds, 2))
    for hit in hits:
        positions, documents = make(generator)
        noise = generator.normal(0, 0.7, len(documents))
        scores = 1 / (1 + np.exp(-1 - 1.5 * generator.normal(0, 1, 68)[documents] - noise))
        for k, groups in enumerate((None, documents.tolist())):
            profile = evidence_profile(scores, positions.tolist(), groups)
            hit[k] = profile is not None and profile.p is not None and profile.p <= 0.05
    each, blocks = hits.mean(0).tolist()
    return each, blocks


def differing(n: int, generator: np.random.Generator) -> Values:
    """nDCG@10, one of eight queries differs"""
    sizes = generator.choice([0.06, 0.13, 0.37, 0.5, 0.63], n) * generator.choice([-1, 1], n)
    return np.where(generator.random(n) < 1 / 8, sizes, 0.0)


def normal(n: int, generator: np.random.Generator) -> Values:
    """normal"""
    return generator.normal(size=n)


def skewed(n: int, generator: np.random.Generator) -> Values:
    """log-normal"""
    return np.asarray(generator.lognormal(size=n) - np.exp(0.5))


def wrong_verdicts(
    draw: Callable[[int, np.random.Generator], Values], n: int, rounds: int, by_pairs: bool = False
) -> tuple[float, float]:
    """Share of differences of n documents with mean 0 that count as an effect: those whose 95% BCa
    interval excludes 0, and those with p < 0.05. Each document has one pair, or very different
    numbers of equal pairs if `by_pairs`."""
    generator, hits = np.random.default_rng(SEED), np.zeros((rounds, 2))
    for hit in hits:
        documents = uneven_documents(n, generator) if by_pairs else np.arange(n)
        differences, groups = draw(n, generator)[documents][:, None], documents.tolist()
        ends, p = interval(differences, groups, first_column), p_value(differences, groups)
        hit[:] = [ends is not None and (ends[0] > 0 or ends[1] < 0), p is not None and p < 0.05]
    by_interval, by_p = hits.mean(0).tolist()
    return by_interval, by_p


Losses = Callable[[int, np.random.Generator], Values]


def losses_of(share: float) -> Losses:
    """This share of the documents loses, by exponentially distributed amounts up to 1."""

    def draw(n: int, generator: np.random.Generator) -> Values:
        amounts = np.minimum(generator.exponential(MARGIN / share, n), 1.0)
        return np.where(generator.random(n) < share, amounts, 0.0)

    return draw


def mixed_losses(share: float) -> Losses:
    """Half of the mean is from small losses of this share of the documents, the other half from
    total ones."""

    def draw(n: int, generator: np.random.Generator) -> Values:
        small = np.where(generator.random(n) < share, MARGIN / 2 / share, 0.0)
        return np.where(generator.random(n) < MARGIN / 2, 1.0, small)

    return draw


def ruled_out(losses: Losses, n: int, rounds: int) -> tuple[float, float]:
    """Share of draws of n documents in which a loss of MARGIN is ruled out, by the interval and by
    PosLens."""
    generator = np.random.default_rng(SEED)
    counts = np.zeros(2)
    for _ in range(rounds):
        change = -losses(n, generator)
        for number, largest in enumerate((None, 1.0)):
            compared = paired(np.zeros(n), change, None, MARGIN, largest)
            counts[number] += compared is not None and compared.rules_out("lower")
    of_interval, of_poslens = counts / rounds
    return float(of_interval), float(of_poslens)


def increase_ruled_out(
    before: float, correlation: float, n: int, rounds: int
) -> tuple[float, float]:
    """Share of draws of n documents in which an increase of an effect's size from `before` by
    SIZE_MARGIN is ruled out, by the interval of the difference of sizes and by PosLens; effects of
    documents have SD 0.2 and this correlation between before and after."""
    generator = np.random.default_rng(SEED)
    counts = np.zeros(2)
    for _ in range(rounds):
        shared, *own = np.sqrt([[correlation], [1 - correlation], [1 - correlation]]) * (
            generator.standard_normal((3, n))
        )
        old, new = before + 0.2 * (shared + own[0]), before + SIZE_MARGIN + 0.2 * (shared + own[1])
        ends = interval(np.stack([old, new], 1), None, sizes_apart, kind="percentile", level=0.9)
        compared = paired_sizes(old, new, None, SIZE_MARGIN)
        counts[0] += ends is not None and ends[1] <= SIZE_MARGIN
        counts[1] += compared is not None and compared.rules_out("higher")
    of_interval, of_poslens = counts / rounds
    return float(of_interval), float(of_poslens)


def sizes_apart(means: Values) -> Values:
    """The size of the second mean minus that of the first."""
    return np.asarray(np.abs(means[:, 1]) - np.abs(means[:, 0]))


def main(rounds: int = 1000) -> None:
    """Print the five tables."""
    os.environ["POSLENS_SHIPPED"] = "yes"
    print(f"Coverage of 95% intervals, {rounds:,} rounds: percentile / PosLens\n")
    print("| documents | " + " | ".join(map(str, SIZES)) + " |")
    print("|---" * (1 + len(SIZES)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for population in populations(Compute(Path(folder))):
            generator = np.random.default_rng(SEED)
            cells = (population.covered(n, rounds, generator) for n in SIZES)
            words = (" / ".join(format(share, ".3f") for share in cell) for cell in cells)
            print(f"| {population.name} | " + " | ".join(words) + " |", flush=True)
    print(f"\np <= 0.05 without a position effect, {rounds:,} data sets\n")
    print("| queries of a document | each query | documents as blocks |\n|---|---|---|")
    for make in (apart, half, shared, uneven):
        each, blocks = false_alarms(make, rounds)
        print(f"| {str(make.__doc__).rstrip('.')} | {each:.3f} | {blocks:.3f} |", flush=True)
    print(f"\np < 0.05 for differences with mean 0, {rounds:,} data sets: BCa interval / p\n")
    print("| documents | " + " | ".join(map(str, SIZES)) + " |")
    print("|---" * (1 + len(SIZES)) + "|")
    for draw, by_pairs in ((normal, False), (differing, False), (skewed, False), (normal, True)):
        cells = (wrong_verdicts(draw, n, rounds, by_pairs) for n in SIZES)
        words = (" / ".join(format(share, ".3f") for share in cell) for cell in cells)
        name = f"{draw.__doc__}{', uneven documents' if by_pairs else ''}"
        print(f"| {name} | " + " | ".join(words) + " |", flush=True)
    print(f"\nA loss of {MARGIN:g} ruled out, {rounds:,} data sets: BCa interval / PosLens\n")
    sizes = (34, 68, 150, 300, 600)
    print("| documents that lose | " + " | ".join(map(str, sizes)) + " |")
    print("|---" * (1 + len(sizes)) + "|")
    for name, losses in (
        *((f"{share:.0%}", losses_of(share)) for share in LOSERS),
        ("50% lose 0.01, 0.5% lose 1", mixed_losses(0.5)),
        ("10% lose 0.05, 0.5% lose 1", mixed_losses(0.1)),
        ("5% lose 0.1, 0.5% lose 1", mixed_losses(0.05)),
    ):
        cells = (ruled_out(losses, n, rounds) for n in sizes)
        words = (" / ".join(format(part, ".3f") for part in cell) for cell in cells)
        print(f"| {name} | " + " | ".join(words) + " |", flush=True)
    print(
        f"\nAn increase of {SIZE_MARGIN:g} ruled out, {rounds:,} data sets: percentile / PosLens\n"
    )
    print("| effect before, correlation | " + " | ".join(map(str, (30, 60, 100))) + " |")
    print("|---" * 4 + "|")
    for before, correlation in ((0.0, 0.5), (0.0, 0.9), (0.05, 0.9), (0.1, 0.9), (0.2, 0.9)):
        cells = (increase_ruled_out(before, correlation, n, rounds) for n in (30, 60, 100))
        words = (" / ".join(format(part, ".3f") for part in cell) for cell in cells)
        print(f"| {before:g}, {correlation:g} | " + " | ".join(words) + " |", flush=True)


if __name__ == "__main__":
    run(main)

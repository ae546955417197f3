"""Tables about benchmarks: whether two of them order models alike, and where a data set's evidence
is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads scipy.stats at its first use

from poslens.attribution.curves.bootstrap import SEED
from poslens.attribution.curves.positions import LENGTH_BUCKETS, length_bucket
from poslens.attribution.datasets.corpus import Collection, Query
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.evidence_profile import N_EVIDENCE_BINS, evidence_bin
from poslens.attribution.evaluation.ranking_measures import NDCG, SUCCESS, SUCCESS_OF_PAIRS
from poslens.attribution.nouns import counted
from poslens.attribution.types import Provenance
from poslens.compute.provenance import of_data
from poslens.studies.ranking.rows import AgreementRow, EvidenceRow, PoolRow
from poslens.studies.ranking.service import Measured

FEWEST = 3
"""Minimum number of models, because two are always ordered alike or in reverse."""

N_PERMUTATIONS = 9999
OVERALL = "all lengths"


def agreement_rows(summaries: Sequence[Measured]) -> Iterator[AgreementRow]:
    """Spearman's correlation of the order of models on two data sets, for each measure. Models are
    matched by name; the first ranking is of the first data set.

    Raises:
        UserError: there are fewer than three models.
    """
    dataset = summaries[0].collection.name
    rankings = [measured for measured in summaries if measured.collection.name == dataset]
    against = [measured for measured in summaries if measured.collection.name != dataset]
    require_order(len(rankings))
    others = {measured.name: measured for measured in against}
    for measure in rankings[0].evaluation.estimates:
        values = {m.name: m.evaluation.estimates[measure].value for m in rankings}
        values_against = {n: others[n].evaluation.estimates[measure].value for n in values}
        spearman, p = _spearman(list(values.values()), list(values_against.values()))
        yield AgreementRow(
            measure,
            dataset,
            against[0].collection.name,
            len(values),
            spearman,
            p,
            _order(values),
            _order(values_against),
        )


def require_order(n: int) -> None:
    """Check that n models have an order.

    Raises:
        UserError: they are too few.
    """
    if n < FEWEST:
        raise UserError(f"{counted(n, 'model')} can't show an order: compare at least {FEWEST}.")


def _spearman(x: Sequence[float], y: Sequence[float]) -> tuple[float | None, float | None]:
    """Correlation and its permutation p, two-sided; exact for up to seven models. None if all
    models are equal in one of them."""
    first, second = scipy.stats.rankdata(x), scipy.stats.rankdata(y)
    if not np.ptp(first) or not np.ptp(second):
        return None, None
    test = scipy.stats.permutation_test(
        (first,),
        lambda order: np.corrcoef(order, second)[0, 1],
        permutation_type="pairings",
        n_resamples=N_PERMUTATIONS,
        rng=np.random.default_rng(SEED),
    )
    return float(test.statistic), float(test.pvalue)


def _order(values: Mapping[str, float]) -> str:
    return " > ".join(sorted(values, key=lambda name: -values[name]))


def pools(collection: Collection) -> list[Collection]:
    """The collection over growing pools of its documents, each contained in the next: all relevant
    documents, and as many random others as make the pool 1/16, 1/8, 1/4, 1/2 and all of the corpus.
    """
    relevant = frozenset(key for query in collection.queries for key in query.relevant)
    total = collection.survey.n
    sizes = {max(total // part, min(len(relevant), total)) for part in _PARTS}
    return [collection.sampled_documents(size, SEED, relevant) for size in sorted(sizes)]


_PARTS = (16, 8, 4, 2, 1)


def pool_rows(measured: Measured) -> Iterator[PoolRow]:
    """A model's measures over one pool."""
    estimates = measured.evaluation.estimates
    yield PoolRow(
        measured.name,
        measured.collection.survey.n,
        measured.evaluation.n,
        estimates[SUCCESS_OF_PAIRS],
        estimates[SUCCESS],
        estimates[NDCG],
    )


def lengths_of(query: Query) -> list[str]:
    """The lengths under which a query counts: all, and its document's length bucket if known."""
    tokens = query.document_tokens
    return [OVERALL, length_bucket(tokens)] if tokens else [OVERALL]


def evidence_rows(collection: Collection) -> list[EvidenceRow]:
    """Queries by the position of their evidence in 20 bins, for all lengths and for each length
    bucket that has any.

    Raises:
        UserError: the data set does not say where its evidence is.
    """
    counts: dict[str, list[int]] = {}
    for query in collection.queries:
        if query.evidence is not None:
            for length in lengths_of(query):
                in_bins = counts.setdefault(length, [0] * N_EVIDENCE_BINS)
                in_bins[evidence_bin(query.evidence)] += 1
    if not counts:
        raise UserError(f"{collection.title} has no evidence positions: choose another data set.")
    return [
        EvidenceRow(length, number, (number + 0.5) / N_EVIDENCE_BINS, n, n / sum(counts[length]))
        for length in (OVERALL, *LENGTH_BUCKETS)
        if length in counts
        for number, n in enumerate(counts[length])
    ]


@dataclass(frozen=True)
class EvidencePositions:
    """A collection whose evidence is located; no model ranks it."""

    collection: Collection

    def provenance(self) -> Provenance:
        return of_data(
            self.collection.name,
            "mid-point of the evidence relative to the document's characters, 20 bins",
            n_queries=sum(query.evidence is not None for query in self.collection.queries),
        )

"""Tables of rankings: measures, PSI, groups of queries, single queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import pandas as pd

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.positions import LENGTH_BUCKETS, length_bucket
from poslens.attribution.datasets.corpus import Collection, Query
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.evidence_profile import EvidenceProfile, evidence_profile
from poslens.attribution.evaluation.ranking_measures import (
    CUTOFF_MEASURES,
    NDCG,
    SUCCESS,
    TOP,
    success,
    success_of_pairs,
)
from poslens.paired import DIFFERENCES
from poslens.rows import Table
from poslens.studies.ranking.benchmarks import (
    OVERALL,
    agreement_rows,
    evidence_rows,
    lengths_of,
    pool_rows,
)
from poslens.studies.ranking.rows import (
    AgreementRow,
    BinsRow,
    EvidenceRow,
    GroupsRow,
    LanguagesRow,
    MeasuresRow,
    PoolRow,
    PositionsRow,
    PsiRow,
    PsiStratumRow,
    QueriesRow,
    QueryDifferenceRow,
    SplitRow,
)
from poslens.studies.ranking.service import Measured

READ_WHOLE = "read whole"
_STRATA: Mapping[str, Callable[[Query], str | None]] = {
    "language": lambda query: query.language,
    "domain": lambda query: query.part.rpartition("/")[2],
}
"""How queries are grouped in the table of PSI by stratum; queries without a value are left out."""

_LENGTH_EDGES = (50, 100, 200, 500, 1000)
_LENGTHS = (
    *(f"({low},{high}]" for low, high in pairwise((0, *_LENGTH_EDGES))),
    f"({_LENGTH_EDGES[-1]},inf)",
)
"""Lengths of queries in characters."""

_Row = TypeVar("_Row", bound=PsiRow)


def _measures(measured: Measured) -> Iterator[MeasuresRow]:
    evaluation, collection = measured.evaluation, measured.collection
    bias = evaluation.language
    yield MeasuresRow(
        measured.name,
        evaluation.n,
        collection.survey.n,
        evaluation.estimates[NDCG].n_resampled,
        evaluation.n_missing,
        collection.survey.own_ids,
        collection.n_lost,
        evaluation.estimates,
        None if bias is None else bias.share,
        None if bias is None else bias.expected,
        evaluation.n_missing,
    )


def _languages(measured: Measured) -> Iterator[LanguagesRow]:
    queries = measured.setup.queries
    for language in measured.collection.languages:
        at = [n for n, query in enumerate(queries) if query.language == language]
        if at:
            yield LanguagesRow(measured.name, language, *_success(measured, at))


def _success(measured: Measured, at: list[int]) -> tuple[int, int, Estimate, Estimate, float]:
    """Numbers of the queries `at` and of their pairs, S@10 per pair and per query, nDCG@10."""
    per_query = measured.evaluation.per_query
    asked = [measured.setup.queries[n] for n in at]
    return (
        len(asked),
        sum(len(query.relevant) for query in asked),
        success_of_pairs(measured.rankings, asked),
        success(per_query[SUCCESS][at], asked),
        float(per_query[NDCG][at].mean()),
    )


def _splits(measured: Measured) -> Iterator[SplitRow]:
    """By length of the query, then by the data set's own properties."""
    members: dict[tuple[str, str], list[int]] = {}
    for number, query in enumerate(measured.setup.queries):
        at = sum(len(query.text) > edge for edge in _LENGTH_EDGES)
        for split in (("length", _LENGTHS[at]), *query.splits):
            members.setdefault(split, []).append(number)

    def order(split: tuple[str, str]) -> tuple[int, str, int, str]:
        by, value = split
        is_length = by == "length"
        return (0 if is_length else 1, by, _LENGTHS.index(value) if is_length else 0, value)

    for by, value in sorted(members, key=order):
        yield SplitRow(measured.name, by, value, *_success(measured, members[by, value]))


def _profiles(measured: Measured) -> Iterator[tuple[str, EvidenceProfile]]:
    """The profiles of all queries, of those whose evidence the model reads completely, and of
    the length buckets."""
    evaluation = measured.evaluation
    for length, profile in (
        (OVERALL, evaluation.profile),
        (READ_WHOLE, evaluation.read_whole),
        *evaluation.buckets.items(),
    ):
        if profile is not None:
            yield length, profile


def _psi(measured: Measured) -> Iterator[PsiRow]:
    for length, profile in _profiles(measured):
        yield _psi_row(PsiRow, measured, length, profile)


def _psi_row(
    row: Callable[..., _Row],
    measured: Measured,
    length: str,
    profile: EvidenceProfile,
    *stratum: str,
) -> _Row:
    return row(
        measured.name,
        length,
        profile.psi,
        profile.psi_under_permutation,
        profile.p,
        profile.n,
        profile.mean_read,
        profile.n_empty,
        profile.mean,
        profile.mean_of_bins,
        *stratum,
    )


def _psi_strata(measured: Measured) -> Iterator[PsiStratumRow]:
    """By language, then by domain; of each stratum all lengths first, then its length buckets."""
    scores, read = measured.evaluation.per_query[NDCG], measured.read
    order = (OVERALL, *LENGTH_BUCKETS)
    for by, stratum_of in _STRATA.items():
        members: dict[tuple[str, str], list[tuple[int, Query, float]]] = {}
        for number, query in enumerate(measured.setup.queries):
            if query.evidence is None or not (stratum := stratum_of(query)):
                continue
            for length in lengths_of(query):
                members.setdefault((stratum, length), []).append((number, query, query.evidence))
        for stratum, length in sorted(members, key=lambda key: (key[0], order.index(key[1]))):
            numbers, queries, positions = zip(*members[stratum, length], strict=True)
            all_read = all(query.query_id in read for query in queries)
            profile = evidence_profile(
                scores[list(numbers)],
                positions,
                [query.document for query in queries],
                [read[query.query_id] for query in queries] if all_read else None,
            )
            if profile is not None:
                yield _psi_row(PsiStratumRow, measured, length, profile, by, stratum)


def _bins(measured: Measured) -> Iterator[BinsRow]:
    for length, profile in _profiles(measured):
        for number, (mean, n) in enumerate(zip(profile.means, profile.counts, strict=True)):
            position = (number + 0.5) / len(profile.means)
            read = profile.read[number]
            yield BinsRow(measured.name, length, number, position, n, read, mean)


def _groups(measured: Measured) -> Iterator[GroupsRow]:
    require_groups(measured.collection)
    if (by_group := measured.by_group) is not None:
        for group, read in zip(by_group.measures, by_group.profile.read, strict=True):
            measures = {name: group.measures.get(name) for name in CUTOFF_MEASURES}
            yield GroupsRow(measured.name, group.name, group.n, group.n_documents, read, measures)


def _positions(measured: Measured) -> Iterator[PositionsRow]:
    require_groups(measured.collection)
    if (by_group := measured.by_group) is not None:
        profile = by_group.profile
        yield PositionsRow(
            measured.name,
            measured.evaluation.n - by_group.n_outside,
            dict(zip(by_group.groups.names, profile.means, strict=True)),
            {group.name: group.measures.get(NDCG) for group in by_group.measures},
            profile.psi,
            profile.psi_under_permutation,
            profile.p,
            profile.mean,
            by_group.harmonic,
            profile.mean_read,
            by_group.n_outside,
        )


def _queries(measured: Measured) -> Iterator[QueriesRow]:
    for number, query in enumerate(measured.setup.queries):
        yield QueriesRow(
            query.text,
            float(measured.evaluation.per_query[NDCG][number]),
            first_rank(measured, query),
            query.evidence,
            length_bucket(query.document_tokens) if query.document_tokens else None,
            query.language,
            query.query_id,
            measured.name,
        )


def _query_differences(summaries: Sequence[Measured]) -> Iterator[QueryDifferenceRow]:
    """The second ranking compared with the first, in descending order of the absolute difference.

    Raises:
        UserError: there are not exactly two rankings of the same queries.
    """
    queries = [list(_queries(measured)) for measured in summaries]
    if len(queries) != 2 or [row.id for row in queries[0]] != [row.id for row in queries[1]]:
        raise UserError("Differences by query need exactly two rankings of the same queries.")
    rows = (
        QueryDifferenceRow(
            second.model,
            first.model,
            second.query,
            second.ndcg,
            first.ndcg,
            second.ndcg - first.ndcg,
            second.rank,
            first.rank,
            second.position,
            second.length,
            second.language,
            second.id,
        )
        for first, second in zip(*queries, strict=True)
    )
    yield from sorted(rows, key=lambda row: -abs(row.difference))


OF_NDCG = ("measures", "psi", "psi_strata", "bins", "queries", "query_differences", DIFFERENCES)
"""Tables of nDCG@10 by query or by position of its evidence."""
BY_GROUP = ("groups", "positions")
"""Tables of data sets with groups of queries."""

TABLES: Mapping[str, Table[Any]] = {
    "measures": Table(MeasuresRow, _measures),
    "psi": Table(PsiRow, _psi, "Position sensitivity index (PSI) by document length"),
    "psi_strata": Table(PsiStratumRow, _psi_strata, "PSI by language and domain", on_page=False),
    "bins": Table(BinsRow, _bins, "By evidence position", on_page=False),
    "queries": Table(QueriesRow, _queries, "By query", on_page=False),
    "languages": Table(LanguagesRow, _languages, "By query language"),
    "splits": Table(SplitRow, _splits, "By query length, year and platform", on_page=False),
    "groups": Table(GroupsRow, _groups, "Each measure of each group of queries", on_page=False),
    "positions": Table(PositionsRow, _positions, "nDCG@10 by group of queries, PSI, harmonic mean"),
    "query_differences": Table(
        QueryDifferenceRow, _query_differences, "Two rankings by query", on_page=False, joint=True
    ),
    "pools": Table(PoolRow, pool_rows, "S@10 over growing pools of documents", on_page=False),
    "agreement": Table(
        AgreementRow, agreement_rows, "Order of models on two data sets", on_page=False, joint=True
    ),
    "evidence": Table(
        EvidenceRow,
        lambda summaries: evidence_rows(summaries[0].collection),
        "Evidence positions; ranks nothing",
        on_page=False,
        joint=True,
    ),
}
"""Every table by name. All but those of evidence positions are of measured rankings."""

FAILED, LATE = "not in the top 10", "evidence in the last third"
FILTERS: Mapping[str, Callable[[pd.DataFrame], pd.Series]] = {
    FAILED: lambda frame: frame["rank"].isna() | (frame["rank"] > TOP),
    LATE: lambda frame: frame["position"] > 2 / 3,
    "evidence in the first third": lambda frame: frame["position"] < 1 / 3,
}
"""Filters of a table of queries: which of its rows pass."""


def require_groups(collection: Collection) -> None:
    """Check that a table of groups of queries is possible.

    Raises:
        UserError: the collection has no groups.
    """
    if collection.groups is None:
        raise UserError(
            f"{collection.title} has no groups of queries: use a data set in the layout of SQuAD "
            "or FineWeb-PosQ, or choose another table."
        )


def filtered(frame: pd.DataFrame, filters: Sequence[str]) -> pd.DataFrame:
    """The rows of a table of queries that pass all of `filters`."""
    for name in filters:
        frame = frame[FILTERS[name](frame)]
    return frame


def first_rank(measured: Measured, query: Query) -> int | None:
    """Rank, from 1, of the first relevant document; None if none was retrieved."""
    ranking = measured.by_query[query.query_id]
    ranks = (r for r, key in enumerate(ranking.document_ids, 1) if key in query.relevant)
    return next(ranks, None)


def query_of(measured: Measured, query_id: str) -> Query:
    """The query with this id.

    Raises:
        UserError: there is no such query.
    """
    for query in measured.setup.queries:
        if query.query_id == query_id:
            return query
    raise UserError(f"There is no query {query_id[:80]!r}: select one from the table.")


def top_frame(measured: Measured, query: Query) -> pd.DataFrame:
    """The query's top 10: rank, score, whether it is relevant, language, id, text."""
    ranking = measured.by_query[query.query_id]
    keys = ranking.document_ids[:TOP]
    texts = measured.collection.texts(keys)
    return pd.DataFrame(
        {
            "rank": range(1, len(keys) + 1),
            "score": ranking.scores[: len(keys)].astype(float),
            "relevant": [key in query.relevant for key in keys],
            "language": ranking.languages[: len(keys)],
            "document": [texts[key] for key in keys],
            "id": keys,
            "pair": [query.pairs.get(key, "") for key in keys],
        }
    )

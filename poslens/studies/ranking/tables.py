"""Tables of rankings: measures, PSI, groups of queries, single queries. No Streamlit here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from poslens.attribution.curves.positions import length_bucket
from poslens.attribution.datasets.corpus import Collection, Query
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.evidence_profile import EvidenceProfile
from poslens.attribution.evaluation.ranking_measures import (
    CUTOFF_MEASURES,
    NDCG,
    SUCCESS,
    SUCCESS_OF_PAIRS,
    TOP,
    agresti_coull,
    success_of_pairs,
)
from poslens.compute.estimates import estimate_columns
from poslens.studies.ranking.service import Measured

OVERALL, READ_WHOLE = "all lengths", "evidence read whole"
HARMONIC = "harmonic mean"


def measures_frame(rankings: Sequence[Measured]) -> pd.DataFrame:
    """A row a model: each measure with the ends of its interval, missing queries, what the corpus
    lacks or leaves out, same-language share and what the corpus would give."""
    rows = []
    for measured in rankings:
        evaluation, collection = measured.evaluation, measured.setup.collection
        row: dict[str, object] = {
            "model": measured.name,
            "queries": evaluation.n,
            "documents": collection.survey.n,
            "documents resampled": evaluation.estimates[NDCG].n_resampled,
            "without a result": evaluation.n_missing,
            "own ids left out": collection.survey.own_ids,
            "judged, not in corpus": collection.n_lost,
        }
        for name, estimate in evaluation.estimates.items():
            row |= estimate_columns(name, estimate)
        bias = evaluation.language
        row["same language in top 10"] = None if bias is None else bias.share.value
        row["same language in corpus"] = None if bias is None else bias.expected
        rows.append(row)
    return pd.DataFrame(rows)


def measures_text(rankings: Sequence[Measured]) -> pd.DataFrame:
    """The same for the eye: each measure with its interval in one cell."""
    rows = []
    for measured in rankings:
        evaluation, bias = measured.evaluation, measured.evaluation.language
        row: dict[str, object] = {"model": measured.name}
        row |= {name: str(estimate) for name, estimate in evaluation.estimates.items()}
        row["same language in top 10"] = "" if bias is None else str(bias.share)
        row["same language in corpus"] = None if bias is None else bias.expected
        row["without a result"] = evaluation.n_missing
        rows.append(row)
    return pd.DataFrame(rows)


def languages_frame(rankings: Sequence[Measured]) -> pd.DataFrame:
    """A row for each model and language of queries: how many queries and pairs, S@10 of both with
    the ends of its intervals, and nDCG@10."""
    rows = []
    for measured in rankings:
        queries, evaluation = measured.setup.queries, measured.evaluation
        for language in measured.setup.collection.languages:
            at = [n for n, query in enumerate(queries) if query.language == language]
            if not at:
                continue
            asked = [queries[n] for n in at]
            successes = int(evaluation.per_query[SUCCESS][at].sum())
            row: dict[str, object] = {
                "model": measured.name,
                "language": language,
                "queries": len(asked),
                "pairs": sum(len(query.relevant) for query in asked),
            }
            for name, estimate in (
                (SUCCESS_OF_PAIRS, success_of_pairs(measured.rankings, asked)),
                (SUCCESS, agresti_coull(successes, len(asked))),
            ):
                row |= estimate_columns(name, estimate)
            row[NDCG] = float(evaluation.per_query[NDCG][at].mean())
            rows.append(row)
    return pd.DataFrame(rows, columns=None if rows else ["model", "language", "queries"])


def psi_frame(rankings: Sequence[Measured]) -> pd.DataFrame:
    """A row for each model and length bucket, the whole first, then the queries whose evidence the
    model reads whole: PSI, what chance gives, share of the evidence that was read, nDCG@10."""
    rows = []
    for measured in rankings:
        for bucket, profile in _profiles(measured).items():
            if profile is not None:
                rows.append({"model": measured.name, "length": bucket} | _psi_row(profile))
    columns = [
        "model",
        "length",
        "PSI",
        "PSI under permutation",
        "p",
        "queries",
        "evidence read",
        "empty bins",
        NDCG,
        f"{NDCG}, mean of bins",
    ]
    return pd.DataFrame(rows, columns=columns)


def _profiles(measured: Measured) -> dict[str, EvidenceProfile | None]:
    evaluation = measured.evaluation
    return {OVERALL: evaluation.profile, READ_WHOLE: evaluation.read_whole, **evaluation.buckets}


def _psi_row(profile: EvidenceProfile) -> dict[str, object]:
    return {
        "queries": profile.n,
        "evidence read": profile.mean_read,
        "empty bins": profile.n_empty,
        "PSI": profile.psi,
        "PSI under permutation": profile.psi_under_permutation,
        "p": profile.p,
        NDCG: profile.mean,
        f"{NDCG}, mean of bins": profile.mean_of_bins,
    }


def bins_frame(rankings: Sequence[Measured]) -> pd.DataFrame:
    """A row for each model, length bucket and evidence bin: its centre, queries, mean share of the
    evidence that the model read, and nDCG@10."""
    rows = []
    for measured in rankings:
        for bucket, profile in _profiles(measured).items():
            if profile is None:
                continue
            for number, (mean, n) in enumerate(zip(profile.means, profile.counts, strict=True)):
                rows.append(
                    {
                        "model": measured.name,
                        "length": bucket,
                        "bin": number,
                        "position": (number + 0.5) / len(profile.means),
                        "queries": n,
                        "evidence read": profile.read[number],
                        NDCG: mean,
                    }
                )
    columns = ["model", "length", "bin", "position", "queries", "evidence read", NDCG]
    return pd.DataFrame(rows, columns=columns)


def groups_frame(rankings: Sequence[Measured]) -> pd.DataFrame:
    """A row for each model and group of queries: how many queries and documents, how much of the
    evidence was read, and Recall and nDCG at each depth with the ends of its interval."""
    rows = []
    for measured in rankings:
        if (by_group := measured.by_group) is None:
            continue
        for group, read in zip(by_group.measures, by_group.profile.read, strict=True):
            row: dict[str, object] = {
                "model": measured.name,
                "group": group.name,
                "queries": group.n,
                "documents": group.n_documents,
                "evidence read": read,
            }
            for name in CUTOFF_MEASURES:
                row |= estimate_columns(name, group.measures.get(name))
            rows.append(row)
    return pd.DataFrame(rows)


def positions_frame(rankings: Sequence[Measured]) -> pd.DataFrame:
    """A row a model, as position-aware benchmarks print it: nDCG@10 of each group, PSI over them
    with what chance gives, and their harmonic mean with the ends of its interval."""
    rows = []
    for measured in rankings:
        if (by_group := measured.by_group) is None:
            continue
        profile, harmonic = by_group.profile, by_group.harmonic
        rows.append(
            {
                "model": measured.name,
                "queries": measured.evaluation.n - by_group.n_outside,
                **dict(zip(by_group.groups.names, profile.means, strict=True)),
                "PSI": profile.psi,
                "PSI under permutation": profile.psi_under_permutation,
                "p": profile.p,
                NDCG: profile.mean,
                **estimate_columns(HARMONIC, harmonic),
                "in no group": by_group.n_outside,
            }
        )
    return pd.DataFrame(rows)


def positions_text(rankings: Sequence[Measured]) -> pd.DataFrame:
    """The same for the eye: each group's nDCG@10 with its interval in one cell."""
    rows = []
    for measured in rankings:
        if (by_group := measured.by_group) is None:
            continue
        profile = by_group.profile
        rows.append(
            {
                "model": measured.name,
                **{group.name: str(group.measures.get(NDCG, "")) for group in by_group.measures},
                "PSI": profile.psi,
                "PSI under permutation": profile.psi_under_permutation,
                "p": profile.p,
                HARMONIC: str(by_group.harmonic),
                "evidence read": profile.mean_read,
            }
        )
    return pd.DataFrame(rows)


def queries_frame(measured: Measured) -> pd.DataFrame:
    """A row a query: its measures, the rank of its best relevant document, evidence, length."""
    rows = []
    for number, query in enumerate(measured.setup.queries):
        rank = first_rank(measured, query)
        rows.append(
            {
                "query": query.text,
                NDCG: float(measured.evaluation.per_query[NDCG][number]),
                "rank": rank,
                "evidence": None if query.evidence is None else 100 * query.evidence,
                "length": length_bucket(query.document_tokens) if query.document_tokens else None,
                "language": query.language,
                "id": query.query_id,
            }
        )
    return pd.DataFrame(rows).astype({"rank": "Int64"})


FAILED = "not in the top 10"
LATE = "evidence in the last third"
EARLY = "evidence in the first third"
FILTERS = (FAILED, LATE, EARLY)


TABLES: Mapping[str, Callable[[Sequence[Measured]], pd.DataFrame]] = {
    "measures": measures_frame,
    "psi": psi_frame,
    "bins": bins_frame,
    "queries": lambda rankings: pd.concat(
        [queries_frame(measured).assign(model=measured.name) for measured in rankings]
    ),
    "languages": languages_frame,
    "groups": groups_frame,
    "positions": positions_frame,
}
BY_GROUP = ("groups", "positions")
"""Tables of data sets with groups of queries."""


def ranking_frame(rankings: Sequence[Measured], table: str) -> pd.DataFrame:
    """A table by its name.

    Raises:
        UserError: there is none, or the data set has no groups of queries.
    """
    if table not in TABLES:
        raise UserError(f"A ranking has no table {table[:40]!r}: choose from {', '.join(TABLES)}.")
    require_groups(rankings[0].setup.collection, table)
    return TABLES[table](rankings)


def require_groups(collection: Collection, table: str) -> None:
    """Refuse a table of groups of queries where there are none.

    Raises:
        UserError: the collection has no groups, and the table is of groups.
    """
    if table in BY_GROUP and collection.groups is None:
        raise UserError(
            f"{collection.name} has no groups of queries: give a data set in the layout of SQuAD "
            "or FineWeb-PosQ, or choose another table."
        )


def filtered(frame: pd.DataFrame, filters: Sequence[str]) -> pd.DataFrame:
    """The rows of `queries_frame` that pass all of `filters`."""
    for one in filters:
        if one == FAILED:
            frame = frame[frame["rank"].isna() | (frame["rank"] > TOP)]
        elif one == LATE:
            frame = frame[frame["evidence"] > 200 / 3]
        elif one == EARLY:
            frame = frame[frame["evidence"] < 100 / 3]
    return frame


def first_rank(measured: Measured, query: Query) -> int | None:
    """Rank, from 1, of the first relevant document; None where none was found."""
    ranking = measured.by_query[query.query_id]
    ranks = (r for r, key in enumerate(ranking.document_ids, 1) if key in query.relevant)
    return next(ranks, None)


def query_of(measured: Measured, query_id: str) -> Query:
    """The query of this id.

    Raises:
        UserError: there is none.
    """
    for query in measured.setup.queries:
        if query.query_id == query_id:
            return query
    raise UserError(f"There is no query {query_id[:80]!r}: select one from the table.")


def top_frame(measured: Measured, query: Query) -> pd.DataFrame:
    """The query's top 10: rank, score, whether it is relevant, language, id, text."""
    ranking = measured.by_query[query.query_id]
    keys = ranking.document_ids[:TOP]
    texts = measured.setup.collection.texts(keys)
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

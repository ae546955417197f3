"""Rows of the tables of `rank`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.positions import BUCKET_WORDS
from poslens.rows import P_VALUE, ModelRow, column

QUERIES = "Number of queries."
PAIRS = "Number of pairs of a query and a relevant document."
BIN, CENTER = "Index of the bin, from 0.", "Center of the bin, 0 to 1 of the document."
LENGTH = "Document lengths in tokens, or the queries."
READ = "Mean share of the evidence within the context limit, 0 to 1; null if unknown."
NDCG = "nDCG@10, 0 to 1."
PSI = "Position sensitivity index, from 0 (no sensitivity) to 1."
PERMUTED = "Mean PSI under permutation of the positions."
P = "Share of permutations whose PSI is at least as high."
SUCCESS = "Share of queries with a relevant document in the top 10."
SUCCESS_OF_PAIRS = "Share of relevant pairs whose document is in the top 10."
RANK = "Rank of the first relevant document, from 1; null if it wasn't retrieved."
EVIDENCE = "Midpoint of the evidence, 0 to 1 of the document's characters; null if it is unknown."
LANGUAGE = "Language of the query; null or empty if unknown."
GROUP_NDCG = "nDCG@10 of this group; null if it has no query."


@dataclass(frozen=True, slots=True)
class MeasuresRow(ModelRow):
    """How good a model's rankings are."""

    queries: int = column(QUERIES, shown=False)
    documents: int = column("Number of documents in the corpus.", shown=False)
    resampled: int = column(
        "Number of documents that intervals resample, except those of S@10: of each query, the one "
        "with the evidence, or else the relevant one whose id sorts first.",
        key="documents resampled",
        shown=False,
    )
    missing: int = column(
        "Number of queries without results, which count as 0.",
        key="without a result",
        shown=False,
    )
    own_ids: int = column(
        "Number of documents excluded from a query because they have the same id.",
        key="own ids left out",
        shown=False,
    )
    lost: int = column(
        "Number of relevant documents that the corpus lacks.",
        key="judged, not in corpus",
        shown=False,
    )
    measures: Mapping[str, Estimate] = column(
        {
            "nDCG@10": NDCG,
            "MRR@10": "Mean reciprocal rank of the first relevant document in the top 10.",
            "Recall@100": "Share of relevant documents in the top 100.",
            "S@10 per query": SUCCESS,
            "S@10 per pair": SUCCESS_OF_PAIRS,
        }
    )
    language: Estimate | None = column(
        "Share of the top 10 in the query's language; null if there is only one language.",
        key="same language in top 10",
    )
    expected: float | None = column(
        "Share of the corpus in the query's language; null if there is only one language.",
        key="same language in corpus",
    )
    unanswered: int = column(
        "Queries that retrieve no document; they count as 0.",
        title="nothing retrieved",
        in_files=False,
    )


@dataclass(frozen=True, slots=True)
class PsiRow(ModelRow):
    """How much rankings depend on the position of the evidence, for one length."""

    length: str | None = column(LENGTH, words=BUCKET_WORDS)
    psi: float | None = column(PSI, key="PSI")
    permuted: float | None = column(PERMUTED, key="PSI under permutation")
    p: float | None = column(P, form=P_VALUE)
    queries: int = column(QUERIES)
    read: float | None = column(READ, key="evidence read", form=".0%")
    empty: int = column("Number of the 20 bins without a query.", key="empty bins")
    ndcg: float | None = column(NDCG, key="nDCG@10")
    mean_of_bins: float = column(
        "Mean nDCG@10 of the bins with queries, 0 to 1.", key="nDCG@10, mean of bins"
    )


@dataclass(frozen=True, slots=True)
class PsiStratumRow(PsiRow):
    """How much rankings depend on the position of the evidence, for one language or domain."""

    by: str = column("language or domain.")
    stratum: str = column("The language, or the domain: the part of the corpus.")


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """The queries whose evidence is in one bin of its document."""

    length: str | None = column(LENGTH, words=BUCKET_WORDS)
    bin: int = column(BIN)
    position: float = column(CENTER)
    queries: int = column(QUERIES)
    share: float = column("Share of the queries of this length, 0 to 1.", form=".1%")


@dataclass(frozen=True, slots=True)
class BinsRow(ModelRow):
    """The queries whose evidence is in one bin, under a model."""

    length: str | None = column(LENGTH, words=BUCKET_WORDS)
    bin: int = column(BIN)
    position: float = column(CENTER)
    queries: int = column(QUERIES)
    read: float | None = column(READ, key="evidence read", form=".0%")
    ndcg: float | None = column(
        "nDCG@10 of the bin's queries; null if there are none.", key="nDCG@10"
    )


@dataclass(frozen=True, slots=True)
class QueriesRow:
    """A query under one model."""

    query: str = column("Text of the query.")
    ndcg: float = column(NDCG, key="nDCG@10")
    rank: int | None = column(RANK)
    position: float | None = column(EVIDENCE, form=".0%")
    length: str | None = column(LENGTH, words=BUCKET_WORDS)
    language: str | None = column(LANGUAGE)
    id: str = column("Id of the query.")
    model: str = column("Name of the model.")


@dataclass(frozen=True, slots=True)
class QueryDifferenceRow:
    """A query under two models or runs. The second is compared with the first, as in the table of
    paired differences."""

    model: str = column("Name of the second model or run.")
    against: str = column("Name of the first, with which it is compared.")
    query: str = column("Text of the query.")
    ndcg: float = column("nDCG@10 of the second, 0 to 1.", key="nDCG@10")
    ndcg_against: float = column("nDCG@10 of the first, 0 to 1.", key="nDCG@10 against")
    difference: float = column("The second minus the first, -1 to 1.")
    rank: int | None = column(RANK)
    rank_against: int | None = column(RANK, key="rank against")
    position: float | None = column(EVIDENCE, form=".0%")
    length: str | None = column(LENGTH, words=BUCKET_WORDS)
    language: str | None = column(LANGUAGE)
    id: str = column("Id of the query.")


@dataclass(frozen=True, slots=True)
class LanguagesRow(ModelRow):
    """The queries of one language."""

    language: str = column("Language of the queries.")
    queries: int = column(QUERIES)
    pairs: int = column(PAIRS)
    of_pairs: Estimate = column(SUCCESS_OF_PAIRS, key="S@10 per pair")
    of_queries: Estimate = column(SUCCESS, key="S@10 per query")
    ndcg: float | None = column(NDCG, key="nDCG@10")


@dataclass(frozen=True, slots=True)
class SplitRow(ModelRow):
    """The queries with one value of a property."""

    by: str = column("length (of the query, in characters), or the data set's: year, platform.")
    split: str = column("Value of the property.")
    queries: int = column(QUERIES)
    pairs: int = column(PAIRS)
    of_pairs: Estimate = column(SUCCESS_OF_PAIRS, key="S@10 per pair")
    of_queries: Estimate = column(SUCCESS, key="S@10 per query")
    ndcg: float | None = column(NDCG, key="nDCG@10")


@dataclass(frozen=True, slots=True)
class PoolRow(ModelRow):
    """The same queries over a part of the corpus."""

    documents: int = column("Number of documents in the pool: all relevant ones and random others.")
    queries: int = column(QUERIES)
    of_pairs: Estimate = column(SUCCESS_OF_PAIRS, key="S@10 per pair")
    of_queries: Estimate = column(SUCCESS, key="S@10 per query")
    ndcg: Estimate = column(NDCG, key="nDCG@10")


@dataclass(frozen=True, slots=True)
class GroupsRow(ModelRow):
    """A group of queries under one model."""

    group: str = column("Name of the group of queries.")
    queries: int = column(QUERIES)
    documents: int = column("Number of distinct relevant documents.")
    read: float | None = column(READ, key="evidence read", form=".0%")
    measures: Mapping[str, Estimate | None] = column(
        {
            f"{measure}@{k}": f"{measure} at this cutoff, 0 to 1."
            for measure in ("Recall", "nDCG")
            for k in (5, 10, 20, 30, 50, 100)
        }
    )


@dataclass(frozen=True, slots=True)
class PositionsRow(ModelRow):
    """A model over groups of queries; those of SQuAD are by the answer's first character, those of
    FineWeb-PosQ by the third of the passage."""

    queries: int = column(QUERIES, shown=False)
    groups: Mapping[str, float | None] = column(
        dict.fromkeys(
            (
                *("[0,100)", "[100,200)", "[200,300)", "[300,400)", "[400,500)", "[500,3120]"),
                *("beginning", "middle", "end"),
            ),
            GROUP_NDCG,
        ),
        required=False,
        shown=False,
    )
    of_groups: Mapping[str, Estimate | None] = column({"": GROUP_NDCG}, in_files=False)
    psi: float | None = column(PSI, key="PSI")
    permuted: float | None = column(PERMUTED, key="PSI under permutation")
    p: float | None = column(P, form=P_VALUE)
    ndcg: float | None = column(NDCG, key="nDCG@10", shown=False)
    harmonic: Estimate = column(
        "Harmonic mean of the groups' nDCG@10, 0 to 1.", key="harmonic mean"
    )
    read: float | None = column("", title="evidence read", form=".0%", in_files=False)
    outside: int = column(
        "Number of queries that belong to no group and are excluded.",
        key="in no group",
        shown=False,
    )


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """How similarly two data sets order the same models by one measure."""

    measure: str = column("Name of the measure.")
    dataset: str = column("Name of the data set.")
    against: str = column("Name of the other data set.")
    models: int = column("Number of models.")
    spearman: float | None = column(
        "Spearman's rank correlation of the models' measures on both data sets, -1 to 1; null if "
        "all models are equal on one of them.",
        form="+.2f",
    )
    p: float | None = column(
        "Two-sided permutation p of the correlation; at least 0.33 with 3 models.", form=P_VALUE
    )
    order: str = column("The models on the data set, best first.")
    order_against: str = column("The models on the other data set, best first.")

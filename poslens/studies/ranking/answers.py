"""What `rank` and the benchmarks with groups of queries print as JSON; see
`poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from poslens.commands.answers import NDCG, PSI, High, Low, Model, P, PSIUnderPermutation, Queries

Length = Annotated[str | None, "Document lengths in tokens, or the queries."]
Read = Annotated[
    float | None, ("Mean share of the evidence within the context limit, 0 to 1; null if unknown.")
]
Success = Annotated[float, "Share of queries with a relevant document in the top 10."]
SuccessOfPairs = Annotated[float, "Share of relevant pairs whose document is in the top 10."]
Recall = Annotated[float | None, "Recall at this cutoff, 0 to 1."]
NDCGAt = Annotated[float | None, "nDCG at this cutoff, 0 to 1."]
GroupNDCG = Annotated[float | None, "nDCG@10 of this group; null if it has no query."]

MeasuresRow = TypedDict(
    "MeasuresRow",
    {
        "model": Model,
        "queries": Queries,
        "documents": Annotated[int, "Number of documents in the corpus."],
        "documents resampled": Annotated[
            int,
            ("Number of relevant documents; intervals other than those of S@10 resample these."),
        ],
        "without a result": Annotated[int, "Number of queries without results, which count as 0."],
        "own ids left out": Annotated[
            int, ("Number of documents excluded from a query because they have the same id.")
        ],
        "judged, not in corpus": Annotated[
            int, ("Number of relevant documents that the corpus lacks.")
        ],
        "nDCG@10": NDCG,
        "nDCG@10 low": Low,
        "nDCG@10 high": High,
        "MRR@10": Annotated[
            float, ("Mean reciprocal rank of the first relevant document in the top 10.")
        ],
        "MRR@10 low": Low,
        "MRR@10 high": High,
        "Recall@100": Annotated[float, "Share of relevant documents in the top 100."],
        "Recall@100 low": Low,
        "Recall@100 high": High,
        "S@10 per query": Success,
        "S@10 per query low": Low,
        "S@10 per query high": High,
        "S@10 per pair": SuccessOfPairs,
        "S@10 per pair low": Low,
        "S@10 per pair high": High,
        "same language in top 10": Annotated[
            float | None,
            ("Share of the top 10 in the query's language; null if there is only one language."),
        ],
        "same language in corpus": Annotated[
            float | None, "The same share in the corpus; null if there is only one language."
        ],
    },
)
"""What a model's rankings are worth."""

PsiRow = TypedDict(
    "PsiRow",
    {
        "model": Model,
        "length": Length,
        "PSI": PSI,
        "PSI under permutation": PSIUnderPermutation,
        "p": P,
        "queries": Queries,
        "evidence read": Read,
        "empty bins": Annotated[int, "Number of the 20 bins without a query."],
        "nDCG@10": NDCG,
        "nDCG@10, mean of bins": Annotated[float, "Mean nDCG@10 of the bins with queries, 0 to 1."],
    },
)
"""How much a ranking depends on the evidence's place, for one length."""

BinsRow = TypedDict(
    "BinsRow",
    {
        "model": Model,
        "length": Length,
        "bin": Annotated[int, "Index of the bin, from 0."],
        "position": Annotated[float, "Center of the bin, 0 to 1 of the document."],
        "queries": Queries,
        "evidence read": Read,
        "nDCG@10": Annotated[float | None, "nDCG@10 of its queries; null if it has none."],
    },
)
"""The queries whose evidence stands in one bin."""

Rank = Annotated[
    int | None, ("Rank of the first relevant document, from 1; null if it wasn't retrieved.")
]
Evidence = Annotated[float | None, "Start of the evidence, in percent of the document."]
Text = Annotated[str, "Text of the query."]
Language = Annotated[str | None, "Language of the query; null or empty if unknown."]
QueryId = Annotated[str, "Id of the query."]

QueriesRow = TypedDict(
    "QueriesRow",
    {
        "query": Text,
        "nDCG@10": NDCG,
        "rank": Rank,
        "evidence": Evidence,
        "length": Length,
        "language": Language,
        "id": QueryId,
        "model": Model,
    },
)
"""A query under one model."""

DifferencesRow = TypedDict(
    "DifferencesRow",
    {
        "query": Text,
        "nDCG@10": Annotated[float, "nDCG@10 of the first model or run, 0 to 1."],
        "nDCG@10 against": Annotated[float, "nDCG@10 of the second, 0 to 1."],
        "difference": Annotated[float, "The first minus the second, -1 to 1."],
        "rank": Rank,
        "rank against": Rank,
        "evidence": Evidence,
        "length": Length,
        "language": Language,
        "id": QueryId,
    },
)
"""A query under two models or runs."""

LanguagesRow = TypedDict(
    "LanguagesRow",
    {
        "model": Model,
        "language": Annotated[str, "Language of the queries."],
        "queries": Queries,
        "pairs": Annotated[int, "Number of pairs of a query and a relevant document."],
        "S@10 per pair": SuccessOfPairs,
        "S@10 per pair low": Low,
        "S@10 per pair high": High,
        "S@10 per query": Success,
        "S@10 per query low": Low,
        "S@10 per query high": High,
        "nDCG@10": NDCG,
    },
)
"""The queries of one language."""

GroupsRow = TypedDict(
    "GroupsRow",
    {
        "model": Model,
        "group": Annotated[str, "Name of the group of queries."],
        "queries": Queries,
        "documents": Annotated[int, "Number of distinct relevant documents."],
        "evidence read": Read,
        "Recall@5": Recall,
        "Recall@5 low": Low,
        "Recall@5 high": High,
        "Recall@10": Recall,
        "Recall@10 low": Low,
        "Recall@10 high": High,
        "Recall@20": Recall,
        "Recall@20 low": Low,
        "Recall@20 high": High,
        "Recall@30": Recall,
        "Recall@30 low": Low,
        "Recall@30 high": High,
        "Recall@50": Recall,
        "Recall@50 low": Low,
        "Recall@50 high": High,
        "Recall@100": Recall,
        "Recall@100 low": Low,
        "Recall@100 high": High,
        "nDCG@5": NDCGAt,
        "nDCG@5 low": Low,
        "nDCG@5 high": High,
        "nDCG@10": NDCGAt,
        "nDCG@10 low": Low,
        "nDCG@10 high": High,
        "nDCG@20": NDCGAt,
        "nDCG@20 low": Low,
        "nDCG@20 high": High,
        "nDCG@30": NDCGAt,
        "nDCG@30 low": Low,
        "nDCG@30 high": High,
        "nDCG@50": NDCGAt,
        "nDCG@50 low": Low,
        "nDCG@50 high": High,
        "nDCG@100": NDCGAt,
        "nDCG@100 low": Low,
        "nDCG@100 high": High,
    },
)
"""A group of queries under one model."""

PositionsRow = TypedDict(
    "PositionsRow",
    {
        "model": Model,
        "queries": Queries,
        "[0,100)": NotRequired[GroupNDCG],
        "[100,200)": NotRequired[GroupNDCG],
        "[200,300)": NotRequired[GroupNDCG],
        "[300,400)": NotRequired[GroupNDCG],
        "[400,500)": NotRequired[GroupNDCG],
        "[500,3120]": NotRequired[GroupNDCG],
        "beginning": NotRequired[GroupNDCG],
        "middle": NotRequired[GroupNDCG],
        "end": NotRequired[GroupNDCG],
        "PSI": PSI,
        "PSI under permutation": PSIUnderPermutation,
        "p": P,
        "nDCG@10": NDCG,
        "harmonic mean": Annotated[float, "Harmonic mean of the groups' nDCG@10, 0 to 1."],
        "harmonic mean low": Low,
        "harmonic mean high": High,
        "in no group": Annotated[
            int, ("Number of queries that belong to no group and are excluded.")
        ],
    },
)
"""A model over groups of queries; those of SQuAD are by the answer's first character, those of
FineWeb-PosQ by the third of the passage."""


class PublishedCurveRow(TypedDict):
    """One position of a published mean curve."""

    model: Model
    position: Annotated[float, "Position in the text, 0 to 1."]
    mean: Annotated[float, "Mean over the published curves."]
    std: Annotated[float, "Standard deviation over the published curves."]
    n: Annotated[int, "Curves averaged."]

"""The tables of the study `hubs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.comparison import Comparison
from poslens.rows import Table, column
from poslens.studies.hubs.summary import HubSummary

MODEL = "Name of the model."
DOCUMENT = "Id of the document."
CONTROL = "The same with the words of each document in random order."
INTERVAL = " The interval resamples the documents that the queries belong to."


@dataclass(frozen=True)
class HubnessRow:
    """One model's index and its control."""

    model: str = column(MODEL)
    queries: int = column("Queries.")
    documents: int = column("Documents of the corpus.")
    top: int = column(
        "k: a document's in-degree counts the queries with it in their top k.", shown=False
    )
    skewness: Estimate | None = column(
        "Skewness of the in-degrees over the documents; the interval is that of the jackknife over "
        "the documents that the queries belong to.",
        form=".2f",
    )
    skewness_random_order: Estimate | None = column(
        CONTROL, title="skewness, random word order", form=".2f"
    )
    difference: Comparison | None = column(
        "Skewness minus that with random word order, paired by query.", form="+.2f"
    )
    skewness_random_retrieval: float | None = column(
        "Skewness of a binomial distribution: every query retrieves documents at random.",
        title="skewness, random retrieval",
        form=".2f",
    )
    never: Estimate | None = column(
        "Share of documents that no query retrieves, 0 to 1.", title="never retrieved"
    )
    never_random_order: Estimate | None = column(
        CONTROL, title="never retrieved, random word order"
    )


@dataclass(frozen=True)
class HubRow:
    """A document that queries retrieve although it does not answer them."""

    model: str = column(MODEL)
    document: str = column(DOCUMENT)
    in_degree: int = column(
        "Queries that have it in their top k and that it does not answer.", title="in-degree"
    )
    in_degree_random_order: int = column(CONTROL, title="in-degree, random word order")
    mean_in_degree: float = column("Mean in-degree of all documents.", form=".1f", shown=False)
    share: Estimate | None = column(
        "In-degree divided by the number of queries that it does not answer." + INTERVAL
    )
    answers: int = column("Queries that it is relevant to; they do not count.")


@dataclass(frozen=True)
class HubQueryRow:
    """A query that retrieves a hub although the hub does not answer it."""

    model: str = column(MODEL)
    document: str = column(DOCUMENT)
    rank: int = column("Rank of the document among those that do not answer the query, from 1.")
    query: str = column("The query.")
    id: str = column("Id of the query.")


@dataclass(frozen=True)
class HubWordRow:
    """A word of a hub."""

    model: str = column(MODEL)
    document: str = column(DOCUMENT)
    word: str = column("The word, case folded.")
    occurrences: int = column("Number of occurrences in the document.")
    share: Estimate | None = column(
        "Its share of the score, summed over its occurrences: mean over up to 12 queries that "
        "retrieve the document and that it does not answer. The interval resamples the documents "
        "that the queries belong to; it does not account for the choice of the largest shares.",
        form="+.4f",
    )
    share_other_queries: Estimate | None = column(
        "The same over up to 12 queries that do not retrieve it.",
        title="share, other queries",
        form="+.4f",
    )
    method: str = column("Attribution method of the shares.", shown=False)


def _hubness(hub_summary: HubSummary) -> Iterator[HubnessRow]:
    original, control = hub_summary.original, hub_summary.control
    yield HubnessRow(
        model=hub_summary.name,
        queries=original.n_queries,
        documents=len(hub_summary.ids),
        top=hub_summary.asked.top,
        skewness=original.skewness,
        skewness_random_order=control.skewness,
        difference=hub_summary.comparison,
        skewness_random_retrieval=original.random_skewness,
        never=original.never,
        never_random_order=control.never,
    )


def _hubs(hub_summary: HubSummary) -> Iterator[HubRow]:
    mean = float(hub_summary.original.counts.mean())
    for number in hub_summary.hubs:
        yield HubRow(
            model=hub_summary.name,
            document=hub_summary.ids[number],
            in_degree=int(hub_summary.original.counts[number]),
            in_degree_random_order=int(hub_summary.control.counts[number]),
            mean_in_degree=mean,
            share=hub_summary.share(number),
            answers=len(hub_summary.queries) - len(hub_summary.others(number)),
        )


def _queries(hub_summary: HubSummary) -> Iterator[HubQueryRow]:
    for number in hub_summary.hubs:
        ranked = sorted(
            (hub_summary.original.tops[row].tolist().index(number) + 1, row)
            for row in hub_summary.retrieving(number)
        )
        for rank, row in ranked:
            query = hub_summary.queries[row]
            yield HubQueryRow(
                hub_summary.name, hub_summary.ids[number], rank, query.text, query.query_id
            )


def _words(hub_summary: HubSummary) -> Iterator[HubWordRow]:
    method = "" if hub_summary.words_method is None else hub_summary.words_method.name
    for document, words in hub_summary.words.items():
        for word in words:
            yield HubWordRow(
                hub_summary.name,
                document,
                word.word,
                word.occurrences,
                word.retrieving,
                word.others,
                method,
            )


TABLES: Mapping[str, Table[Any]] = {
    "hubness": Table(HubnessRow, _hubness, "By model"),
    "hubs": Table(HubRow, _hubs, "Hubs", on_page=False),
    "queries": Table(HubQueryRow, _queries, "Queries of each hub", on_page=False),
    "words": Table(HubWordRow, _words, "Words of the first hubs", on_page=False),
}

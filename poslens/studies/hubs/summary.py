"""The subject and the result of the study `hubs`, its tables and its figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.proportions import mean_share
from poslens.attribution.datasets import Collection
from poslens.attribution.datasets.corpus import Query
from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.evaluation.hubs import (
    MOST_TOP,
    ORDERS,
    InDegrees,
    ShuffledInDegrees,
    in_degrees,
)
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.figures.figure_base import canvas, group, legend_name, with_legend
from poslens.figures.palettes import Style, escape
from poslens.rows import PERCENT, ModelRow, Table, column
from poslens.studies.ranking.service import RankingSetup, stored_rankings
from poslens.study import Asked, ModelSummary

LISTED = 50
"""Maximum number of documents in the table of hubs."""


def hubs_method(top: int) -> Method:
    """The measure, as named in captions."""
    return Method("hubs", {"top": top, "orders": ORDERS, "version": 2})


@dataclass(frozen=True)
class HubSummary(ModelSummary[Asked[Collection]]):
    """The in-degrees of a model's index and of the control, over the documents `ids` [D].
    `comparison` is the difference of their skewness. `words` are the words of the first hubs, by
    document, attributed by `words_method`."""

    ids: tuple[str, ...]
    original: InDegrees
    control: ShuffledInDegrees
    comparison: Comparison | None
    words: dict[str, tuple[HubWordRow, ...]]
    words_method: Method | None

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries, in the order of the in-degrees."""
        return self.asked.corpus.queries

    @cached_property
    def hubs(self) -> list[int]:
        """Indices of the retrieved documents in descending order of in-degree; ties are in
        corpus order."""
        counts = self.original.counts
        order = np.argsort(-counts, kind="stable")
        return [int(number) for number in order[:LISTED] if counts[number]]

    def others(self, number: int) -> list[int]:
        """Rows of the queries that the document with this number does not answer."""
        key = self.ids[number]
        return [row for row, query in enumerate(self.queries) if key not in query.relevant]

    def retrieving(self, number: int) -> list[int]:
        """Rows of the queries that have the document with this number in their top k although it
        does not answer them."""
        return [row for row, top in enumerate(self.original.tops) if number in top]

    def share(self, number: int) -> Estimate | None:
        """Share of queries that retrieve the document with this number, among those that it does
        not answer."""
        asked, tops = self.others(number), self.original.tops
        documents = [self.queries[row].document for row in asked]
        return mean_share([number in tops[row] for row in asked], documents)


_degrees: LRUCache[InDegrees] = LRUCache(32)
_ids: LRUCache[tuple[str, ...]] = LRUCache(8)


def document_ids(collection: Collection) -> tuple[str, ...]:
    """The ids of all documents, in corpus order.

    Raises:
        UserError: the corpus cannot be read.
    """
    return _ids.get(
        collection.digest, lambda: tuple(document.key for document in collection.documents())
    )


def degrees(
    compute: Compute, spec: RetrieverSpec, collection: Collection, top: int
) -> InDegrees | None:
    """The in-degrees of a corpus's documents from stored rankings; None while any is missing.

    Raises:
        UserError: the corpus cannot be read, or the model has no ranking of the whole corpus.
    """
    key = (str(compute.root), compute.identify(spec).key, spec.name, collection.digest, top)
    if (cached := _degrees.find(key)) is not None:
        return cached
    rankings = stored_rankings(compute, spec, RankingSetup(collection))
    if rankings is None:
        return None
    ids = document_ids(collection)
    return _degrees.keep(key, in_degrees(rankings, collection.queries, ids, top))


def known_in_degrees(
    compute: Compute, spec: RetrieverSpec, collection: Collection, top: int
) -> dict[str, int]:
    """The in-degree of each document by id, from stored rankings; empty if any is missing, if
    there are no queries, or if k exceeds the length of rankings.

    Raises:
        UserError: the corpus cannot be read, or the model has no ranking of the whole corpus.
    """
    if not collection.queries or top > MOST_TOP:
        return {}
    in_degrees = degrees(compute, spec, collection, top)
    if in_degrees is None:
        return {}
    return dict(zip(document_ids(collection), in_degrees.counts.tolist(), strict=True))


# -- tables ----------------------------------------------------------------------------------------

DOCUMENT = "Id of the document."
MEAN_OF_ORDERS = f"mean of {ORDERS} orders"
CONTROL = f"with the words of each document in random order, {MEAN_OF_ORDERS}."
INTERVAL = " The interval resamples the documents that the queries belong to."


@dataclass(frozen=True)
class HubnessRow(ModelRow):
    """One model's index and its control."""

    queries: int = column("Number of queries.")
    queries_without_result: int = column(
        "Number of queries that retrieve no document other than their relevant ones.", shown=False
    )
    queries_tied: int = column(
        "Number of queries with equal scores on both sides of rank k: the order of the corpus "
        "decides which of these documents count.",
        shown=False,
    )
    documents: int = column("Number of documents of the corpus.")
    top: int = column(
        "k: a document's in-degree counts the queries with it in their top k.", shown=False
    )
    skewness: Estimate | None = column(
        "Skewness of the in-degrees over the documents; the interval is that of the jackknife over "
        "the documents that the queries belong to.",
        form=".2f",
    )
    skewness_random_order: Estimate | None = column(
        f"Skewness {CONTROL}", title="skewness, random word order", form=".2f"
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
        "Share of documents that no query retrieves, 0 to 1.",
        title="never retrieved",
        form=PERCENT,
    )
    never_random_order: Estimate | None = column(
        f"Share never retrieved {CONTROL}",
        title="never retrieved, random word order",
        form=PERCENT,
    )


@dataclass(frozen=True)
class HubRow(ModelRow):
    """A document that queries retrieve although it does not answer them."""

    document: str = column(DOCUMENT)
    in_degree: int = column(
        "Number of queries that it does not answer and that have it in their top k.",
        title="in-degree",
    )
    in_degree_random_order: float = column(
        f"In-degree {CONTROL}", title="in-degree, random word order", form=".1f"
    )
    mean_in_degree: float = column("Mean in-degree of all documents.", form=".1f", shown=False)
    share: Estimate | None = column(
        "In-degree divided by the number of queries that it does not answer." + INTERVAL,
        form=PERCENT,
    )
    answers: int = column("Number of queries that it is relevant to; they do not count.")


@dataclass(frozen=True)
class HubQueryRow(ModelRow):
    """A query that retrieves a hub although the hub does not answer it."""

    document: str = column(DOCUMENT)
    rank: int = column("Rank of the document among those that do not answer the query, from 1.")
    query: str = column("The query.")
    id: str = column("Id of the query.")


@dataclass(frozen=True)
class HubWordRow(ModelRow):
    """A word of a hub."""

    document: str = column(DOCUMENT)
    word: str = column("The word, case folded.")
    occurrences: int = column("Number of occurrences in the document.")
    share: Estimate | None = column(
        "Share of the score, summed over the word's occurrences: mean over up to 12 queries that "
        "retrieve the document and that it does not answer. The interval resamples the documents "
        "that the queries belong to; it does not account for the choice of the largest shares. "
        "There is none if the share is the same for all of these queries.",
        form="+.4f",
    )
    share_other_queries: Estimate | None = column(
        "Mean over up to 12 queries that do not retrieve the document.",
        title="share, other queries",
        form="+.4f",
    )
    method: str = column("Attribution method of the shares.", shown=False)


def _hubness(hub_summary: HubSummary) -> Iterator[HubnessRow]:
    original, control = hub_summary.original, hub_summary.control
    yield HubnessRow(
        model=hub_summary.name,
        queries=original.n_queries,
        queries_without_result=original.n_without,
        queries_tied=original.n_tied,
        documents=len(hub_summary.ids),
        top=hub_summary.asked.settings.top,
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
            in_degree_random_order=float(hub_summary.control.counts[number]),
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


TABLES: Mapping[str, Table[Any]] = {
    "hubness": Table(HubnessRow, _hubness, "By model"),
    "hubs": Table(HubRow, _hubs, "Hubs", on_page=False),
    "queries": Table(HubQueryRow, _queries, "Queries of each hub", on_page=False),
    "words": Table(
        HubWordRow,
        lambda summary: chain.from_iterable(summary.words.values()),
        "Words of the first hubs",
        on_page=False,
    ),
}


# -- figure ----------------------------------------------------------------------------------------

POINTS = 400
"""Maximum number of points of a line, because a corpus may have a million documents."""


def sorted_in_degrees(summaries: Sequence[HubSummary], style: Style) -> go.Figure:
    """The in-degrees of documents in descending order: a line for each model, and a dotted one for
    the control, in which each document's words are in random order."""
    top = summaries[0].asked.settings.top if summaries else 0
    y_title = f"In-degree (queries with it in the top {top:,})"
    x_title = "Documents, largest in-degree first (%)"
    figure = canvas("hubs", style, x_title, y_title)
    for number, hub_summary in enumerate(summaries):
        look, key = style.line(number), f"model {number}"
        order = np.argsort(-hub_summary.original.counts, kind="stable")
        # Denser at the beginning, where the hubs are.
        drawn = np.unique((np.linspace(0, 1, POINTS) ** 2 * (len(order) - 1)).astype(np.int64))
        ids = [hub_summary.ids[document] for document in order[drawn]]
        for role, counts, labels in (
            ("", hub_summary.original.counts[order], ids),
            # Documents have other places in each of its orders.
            ("random word order", hub_summary.control.ordered_counts, [MEAN_OF_ORDERS] * len(ids)),
        ):
            name = f"{hub_summary.name}, {role}" if role else hub_summary.name
            trace = go.Scatter(
                x=(100 * (drawn + 0.5) / len(order)).tolist(),
                y=counts[drawn].tolist(),
                mode="lines",
                name=legend_name(name, style),
                line={**look, "width": 0.6 * style.line_width, "dash": "dot"} if role else look,
                customdata=[[escape(label)] for label in labels],
                hovertemplate="%{customdata[0]}: %{y:,}",
            )
            figure.add_trace(group(trace, key, hub_summary.name, role or "original word order"))
    figure.update_xaxes(range=[0, 100])
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(hovermode="closest")
    return with_legend(figure, style)

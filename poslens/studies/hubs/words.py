"""The words of hubs, with their shares of the scores of queries that retrieve the hub and of other
queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from poslens.attribution.curves.bootstrap import Values, estimate
from poslens.attribution.curves.positions import word_span_scores
from poslens.attribution.curves.proportions import unless_constant
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.lexical import folded
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.text import word_spans
from poslens.attribution.types import Attribution, Method, TextPair
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.studies.explain.minus import fitting
from poslens.studies.hubs.summary import HubSummary, HubWordRow

EACH = 12
"""Maximum number of queries that retrieve a hub, and of other queries, over which shares are
averaged."""
LISTED = 8
"""Maximum number of words listed for a hub."""


def words_method(compute: Compute, spec: RetrieverSpec) -> Method | None:
    """The first method that fits the model, is not slow, and attributes shares that sum to the
    score. None if there is no such method, or if the model is an endpoint, which would receive
    hundreds of texts for each query."""
    if spec.remote:
        return None
    for name in fitting(compute, spec):
        if METHODS[name].additive and not METHODS[name].slow:
            return make_method(name)
    return None


@dataclass(frozen=True)
class ExplainedHub:
    """A hub with up to `EACH` queries that retrieve it and up to `EACH` that do not; it answers
    none of them. Queries are given by row."""

    key: str
    text: str
    retrieving: tuple[int, ...]
    others: tuple[int, ...]

    def pairs(self, summary: HubSummary) -> list[TextPair]:
        """Pairs of the hub with these queries, those that retrieve it first."""
        asked = [summary.queries[row] for row in (*self.retrieving, *self.others)]
        dataset = summary.asked.corpus.name
        return [
            TextPair(
                f"hub {self.key} {query.query_id}",
                query.text,
                self.text,
                language=query.language,
                dataset=dataset,
            )
            for query in asked
        ]


# Pages need them several times at every rerun, and reading them takes a pass over the corpus.
_texts: LRUCache[dict[str, str]] = LRUCache(16)


def explained_hubs(summary: HubSummary) -> list[ExplainedHub]:
    """The first hubs with their queries, which are spread evenly over all that qualify."""
    asked = summary.asked
    hubs, collection = summary.hubs[: asked.settings.explained], asked.corpus
    keys = tuple(summary.ids[number] for number in hubs)
    texts = _texts.get((collection.digest, keys), lambda: collection.texts(keys))
    explained_hubs = []
    for number in hubs:
        key, rows = summary.ids[number], summary.retrieving(number)
        others = sorted(set(summary.others(number)) - set(rows))
        retrieving, other = (tuple(spread_evenly(group, EACH)) for group in (rows, others))
        explained_hubs.append(ExplainedHub(key, texts[key], retrieving, other))
    return explained_hubs


def hub_words(
    compute: Compute, summary: HubSummary, method: Method
) -> dict[str, tuple[HubWordRow, ...]] | None:
    """The words of the first hubs by document, in descending order of share; None while
    attributions are missing."""
    hub_words = {}
    for hub in explained_hubs(summary):
        pairs, n = hub.pairs(summary), len(hub.retrieving)
        if compute.store.missing(summary.model.key, method, pairs):
            return None
        stored = compute.store.get_many(summary.model.key, method, pairs)
        documents = [summary.queries[row].document for row in (*hub.retrieving, *hub.others)]
        rows = list(zip(stored, documents, strict=True))
        named = partial(HubWordRow, summary.name, hub.key, method=method.name)
        hub_words[hub.key] = _words(hub.text, rows[:n], rows[n:], named)
    return hub_words


def _words(
    text: str,
    retrieving: list[tuple[Attribution | None, str]],
    others: list[tuple[Attribution | None, str]],
    named: Callable[..., HubWordRow],
) -> tuple[HubWordRow, ...]:
    """The words of a text with the largest shares. Attributions are given with the document that
    their query belongs to; None stands for one that failed."""
    spans = word_spans(text)
    # Words in order of first occurrence, and the index of each span's word.
    at, words = pd.factorize(np.array([folded(text[a:b]) for a, b in spans], dtype=object))
    counts = np.bincount(at).tolist()

    def shares(rows: list[tuple[Attribution | None, str]]) -> tuple[Values, list[str]]:
        """Shares [n, words], and the documents of the queries [n]."""
        computed = [
            (attribution, document) for attribution, document in rows if attribution is not None
        ]
        values = np.zeros((len(computed), len(words)))
        for row, (attribution, _) in enumerate(computed):
            scores = word_span_scores(
                attribution.document, attribution.document_scores, text, "sum"
            )
            np.add.at(values[row], at, np.nan_to_num(scores))
        return values, [document for _, document in computed]

    values, documents = shares(retrieving)
    other_values, other_documents = shares(others)

    if not len(values):
        return ()
    first = np.argsort(-values.mean(0), kind="stable")[:LISTED]
    return tuple(
        named(
            word=words[column],
            occurrences=counts[column],
            share=share,
            share_other_queries=unless_constant(
                estimate(other_values[:, [column]], other_documents)
            ),
        )
        for column in map(int, first)
        if (share := unless_constant(estimate(values[:, [column]], documents))) is not None
    )

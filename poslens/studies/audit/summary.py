"""The result of an audit for one index, and where a model truncates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate, ratio, ratio_difference
from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.evaluation.audit import (
    ORDERS,
    Order,
    QueryForm,
    SentenceRanks,
    UnretrievedCurve,
    last_minus_first,
    recovered,
    repeated,
    share_row,
    thirds_row,
    unretrieved_curve,
    unretrieved_share,
    worst,
)
from poslens.attribution.evaluation.audit_precision import Precision
from poslens.attribution.evaluation.chunks import WHOLE, Chunks
from poslens.attribution.evaluation.comparison import SHARE_MARGIN, Comparison
from poslens.attribution.evaluation.truncation import Truncation
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.kinds.audit import AuditStore
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage.results import Stored
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity
from poslens.paired import ItemMeasure, MeasuredModel
from poslens.studies.ranking.service import collection_of, store_of


@dataclass(frozen=True)
class AuditIndex:
    """An index: a model, a corpus and how its documents are chunked; and how its sentences are
    counted: the top k and the form of their queries. `width` is the width of the interval, 0 to 1,
    at which the audit may stop; 0 if it searches for all documents."""

    spec: RetrieverSpec
    chunks: Chunks
    collection: Collection
    top: int
    query_form: QueryForm
    width: float = 0.0

    @property
    def name(self) -> str:
        """Its name in figures and sentences."""
        name = self.spec.name
        return name if self.chunks == WHOLE else f"{name}, {self.chunks.title}"

    @property
    def asked(self) -> tuple[QueryForm, int]:
        """The form of queries, and the top k."""
        return self.query_form, self.top

    @property
    def precision(self) -> Precision:
        """What is estimated, and how precisely."""
        return Precision(self.query_form, self.top, self.width)


@dataclass(frozen=True)
class AuditSummary:
    """The evaluated ranks of one index, which `key` identifies. `failed` are documents without
    ranks, with reasons. `missing` counts the documents that were not searched for: the others are a
    random sample of the corpus. `base` is the first index of the same model among the results shown
    together, None for that index itself. `truncations` is empty if an earlier one of these results
    has those of the same model."""

    key: tuple[object, ...]
    index: AuditIndex
    model: ModelIdentity
    documents: tuple[SentenceRanks, ...]
    failed: dict[str, str]
    truncations: tuple[Truncation, ...]
    missing: int
    base: AuditSummary | None = None

    @property
    def name(self) -> str:
        """The name of the index."""
        return self.index.name

    @cached_property
    def curves(self) -> dict[Order, UnretrievedCurve]:
        """Unretrieved sentences by position, by order."""
        asked = self.index.asked
        return {order: unretrieved_curve(self.documents, order, *asked) for order in ORDERS}

    @cached_property
    def shares(self) -> dict[Order, Estimate | None]:
        """Share of unretrieved sentences by order."""
        asked = self.index.asked
        return {order: unretrieved_share(self.documents, order, *asked) for order in ORDERS}

    @cached_property
    def last_minus_first(self) -> dict[Order, Comparison | None]:
        """Share in the last third of documents compared with that in the first, by order."""
        asked = self.index.asked
        return {order: last_minus_first(self.documents, order, *asked) for order in ORDERS}

    def share_among(self, *, read: bool) -> Estimate | None:
        """Share of unretrieved sentences among those that the model reads in full (`read`), or
        among the others; None if there are no such sentences, or for a model without files: which
        sentences it reads is not recorded."""
        if self.index.spec.without_files:
            return None
        return unretrieved_share(self.documents, "original", *self.index.asked, read=read)

    @cached_property
    def recovered(self) -> Comparison | None:
        """The base's share of unretrieved sentences minus this index's; None without a base."""
        if self.base is None:
            return None
        return recovered(self.base.documents, self.documents, *self.index.asked)

    @property
    def measured(self) -> MeasuredModel:
        """The measures by which indexes are compared, by document: the share of unretrieved
        sentences and, in random order, that in the last third of documents minus that in the
        first."""
        asked = self.index.asked
        by_id = {document.document_id: document for document in self.documents}
        ids = {document_id: document_id for document_id in by_id}
        shares = {key: share_row(document, "original", *asked) for key, document in by_id.items()}
        thirds = {key: thirds_row(document, "random", *asked) for key, document in by_id.items()}
        measures = (
            ("share of unretrieved sentences", shares, ratio, 1.0),
            (
                "share unretrieved in the last third minus first third (shuffled)",
                thirds,
                ratio_difference,
                2.0,
            ),
        )
        return MeasuredModel(
            self.name,
            [
                ItemMeasure(title, "documents", SHARE_MARGIN, rows, ids, statistic, True, largest)
                for title, rows, statistic, largest in measures
            ],
        )

    @cached_property
    def worst(self) -> list[tuple[SentenceRanks, int, int]]:
        """Documents with unretrieved sentences, the number of these and of all sentences, in
        descending order."""
        return worst(self.documents, *self.index.asked)

    @property
    def n_sentences(self) -> int:
        """Sentences that were searched for."""
        return int(self.curves["original"].n.sum())

    @cached_property
    def n_repeated(self) -> tuple[int, int] | None:
        """Sentences that were searched for and occur verbatim in another audited document, and how
        many of them are unretrieved. None while documents are missing, because that takes a pass
        over the whole corpus, and a page would repeat it with every new result.

        Raises:
            UserError: the corpus cannot be read.
        """
        if self.missing:
            return None
        masks = repeated(self.documents, self.index.collection.documents())
        n = missed = 0
        for document in self.documents:
            unretrieved = document.unretrieved("original", *self.index.asked)
            counted = unretrieved[masks[document.document_id] & np.isfinite(unretrieved)]
            n, missed = n + len(counted), missed + int(counted.sum())
        return n, missed

    @property
    def sample(self) -> str:
        """Which documents were searched for, if not all of them."""
        if not self.missing:
            return ""
        n = len(self.documents) + len(self.failed)
        return f"{n:,} of {n + self.missing:,} documents, in random order"

    @cached_property
    def too_wide(self) -> bool:
        """Whether the intervals are wider than requested although no document is missing."""
        precision = self.index.precision
        return bool(precision.width) and not self.missing and not precision.reached(self.documents)

    @property
    def n_truncated(self) -> int | None:
        """Documents with a sentence that the model does not read whole; None as in
        `share_among`."""
        if self.index.spec.without_files:
            return None
        return sum(bool((document.read[0] < 1).any()) for document in self.documents)


def whole_corpus(data: DataSet) -> Collection:
    """The documents of a data set: its whole corpus if PosLens has it by name.

    Raises:
        UserError: its files cannot be read.
    """
    return datasets.corpus_of(data.name) if data.name in datasets.names() else collection_of(data)


def sample(whole: Collection, documents: int | None, seed: int) -> Collection:
    """A random sample of a corpus, or the corpus for None. Each sample is drawn once.

    Raises:
        UserError: the corpus cannot be read.
    """
    if documents is None:
        return whole
    key = (whole.digest, documents, seed)
    return _samples.get(key, lambda: whole.sampled_documents(documents, seed))


_samples: LRUCache[Collection] = LRUCache(8)


# -- stored results --------------------------------------------------------------------------------

_summaries: LRUCache[AuditSummary] = LRUCache(64)
_reaches: LRUCache[bool] = LRUCache(256)


def reached(store: AuditStore, model: ModelIdentity, subject: AuditIndex) -> bool:
    """Whether the documents searched so far give an interval of the required width."""
    if not subject.width:
        return False
    stored = store.select(model.key, subject.chunks)
    n = len(stored.results)
    key = (str(store.root), store.fingerprint, model.key, str(subject.chunks), subject.precision, n)
    return _reaches.get(key, lambda: subject.precision.reached(list(stored.results.values())))


def summary_of(
    store: AuditStore, model: ModelIdentity, subject: AuditIndex, stored: Stored[SentenceRanks]
) -> AuditSummary:
    """The evaluated stored ranks of an index, cached."""
    truncations, results = tuple(store.truncations(model.key)), tuple(stored.results.values())
    missing = len(store.keys) - len(results) - len(stored.failed)
    key = (
        subject.collection.name,
        store.fingerprint,
        subject.name,
        model.key,
        str(subject.chunks),
        subject.top,
        subject.query_form,
        subject.width,
        len(results),
        len(stored.failed),
        len(truncations),
    )
    return _summaries.get(
        key,
        lambda: AuditSummary(key, subject, model, results, stored.failed, truncations, missing),
    )


def compared(summary: AuditSummary, earlier: Sequence[AuditSummary]) -> AuditSummary:
    """The summary compared with the first `earlier` one of the same model, cached."""
    # Calibrated or not: both are indexes of one model.
    own_name = summary.index.spec.uncalibrated
    base = next((each for each in earlier if each.index.spec.uncalibrated == own_name), None)
    if base is None:
        return summary
    same_model = any(each.index.spec.name == summary.index.spec.name for each in earlier)
    truncations = () if same_model else summary.truncations
    return _summaries.get(
        (summary.key, base.key), lambda: replace(summary, base=base, truncations=truncations)
    )


def unretrieved_sentence(summary: AuditSummary, share: Estimate, control: Estimate) -> str:
    """The share of unretrieved sentences, and that after shuffling (`control`)."""
    form, top = summary.index.query_form, summary.index.top
    missed = (
        f"{_percent(share)} of {form}s, used as queries, don't retrieve their own document"
        if share.value
        else f"every {form}, used as a query, retrieves its own document"
    )
    shuffled = f"{_percent(control)} don't" if control.value else "all do"
    return (
        f"{summary.name}: {missed} in the top {top}; with each document's sentences shuffled, "
        f"{shuffled} ({summary.n_sentences:,} {form}s of {len(summary.documents):,} documents)."
    )


def repeated_sentence(summary: AuditSummary) -> str:
    """How many sentences occur in more than one document; empty if none does, or while documents
    are missing."""
    n, missed = summary.n_repeated or (0, 0)
    if not n:
        return ""
    n_unretrieved = sum(of_document for _, of_document, _ in summary.worst)
    include = f"; they include {missed:,} of {n_unretrieved:,} unretrieved sentences"
    return (
        f"{n:,} of {summary.n_sentences:,} sentences occur in more than one document, so no search "
        f"can tell these documents apart by them{include if missed else ''}."
    )


def _percent(share: Estimate) -> str:
    """A share above 0 with its interval, with enough digits to differ from 0."""
    return share.text(".1%" if share.value >= 0.0005 else ".2%")


# -- truncation ------------------------------------------------------------------------------------


def tokens_read(truncations: Sequence[Truncation]) -> tuple[int | None, int | None]:
    """Tokens that the model reads of the measured texts before it truncates, special tokens
    included; or, if it reads all of them to the end, None and the tokens of the longest one. Both
    are None without texts."""
    if not truncations:
        return None, None
    # The last word that is read may end past the context limit.
    read = [
        min(truncation.last, max(truncation.first, truncation.claimed))
        for truncation in truncations
        if not truncation.reads_all
    ]
    if read:
        return max(read), None
    return None, max(truncation.n_tokens for truncation in truncations)


def measured_limit(compute: Compute, spec: RetrieverSpec, data: DataSet) -> str:
    """Where a model truncates, as measured by an audit of the data set's corpus, in a sentence;
    empty if no audit measured it.

    Raises:
        UserError: the corpus or the stored results cannot be read.
    """
    store = store_of(AuditStore, compute, whole_corpus(data))
    return limit_sentence(spec, store.truncations(compute.identify(spec).key))


def limit_sentence(spec: RetrieverSpec, truncations: Sequence[Truncation]) -> str:
    """Where the model truncates; empty if that was not measured."""
    if not truncations:
        return ""
    name = spec.name
    longest = max(truncations, key=lambda truncation: truncation.n_tokens)
    if spec.without_files:  # its tokens are words here, and it states no limit
        first = min(truncations, key=lambda truncation: (truncation.reads_all, truncation.last))
        if first.reads_all:
            return f"{name} reads texts of {longest.n_words:,} words to the end."
        return f"{name} truncates at word {first.word:,} of {first.n_words:,}."
    if all(truncation.reads_all for truncation in truncations):
        configured = (
            ""
            if longest.n_tokens > longest.claimed
            else f", the longest that were tried; its context limit is {longest.claimed:,}"
        )
        return f"{name} reads texts of {longest.n_tokens:,} tokens to the end{configured}."
    first = next(truncation for truncation in truncations if not truncation.reads_all)
    if first.as_claimed:
        return f"{name} truncates at {first.claimed:,} tokens, its context limit."
    tokens = " to ".join(dict.fromkeys((f"{first.first:,}", f"{first.last:,}")))
    return f"{name} truncates at {tokens} tokens, not at its context limit of {first.claimed:,}."

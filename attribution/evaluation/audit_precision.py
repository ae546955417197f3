"""How precise is an audit that has not searched for the sentences of every document yet?

Documents are searched in random order, so those that are done are a simple random sample of the
corpus at any time, and the share of unretrieved sentences has an interval that shrinks as the audit
goes on. An audit may stop once the interval is as narrow as asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS, Estimate
from poslens.attribution.curves.proportions import agresti_coull
from poslens.attribution.evaluation.audit import (
    ORDERS,
    Order,
    QueryForm,
    SentenceRanks,
    unretrieved_share,
)

_GROWTH = 1.1
"""The interval is recomputed whenever the number of documents has grown by this factor, so that the
total work is proportional to the number of documents."""


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision that is requested of an audit: the share of sentences in this form that are not
    retrieved in the top k, with an interval of at most `width` (0 to 1). With 0, the audit searches
    for every document."""

    query_form: QueryForm
    top: int
    width: float = 0.0

    def reached(self, documents: Sequence[SentenceRanks]) -> bool:
        """Whether these documents, a random sample, suffice: the 95% intervals of the share in
        original and in random order are at most `width` wide. So must be that of as many documents
        without any unretrieved sentence, because resampling a few rare ones gives intervals that
        are too narrow."""
        if not self.width or len(documents) < MIN_DOCUMENTS:
            return False
        shares = [self.share(documents, order) for order in ORDERS]
        shares.append(agresti_coull(0, len(documents)))
        intervals = [share.interval for share in shares if share is not None]
        return len(intervals) > 1 and all(
            interval is not None and interval[1] - interval[0] <= self.width
            for interval in intervals
        )

    def share(self, documents: Sequence[SentenceRanks], order: Order) -> Estimate | None:
        """Share of unretrieved sentences; None if no sentence was searched for."""
        # Resampling draws rows by number: the same documents give the same interval in any order.
        ordered = sorted(documents, key=lambda document: document.document_id)
        return unretrieved_share(ordered, order, self.query_form, self.top)


class Outlook:
    """The documents that an audit has searched for so far, and the share estimated from them."""

    def __init__(self, precision: Precision, documents: Sequence[SentenceRanks] = ()) -> None:
        self._precision, self._documents = precision, list(documents)
        self._next = 0.0
        self.reached = False
        self.words = ""

    def add(self, document: SentenceRanks) -> None:
        """Add a document."""
        self._documents.append(document)

    def look(self) -> bool:
        """Recompute the interval if there are a tenth more documents than last time. Returns
        whether `words` was updated: the share so far in percent, with its interval."""
        n = len(self._documents)
        if n < max(MIN_DOCUMENTS, self._next):
            return False
        self._next = max(n + 1, _GROWTH * n)
        self.reached = self._precision.reached(self._documents)
        share = self._precision.share(self._documents, "original")
        if share is None or share.interval is None:
            return False
        low, high = share.interval
        self.words = f"{share.value:.1%} [{low:.1%}, {high:.1%}] unretrieved so far"
        return True

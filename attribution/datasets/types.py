"""Data sets as returned by readers: pairs, and the rows that were rejected."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, TypeVar

from poslens.attribution.datasets.index_writer import PairWriter
from poslens.attribution.datasets.indexed_pairs import IndexedPairs
from poslens.attribution.errors import UserError, printable
from poslens.attribution.nouns import counted
from poslens.attribution.pairs import Pairs
from poslens.attribution.types import TextPair

T = TypeVar("T")

_MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class Rejection:
    """A row that is not a valid pair: file, row (from 1) and reason."""

    file: str
    row: int
    reason: str

    def __post_init__(self) -> None:
        # Both can quote damaged files.
        object.__setattr__(self, "file", printable(self.file))
        object.__setattr__(self, "reason", printable(self.reason[:_MAX_REASON]))

    def __str__(self) -> str:
        return f"{self.file} row {self.row}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Judgment:
    """A pair with its relevance judgment and with the ids in the data set's files.

    `part` is the corpus that the query searches, if a data set has several (a domain of PosIR, a
    folder of BEIR). `pair.language` is the document's language and `query_language` the query's;
    for a translated post it is the original's. `groups` are the groups to which the query belongs,
    if the data set has any. `splits` are the values of the properties by which a benchmark splits
    its queries, such as ("year", "2020").
    """

    pair: TextPair
    query_id: str
    document_id: str
    relevance: int = 1
    part: str = ""
    query_language: str | None = None
    groups: tuple[str, ...] = ()
    splits: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class LostDocument(Rejection):
    """A judgment of a document that the corpus lacks. It gives no pair, and no search can find the
    document, but measures count it as not found, as trec_eval does."""

    query_id: str
    query: str
    document_id: str
    relevance: int = 1
    part: str = ""
    query_language: str | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A query whose judged documents are all irrelevant. It gives no pair, but measures count it as
    0, as trec_eval does."""

    query_id: str
    query: str
    part: str = ""
    query_language: str | None = None


JudgedRow: TypeAlias = Judgment | Rejection | Unanswered
"""A row of a data set with relevance judgments."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of queries that a benchmark compares: its `title`, the criterion `by` which queries
    are grouped, and the groups' `names` in order. A query can belong to several groups or to
    none."""

    title: str
    by: str
    names: tuple[str, ...]


class Passages(dict[str, tuple[str, str]]):
    """Ids and texts of passages without ids, by their texts: each distinct text has the id of its
    first occurrence."""

    def of(self, text: str, place: str) -> tuple[str, str]:
        """The id of this text, `place` if it is new, and the stored copy of the text."""
        return self.setdefault(text, (place, text))


@dataclass(frozen=True)
class DataSet:
    """All pairs of a data set; accepted + rejected = rows read.

    `versions` are other versions of pairs, such as translations, with the same ids but the name of
    their own data set in `dataset`; `version_name` is the name of the version. `ids` are the file's
    own ids of query and document by pair id, if it has any; None where one is missing. A data set
    that was opened from its index has no `ids`.
    """

    name: str
    title: str
    pairs: Pairs
    rejected: tuple[Rejection, ...] = field(default=())
    versions: Pairs = field(default_factory=Pairs, compare=False)
    version_name: str = ""
    ids: Mapping[str, tuple[str | None, str | None]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @cached_property
    def digest(self) -> str:
        """Digest of names, pairs and rejections, for caches in this process's memory."""
        stated = (self.name, self.title, self.version_name, self.rejected)
        total = hashlib.sha256(repr(stated).encode("utf-8", "replace"))
        for pairs in (self.pairs, self.versions):
            total.update(pairs.digest.encode())
        return total.hexdigest()[:32]

    def pair(self, pair_id: str) -> TextPair:
        """The pair with this id.

        Raises:
            UserError: no pair has it.
        """
        pair = self.pairs.get(pair_id)
        if pair is None:
            example = self.pairs[0].pair_id if self.pairs else ""
            raise UserError(
                f"{self.name} has no pair {pair_id[:80]!r}: use one of its pair ids, such as "
                f"{example!r}."
            )
        return pair

    @property
    def damaged(self) -> bool:
        """Whether its index turned out to be damaged after it was opened."""
        return isinstance(self.pairs, IndexedPairs) and self.pairs.source.damaged

    def version_of(self, pair: TextPair) -> TextPair | None:
        """The other version of a pair, if the data set has one."""
        return self.versions.get(pair.pair_id)


def spread_evenly(items: Sequence[T], n: int) -> Sequence[T]:
    """`n` of the items, spread evenly, including the first; all if there are no more."""
    total = len(items)
    return items if n >= total else [items[i * total // n] for i in range(n)]


def spread_words(n: int, items: str = "pairs") -> str:
    """The selection of `n` items by `spread_evenly`, as text."""
    return f"{n:,} {items}, spread evenly over the data set"


def collect(
    name: str,
    title: str,
    rows: Iterable[TextPair | Rejection],
    versions: Mapping[str, TextPair] | None = None,
    version_name: str = "",
) -> DataSet:
    """Build a data set from a reader's pairs and rejections; `versions` can be filled meanwhile.

    Raises:
        UserError: there are no rows, or no row is a valid pair; the message has the first reason.
    """
    writer = PairWriter()
    rejected: list[Rejection] = []
    for row in rows:
        if isinstance(row, TextPair):
            writer.add(row)
        else:
            rejected.append(row)
    title = title or name
    if not writer and not rejected:
        raise UserError(f"{title} has no rows: use a data set with at least one pair.")
    if not writer:
        raise UserError(
            f"{title} has {counted(len(rejected), 'row')}, but no valid pair. The first error is "
            f"in {rejected[0]}"
        )
    pairs, others = writer.finished(title, (versions or {}).values())
    return DataSet(name, title, pairs, tuple(rejected), others, version_name)

"""Judgments in BEIR's columns (query-id, corpus-id, score), and the pairs and collections made from
judgments."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic

from poslens.attribution.datasets.corpus import Collection, Document, Query, key_of
from poslens.attribution.datasets.schema import Column, Row, T, accepted, as_grade, as_id, required
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import (
    DataSet,
    Groups,
    JudgedRow,
    Judgment,
    LostDocument,
    Passages,
    Rejection,
    Unanswered,
    collect,
)
from poslens.attribution.errors import UserError
from poslens.attribution.types import TextPair

QUERY_ID, DOCUMENT_ID = required("query-id", as_id), required("corpus-id", as_id)
SCORE = required("score", as_grade)
COLUMNS = (QUERY_ID, DOCUMENT_ID, SCORE)


@dataclass(slots=True)
class RowsById(Generic[T]):
    """Rows by id, as converted by a reader, and the invalid rows. `what` names a row in messages.
    An id with different rows is invalid, unless its first valid row counts (`first_counts`), as it
    does where a corpus is searched."""

    what: str
    first_counts: bool = False
    by_id: dict[str, T] = field(default_factory=dict)
    invalid: dict[str, Rejection] = field(default_factory=dict)
    without_id: list[Rejection] = field(default_factory=list)

    def add(
        self,
        file: File,
        rows: Iterable[Row],
        key: Column[str],
        read: Callable[[Row], T],
        ids: Container[str] | None = None,
    ) -> None:
        """Add the rows of a file with an id in `ids`, or all rows; `key` has the ids."""
        for row in rows:
            name = ""
            try:
                name = row[key]
                if ids is not None and name not in ids:
                    continue
                value = read(row)
                if self.by_id.setdefault(name, value) != value and not self.first_counts:
                    raise UserError("an earlier row with this id differs")
            except UserError as error:
                rejection = Rejection(file.name, row.number, str(error))
                if name:
                    self.invalid[name] = rejection
                else:
                    self.without_id.append(rejection)

    def __getitem__(self, name: str) -> T:
        """The row with this id.

        Raises:
            UserError: there is none, or it is invalid.
        """
        row = self.invalid.get(name)
        if row and not (self.first_counts and name in self.by_id):
            raise UserError(f"{self.what} {name}: {row}")
        if name not in self.by_id:
            hint = ""
            if lost := self.without_id:
                hint = f"; {len(lost):,} rows have no valid id, the first is {lost[0]}"
            raise UserError(f"{self.what} {name} does not exist{hint}")
        return self.by_id[name]


@dataclass(frozen=True, slots=True)
class JudgmentRow:
    """A row that judges a document relevant to a query, and where it is."""

    file: str
    row: int
    query: str
    document: str
    relevance: int

    @property
    def pair_id(self) -> str:
        """The ids of query and document."""
        return f"{self.query}/{self.document}"


def judgment_rows(
    file: File, rows: Iterable[Row], ids: tuple[Column[str], Column[str]] = (QUERY_ID, DOCUMENT_ID)
) -> Iterator[JudgmentRow | Rejection]:
    """The judgments above zero in the rows of a file, and the invalid rows; `ids` are the columns
    of queries and documents. A row that judges a document not relevant is valid and skipped, except
    the first of each query for which the file has no others; these rows come last."""
    query, document = ids

    def read(row: Row) -> JudgmentRow:
        return JudgmentRow(file.name, row.number, row[query], row[document], row[SCORE])

    answered: set[str] = set()
    irrelevant: dict[str, JudgmentRow] = {}
    for row in accepted(file, rows, read):
        if isinstance(row, JudgmentRow):
            if not row.relevance:
                irrelevant.setdefault(row.query, row)
                continue
            answered.add(row.query)
        yield row
    yield from (row for name, row in irrelevant.items() if name not in answered)


def judged_pairs(
    rows: Iterable[JudgmentRow | Rejection],
    query_of: Callable[[str], str],
    document_of: Callable[[str], str],
    pair_of: Callable[[JudgmentRow, str, str], TextPair],
    part: str,
    language: str | None,
) -> Iterator[JudgedRow]:
    """Each row as a judgment of a pair. `query_of` and `document_of` return the text with an id,
    `pair_of` the pair of two texts; each can raise `UserError`. A row without its query or its
    pair, or with the pair of an earlier row, is rejected; one without its document is a
    `LostDocument`, and one of an irrelevant document is `Unanswered`. `language` is the
    queries'."""
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if isinstance(row, Rejection):
            yield row
            continue
        if not row.relevance:
            with suppress(UserError):  # a query without a text is not ranked
                yield Unanswered(row.query, query_of(row.query), part, language)
            continue
        try:
            query = query_of(row.query)
            if (row.query, row.document) in seen:
                raise UserError("an earlier row judges the same pair")
            seen.add((row.query, row.document))
            try:
                document = document_of(row.document)
            except UserError as error:
                yield LostDocument(
                    *(row.file, row.row, f"{row.pair_id}: {error}", row.query, query),
                    *(row.document, row.relevance, part, language),
                )
                continue
            pair = pair_of(row, query, document)
        except UserError as error:
            yield Rejection(row.file, row.row, f"{row.pair_id}: {error}")
            continue
        yield Judgment(pair, row.query, row.document, row.relevance, part, language)


@dataclass(frozen=True, slots=True)
class Judged:
    """A data set with relevance judgments, whose `rows` are read once, as pairs or as a collection.

    `stream` reads its corpus from `files`, if it has any. `versions` are other
    versions of pairs by id, such as translations, which reading `rows` can add, and `version_name`
    is the name of a version. `skips_own_id`, `groups` and `unjudged` are as in `Collection`.
    """

    name: str
    title: str
    rows: Iterable[JudgedRow]
    stream: Callable[[], Iterator[Document | Rejection]]
    files: Sequence[File] = ()
    skips_own_id: bool = False
    groups: Groups | None = None
    versions: Mapping[str, TextPair] = field(default_factory=dict)
    version_name: str = ""
    unjudged: Callable[[], Iterator[tuple[str, str]]] = lambda: iter(())

    def data_set(self) -> DataSet:
        """One pair for each judgment; accepted + rejected = rows.

        Raises:
            UserError: a file can't be read or is in another layout, or no row is a valid pair.
        """
        pairs = (
            row.pair if isinstance(row, Judgment) else row
            for row in self.rows
            if not isinstance(row, Unanswered)
        )
        return collect(self.name, self.title, pairs, self.versions, self.version_name)

    def collection(self) -> Collection:
        """Queries, judgments and the whole corpus, which is read while it is searched.

        Raises:
            UserError: a file can't be read or is in another layout, or no document is judged
                relevant.
        """
        judged: dict[str, list[Judgment | LostDocument | Unanswered]] = {}
        rejected: list[Rejection] = []
        n_pairs = 0
        for row in self.rows:
            if isinstance(row, Judgment | LostDocument | Unanswered):
                judged.setdefault(key_of(row.part, row.query_id), []).append(row)
            if isinstance(row, Rejection):
                rejected.append(row)
            n_pairs += isinstance(row, Judgment)
        if not n_pairs:
            hint = f"; first error, {rejected[0]}" if rejected else ""
            raise UserError(f"{self.title} has no query with a relevant document{hint}")
        return Collection(
            self.name,
            self.title,
            tuple(_query(query_id, rows) for query_id, rows in judged.items()),
            self.stream,
            tuple(file.content for file in self.files if isinstance(file.content, Path)),
            tuple(rejected),
            self.skips_own_id,
            groups=self.groups,
            unjudged=self.unjudged,
        )


def judged_passages(
    judge: Callable[[Sequence[File], str, Passages], Iterator[JudgedRow]],
    files: Sequence[File],
    name: str,
    title: str,
    groups: Groups | None = None,
) -> Judged:
    """A data set of questions with their passages, each distinct passage stored once under the
    location of its first occurrence. `judge` reads the files of a data set of this name row by row:
    each row is a judgment of its passage or a rejection. It adds every passage, including those
    whose rows are all rejected."""
    passages = Passages()
    return Judged(
        name,
        title,
        judge(files, name, passages),
        lambda: (Document(key, text) for key, text in passages.values()),
        files,
        groups=groups,
    )


def _query(query_id: str, judged: Sequence[Judgment | LostDocument | Unanswered]) -> Query:
    query = Query(
        query_id,
        judged[0].pair.query if isinstance(judged[0], Judgment) else judged[0].query,
        judged[0].part,
        judged[0].query_language,
        {
            key_of(row.part, row.document_id): row.relevance
            for row in judged
            if not isinstance(row, Unanswered)
        },
    )
    paired = [judgment for judgment in judged if isinstance(judgment, Judgment)]
    if not paired:
        return query

    def place(judgment: Judgment) -> tuple[str, int]:
        span = judgment.pair.evidence
        return key_of(judgment.part, judgment.document_id), span.start if span else 0

    # The order of judgments must not decide which evidence counts.
    placed = [each for each in paired if each.pair.evidence is not None]
    first = min(placed or paired, key=place)
    pair, span = first.pair, first.pair.evidence
    pairs = {key_of(each.part, each.document_id): each.pair.pair_id for each in paired}
    return replace(
        query,
        pairs=pairs | {key_of(first.part, first.document_id): pair.pair_id},
        evidence=None if span is None else span.midpoint(len(pair.document)),
        document_tokens=pair.document_tokens,
        span=span,
        evidence_pair=pair.pair_id,
        groups=first.groups,
        splits=first.splits,
    )


def from_pairs(data: DataSet) -> Collection:
    """The collection of a data set that has only pairs. Queries and documents have the ids in
    `data.ids`. A text without an id has the id that the same text has in another pair, or else the
    id of its first pair.

    Only the documents of a query's pairs count as relevant to it.
    """
    queries, documents = _Ids(), _Ids()
    if data.ids:
        for pair in data.pairs:
            query_id, document_id = data.ids.get(pair.pair_id, (None, None))
            queries.add(query_id, pair.query)
            documents.add(document_id, pair.document)
    judged: list[Judgment] = []
    corpus: dict[str, Document] = {}
    for pair in data.pairs:
        query_id, document_id = data.ids.get(pair.pair_id, (None, None))
        query_id = query_id or queries.of(pair.query, pair.pair_id)
        document_id = document_id or documents.of(pair.document, pair.pair_id)
        judged.append(Judgment(pair, query_id, document_id, query_language=pair.asked_in))
        corpus.setdefault(document_id, Document(document_id, pair.document, "", pair.language))
    rows: list[JudgedRow] = [*judged, *data.rejected]
    return Judged(data.name, data.title, rows, lambda: iter(corpus.values())).collection()


class _Ids:
    """Ids of all queries or of all documents; no id is given to two texts."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._of_text: dict[str, str] = {}

    def add(self, name: str | None, text: str) -> None:
        """Record an id of a text, if it has one."""
        if name is not None:
            self._given.add(name)
            self._of_text.setdefault(text, name)

    def of(self, text: str, pair_id: str) -> str:
        """The id of a text whose pair, `pair_id`, does not state it."""
        if text not in self._of_text:
            name = pair_id
            while name in self._given:
                name = f"pair:{name}"
            self.add(name, text)
        return self._of_text[text]

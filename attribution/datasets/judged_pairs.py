"""Judgments in BEIR's columns (query-id, corpus-id, score), and their pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic

from poslens.attribution.datasets.corpus import grade
from poslens.attribution.datasets.schema import Column, Row, T, accepted, as_id, required
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import Judgement, LostDocument, Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.types import TextPair

QUERY_ID, DOCUMENT_ID = required("query-id", as_id), required("corpus-id", as_id)
SCORE = required("score", grade)
COLUMNS = (QUERY_ID, DOCUMENT_ID, SCORE)


@dataclass(slots=True)
class RowsById(Generic[T]):
    """Rows of texts by id, in the form that a reader gives them, and the rows that are invalid.
    `what` names a row in messages."""

    what: str
    by_id: dict[str, T] = field(default_factory=dict)
    invalid: dict[str, Rejection] = field(default_factory=dict)
    without_id: list[Rejection] = field(default_factory=list)

    def add(
        self,
        file: File,
        rows: Iterable[Row],
        key: Column[str],
        read: Callable[[Row], T],
        wanted: Container[str] | None = None,
    ) -> None:
        """Add the rows of a file with an id in `wanted`, or all rows; `key` has the ids."""
        for row in rows:
            name = ""
            try:
                name = row[key]
                if wanted is not None and name not in wanted:
                    continue
                value = read(row)
                if self.by_id.setdefault(name, value) != value:
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
        if row := self.invalid.get(name):
            raise UserError(f"{self.what} {name}: {row.file} row {row.row}: {row.reason}")
        if name not in self.by_id:
            raise UserError(f"{self.what} {name} does not exist{self._hint}")
        return self.by_id[name]

    @property
    def _hint(self) -> str:
        if not self.without_id:
            return ""
        first = self.without_id[0]
        return (
            f"; {len(self.without_id):,} rows have no valid id, the first is {first.file} row "
            f"{first.row}: {first.reason}"
        )


@dataclass(frozen=True, slots=True)
class JudgementRow:
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


def judgement_rows(
    file: File, rows: Iterable[Row], ids: tuple[Column[str], Column[str]] = (QUERY_ID, DOCUMENT_ID)
) -> Iterator[JudgementRow | Rejection]:
    """The judgments above zero in the rows of a file; `ids` are the columns of queries and
    documents."""
    query, document = ids

    def read(row: Row) -> JudgementRow:
        judgement = JudgementRow(file.name, row.number, row[query], row[document], row[SCORE])
        if not judgement.relevance:
            raise UserError(f"{judgement.pair_id} is judged not relevant")
        return judgement

    return accepted(file, rows, read)


def judged_pairs(
    rows: Iterable[JudgementRow | Rejection],
    query_of: Callable[[str], str],
    document_of: Callable[[str], str],
    pair_of: Callable[[JudgementRow, str, str], TextPair],
    part: str,
    language: str | None,
) -> Iterator[Judgement | Rejection]:
    """Each row as a judgment of a pair. The functions return the text with an id, and the pair of
    two texts, or raise `UserError`: a row without its query or its pair, or with the pair of an
    earlier row, is rejected; one without its document is a `LostDocument`. `language` is the
    queries'."""
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if isinstance(row, Rejection):
            yield row
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
        yield Judgement(pair, row.query, row.document, row.relevance, part, language)

"""A test collection: queries, the documents that answer them, and the whole corpus to search.

Attribution needs only pairs, but a ranking also needs the documents that no query asks for. There
can be millions, so a collection holds its queries and yields its documents one at a time.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

from poslens.attribution.datasets.schema import Row
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import Groups, LostDocument, Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted
from poslens.attribution.paths import file_state
from poslens.attribution.text import clean
from poslens.attribution.types import EvidenceSpan


@dataclass(frozen=True, slots=True)
class Document:
    """A document of a corpus.

    `part` is the corpus it belongs to, if a data set has several; `language` of a translation is
    the original's. `title` is the beginning of the text, if the file has titles.
    """

    document_id: str
    text: str
    part: str = ""
    language: str | None = None
    title: str = ""

    @property
    def key(self) -> str:
        """Its id in the collection; ids of different parts can be the same."""
        return key_of(self.part, self.document_id)


@dataclass(frozen=True, slots=True)
class Query:
    """A query and its judgments.

    `relevant` maps document keys to grades from 1, including documents that the corpus lacks;
    `pairs` maps those in the corpus to the data set's pair ids. `evidence` is the mid-point of the
    evidence relative to its document's characters (of several documents with evidence, the one with
    the smallest key), and `document_tokens` the data set's token count of that document; None if
    unknown. `span` is the evidence in the document of the pair `evidence_pair`. `groups` are those
    of the collection's groups to which the query belongs, and `splits` the properties by which a
    benchmark splits queries, such as ("year", "2020").
    """

    query_id: str
    text: str
    part: str
    language: str | None
    relevant: Mapping[str, int] = field(default_factory=dict)
    pairs: Mapping[str, str] = field(default_factory=dict)
    evidence: float | None = None
    document_tokens: int | None = None
    span: EvidenceSpan | None = None
    evidence_pair: str = ""
    groups: tuple[str, ...] = ()
    splits: tuple[tuple[str, str], ...] = ()

    @property
    def evidence_document(self) -> str | None:
        """Key of the document that contains the evidence."""
        return next((key for key, pair in self.pairs.items() if pair == self.evidence_pair), None)

    @property
    def document(self) -> str:
        """Key of the document that intervals resample: the one that contains the evidence, or else
        the relevant one with the smallest key. The order of judgments must not matter."""
        return self.evidence_document or min(self.relevant, default=self.query_id)


@dataclass(frozen=True, slots=True)
class Survey:
    """Statistics of a corpus: the number of documents, in total and by part and language, the
    rejected rows, and the number of documents excluded from a query's ranking (`own_query`)."""

    n: int
    languages: Mapping[tuple[str, str | None], int]
    rejected: tuple[Rejection, ...]
    own_ids: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """How many rows were rejected, and why the first one was; empty if none was."""
        return tuple(
            f"Rejected: {counted(len(self.rejected), 'row')} of the corpus, the first in "
            f"{str(first).rstrip('.')}."
            for first in self.rejected[:1]
        )


@dataclass(frozen=True)
class Collection:
    """Queries, judgments and a corpus that can be read any number of times.

    With `skips_own_id`, a query does not find the document with its own id, as in BEIR. With
    `monolingual`, each language is a separate part: see `by_language`. `groups` are the groups of
    queries that a benchmark compares, or None. `drawn` describes a sample of queries or documents,
    if the collection is one: see `sampled` and `sampled_documents`. `unjudged` reads the ids and
    texts of further queries, which have no judgments, if the data set has any.
    """

    name: str
    title: str
    queries: tuple[Query, ...]
    stream: Callable[[], Iterator[Document | Rejection]]
    files: tuple[Path, ...] = ()
    rejected: tuple[Rejection, ...] = field(default=())
    skips_own_id: bool = False
    monolingual: bool = False
    groups: Groups | None = None
    drawn: str = ""
    unjudged: Callable[[], Iterator[tuple[str, str]]] = lambda: iter(())

    @property
    def n_lost(self) -> int:
        """Number of judgments of documents that the corpus lacks."""
        return sum(isinstance(rejection, LostDocument) for rejection in self.rejected)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about what measures count and readers may not expect, one sentence each."""
        notes = []
        if self.monolingual:
            notes.append(
                "Each query searches the documents of its own language; queries without a relevant "
                "document in their language are excluded."
            )
        if n := self.survey.own_ids:
            lost = self.n_excluded
            fix = f", {lost:,} of them judged relevant: give documents other ids than queries"
            notes.append(
                f"Documents with the id of a query are excluded from its ranking, as in BEIR: "
                f"{n:,} here{fix if lost else ''}."
            )
        if self.n_lost:
            notes.append(
                f"Counted as not found, as in trec_eval: {counted(self.n_lost, 'judged document')} "
                "outside the corpus."
            )
        return (*notes, *self.survey.notes)

    @cached_property
    def row_of(self) -> Mapping[str, int]:
        """Each query's index in `queries` by its id."""
        return {query.query_id: row for row, query in enumerate(self.queries)}

    def query_text(self, query_id: str) -> str | None:
        """The text of the query with this id, judged or not; None if there is none.

        Raises:
            UserError: the queries cannot be read.
        """
        if (row := self.row_of.get(query_id)) is not None:
            return self.queries[row].text
        return next((text for other, text in self.unjudged() if other == query_id), None)

    def excluded(self, query: Query) -> set[str]:
        """The keys of a query's relevant documents that it does not find because they have its
        id."""
        own = {query.query_id, key_of(query.part, query.query_id)} if self.skips_own_id else set()
        return own & query.pairs.keys()

    @cached_property
    def n_excluded(self) -> int:
        """The number of queries that don't find a relevant document because it has their id."""
        return sum(bool(self.excluded(query)) for query in self.queries)

    def own_query(self, document: Document) -> int | None:
        """The index in `queries` of the query that does not find this document because it has the
        same id; None if there is none."""
        if not self.skips_own_id:
            return None
        # In a collection made by `by_language`, the id is the key in the whole corpus.
        row = self.row_of.get(document.document_id if self.monolingual else document.key)
        if row is not None and self.monolingual and self.queries[row].part != document.part:
            return None
        return row

    @property
    def parts(self) -> tuple[str, ...]:
        """The corpora that queries search, in order."""
        return tuple(dict.fromkeys(query.part for query in self.queries))

    def documents(
        self, reject: Callable[[Rejection], None] = lambda rejection: None
    ) -> Iterator[Document]:
        """Every document of the corpus in order; rejected rows go to `reject`, so accepted +
        rejected = rows read.

        Raises:
            UserError: a file of the corpus cannot be read.
        """
        for document in self.stream():
            if isinstance(document, Rejection):
                reject(document)
            else:
                yield document

    @cached_property
    def survey(self) -> Survey:
        """The statistics of one pass over the corpus."""
        rejected: list[Rejection] = []
        counts: Counter[tuple[str, str | None]] = Counter()
        own_ids = 0
        for document in self.documents(rejected.append):
            counts[document.part, document.language] += 1
            own_ids += self.own_query(document) is not None
        return Survey(counts.total(), counts, tuple(rejected), own_ids)

    @property
    def languages(self) -> tuple[str, ...]:
        """The queries' languages, the most frequent first."""
        counts = Counter(query.language for query in self.queries if query.language)
        return tuple(language for language, _ in counts.most_common())

    def by_language(self) -> Collection:
        """The collection in which each query searches only documents in its own language and has
        only their judgments (MultiClaim's monolingual pools). Documents are in memory, by language.

        Raises:
            UserError: no query has a relevant document in its language.
        """
        held: dict[str, list[Document]] = {language: [] for language in self.languages}
        for document in self.documents():
            if (language := document.language) in held:
                held[language].append(replace(document, document_id=document.key, part=language))
        documents = tuple(chain.from_iterable(held.values()))
        key_in_part = {document.document_id: document.key for document in documents}
        rejected = list(self.rejected)
        queries = []
        for row, query in enumerate(self.queries, start=1):
            renamed = {old: key_of(query.language or "", old) for old in query.relevant}
            keys = {old: new for old, new in renamed.items() if key_in_part.get(old) == new}
            if query.language is None or not keys:
                reason = f"no document in its language ({query.language}) is judged relevant"
                rejected.append(Rejection("queries", row, f"{query.query_id}: {reason}"))
                continue
            queries.append(
                replace(
                    query,
                    part=query.language,
                    relevant={new: query.relevant[old] for old, new in keys.items()},
                    pairs={keys[old]: pair for old, pair in query.pairs.items() if old in keys},
                )
            )
        if not queries:
            raise UserError(
                f"{self.title} has no query with a relevant document in its own language: search "
                "all documents."
            )
        return replace(
            self,
            queries=tuple(queries),
            stream=lambda: iter(documents),
            rejected=tuple(rejected),
            monolingual=True,
        )

    def sampled(self, n: int, seed: int) -> Collection:
        """The same corpus with at most `n` queries of each group, drawn at random. A query of
        several groups counts in each of them, so a group can have more than `n`.

        Raises:
            UserError: the collection has no groups, or `n` is below 1.
        """
        if self.groups is None:
            raise UserError(f"{self.title} has no groups of queries: use all queries.")
        if n < 1:
            raise UserError(f"The number of queries of each group must be at least 1, not {n}.")
        order = list(range(len(self.queries)))
        random.Random(seed).shuffle(order)
        drawn: set[int] = set()
        for name in self.groups.names:
            drawn.update([row for row in order if name in self.queries[row].groups][:n])
        return replace(
            self,
            queries=tuple(self.queries[row] for row in sorted(drawn)),
            drawn=f"up to {n:,} queries of each group, drawn with seed {seed}",
        )

    def sampled_documents(
        self, n: int, seed: int, always: frozenset[str] = frozenset()
    ) -> Collection:
        """The same queries with `n` documents, or with all if there are no more: those with a key
        in `always`, as far as they fit, and others drawn at random. A larger sample with the same
        seed contains the smaller one. A sample has no files, so its fingerprint is that of its
        documents.

        Raises:
            UserError: `n` is below 1, or as `documents`.
        """
        if n < 1:
            raise UserError(f"A sample must have at least 1 document, not {n}.")
        total = self.survey.n
        if n >= total:
            return self

        def random_key(key: str) -> bytes:
            if key in always:
                return b""
            return hashlib.sha256(f"{seed}\0{key}".encode("utf-8", "replace")).digest()

        smallest = heapq.nsmallest(
            n, ((random_key(document.key), document.key) for document in self.documents())
        )
        drawn = frozenset(key for _, key in smallest)
        words = f"{n:,} of {total:,} documents, drawn with seed {seed}"
        return replace(
            self,
            stream=lambda: (document for document in self.documents() if document.key in drawn),
            files=(),
            drawn=", ".join(filter(None, (self.drawn, words))),
        )

    def texts(self, keys: Iterable[str]) -> dict[str, str]:
        """The texts of documents, from one pass over the corpus that ends at the last of them."""
        requested = set(keys)
        documents = (document for document in self.documents() if document.key in requested)
        return {document.key: document.text for document in islice(documents, len(requested))}

    @cached_property
    def digest(self) -> str:
        """Digest of the whole collection, for caches in memory. For a corpus in files it includes
        the state of the files rather than their contents."""
        states = []
        for path in self.files:
            with suppress(OSError):  # reading the corpus reports it
                states.append(file_state(path))
        corpus = repr(states) if self.files else self.corpus_digest
        values = (self.name, self.title, self.groups, self.drawn, self.skips_own_id)
        total = hashlib.sha256(
            f"{values!r}\0{self.monolingual}\0{corpus}\0".encode("utf-8", "replace")
        )
        for row in (*self.queries, *self.rejected):
            total.update(f"{row!r}\n".encode("utf-8", "replace"))
        return total.hexdigest()[:32]

    @cached_property
    def corpus_digest(self) -> str:
        """16 hexadecimal digits over every document of a collection without files, with its
        language, on which its sentences depend."""
        total = hashlib.sha256()
        for document in self.documents():
            row = (document.key, document.text, document.part, document.language)
            total.update(f"{row!r}\n".encode("utf-8", "replace"))
        return total.hexdigest()[:16]

    @cached_property
    def queries_digest(self) -> str:
        """16 hexadecimal digits over queries and judgments, without the corpus."""
        total = hashlib.sha256()
        for query in self.queries:
            row = (query.query_id, query.text, query.part, sorted(query.relevant.items()))
            total.update(f"{row!r}\n".encode())
        if self.skips_own_id:
            total.update(b"without the document of the query's own id\n")
            if self.monolingual:
                total.update(b"also among those of its language\n")
        return total.hexdigest()[:16]


def documents_of(
    file: File, rows: Iterable[Row], read: Callable[[Row], Document], seen: set[int]
) -> Iterator[Document | Rejection]:
    """The documents that `read` makes of the rows of a file, with their texts cleaned. `seen`
    contains the hashes of earlier ids, because millions of ids would need more memory.

    Raises:
        UserError: the file cannot be read.
    """
    for row in rows:
        about = ""
        try:
            document = read(row)
            about = f"{document.document_id[:80]}: "
            if hash(document.document_id) in seen:
                raise UserError("an earlier row has this id")
            text = clean(document.text, "document")
        except UserError as error:
            yield Rejection(file.name, row.number, f"{about}{error}")
            continue
        seen.add(hash(document.document_id))
        title = document.title.strip()
        if len(title) >= len(text) or not text.startswith(title):
            title = ""
        yield replace(document, text=text, title=title)


def key_of(part: str, identity: str) -> str:
    """A document's key from its part and id."""
    return f"{part}/{identity}" if part else identity

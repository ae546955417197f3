"""BM25 (Robertson and Zaragoza 2009), Lucene's variant as in bm25s: a control that cannot see
position.

s(q, d) = sum over query words of idf(w) * tf / (tf + k1 * (1 - b + b * |d| / average)), with
idf(w) = ln(1 + (N - n + 0.5) / (n + 0.5)); n = 0 for a word that is in no document of the
statistics. Words are compared as normalized by `folded`. Positions of words do not matter, so a
curve of BM25 shows only where the data set's matching words are.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module
from importlib.metadata import version
from io import StringIO
from itertools import islice
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Encoded, ExactScore, LibraryCheck, WordInputs
from poslens.attribution.retrievers.family import Capability, Family, register
from poslens.attribution.retrievers.specs import STEMMED, STEMMER, ModelFiles, RetrieverSpec
from poslens.attribution.text import MAX_CHARACTERS, word_spans
from poslens.attribution.types import Array, Side, TextPair, Token, TokenizedText, as_array

SOURCE = "builtin:bm25"
_SHORTEST = 3
"""Shorter words are not stemmed, as in Lucene's StempelFilter."""

_WORDS_VERSION = 2
"""Raise it when the splitting or normalization of words changes, which changes results."""

# Only inside a word: at its edges they are quotation marks.
_APOSTROPHE = re.compile(r"(?<=\w)[\u2019\u02bc](?=\w)")

CHECKED = 200
"""Documents of a data set that are also scored by bm25s when BM25 is loaded."""

_LARGE_BYTES = 4_000_000
"""A corpus in larger files is identified by them, without counting its words."""


def library_index(texts: list[list[str]], k1: float, b: float) -> Any:
    """bm25s's index of texts, given as words; `get_scores` returns their scores for the words of a
    query."""
    index = _bm25s().BM25(method="lucene", k1=k1, b=b, dtype="float64")
    index.index(texts, show_progress=False)
    return index


_importing = Lock()


def _bm25s() -> ModuleType:
    """The library bm25s, imported without JAX: it would use JAX to choose top results, which is not
    needed here, and JAX takes three quarters of a GPU's memory when it is first used."""
    with _importing:
        if "bm25s" not in sys.modules:
            absent = object()
            jax: Any = sys.modules.get("jax", absent)
            sys.modules["jax"] = None  # type: ignore[assignment]
            try:
                import_module("bm25s")
            finally:
                del sys.modules["jax"]
                if jax is not absent:
                    sys.modules["jax"] = jax
        return sys.modules["bm25s"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """BM25's statistics of a corpus: `n` documents, the document frequency of each word, and the
    mean document length in words."""

    n: int
    frequencies: dict[str, int]
    average_length: float


@dataclass(frozen=True, slots=True)
class Bag:
    """N versions of one text as counts [N, W] of its W distinct words `terms`; `whole` are the
    counts in the text itself. Has `detach` like a tensor."""

    terms: tuple[str, ...]
    counts: Tensor
    whole: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.counts)

    def detach(self) -> Bag:
        """Without a gradient."""
        return replace(self, counts=self.counts.detach())


def corpus_of(spec: RetrieverSpec) -> str:
    """Name of the data set whose statistics `spec` uses; empty if they are those of the two
    texts."""
    return _source_parts(spec)[1]


def _source_parts(spec: RetrieverSpec) -> tuple[bool, str]:
    """Whether words are stemmed, and the name of the data set whose statistics are used."""
    kind, name, *corpus = spec.source.split(":", 2)
    return f"{kind}:{name}" == STEMMED, corpus[0] if corpus else ""


def with_corpus(spec: RetrieverSpec, dataset: str) -> RetrieverSpec:
    """`spec` with the statistics of a registered data set instead of any other; unchanged for other
    families and for texts without a data set."""
    from poslens.attribution import datasets

    return _with_statistics_of(spec, dataset) if dataset in datasets.names() else spec


def searching(spec: RetrieverSpec) -> RetrieverSpec:
    """`spec`, for captions of a ranking of some of a data set's documents: such rankings count the
    words of the documents searched, as an index of these would; unchanged for other families."""
    return _with_statistics_of(spec, "the documents searched")


def _with_statistics_of(spec: RetrieverSpec, documents: str) -> RetrieverSpec:
    source = ":".join(spec.source.split(":", 2)[:2])
    return replace(spec, source=f"{source}:{documents}") if source in (SOURCE, STEMMED) else spec


COUNTING, _COUNTED_AT_A_TIME = "Counting the words of the corpus", 64
"""What `checkpoint` reports while the words of a data set are counted, and after how many documents
it does."""


def statistics_of(texts: Iterable[Sequence[str]]) -> Statistics:
    """Statistics of texts given as words, which are read once."""
    n, length, frequencies = 0, 0, Counter[str]()
    for text in texts:
        n, length = n + 1, length + len(text)
        frequencies.update(set(text))
    return Statistics(n, dict(frequencies), length / n)


class _Documents(NamedTuple):
    """The documents of a registered data set: their digest, their number, their texts, and the
    files that have them."""

    digest: str
    n: Callable[[], int]
    texts: Callable[[], Iterable[str]]
    files: tuple[Path, ...] = ()


def _documents(dataset: str) -> _Documents:
    """The whole corpus that rankings search or, of bias tests, which have none, the distinct
    documents of their pairs.

    Raises:
        UserError: there is no such data set.
    """
    from poslens.attribution import datasets

    try:
        corpus = datasets.corpus_of(dataset)
    except UserError:
        data = datasets.read(dataset)
        distinct = dict.fromkeys(pair.document for pair in data.pairs)
        return _Documents(data.digest, lambda: len(distinct), lambda: distinct)
    texts = lambda: (document.text for document in corpus.documents())  # noqa: E731
    return _Documents(corpus.digest, lambda: corpus.survey.n, texts, corpus.files)


def _statistics(dataset: str, stemmed: bool) -> Statistics:
    """Statistics of a data set's words or, if `stemmed`, of their Polish stems."""
    return _counted(dataset, _documents(dataset).digest, stemmed)


@lru_cache(maxsize=4)
def _counted(dataset: str, digest: str, stemmed: bool) -> Statistics:
    """The same, cached while the documents have this digest.

    Raises:
        Stopped: canceled (`stoppable`).
    """
    documents = _documents(dataset)
    n = documents.n()

    def words() -> Iterator[tuple[str, ...]]:
        for number, text in enumerate(documents.texts()):
            if number % _COUNTED_AT_A_TIME == 0:
                checkpoint(number / n, COUNTING, before=True)
            yield _normalized(text, stemmed)
        checkpoint(1.0, COUNTING, before=True)

    return statistics_of(words())


def _fingerprint(dataset: str, stemmed: bool, file_digest: Callable[[Path], str]) -> str:
    """16 hexadecimal digits over all statistics or, because counting takes seconds, over the files
    of a large corpus.

    Raises:
        UserError: there is no such data set, or its files can't be read.
    """
    from poslens.attribution.datasets import still_there

    with still_there(dataset):
        files = _documents(dataset).files
        if sum(file.stat().st_size for file in files) > _LARGE_BYTES:
            rows = json.dumps([file_digest(file) for file in files])
        else:
            of = _statistics(dataset, stemmed)
            rows = json.dumps([of.n, of.average_length, sorted(of.frequencies.items())])
    return hashlib.sha256(rows.encode("utf-8", "replace")).hexdigest()[:16]


def _normalized(text: str, stemmed: bool) -> tuple[str, ...]:
    terms = terms_of(text)
    return tuple(map(polish_stem, terms)) if stemmed else terms


@lru_cache(maxsize=1)
def _stemmer() -> Callable[[str], str | None]:
    stempel = import_module(STEMMER)
    with redirect_stderr(StringIO()):  # it draws a progress bar
        stemmer: Callable[[str], str | None] = stempel.Stemmer.default()
    return stemmer


@lru_cache(maxsize=100_000)
def polish_stem(word: str) -> str:
    """A folded word's Polish stem by Stempel's original table; the word itself if it has none."""
    return (_stemmer()(word) if len(word) >= _SHORTEST else None) or word


def terms_of(text: str) -> tuple[str, ...]:
    """The normalized words of a text, in order."""
    return tuple(folded(text[start:end]) for start, end in word_spans(text))


@lru_cache(maxsize=100_000)
def folded(word: str) -> str:
    """A word in the form in which BM25 compares it: case folded, in Unicode's composed form (NFC),
    with straight apostrophes, and with i for the dotted and the dotless Turkish I.

    Case folding is Unicode's canonical caseless matching (The Unicode Standard, D145). It does not
    depend on the language, so `I` must match both Turkish letters: `Isparta`, `ISPARTA`, `ısparta`
    and `İsparta` are one word.
    """
    if word.isascii():
        return word.lower()
    plain = unicodedata.normalize("NFD", word).casefold()
    plain = unicodedata.normalize("NFD", plain).replace("i\u0307", "i").replace("\u0131", "i")
    return _APOSTROPHE.sub("'", unicodedata.normalize("NFC", plain))


class LexicalRetriever(WordInputs):
    """BM25 with the interface of a neural retriever.

    A removed word leaves a gap, as padding does; length and statistics remain those of the text.
    """

    precision = "float64"
    input_type = torch.float64

    def __init__(self, spec: RetrieverSpec, files: ModelFiles) -> None:
        config = json.loads((files.folder / "config.json").read_text(encoding="utf-8"))
        super().__init__(spec)
        self.k1, self.b = float(config["k1"]), float(config["b"])
        self._stemmed, corpus = _source_parts(spec)
        if corpus and not any(map(self.terms_of, _documents(corpus).texts())):
            raise UserError(f"No document of {corpus} has a word, so {spec.name} can't rank them.")

    @property
    def weight_bytes(self) -> int:
        """Estimated memory of the statistics."""
        counted: Statistics | None = self.__dict__.get("statistics")
        return 100 * len(counted.frequencies) if counted else 0

    @cached_property
    def statistics(self) -> Statistics | None:
        """The statistics of its data set's words, or None without a data set. Not counted before a
        pair is scored, because rankings count their own."""
        corpus = corpus_of(self.spec)
        return _statistics(corpus, self._stemmed) if corpus else None

    def encode_texts(self, texts: Sequence[str], side: Side) -> Encoded:
        """Split texts into words with their characters; punctuation marks are not tokens.

        Raises:
            UserError: a text has no word.
        """
        tokenized, vectors = [], []
        for text in texts:
            spans = word_spans(text)
            if not spans:
                raise UserError(f"{self.name} reads no word of the {side}: enter a word.")
            tokens = (Token(text[a:b], a, b) for a, b in spans)
            tokenized.append(TokenizedText.of(tokens, len(spans), MAX_CHARACTERS))
            vectors.append(self.terms_of(text))
        return Encoded({"words": tuple(vectors)}, tuple(tokenized), (0,) * len(texts), side)

    encode_plain = encode_texts

    def terms_of(self, text: str) -> tuple[str, ...]:
        """The words of a text in order, in the form in which this model compares them."""
        return _normalized(text, self._stemmed)

    def embed(self, encoded: Encoded) -> Bag:
        """The counts of the text's words."""
        words: tuple[str, ...] = encoded.features["words"][0]
        ones = torch.ones(1, len(words), 1, dtype=self.input_type)
        counted = ones if self._read is None else self._read
        terms = tuple(dict.fromkeys(words))
        number = {term: n for n, term in enumerate(terms)}
        belongs = torch.zeros(len(words), len(terms), dtype=torch.float64)
        belongs[
            torch.arange(len(words)),
            torch.tensor([number[term] for term in words], dtype=torch.long),
        ] = 1
        return Bag(terms, counted[..., 0].double() @ belongs, words)

    def similarity(self, queries: Bag, documents: Bag) -> Tensor:
        """BM25 [N] of N versions of one side with one (or N) of the other."""
        _, parts = self._parts(queries, documents)
        return parts.sum(-1)

    def scores(self, query: str, documents: Sequence[str], statistics: Statistics) -> Array:
        """BM25 [n] of documents under the statistics of a corpus that need not contain them; minus
        infinity for those without a word of the query."""
        asked = self._bag(self.terms_of(query))
        scores = [self._score(asked, self.terms_of(text), statistics) for text in documents]
        return np.array([score or -np.inf for score in scores], dtype=np.float32)

    def _score(self, query: Bag, terms: Sequence[str], statistics: Statistics) -> float:
        return float(self._parts(query, self._bag(terms), statistics)[1].sum())

    def _bag(self, terms: Sequence[str]) -> Bag:
        return self.embed(Encoded({"words": (tuple(terms),)}, (), (0,)))

    def exact(
        self, queries: Sequence[str], documents: Sequence[str], pairs: Sequence[tuple[int, int]]
    ) -> Iterator[ExactScore]:
        """The score of each pair as a sum over pairs of equal words: each query word's part,
        divided equally among the word's occurrences in the document."""
        asked = [self.encode_texts([text], "query") for text in queries]
        read = [self.encode_texts([text], "document") for text in documents]
        for i, j in pairs:
            yield self._exact(asked[i], read[j])

    def _exact(self, queries: Encoded, documents: Encoded) -> ExactScore:
        query, document = self.embed(queries), self.embed(documents)
        shared, parts = self._parts(query, document)
        # The part of one occurrence in the query with one in the document.
        asked, counts = Counter(query.whole), Counter(document.whole)
        each = {
            term: float(part) / (asked[term] * counts[term])
            for term, part in zip(shared, parts[0], strict=True)
        }
        matrix = np.zeros((len(query.whole), len(document.whole)))
        places: dict[str, list[int]] = {}
        for j, term in enumerate(document.whole):
            places.setdefault(term, []).append(j)
        for i, term in enumerate(query.whole):
            if term in each:
                matrix[i, places[term]] = each[term]
        return ExactScore(
            queries.texts[0],
            documents.texts[0],
            float(parts.sum()),
            as_array(matrix, matrix.shape, "a share"),
        )

    def check(self, pair: TextPair) -> LibraryCheck:
        """Largest distance from bm25s's scores, relative to the largest score: for some of the data
        set's documents, or for the pair's two texts."""
        texts: Iterable[str] = [pair.query, pair.document]
        if dataset := corpus_of(self.spec):
            texts = _documents(dataset).texts()
        # bm25s can't index documents without words, which a data set can have.
        corpus = [list(terms) for terms in islice(filter(None, map(self.terms_of, texts)), CHECKED)]
        query = [*self.terms_of(pair.query), *corpus[-1][:8]]
        expected = library_index(corpus, self.k1, self.b).get_scores(query)
        asked = self._bag(query)
        statistics = statistics_of(corpus)
        scores = [self._score(asked, terms, statistics) for terms in corpus]
        largest = max(np.abs(expected).max(), 1e-9)
        distance = float(np.abs(np.array(scores) - expected).max() / largest)
        return LibraryCheck(distance, "score", "bm25s")

    def _parts(
        self, queries: Bag, documents: Bag, statistics: Statistics | None = None
    ) -> tuple[tuple[str, ...], Tensor]:
        """The words that both texts have, and what each adds to the score [N, words]."""
        statistics = (
            statistics or self.statistics or statistics_of([queries.whole, documents.whole])
        )
        column_of = {term: n for n, term in enumerate(documents.terms)}
        shared = tuple(term for term in queries.terms if term in column_of)
        numbers = torch.tensor(
            [statistics.frequencies.get(term, 0) for term in shared], dtype=torch.float64
        )
        idf = torch.log1p((statistics.n - numbers + 0.5) / (numbers + 0.5))
        asked = queries.counts[:, [queries.terms.index(t) for t in shared]]
        values = documents.counts[:, [column_of[t] for t in shared]]
        relative = len(documents.whole) / statistics.average_length
        return shared, asked * idf * values / (values + self.k1 * (1 - self.b + self.b * relative))


def settings(spec: RetrieverSpec, file_digest: Callable[[Path], str]) -> str:
    """What determines BM25's numbers besides its own files; empty for other families.
    `file_digest` returns the digest of a file's contents."""
    if spec.family != FAMILY.name:
        return ""
    stemmed, corpus = _source_parts(spec)
    statistics = _fingerprint(corpus, stemmed, file_digest) if corpus else "the two texts"
    stems = f", stems={STEMMER} {version(STEMMER)}" if stemmed else ""
    return f", statistics={statistics}, words={_WORDS_VERSION}{stems}"


FAMILY = register(
    Family(
        name="lexical",
        title="lexical",
        order=50,
        capabilities=frozenset({Capability.REMOVAL, Capability.TERMS}),
        search="index",
        load=lambda spec, files, _place: LexicalRetriever(spec, files),
        has_weights=False,
        has_statistics=True,
    )
)

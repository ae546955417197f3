"""Validate the sources of the bundled samples and write them in the PosIR format.

Edit `source/<document id>.toml` (`sample`) or `multilingual/<document id>.toml`
(`sample-multilingual`), then write the Parquet files that PosLens reads. Sources and files are both
in the repository, and a test compares them. A multilingual source without a text adds queries to
the document of `source/` with the same name.

    python -m tools.sample.build sample --check
    python -m tools.sample.build sample-multilingual
"""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

SOURCE = Path(__file__).parent / "source"
OUTPUT = Path(__file__).parents[2] / "attribution" / "datasets" / "sample"

LANGUAGES = ("eng", "pol", "slk", "spa", "cmn", "ara", "tha")
MIN_TOKENS = 150
BUCKET_EDGES = (512, 1024, 1536)
WITHOUT_SPACES = ("cmn", "tha")
"""Languages written without spaces: pairs of adjacent characters are compared instead of words."""
STEM = 5
"""Words that start with the same letters, this many, count as inflections of one word."""
SHARED, UNSHARED = "shares words", "shares no words"


@dataclass(frozen=True, slots=True)
class SampleSet:
    """A bundled data set, and what its data card states.

    Each language has at least `documents` documents and `queries` queries; in all there are at
    least `domains` domains and `long` documents of 1,024 tokens or more, and the evidence of at
    least `per_bin` queries is in each of `bins` equal parts of the documents. A document has at
    most `max_tokens` tokens. Two documents of a language share at most `shared_words` words that no
    third one has. If `unshared` is not 0, each query is marked by whether it shares content words
    with its evidence, and at least that share of each language's queries shares none.
    """

    sources: Path
    output: Path
    documents: int
    queries: int
    domains: int
    long: int
    bins: int
    per_bin: int
    max_tokens: int
    shared_words: int
    unshared: float = 0.0


# Unrelated articles of `sample` share up to 7 words, two on economics 11, two on one subject 19.
SAMPLE = SampleSet(SOURCE, OUTPUT / "posir", 2, 8, 12, 15, 20, 6, 2_000, 15)
MULTILINGUAL = SampleSet(
    Path(__file__).parent / "multilingual",
    OUTPUT / "multilingual",
    documents=20,
    queries=80,
    domains=12,
    long=30,
    bins=10,
    per_bin=40,
    max_tokens=13_000,
    shared_words=50,
    unshared=0.5,
)
SETS = {"sample": SAMPLE, "sample-multilingual": MULTILINGUAL}


@dataclass(frozen=True, slots=True)
class SourceQuery:
    """A query and the one character span, [start, end), of its evidence. `kind` states whether it
    shares content words with the evidence, in sets that mark this."""

    text: str
    start: int
    end: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A document with its queries; `tokens` is counted by `count_tokens`."""

    doc_id: str
    language: str
    domain: str
    text: str
    tokens: int
    queries: tuple[SourceQuery, ...]

    def position(self, query: SourceQuery) -> float:
        """Mid-point of the evidence over the document's length in characters."""
        return (query.start + query.end) / 2 / len(self.text)


@cache
def _tokenizer() -> Tokenizer:
    from poslens.attribution.retrievers.resolve import minilm_folder

    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def count_tokens(text: str) -> int:
    """WordPiece tokens of all-MiniLM-L6-v2, without special tokens.

    A word that its vocabulary lacks is one `[UNK]` however long it is (a whole Thai phrase, for
    example). Such a word counts one token for every three characters or part of them, so that
    lengths are comparable across scripts.
    """
    encoded = _tokenizer().encode(text, add_special_tokens=False)
    return sum(
        math.ceil((end - start) / 3) if token == "[UNK]" else 1
        for token, (start, end) in zip(encoded.tokens, encoded.offsets, strict=True)
    )


def bucket(tokens: int) -> int:
    """Length bucket of PosIR: 0 for (0,512], 1 for (512,1024], 2 for (1024,1536], 3 above."""
    return sum(tokens > edge for edge in BUCKET_EDGES)


def read(path: Path) -> SourceDocument:
    """Read a source file; ValueError names the file and what to change."""

    def refuse(reason: str) -> ValueError:
        return ValueError(f"{path.name}: {reason}")

    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        if "text" not in raw:
            raw = tomllib.loads((SOURCE / path.name).read_text(encoding="utf-8")) | raw
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise refuse(f"not valid TOML ({error})") from error
    except FileNotFoundError as error:
        raise refuse(f"no text, and no document of this name in {SOURCE.name}") from error
    if unknown := set(raw) - {"language", "domain", "text", "query"}:
        raise refuse(f"unknown keys {sorted(unknown)}")
    if raw.get("language") not in LANGUAGES:
        raise refuse(f"language must be one of {', '.join(LANGUAGES)}")
    text = raw["text"].strip()
    tokens = count_tokens(text)
    if tokens < MIN_TOKENS:
        raise refuse(f"{tokens} tokens, fewer than {MIN_TOKENS}")
    queries = []
    for entry in raw.get("query", []):
        evidence = entry["evidence"]
        if not entry["text"].strip() or evidence != evidence.strip() or not evidence:
            raise refuse(f"query {entry['text']!r}: empty, or evidence with spaces around it")
        if (times := text.count(evidence)) != 1:
            raise refuse(f"query {entry['text']!r}: its evidence occurs {times} times, not once")
        start = text.index(evidence)
        queries.append(SourceQuery(entry["text"].strip(), start, start + len(evidence)))
    if not queries:
        raise refuse("no [[query]]")
    return SourceDocument(path.stem, raw["language"], raw["domain"], text, tokens, tuple(queries))


def read_all(built: SampleSet = SAMPLE) -> list[SourceDocument]:
    """Every document of a set, by id, with its queries marked if the set marks them."""
    documents = [read(path) for path in sorted(built.sources.glob("*.toml"))]
    return list(_marked(documents)) if built.unshared else documents


def _stems(text: str, language: str) -> set[str]:
    """The words of a text without inflection, roughly: their first letters. In languages without
    spaces, pairs of adjacent characters."""
    from poslens.attribution.retrievers.lexical import terms_of

    terms = terms_of(text)
    if language in WITHOUT_SPACES:
        return {first + second for first, second in pairwise(terms)}
    return {term[:STEM] for term in terms}


def _marked(documents: Sequence[SourceDocument]) -> Iterator[SourceDocument]:
    """The documents with each query marked by whether it shares content words with its evidence.

    A content word is one that fewer than half of the language's documents have, so no list of stop
    words is needed.
    """
    of_language = Counter(document.language for document in documents)
    having = Counter(
        (document.language, stem)
        for document in documents
        for stem in _stems(document.text, document.language)
    )
    for document in documents:
        queries = []
        for query in document.queries:
            evidence = document.text[query.start : query.end]
            same = _stems(query.text, document.language) & _stems(evidence, document.language)
            half = of_language[document.language] / 2
            shares = any(having[document.language, stem] < half for stem in same)
            queries.append(replace(query, kind=SHARED if shares else UNSHARED))
        yield replace(document, queries=tuple(queries))


def bins(documents: Iterable[SourceDocument], n: int) -> Counter[int]:
    """How many queries have their evidence in each of `n` equal position bins."""
    return Counter(min(int(d.position(q) * n), n - 1) for d in documents for q in d.queries)


def same_subject(documents: Iterable[SourceDocument], limit: int) -> list[str]:
    """Pairs of documents of one language that share more than `limit` words of at least four
    letters that no other document of that language has. Such documents cover the same subject: one
    answers queries of the other without being judged relevant."""
    from poslens.attribution.retrievers.lexical import terms_of

    having: dict[tuple[str, str], list[str]] = {}
    for document in documents:
        for word in {word for word in terms_of(document.text) if len(word) >= 4}:
            having.setdefault((document.language, word), []).append(document.doc_id)
    pairs = Counter(tuple(sorted(ids)) for ids in having.values() if len(ids) == 2)
    return [
        f"{first} and {second} share {n} words that no other document has: use different subjects"
        for (first, second), n in sorted(pairs.items())
        if n > limit
    ]


def problems(documents: Sequence[SourceDocument], built: SampleSet = SAMPLE) -> list[str]:
    """How a set differs from its data card, in sentences; empty if it does not."""
    sentences: list[str] = []

    def at_least(n: float, minimum: float, what: str) -> None:
        if n < minimum:
            sentences.append(f"{n:g} {what}, fewer than {minimum:g}")

    texts = [q.text for d in documents for q in d.queries]
    if len(texts) != len(set(texts)):
        sentences.append("a query occurs twice")
    at_least(len({d.domain for d in documents}), built.domains, "domains")
    at_least(sum(d.tokens >= 1024 for d in documents), built.long, "documents of 1,024 tokens")
    at_least(len({bucket(d.tokens) for d in documents}), 4, "length buckets in use")
    for language in LANGUAGES:
        of_language = [d for d in documents if d.language == language]
        queries = [q for d in of_language for q in d.queries]
        at_least(len(of_language), built.documents, f"documents in {language}")
        at_least(len(queries), built.queries, f"queries in {language}")
        if queries and built.unshared:
            share = sum(q.kind == UNSHARED for q in queries) / len(queries)
            at_least(round(share, 3), built.unshared, f"of the queries in {language} {UNSHARED}")
    counts = bins(documents, built.bins)
    for position in range(built.bins):
        at_least(counts[position], built.per_bin, f"queries in position bin {position}")
    sentences += [
        f"{d.doc_id}: {d.tokens} tokens, more than {built.max_tokens}"
        for d in documents
        if d.tokens > built.max_tokens
    ]
    return sentences + same_subject(documents, built.shared_words)


def write(documents: Iterable[SourceDocument], root: Path) -> None:
    """Write `queries`, `corpus` and `qrels/test` Parquet files for each language and domain."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    groups: dict[tuple[str, str], list[SourceDocument]] = {}
    for document in documents:
        groups.setdefault((document.language, document.domain), []).append(document)
    for (language, domain), group in groups.items():
        folder = root / language / domain
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        rows = [
            {
                "_id": f"{d.doc_id}-q{n}",
                "text": q.text,
                "pos_char_span": [q.start, q.end],
                "pos_char_length": len(d.text),
                "pos_token_length": d.tokens,
                "corpus": d.doc_id,
            }
            | ({"query_type": q.kind} if q.kind else {})
            for d in group
            for n, q in enumerate(d.queries, start=1)
        ]
        qrels = [
            {"query-id": row["_id"], "corpus-id": row.pop("corpus"), "score": 1} for row in rows
        ]
        corpus = [{"_id": d.doc_id, "text": d.text} for d in group]
        pq.write_table(pa.Table.from_pylist(rows), folder / "queries.parquet")
        pq.write_table(pa.Table.from_pylist(corpus), folder / "corpus.parquet")
        pq.write_table(pa.Table.from_pylist(qrels), folder / "qrels" / "test.parquet")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns 2 if the set is not what its data card states."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=SETS, help="the data set")
    parser.add_argument("--check", action="store_true", help="validate only, write nothing")
    options = parser.parse_args(arguments)
    built = SETS[options.set]
    try:
        documents = read_all(built)
    except (ValueError, KeyError) as error:
        print(error, file=sys.stderr)
        return 2
    for d in documents:
        positions = " ".join(f"{d.position(q):.2f}" for q in d.queries)
        print(f"{d.doc_id:34} {d.language} {d.domain:16} {d.tokens:5} tokens  {positions}")
    counts = bins(documents, built.bins)
    print("queries by position bin:", " ".join(str(counts[b]) for b in range(built.bins)))
    print(
        "documents by bucket:", dict(sorted(Counter(bucket(d.tokens) for d in documents).items()))
    )
    if sentences := problems(documents, built):
        print("\n".join(sentences), file=sys.stderr)
        return 2
    if not options.check:
        write(documents, built.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

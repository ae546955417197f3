"""Validate the sample data set's sources and write them in the PosIR layout.

`source/<document id>.toml` is what people edit; `posir/<language>/<domain>/` is what the
readers read. Both are in the repository, and a test compares them.

    python -m tools.sample.build --check [SOURCE.toml ...]
    python -m tools.sample.build
"""

from __future__ import annotations

import argparse
import math
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

SOURCE = Path(__file__).parent / "source"
POSIR = Path(__file__).parents[2] / "attribution" / "datasets" / "sample" / "posir"

LANGUAGES = ("eng", "pol", "slk", "spa", "cmn", "ara", "tha")
BINS = 20
MIN_TOKENS, MAX_TOKENS = 150, 2000
BUCKET_EDGES = (512, 1024, 1536)
MAX_SHARED_WORDS = 15
"""Unrelated articles of the set share up to 7, two on economics 11, two on one subject 19."""


@dataclass(frozen=True, slots=True)
class SourceQuery:
    """A query and the one character span, [start, end), of its evidence."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """One document with its queries; `tokens` is counted by `count_tokens`."""

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
    from poslens.attribution.retrievers.package_weights import minilm_folder

    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def count_tokens(text: str) -> int:
    """WordPiece tokens of all-MiniLM-L6-v2, without special tokens.

    A word its vocabulary lacks is one `[UNK]` however long it is (a whole Thai phrase, say);
    such a word counts one token for every three characters begun, so that lengths stay
    comparable between scripts.
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
    """Read one source file; ValueError names the file and what to change."""

    def refuse(reason: str) -> ValueError:
        return ValueError(f"{path.name}: {reason}")

    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise refuse(f"not valid TOML ({error})") from error
    if unknown := set(raw) - {"language", "domain", "text", "query"}:
        raise refuse(f"unknown keys {sorted(unknown)}")
    if raw.get("language") not in LANGUAGES:
        raise refuse(f"language must be one of {', '.join(LANGUAGES)}")
    text = raw["text"].strip()
    tokens = count_tokens(text)
    if not MIN_TOKENS <= tokens <= MAX_TOKENS:
        raise refuse(f"{tokens} tokens; allowed are {MIN_TOKENS} to {MAX_TOKENS}")
    queries = []
    for entry in raw.get("query", []):
        evidence = entry["evidence"]
        if not entry["text"].strip() or evidence != evidence.strip() or not evidence:
            raise refuse(f"query {entry['text']!r}: empty, or evidence with spaces around it")
        if (found := text.count(evidence)) != 1:
            raise refuse(f"query {entry['text']!r}: its evidence occurs {found} times, not once")
        start = text.index(evidence)
        queries.append(SourceQuery(entry["text"].strip(), start, start + len(evidence)))
    if not queries:
        raise refuse("no [[query]]")
    return SourceDocument(path.stem, raw["language"], raw["domain"], text, tokens, tuple(queries))


def read_all(paths: Iterable[Path] | None = None) -> list[SourceDocument]:
    """Every source document, by id."""
    return [read(path) for path in sorted(paths or SOURCE.glob("*.toml"))]


def bins(documents: Iterable[SourceDocument]) -> Counter[int]:
    """How many queries have their evidence in each of the 20 equal position bins."""
    return Counter(min(int(d.position(q) * BINS), BINS - 1) for d in documents for q in d.queries)


def same_subject(documents: Iterable[SourceDocument]) -> list[str]:
    """Documents of a language that share too many words of four letters or more which no other
    document of it has: they tell the same things, and a query of one is answered by the other,
    which is not judged."""
    from poslens.attribution.retrievers.lexical import terms_of

    having: dict[tuple[str, str], list[str]] = {}
    for document in documents:
        for word in {word for word in terms_of(document.text) if len(word) >= 4}:
            having.setdefault((document.language, word), []).append(document.doc_id)
    pairs = Counter(tuple(sorted(ids)) for ids in having.values() if len(ids) == 2)
    return [
        f"{one} and {other} share {n} words that no other document has: tell different things"
        for (one, other), n in sorted(pairs.items())
        if n > MAX_SHARED_WORDS
    ]


def problems(documents: list[SourceDocument]) -> list[str]:
    """What keeps the whole set from being what its data card says; empty when nothing does."""
    found: list[str] = []

    def need(ok: bool, sentence: str) -> None:
        if not ok:
            found.append(sentence)

    queries = [q.text for d in documents for q in d.queries]
    need(len(documents) >= 60, f"{len(documents)} documents, fewer than 60")
    need(len(queries) >= 240, f"{len(queries)} queries, fewer than 240")
    need(len(queries) == len(set(queries)), "a query occurs twice")
    domains = {d.domain for d in documents}
    need(len(domains) >= 12, f"{len(domains)} domains, fewer than 12")
    long = sum(d.tokens >= 1024 for d in documents)
    need(long >= 15, f"{long} documents of 1,024 tokens or more, fewer than 15")
    buckets = Counter(bucket(d.tokens) for d in documents)
    need(len(buckets) == 4, f"length buckets filled: {sorted(buckets)}")
    per_language = Counter(d.language for d in documents)
    for language in LANGUAGES:
        need(per_language[language] >= 2, f"fewer than 2 documents in {language}")
    counts = bins(documents)
    for b in range(BINS):
        need(counts[b] >= 6, f"position bin {b} holds {counts[b]} queries, fewer than 6")
    return found + same_subject(documents)


def write(documents: list[SourceDocument], root: Path = POSIR) -> None:
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
    """Command line; returns 2 where the set is not what it must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="validate only, write nothing")
    parser.add_argument("sources", nargs="*", type=Path, help="some sources (with --check)")
    options = parser.parse_args(arguments)
    documents, failed = [], False
    for path in sorted(options.sources or SOURCE.glob("*.toml")):
        try:
            documents.append(read(path))
        except (ValueError, KeyError) as error:
            failed = True
            print(error, file=sys.stderr)
    for d in documents:
        where = " ".join(f"{d.position(q):.2f}" for q in d.queries)
        print(f"{d.doc_id:34} {d.language} {d.domain:16} {d.tokens:5} tokens  {where}")
    counts = bins(documents)
    print("queries by position bin:", " ".join(str(counts[b]) for b in range(BINS)))
    print(
        "documents by bucket:", dict(sorted(Counter(bucket(d.tokens) for d in documents).items()))
    )
    if not options.sources:
        for sentence in problems(documents):
            failed = True
            print(sentence, file=sys.stderr)
    if failed:
        return 2
    if not options.check:
        write(documents)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

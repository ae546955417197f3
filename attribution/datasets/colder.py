"""ColDeR (Fayyaz et al. 2025): pairs of documents for one query, a JSONL file for each bias.

The published layout is `test/<bias>.jsonl` with `query`, `document_1`, `document_2`, `id` and
`evidence_sents` (sentences as lists of tokens, which the documents join by spaces). The column
names `doc1`, `doc2` and `queries` are accepted too. Each row gives two pairs, `<bias>/<id>/1` and
`<bias>/<id>/2`, with the bias as domain; if one of the two is rejected, so is the other, because
the tests are paired.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import tables
from poslens.attribution.datasets.formats import Format, files_of, has_columns, register
from poslens.attribution.datasets.schema import (
    Row,
    accepted,
    as_id,
    as_is,
    as_text,
    optional,
    required,
)
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import DataSet, Rejection, collect
from poslens.attribution.errors import printable
from poslens.attribution.types import EvidenceSpan, TextPair

QUERY = required("query", as_text, "queries")
DOCUMENTS = (required("document_1", as_text, "doc1"), required("document_2", as_text, "doc2"))
ID, EVIDENCE = optional("id", as_id), optional("evidence_sents", as_is)


def read(files: list[File], name: str, title: str = "") -> DataSet:
    """Read one file for each bias; accepted + rejected pairs = twice the number of rows.

    Raises:
        UserError: a file cannot be read, or no row is a pair.
    """

    def pairs() -> Iterator[TextPair | Rejection]:
        ids: set[str] = set()
        for file in files:
            bias = printable(Path(file.name).name.removesuffix(".gz").removesuffix(".jsonl"))
            rows = tables.json_rows(file)
            for pair in accepted(file, rows, partial(both_pairs, bias=bias, dataset=name, ids=ids)):
                if isinstance(pair, Rejection):
                    for side in (1, 2):
                        yield Rejection(pair.file, pair.row, f"document {side}: {pair.reason}")
                else:
                    yield from pair

    return collect(name, title or f"{name} (ColDeR)", pairs())


def both_pairs(row: Row, bias: str, dataset: str, ids: set[str]) -> tuple[TextPair, TextPair]:
    """The pairs of a row's query with both of its documents. `ids` are those of earlier rows.

    Raises:
        UserError: the row has invalid values.
    """
    query, documents = row[QUERY], [row[column] for column in DOCUMENTS]
    name = f"{bias}/{row[ID] or row.number}"
    # Several rows can come from one source document and have its id.
    if name in ids:
        name = f"{name}/{row.number}"
    ids.add(name)
    first, second = (
        TextPair(
            f"{name}/{side}",
            query,
            document,
            evidence=_evidence(row[EVIDENCE], document),
            language="eng",
            domain=bias,
            dataset=dataset,
        )
        for side, document in enumerate(documents, start=1)
    )
    return first, second


def _evidence(listed: Any, document: str) -> EvidenceSpan | None:
    """The span of the evidence sentences if they follow each other in the document, otherwise of
    the first one that occurs in it; None for documents built without the answer."""
    if not isinstance(listed, list):
        return None
    sentences = [
        " ".join(sentence)
        for sentence in listed
        if isinstance(sentence, list) and all(isinstance(token, str) for token in sentence)
    ]
    for passage in (" ".join(sentences), *sentences):
        if passage.strip() and (start := document.find(passage)) >= 0:
            return EvidenceSpan(start, start + len(passage))
    return None


def _files(path: Path) -> list[File]:
    """The files of a folder, or of its subfolder `test`; empty if one is in another format."""
    files = files_of(path, (".jsonl",)) or files_of(path / "test", (".jsonl",), "test/")
    return files if all(has_columns(file, (QUERY, *DOCUMENTS)) for file in files) else []


UNJUDGED = (
    "compares two documents for one query and has no relevance judgments: choose a data set with "
    "judgments to rank."
)


register(
    Format(
        name="colder",
        description="ColDeR (.jsonl with query, document_1 and document_2)",
        order=40,
        fits=lambda path: bool(_files(path)),
        read=lambda path, name, title: read(_files(path), name, title),
        unjudged=UNJUDGED,
    )
)

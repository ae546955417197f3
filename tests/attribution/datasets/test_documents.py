"""Documents without queries: what each format gives row by row, and one sentence for invalid
files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poslens.attribution import datasets
from poslens.attribution.datasets import formats
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.segments import documents_of

pytestmark = pytest.mark.usefixtures("shared_children")

ROWS = [("a", "Tides", "The Moon pulls."), ("b", "", "Rain falls.")]


def lines(path: Path) -> None:
    rows = [{"_id": i, "title": t, "text": x, "language": "en"} for i, t, x in ROWS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def csv(path: Path) -> None:
    path.write_text("_id;title;text;language\na;Tides;The Moon pulls.;en\nb;;Rain falls.;en\n")


def parquet(path: Path) -> None:
    columns = [list(column) for column in zip(*ROWS, strict=True)]
    named = dict(zip(("_id", "title", "text"), columns, strict=True)) | {"language": ["en", "en"]}
    pq.write_table(pa.table(named), path)


@pytest.mark.parametrize(
    ("name", "write"), [("c.jsonl", lines), ("c.csv", csv), ("c.parquet", parquet)]
)
def test_each_format_gives_the_same_documents(tmp_path: Path, name: str, write: object) -> None:
    write(tmp_path / name)  # type: ignore[operator]
    assert formats.detect(tmp_path / name) == "documents"
    found = list(formats.corpus(tmp_path / name, "c").documents())
    assert [(one.key, one.text, one.language) for one in found] == [
        ("a", "Tides The Moon pulls.", "eng"),
        ("b", "Rain falls.", "eng"),
    ]


def test_a_language_that_is_not_a_code_rejects_the_row(tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text("_id,text,language\na,One.,English\nb,Two.,pt-br\nc,Three.,\n")
    data = formats.read(file, "c")
    assert [pair.language for pair in data.pairs] == ["por", None]
    (rejected,) = data.rejected
    assert rejected.row == 2 and "language 'English' is not an ISO 639 code" in rejected.reason


def test_a_beir_folder_needs_no_queries(tmp_path: Path) -> None:
    folder = tmp_path / "datasets--BeIR--scifact" / "snapshots" / "0a1b"  # as the hub saves it
    folder.mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "1", "title": "A", "text": "One two."}\n')
    found = list(formats.corpus(folder, "s").documents())
    assert [(one.key, one.text, one.language) for one in found] == [("1", "A One two.", "eng")]


def test_a_data_set_with_queries_gives_its_documents() -> None:
    assert datasets.corpus_of("sample").survey.n == 68
    assert datasets.corpus_of("sample") is datasets.collection("sample")  # read once


def test_rows_without_an_id_are_named_after_their_row_number(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("document\nOne.\nTwo.\n")
    found = list(formats.corpus(tmp_path / "c.csv", "c").documents())
    assert [(one.key, one.text) for one in found] == [("row 2", "One."), ("row 3", "Two.")]


def test_documents_without_queries_have_no_judgments(tmp_path: Path) -> None:
    lines(tmp_path / "c.jsonl")
    with pytest.raises(UserError, match="no relevance judgments"):
        formats.collection(tmp_path / "c.jsonl", "c")
    data = formats.read(tmp_path / "c.jsonl", "c")
    assert [pair.query for pair in data.pairs] == ["", ""]
    assert [pair.document for pair in documents_of(data.pairs)] == [p.document for p in data.pairs]


def test_unjudged_queries_are_read_with_the_documents(tmp_path: Path) -> None:
    lines(tmp_path / "corpus.jsonl")
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "a", "text": "What?"}\n{"_id": "a", "text": "Twice."}\n{"_id": "b", "text": " "}\n'
        '{"_id": 3, "text": "And\u200b what?"}\ncut\n'
    )
    assert formats.detect(tmp_path) == "documents"
    corpus = formats.corpus(tmp_path, "c")
    assert [query.query_id for query in corpus.queries] == ["a", "3"]
    assert corpus.queries[0].text == "What?" and not corpus.queries[0].relevant
    assert len(list(corpus.documents())) == 2
    with pytest.raises(UserError, match="or add judgments"):
        formats.collection(tmp_path, "c")
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\na\t1\t1\n")
    assert formats.detect(tmp_path) == "beir"


def test_a_file_with_queries_is_still_read_as_pairs(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("query,document\nWhat?,That.\n")
    assert formats.detect(tmp_path / "p.csv") == "own"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.txt", b"words", "not in a known format"),
        ("c.jsonl", b"", "has no rows|lacks|no rows"),
        ("c.csv", b"title\nA\n", "lacks the column"),
        ("c.jsonl.gz", b"\x1f\x8b\x08cut", "damaged or truncated"),
    ],
)
def test_files_that_are_not_a_corpus_are_refused_in_one_sentence(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        list(formats.corpus(tmp_path / name, "c").documents())

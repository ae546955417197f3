"""One bad row is rejected with its line and reason and counted; the rest of the data set stays."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poslens.attribution.curves.published import read_measures
from poslens.attribution.datasets import beir, colder, multiclaim, posir, read_upload
from poslens.attribution.datasets.corpus import grade
from poslens.attribution.datasets.streams import File
from poslens.attribution.errors import UserError

GOOD = {"query": "when", "document": "Fog lifts."}


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize(
    "bad",
    [
        {"pair_id": "p\ud800"},
        {"query_id": "\ud800"},
        {"document_id": "d\0"},
        {"language": "\ud800"},
        {"domain": "\udfff"},
        {"query_type": "\ud800"},
        {"evidence_start": "--1", "evidence_end": 4},
        {"evidence_start": "²", "evidence_end": 4},
        {"evidence_start": "-", "evidence_end": 4},
        {"language": ["eng"]},
    ],
    ids=ascii,
)
def test_own_files(bad: dict[str, Any]) -> None:
    found = read_upload("x.jsonl", lines(GOOD, GOOD | bad, GOOD))
    assert len(found.pairs) == 2 and [one.row for one in found.rejected] == [2]
    assert found.rejected[0].reason.encode()


def test_a_reason_quotes_only_what_can_be_shown() -> None:
    found = read_upload("x.jsonl", lines(GOOD, {"que\ud800ry": "a"}))
    assert "que\ufffdry" in found.rejected[0].reason


@pytest.mark.parametrize("head", [b'"query,document\na,b\n', b'query,"document" x\na,b\n'])
def test_a_header_with_open_quotes_is_one_sentence(head: bytes) -> None:
    with pytest.raises(UserError, match=r"is no header|lacks the column"):
        read_upload("x.csv", head)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**62, 0], pa.timestamp("s")),
        pa.array([2**31 - 1, 0], pa.date32()),
        pa.array([[1], [2]]),
        pa.array([{"a": 1}] * 2),
        pa.array([2**62] * 2, pa.duration("s")),
    ],
    ids=lambda column: str(column.type),
)
def test_columns_that_python_cannot_say(column: pa.Array) -> None:
    for name in ("x", "language"):
        out = io.BytesIO()
        try:
            pq.write_table(pa.table({**GOOD_COLUMNS, name: column}), out)
        except pa.ArrowInvalid:
            pytest.skip("Parquet cannot say it either")
        if name == "x":
            assert len(read_upload("x.parquet", out.getvalue()).pairs) == 2
    with pytest.raises(UserError, match="None of the 2 rows"):
        read_upload("x.parquet", out.getvalue())


GOOD_COLUMNS = {"query": ["a", "b"], "document": ["c", "d"]}
TEXTS = [{"_id": f"d{n}", "text": "Fog lifts."} for n in range(3)]


@pytest.mark.parametrize("score", ["inf", "1e300", "nan", "-inf", "much"])
def test_beir(tmp_path: Path, score: str) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_bytes(lines(*TEXTS))
    (tmp_path / "queries.jsonl").write_bytes(lines(*TEXTS))
    (tmp_path / "qrels/test.tsv").write_text(
        f"query-id\tcorpus-id\tscore\nd0\td1\t1\nd0\td2\t{score}\n"
    )
    found = beir.read(tmp_path, "x")
    assert len(found.pairs) == 1 and [one.row for one in found.rejected] == [3]
    assert "is no number up to 1,000,000" in found.rejected[0].reason
    with pytest.raises(UserError, match="no number"):
        grade(float(score) if score != "much" else None)


def test_beir_without_a_judgement_is_one_sentence(tmp_path: Path) -> None:
    test_beir(tmp_path, "inf")
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(UserError, match="has no query with a relevant document"):
        beir.collection(tmp_path, "x")


QUERY = {
    "_id": "q0",
    "text": "when",
    "pos_char_span": [0, 3],
    "pos_char_length": 3,
    "pos_token_length": 5,
    "query_type": "when",
}


@pytest.mark.parametrize(
    "bad",
    [
        {"pos_token_length": 2**40},
        {"pos_token_length": -1},
        {"pos_char_span": [0.5, 3.0]},
        {"pos_char_span": list(range(1000))},
        {"query_type": "x" * 10_000},
        {"text": "word\0"},
        {"_id": "q\0"},
    ],
    ids=lambda bad: str(bad)[:40],
)
@pytest.mark.usefixtures("checked")
def test_posir(tmp_path: Path, bad: dict[str, Any]) -> None:
    folder = tmp_path / "eng" / "fog"
    (folder / "qrels").mkdir(parents=True)
    broken = QUERY | {"_id": "q1"} | bad
    judged = [{"query-id": one, "corpus-id": "d1", "score": 1} for one in ("q0", broken["_id"])]
    if "pos_char_span" in bad and isinstance(bad["pos_char_span"][0], float):
        good = QUERY | {"pos_char_span": [0.0, 3.0]}
    else:
        good = QUERY
    for name, rows in (("queries", [good, broken]), ("corpus", TEXTS), ("qrels/test", judged)):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    found = posir.read(tmp_path, "x")
    assert len(found.pairs) == 2 - ("text" not in bad)
    # A query without an id is judged under one that does not exist: two rows are left out.
    lost = 2 if "_id" in bad else 1
    assert [one.row for one in found.rejected] == ([] if "text" in bad else [2] * lost)


@pytest.mark.parametrize("column", [["1", "x"], [[1], [1]], [True, False], [None, 1.0]])
@pytest.mark.usefixtures("checked")
def test_posir_scores_of_other_types(tmp_path: Path, column: list[Any]) -> None:
    folder = tmp_path / "eng" / "fog"
    (folder / "qrels").mkdir(parents=True)
    judged = [{"query-id": "q0", "corpus-id": f"d{n}", "score": s} for n, s in enumerate(column)]
    for name, rows in (("queries", [QUERY]), ("corpus", TEXTS), ("qrels/test", judged)):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    try:
        found = posir.read(tmp_path, "x")
    except UserError as error:
        assert "None of the 2 rows" in str(error)
    else:
        assert (len(found.pairs), len(found.rejected)) == (1, 1)


def test_colder() -> None:
    row = {"query": "when", "document_1": "Fog.", "document_2": "Rain."}
    found = colder.read([File("x.jsonl", lines(row, row | {"id": "\ud800"}))], "x")
    assert len(found.pairs) == 2 and [one.row for one in found.rejected] == [2, 2]


def test_multiclaim(tmp_path: Path) -> None:
    text = "('Hmla', 'Fog', [('slk', 1.0)])"
    odd = text.replace("slk", "\\ud800")
    (tmp_path / "posts.csv").write_text(f'post_id,text,ocr\n1,"{text}",\n2,"{odd}",\n')
    (tmp_path / "fact_checks.csv").write_text(f'fact_check_id,claim\n1,"{text}"\n')
    (tmp_path / "fact_check_post_mapping.csv").write_text("fact_check_id,post_id\n1,1\n1,2\n")
    found = multiclaim.read(tmp_path, "x")
    assert len(found.pairs) == 1 and [one.row for one in found.rejected] == [3]


def test_measures() -> None:
    values = {f"{m}{b}": 10**400 for m in ("nDCG@10", "PSI") for b in ("", "(Q1)")}
    with pytest.raises(UserError, match="is no number between 0 and 1"):
        read_measures("x.json", json.dumps({"m": {"eng-pol": values}}).encode())

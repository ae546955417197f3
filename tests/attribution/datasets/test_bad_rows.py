"""A bad row is rejected with its line and reason and counted; the rest of the data set is read."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poslens.attribution.curves.published import read_measures
from poslens.attribution.datasets import beir, posir, read_upload
from poslens.attribution.datasets.schema import as_grade
from poslens.attribution.errors import UserError
from tests.support.format_files import write

pytestmark = pytest.mark.usefixtures("shared_children")

GOOD = {"query": "when", "document": "Fog lifts."}


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_a_reason_replaces_characters_that_cannot_be_shown() -> None:
    found = read_upload("x.jsonl", lines(GOOD, {"que\ud800ry": "a"}))
    assert "que\ufffdry" in found.rejected[0].reason


@pytest.mark.parametrize("head", [b'"query,document\na,b\n', b'query,"document" x\na,b\n'])
def test_a_header_with_an_unclosed_quote_is_refused_in_one_sentence(head: bytes) -> None:
    with pytest.raises(UserError, match=r"is not a header|lacks the column"):
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
def test_column_values_that_python_cannot_represent_are_rejected(column: pa.Array) -> None:
    for name in ("x", "language"):
        out = io.BytesIO()
        try:
            pq.write_table(pa.table({**GOOD_COLUMNS, name: column}), out)
        except pa.ArrowInvalid:
            pytest.skip("Parquet cannot say it either")
        if name == "x":
            assert len(read_upload("x.parquet", out.getvalue()).pairs) == 2
    with pytest.raises(UserError, match="2 rows, but no valid pair"):
        read_upload("x.parquet", out.getvalue())


GOOD_COLUMNS = {"query": ["a", "b"], "document": ["c", "d"]}
TEXTS = [{"_id": f"d{n}", "text": "Fog lifts."} for n in range(3)]


@pytest.mark.parametrize("score", [math.inf, -math.inf, math.nan, 1e300, None, "much", True])
def test_a_grade_that_is_not_a_number_is_refused(score: object) -> None:
    with pytest.raises(UserError, match="is not a number up to 1,000,000"):
        as_grade(score, "score")


def test_beir_without_a_judgment_is_refused_in_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, {"corpus.jsonl": TEXTS, "queries.jsonl": TEXTS, "qrels/test.tsv": []})
    with pytest.raises(UserError, match="has no query with a relevant document"):
        beir.read(tmp_path, "x").collection()


QUERY = {
    "_id": "q0",
    "text": "when",
    "pos_char_span": [0, 3],
    "pos_char_length": 3,
    "pos_token_length": 5,
    "query_type": "when",
}


@pytest.mark.parametrize("column", [["1", "x"], [[1], [1]], [True, False], [None, 1.0]])
@pytest.mark.usefixtures("checked")
def test_posir_scores_of_other_types_are_rejected(tmp_path: Path, column: list[Any]) -> None:
    judged = [{"query-id": "q0", "corpus-id": f"d{n}", "score": s} for n, s in enumerate(column)]
    tables = {"queries": [QUERY], "corpus": TEXTS, "qrels/test": judged}
    write(tmp_path / "eng/fog", {f"{name}.parquet": rows for name, rows in tables.items()})
    try:
        found = posir.read(tmp_path, "x").data_set()
    except UserError as error:
        assert "2 rows, but no valid pair" in str(error)
    else:
        assert (len(found.pairs), len(found.rejected)) == (1, 1)


def test_published_measures_out_of_range_are_refused() -> None:
    values = {f"{m}{b}": 10**400 for m in ("nDCG@10", "PSI") for b in ("", "(Q1)")}
    with pytest.raises(UserError, match="is not a number between 0 and 1"):
        read_measures("x.json", json.dumps({"m": {"eng-pol": values}}).encode())

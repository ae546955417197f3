"""FineWeb-PosQ: questions, contents to search, and the position classes of answers."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poslens.attribution import datasets
from poslens.attribution.datasets import detect, formats
from poslens.attribution.errors import UserError

CLASSES = ("beginning", "middle", "end")
ROWS: list[dict[str, Any]] = [
    {
        "content": f"Passage {n % 5} is long.",
        "question": f"what of {n}?" if n % 4 else None,
        "span_class": [CLASSES[n % 3]] if n % 7 else ["end", "middle"],
        "question_level": "easy",
    }
    for n in range(40)
]


def lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_with_a_question_are_pairs_and_all_contents_are_searched(tmp_path: Path) -> None:
    path = lines(tmp_path / "data.jsonl", ROWS)
    assert detect(path) == "fineweb-posq" == detect(tmp_path)
    read = formats.read(path, "mine")
    asked = [row for row in ROWS if row["question"]]
    assert [pair.query for pair in read.pairs] == [row["question"] for row in asked]
    assert len(read.rejected) == len(ROWS) - len(asked)
    assert {r.reason for r in read.rejected} == {
        "the row has no question, so it is only part of the corpus"
    }
    found = formats.collection(path, "mine")
    texts = {one.key: one.text for one in found.documents()}
    assert list(texts.values()) == [f"Passage {n} is long." for n in range(5)]
    for query, row in zip(found.queries, asked, strict=True):
        (key,) = query.relevant
        assert texts[key] == row["content"]


def test_groups_by_class_equal_an_independent_count(tmp_path: Path) -> None:
    """Every seventh row has answers in two thirds and counts in both."""
    found = formats.collection(lines(tmp_path / "data.jsonl", ROWS), "mine")
    actual = Counter(name for query in found.queries for name in query.groups)
    expected = Counter(name for row in ROWS if row["question"] for name in row["span_class"])
    assert actual == expected and sum(expected.values()) > len(found.queries)
    assert found.groups is not None and found.groups.names == CLASSES


def test_parquet_csv_and_the_hub_give_the_same(tmp_path: Path, monkeypatch: Any) -> None:
    plain = [row | {"span_class": row["span_class"][0]} for row in ROWS]
    with (tmp_path / "data.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(plain[0]))
        writer.writeheader()
        writer.writerows(plain)
    hub = tmp_path / "hub" / "data"
    hub.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(plain), hub / "train-00000-of-00001.parquet")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(hub.parent))
    datasets.register("posq", "hf:NovaSearch/FineWeb-PosQ")
    of_csv, of_hub = formats.collection(tmp_path / "data.csv", "x"), datasets.collection("posq")
    assert [(q.text, q.groups) for q in of_csv.queries] == [
        (q.text, q.groups) for q in of_hub.queries
    ]
    assert [d.text for d in of_csv.documents()] == [d.text for d in of_hub.documents()]


def test_files_with_other_columns_are_not_detected(tmp_path: Path) -> None:
    assert detect(lines(tmp_path / "x.jsonl", [{"query": "q", "document": "d"}])) == "own"
    with pytest.raises(UserError, match="FineWeb-PosQ"):
        detect(lines(tmp_path / "y" / "notes.json", [{}]).parent)

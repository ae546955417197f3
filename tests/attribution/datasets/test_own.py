"""The user's files: what is accepted, what is rejected with a reason, and what is refused."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poslens.attribution import datasets
from poslens.attribution.datasets import formats, from_pairs, own, read_upload
from poslens.attribution.datasets.corpus import Document
from poslens.attribution.datasets.types import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.types import EvidenceSpan

DOCUMENT = "Fog forms over cold water. It lifts at noon."
FULL = {
    "pair_id": "p1",
    "query_id": "q1",
    "document_id": "d1",
    "query": "when does fog lift",
    "document": DOCUMENT,
    "evidence": "It lifts at noon.",
    "language": "en",
    "query_language": "pl",
    "domain": "weather",
    "query_type": "question",
}


def csv_bytes(rows: list[dict[str, Any]], delimiter: str = ",") -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def jsonl_bytes(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet_bytes(rows: list[dict[str, Any]] | pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows) if isinstance(rows, list) else rows, out)
    return out.getvalue()


def tsv_bytes(rows: list[dict[str, Any]]) -> bytes:
    return csv_bytes(rows, "\t")


WRITERS = {
    "x.csv": csv_bytes,
    "x.tsv": tsv_bytes,
    "x.jsonl": jsonl_bytes,
    "x.parquet": parquet_bytes,
}


def reasons(found: DataSet) -> dict[int, str]:
    return {rejection.row: rejection.reason for rejection in found.rejected}


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_pairs(name: str, pack: bool) -> None:
    data = WRITERS[name]([FULL])  # type: ignore[operator]
    found = read_upload(f"{name}.gz" if pack else name, gzip.compress(data) if pack else data)
    (pair,) = found.pairs
    assert (pair.pair_id, pair.query, pair.document) == ("p1", "when does fog lift", DOCUMENT)
    assert (pair.language, pair.domain, pair.dataset) == ("eng", "weather", found.name)
    assert pair.asked_in == pair.query_language == "pol"
    assert pair.evidence == EvidenceSpan(27, 44) and pair.query_type == "question"
    assert found.rejected == ()


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode("utf-8-sig"),
        lambda text: text.encode("utf-16"),
        lambda text: text.encode("utf-16-le"),
        lambda text: text.encode("utf-16-be"),
        lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
        lambda text: text.encode("utf-32"),
    ],
)
@pytest.mark.parametrize("name", ["x.csv", "x.jsonl"])
def test_encodings_are_recognized(name: str, encode: Any) -> None:
    rows = [FULL | {"document": "Łódź 你好 😀. It lifts at noon."}]
    found = read_upload(name, encode(WRITERS[name](rows).decode()))  # type: ignore[operator]
    (pair,) = found.pairs
    assert pair.document.startswith("Łódź 你好 😀") and pair.evidence is not None
    span = pair.document[pair.evidence.start : pair.evidence.end]
    assert span == "It lifts at noon."


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters_and_header_spelling(delimiter: str) -> None:
    data = csv_bytes([{" Query": "a,b;c", "DOCUMENT": "one\r\ntwo"}], delimiter)
    assert read_upload("x.csv", data).pairs[0].query == "a,b;c"
    assert read_upload("x.csv", data).pairs[0].document == "one\r\ntwo"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"document": ""}, "The document is empty"),
        ({"language": "English"}, "the language 'English' is not an ISO 639 code of two or three"),
        ({"pair_id": "p0"}, "pair p0 occurs twice, first in row 2"),
        ({"query_id": "q0"}, "query_id q0 has another text in row 2"),
        ({"document_id": "d0"}, "document_id d0 has another text in row 2"),
    ],
)
def test_a_row_is_rejected_with_its_line_and_reason(changes: dict[str, str], reason: str) -> None:
    good = FULL | {
        "pair_id": "p0",
        "query_id": "q0",
        "document_id": "d0",
        "evidence": "",
        "query": "what",
        "document": "Two\nlines.",
    }
    found = read_upload("x.csv", csv_bytes([good, FULL | changes, FULL | {"pair_id": "p9"}]))
    assert [pair.pair_id for pair in found.pairs] == ["p0", "p9"]
    # The first row is on lines 2 and 3.
    ((row, said),) = reasons(found).items()
    assert row == 4 and reason in said
    assert found.rejected[0].file == "x.csv"


NON_ASCII = "Łódź śpi. It lifts at noon."  # 27 characters, 31 bytes; evidence from character 10


@pytest.mark.parametrize(
    ("start", "end", "evidence", "reason"),
    [
        (10, 27, None, None),
        (10.0, 27.0, "It lifts at noon.", None),
        (
            10,
            28,
            None,
            "seems to count UTF-8 bytes: count characters, of which the document has 27",
        ),
        (14, 31, "It lifts at noon.", "seems to count UTF-8 bytes"),
        (10, 99, None, "the evidence 10 to 99 is outside the document's 27 characters"),
        (9, 26, "It lifts at noon.", "is not the text in the column evidence"),
        (-1, 5, None, "is empty or negative"),
        (5, 5, None, "is empty or negative"),
        (10, None, None, "must both be present"),
        ("ten", 27, None, "'ten', not a whole number"),
        (True, 27, None, "is true or false, not a whole number"),
        (1.5, 27, None, "not a whole number"),
        (10**300, 27, None, "exceeds 1,000,000,000,000"),
        ([1], 2, None, "is a list, not a whole number"),
    ],
)
def test_offsets_count_characters(start: Any, end: Any, evidence: Any, reason: str | None) -> None:
    row = {
        "query": "q",
        "document": NON_ASCII,
        "evidence_start": start,
        "evidence_end": end,
        "evidence": evidence,
    }
    good = {"query": "good", "document": "row"}
    found = read_upload("x.jsonl", jsonl_bytes([good, row]))
    if reason is None:
        assert found.pairs[1].evidence == EvidenceSpan(10, 27)
        assert NON_ASCII[10:27] == "It lifts at noon."
    else:
        assert len(found.pairs) == 1 and reason in reasons(found)[2]


def test_offsets_stay_right_where_text_is_cleaned() -> None:
    document = "a\x00b\udc80 It lifts."
    row = {"query": "q", "document": document, "evidence_start": 5, "evidence_end": 14}
    (pair,) = read_upload("x.jsonl", jsonl_bytes([row])).pairs
    assert pair.document == "a\ufffdb\ufffd It lifts." and pair.evidence == EvidenceSpan(5, 14)


def test_evidence_is_the_first_occurrence() -> None:
    row = {"query": "q", "document": "no no yes no", "evidence": " no "}
    assert read_upload("x.csv", csv_bytes([row])).pairs[0].evidence == EvidenceSpan(2, 6)


def test_rows_are_named_after_their_ids_or_row_numbers() -> None:
    rows = [
        {"query": "a", "document": "1", "query_id": "q1", "document_id": 7.0},
        {"query": "a", "document": "2", "query_id": "q1", "document_id": None},
        {"query": "b", "document": "3"},
    ]
    found = read_upload("x.parquet", parquet_bytes(rows))
    assert [pair.pair_id for pair in found.pairs] == ["q1/7", "q1/row-2", "row-3"]


def test_row_names_are_unique() -> None:
    # The row in line 3 has no document_id; the one in line 4 has the document_id 3.
    data = b"query,document,query_id,document_id\na,1,q1,1\na,2,q1,\na,3,q1,3\n"
    found = read_upload("x.csv", data)
    assert [p.pair_id for p in found.pairs] == ["q1/1", "q1/row-3", "q1/3"] and not found.rejected
    found = read_upload("x.csv", b"query,document,query_id\na,1,q1\na,2,q1\n")
    assert [p.pair_id for p in found.pairs] == ["q1/row-2", "q1/row-3"]
    # In JSON lines, each row names its own fields.
    rows = [{"document_id": "1"}, {}, {"document_id": "2"}]
    lines = [{"query": "a", "document": str(n), "query_id": "q1"} | r for n, r in enumerate(rows)]
    found = read_upload("x.jsonl", "\n".join(map(json.dumps, lines)).encode())
    assert [p.pair_id for p in found.pairs] == ["q1/1", "q1/row-2", "q1/2"] and not found.rejected


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.parquet"])
def test_the_error_names_missing_columns_and_those_found(name: str) -> None:
    data = WRITERS[name]([{"query": "q", "text": "t"}])  # type: ignore[operator]
    with pytest.raises(UserError) as caught:
        read_upload(name, data)
    assert str(caught.value) == f"{name} lacks the column document; it has query, text."


def test_missing_json_fields_are_reported_for_the_row() -> None:
    rows = [{"query": "q", "text": "t"}, {"query": "q", "document": "d"}]
    found = read_upload("x.jsonl", jsonl_bytes(rows))
    assert reasons(found) == {1: "the row lacks document; it has query, text"}
    reason = "The first error is in x.jsonl row 1: the row lacks document; it has query, text"
    with pytest.raises(UserError, match=f"x.jsonl has 1 row, but no valid pair. {reason}"):
        read_upload("x.jsonl", jsonl_bytes(rows[:1]))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "is not JSON"),
        (b"[1]", "not an object"),
        (b"3", "not an object"),
        (b"null", "not an object"),
        (b'{"query": "\xff", "document": "d"}', "not UTF-8"),
        (b"[" * 100_000, "is not JSON"),
        (b"1" * 5000, "is not JSON"),
    ],
)
def test_malformed_json_lines_are_rejected(line: bytes, reason: str) -> None:
    good = b'{"query": "q", "document": "d"}\n'
    found = read_upload("x.jsonl", good + b"\n" + line + b"\r\n" + good)
    assert len(found.pairs) == 2 and reason in reasons(found)[3]


def test_a_line_too_long_is_one_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poslens.attribution.datasets.streams.MAX_LINE", 64)
    good = b'{"query": "q", "document": "d"}\n'
    for length in (65, 64 * 3, 64 * 3 + 5):
        found = read_upload("x.jsonl", good + b"x" * length + b"\n" + good)
        assert len(found.pairs) == 2 and list(reasons(found)) == [2]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"only one", "the row has 1 cell, the header 2 columns"),
        (b"a,b,c", "the row has 3 cells, the header 2 columns"),
        (b'"a"b,c', "quotation marks are invalid"),
        (b"a,\xff", "not UTF-8"),
    ],
)
def test_malformed_csv_lines_are_rejected(line: bytes, reason: str) -> None:
    found = read_upload("x.csv", b"query,document\nq,d\n\n" + line + b"\nq,d\n")
    assert len(found.pairs) == 2 and reason in reasons(found)[4]


def test_an_unclosed_quotation_mark_is_reported_at_its_opening() -> None:
    found = read_upload("x.csv", b'query,document\nq,d\n"q,d\nq,d\n')
    assert len(found.pairs) == 1 and list(reasons(found)) == [3]
    assert "never closed" in reasons(found)[3]


# -- what is refused as a whole ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.csv", b"", "has no header"),
        ("x.csv", b"query,document\n", "has no rows"),
        ("x.jsonl", b"\n\n", "has no rows"),
        ("x.pkl", b"\x80\x04N.", "not in a known format"),
        ("x", b"query,document\n", "not in a known format"),
        ("x.gz", b"", "not in a known format"),
        ("x.parquet", b"", "not a readable Parquet file"),
        ("x.parquet", b"PAR1" * 9, "not a readable Parquet file"),
        ("x.csv", b"query,query,document\n1,2,3", "has the column query twice"),
        ("x.csv", b"query,document,evidence,Evidence\nq,d,d,", "has the column evidence twice"),
        ("x.csv", b"x" * 1_000_001, "Line 1 of x.csv is not a header"),
        ("x.csv.gz", gzip.compress(b"query,document\nq,d\n", mtime=0)[:-9], "damaged or truncated"),
        ("x.csv.gz", b"\x1f\x8bnothing", "damaged or truncated"),
        ("x.csv", "query,document\nq,d".encode("utf-16")[:-1], "not valid UTF-16"),
        ("../../etc/x.pkl", b"", "x.pkl is not in a known format"),
        ("C:\\secret\\x.pkl", b"", "x.pkl is not in a known format"),
    ],
)
def test_files_that_are_not_tables_are_refused(name: str, data: bytes, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read_upload(name, data)
    assert message in str(caught.value) and len(str(caught.value)) < 300
    assert "/etc" not in str(caught.value) and "secret" not in str(caught.value)


def test_an_upload_has_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"x\.csv has 20\.0 MB; the limit is 20 MB"):
        read_upload("x.csv", b"x" * 20_000_001)
    monkeypatch.setattr(own, "UPLOAD_ROWS", 3)
    with pytest.raises(UserError, match="more than 3 rows"):
        read_upload("x.csv", b"query,document\n" + b"q,d\n" * 4)
    assert len(read_upload("x.csv", b"query,document\n" + b"q,d\n" * 3).pairs) == 3


@pytest.mark.parametrize("name", ["x.csv.gz", "x.jsonl.gz", "x.parquet.gz"])
def test_a_gzip_bomb_is_refused_while_it_unpacks(name: str) -> None:
    row = b"q," + b"d" * 4000 + b"\n"  # far fewer than the rows that a file may have
    bomb = gzip.compress(b"query,document\n" + row * 30_000, 1)
    assert len(bomb) < 20_000_000
    with pytest.raises(UserError, match=r"more than 100 MB|more than 200,000 rows|no header"):
        read_upload(name, bomb)


def test_parquet_bombs_are_refused_before_they_unpack() -> None:
    """One text shared by many rows, and texts that compress to almost nothing."""
    long = "x" * 1_000_000
    shared = pa.table({"query": ["q"] * 120, "document": [long] * 120})
    data = parquet_bytes(shared)
    assert len(data) < 1_000_000
    with pytest.raises(UserError, match="has more than 100 MB when unpacked"):
        read_upload("x.parquet", data)
    out = io.BytesIO()
    distinct = pa.table({"query": ["q"] * 120, "document": [f"{n}{long}" for n in range(120)]})
    pq.write_table(distinct, out, compression="zstd", use_dictionary=False)
    assert len(out.getvalue()) < 1_000_000
    with pytest.raises(UserError, match="has more than 100 MB when unpacked"):
        read_upload("x.parquet", out.getvalue())


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["q", None, "r"]),
        pa.array(["q", None, "r"], pa.large_string()),
        pa.array(["q", None, "r"]).dictionary_encode(),
        pa.array([b"q", b"\xff", b"r"]),
        pa.array(["q", None, "r"], pa.string_view()),
    ],
    ids=lambda column: str(column.type),
)
def test_every_parquet_text_type_is_read(column: pa.Array) -> None:
    found = read_upload(
        "x.parquet", parquet_bytes(pa.table({"query": column, "document": list("abc")}))
    )
    assert [pair.query for pair in found.pairs] == ["q", "r"] and list(reasons(found)) == [2]


def test_parquet_columns_of_other_types_are_rejected_row_by_row() -> None:
    table = pa.table({"query": [1, None], "document": [["a"], ["b"]]})
    with pytest.raises(UserError, match=r"has 2 rows, but no .* the query is a number, not text"):
        read_upload("x.parquet", parquet_bytes(table))


def test_damaged_parquet_never_crashes() -> None:
    """A few files, in child processes; tests/fuzz reads many without them."""
    whole = parquet_bytes([FULL | {"pair_id": f"p{n}"} for n in range(50)])
    rng = random.Random(3)
    crashes: set[str] = set()
    for _ in range(4):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        try:
            read_upload("x.parquet", bytes(damaged))
        except UserError:
            pass
        except Exception as error:
            crashes.add(f"{type(error).__name__}: {error}")
    assert crashes == set()


def test_parquet_files_written_by_pandas_are_read(tmp_path: Path) -> None:
    frame = pd.DataFrame([FULL, FULL | {"pair_id": None, "query_id": None, "evidence": None}])
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_json(tmp_path / "b.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "c.parquet")
    for path in tmp_path.iterdir():
        found = own.read([own.File(path.name, path)], "mine")
        assert len(found.pairs) == 2, found.rejected
        assert found.pairs[1].evidence is None and found.pairs[1].pair_id.startswith("row-")


def test_rows_of_a_folder_are_named_after_their_file(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(b"query,document\nq,d\n")
    (tmp_path / "notes.txt").write_text("no data")
    (tmp_path / "._a.csv").write_bytes(b"\0\5\x16\7")  # which macOS writes next to a.csv
    datasets.register("mine", tmp_path)
    assert [pair.pair_id for pair in datasets.read("mine").pairs] == ["a.csv/row-2", "b.csv/row-2"]
    datasets.register("one", tmp_path / "a.csv")
    assert len(datasets.read("one").pairs) == 1
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(f"query,document,query_id\nq,document of {name},q1\n")
    datasets.register("named", tmp_path)
    found = datasets.read("named")
    assert [p.pair_id for p in found.pairs] == ["q1/a.csv/row-2", "q1/b.csv/row-2"]
    assert not found.rejected


def test_files_of_the_same_name_with_other_contents_are_other_data_sets() -> None:
    first = read_upload("x.csv", b"query,document\nq,d\n")
    assert first.name == read_upload("x.csv", b"query,document\nq,d\n").name
    assert first.name != read_upload("x.csv", b"query,document\nq,e\n").name
    hostile = read_upload("<b>&'/\\..\n`.csv", b"query,document\nq,d\n").name
    assert set(hostile) <= set("abcdefghijklmnopqrstuvwxyz0123456789-._")


OPTIONAL = [name for column in own.COLUMNS if not column.required for name in column.names]
CELL = st.one_of(st.none(), st.text(max_size=12), st.integers(), st.floats(), st.booleans())
ROW = st.fixed_dictionaries(
    {"query": st.one_of(st.text(min_size=1, max_size=9), CELL), "document": st.text(max_size=30)},
    optional=dict.fromkeys(OPTIONAL, CELL),
)


@given(st.lists(ROW, max_size=8))
def test_every_json_row_is_accepted_or_rejected(rows: list[dict[str, Any]]) -> None:
    found = read_upload("x.jsonl", jsonl_bytes([*rows, {"query": "q", "document": "d"}]))
    assert len(found.pairs) + len(found.rejected) == len(rows) + 1
    assert len(found.pairs.once) == len(found.pairs)
    numbers = [rejection.row for rejection in found.rejected]
    assert numbers == sorted(set(numbers)) and set(numbers) <= set(range(1, len(rows) + 2))


@given(
    st.lists(st.tuples(st.text(max_size=9), st.text(max_size=30), st.text(max_size=5)), max_size=8)
)
def test_every_csv_row_is_accepted_or_rejected(rows: list[tuple[str, str, str]]) -> None:
    listed = [dict(zip(("query", "document", "evidence"), row, strict=True)) for row in rows]
    good = {"query": "q", "document": "d", "evidence": ""}
    data = io.StringIO()
    writer = csv.DictWriter(data, list(good), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows([*listed, good])
    found = read_upload("x.csv", data.getvalue().encode("utf-8", "surrogatepass"))
    assert len(found.pairs) + len(found.rejected) == len(rows) + 1


@given(st.binary(max_size=400), st.sampled_from(["x.csv", "x.tsv", "x.jsonl"]))
def test_any_bytes_give_pairs_or_one_sentence(data: bytes, name: str) -> None:
    for given_bytes in (data, b"query,document\n" + data, b"query\tdocument\n" + data):
        try:
            found = read_upload(name, given_bytes)
        except UserError as error:
            assert "\n" not in str(error)
        else:
            assert found.pairs


def test_a_corpus_has_the_ids_of_its_file(tmp_path: Path) -> None:
    """A text without an id gets that of the same text in another row, otherwise that of its first
    pair, or another one if the file uses that id for another text."""
    rows = [
        {"query": "tide", "document": "a", "query_id": "q1", "document_id": "d1"},
        {"query": "tide", "document": "b", "query_id": "q1", "document_id": "d2"},
        {"query": "fog", "document": "a", "query_id": "q2", "document_id": "d9"},
        {"query": "moon", "document": "c"},
        {"query": "moon", "document": "a"},
        {"query": "sun", "document": "e", "pair_id": "d9"},
        {"query": "star", "document": "f", "pair_id": "pair:d9"},
    ]
    path = tmp_path / "own.jsonl"
    path.write_bytes(jsonl_bytes(rows))
    upload = from_pairs(read_upload(path.name, path.read_bytes()))
    for collection in (formats.collection(path, "own"), upload):
        relevant = {query.query_id: set(query.relevant) for query in collection.queries}
        assert relevant == {
            "q1": {"d1", "d2"},
            "q2": {"d9"},
            "row-4": {"row-4", "d1"},
            "d9": {"pair:d9"},
            "pair:d9": {"pair:pair:d9"},
        }
        texts = {d.document_id: d.text for d in collection.stream() if isinstance(d, Document)}
        assert texts == {
            **{"d1": "a", "d2": "b", "d9": "a", "row-4": "c"},
            **{"pair:d9": "e", "pair:pair:d9": "f"},
        }

"""The PosIR reader: what it accepts, what it rejects, and that nothing is lost in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poslens.attribution import datasets
from poslens.attribution.datasets import posir, posir_selection
from poslens.attribution.datasets.types import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.pairs import Pairs
from poslens.attribution.types import EvidenceSpan, TextPair

DOCUMENT = "Fog forms over cold water. It lifts at noon."
BUNDLED = ["sample", "sample-multilingual", "sample-bias"]
Rows = list[dict[str, Any]]


def query(query_id: str = "q1", **changes: Any) -> dict[str, Any]:
    return {
        "_id": query_id,
        "text": "when does fog lift",
        "pos_char_span": [27, 44],
        "pos_char_length": len(DOCUMENT),
        "pos_token_length": 10,
    } | changes


def judgment(query_id: str = "q1", document_id: str = "d1", score: Any = 1) -> dict[str, Any]:
    return {"query-id": query_id, "corpus-id": document_id, "score": score}


CORPUS: Rows = [{"_id": "d1", "text": DOCUMENT}, {"_id": "d2", "text": DOCUMENT + " Then rain."}]
Write = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("checked")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write one domain and return the data set's root; None leaves a file out."""

    def write(
        queries: Rows | None = None,
        qrels: Rows | None = None,
        corpus: Rows | None = CORPUS,
        domain: str = "eng/weather",
    ) -> Path:
        folder = tmp_path / "set" / domain
        (folder / "qrels").mkdir(parents=True)
        for file, rows in (
            ("queries.parquet", [query()] if queries is None else queries),
            ("corpus.parquet", corpus),
            ("qrels/test.parquet", [judgment()] if qrels is None else qrels),
        ):
            if rows is not None:
                pq.write_table(pa.Table.from_pylist(rows), folder / file)
        return tmp_path / "set"

    return write


def balanced(found: DataSet, judgments: int) -> DataSet:
    """Accepted + rejected = judgments, and every pair can be found by its id."""
    rejected = [one for one in found.rejected if "/qrels/" in one.file]
    assert len(found.pairs) + len(rejected) == judgments
    assert len(found.pairs.once) == len(found.pairs), "two pairs share an id"
    return found


def test_a_domain_is_read(write: Write) -> None:
    found = balanced(posir.read(write(), "mine", "My set").data_set(), 1)
    assert (found.name, found.title, found.rejected) == ("mine", "My set", ())
    assert found.pairs == (
        TextPair(
            "q1", "when does fog lift", DOCUMENT, EvidenceSpan(27, 44), "eng", "weather", "mine", 10
        ),
    )
    span = found.pairs[0].evidence
    assert span is not None and DOCUMENT[span.start : span.end] == "It lifts at noon."
    assert found.pair("q1") == found.pairs[0]
    with pytest.raises(UserError, match="mine has no pair 'q9'"):
        found.pair("q9")


def test_a_query_with_two_documents_is_two_pairs(write: Write) -> None:
    qrels = [judgment(), judgment(document_id="d2")]
    found = balanced(posir.read(write(qrels=qrels), "mine").data_set(), 2)
    assert [pair.document for pair in found.pairs] == [DOCUMENT, DOCUMENT + " Then rain."]
    assert found.rejected == ()


@pytest.mark.parametrize("times", [2, 3])
def test_a_repeated_judgment_counts_once(write: Write, times: int) -> None:
    found = balanced(posir.read(write(qrels=[judgment()] * times), "mine").data_set(), times)
    assert len(found.pairs) == 1
    assert [r.row for r in found.rejected] == list(range(2, times + 1))
    assert all("an earlier row" in r.reason for r in found.rejected)


def test_equal_ids_in_two_domains_are_two_pairs(write: Write) -> None:
    """Ids are unique within a file; translated data sets repeat them across languages."""
    write(domain="eng/weather")
    root = write(domain="pol/weather", corpus=[{"_id": "d1", "text": DOCUMENT.upper()}])
    found = balanced(posir.read(root, "mine").data_set(), 2)
    assert {pair.language for pair in found.pairs} == {"eng", "pol"}


def test_a_row_of_unknown_length_is_not_rejected(write: Write) -> None:
    found = balanced(
        posir.read(write([query(pos_token_length=None), query("q2")]), "mine").data_set(), 1
    )
    assert found.pairs[0].document_tokens is None


@pytest.mark.parametrize(
    ("arguments", "file", "column", "has"),
    [
        (
            {"queries": [{"_id": "q1", "text": "x", "pos_char_length": 1, "pos_token_length": 1}]},
            "queries.parquet",
            "pos_char_span",
            "_id, text, pos_char_length, pos_token_length",
        ),
        ({"corpus": [{"id": "d1", "text": "x"}]}, "corpus.parquet", "_id", "id, text"),
        (
            {"qrels": [{"query_id": "q1", "corpus-id": "d1", "score": 1}]},
            "qrels/test.parquet",
            "query-id",
            "query_id, corpus-id, score",
        ),
    ],
)
def test_the_error_names_the_missing_column_and_those_found(
    write: Write, arguments: dict[str, Rows], file: str, column: str, has: str
) -> None:
    with pytest.raises(UserError) as caught:
        posir.read(write(**arguments), "mine").data_set()
    assert str(caught.value) == (f"eng/weather/{file} lacks the column {column}; it has {has}.")


def test_the_error_of_an_empty_folder_names_the_required_files(tmp_path: Path) -> None:
    empty = tmp_path / "nothing"
    empty.mkdir()
    with pytest.raises(UserError) as caught:
        posir.read(empty, "mine").data_set()
    assert str(caught.value).startswith("nothing has no data set in the PosIR format: it needs ")
    assert str(tmp_path) not in str(caught.value)


def test_a_missing_file_is_named(write: Write) -> None:
    with pytest.raises(UserError, match=r"^eng/weather/corpus\.parquet is missing"):
        posir.read(write(corpus=None), "mine").data_set()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not a table at all" * 9])
def test_a_file_that_is_not_parquet_is_named(write: Write, content: bytes) -> None:
    root = write()
    (root / "eng/weather/corpus.parquet").write_bytes(content)
    with pytest.raises(
        UserError, match=r"^eng/weather/corpus\.parquet is not a readable Parquet file"
    ):
        posir.read(root, "mine").data_set()


def test_damaged_parquet_is_refused_or_read_but_never_crashes(write: Write) -> None:
    """300 files with one byte changed or their end cut off."""
    root = write(
        queries=[query(f"q{n}") for n in range(20)], qrels=[judgment(f"q{n}") for n in range(20)]
    )
    rng = random.Random(7)
    files = [root / "eng/weather" / file for file in ("queries.parquet", "corpus.parquet")]
    refused = 0
    crashes: set[str] = set()
    for n in range(300):
        path = files[n % 2]
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged[: rng.randrange(len(whole))] if n % 10 == 9 else damaged)
        try:
            balanced(posir.read(root, "mine").data_set(), 20)
        except UserError as error:
            refused += 1
            assert path.name in str(error) or "qrels/test.parquet row" in str(error)
        except Exception as error:
            crashes.add(f"{path.name}: {type(error).__name__}: {error}")
        finally:
            path.write_bytes(whole)
    assert crashes == set()
    assert refused > 50


# -- the protocol's selection ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "span", "chosen"),
    [
        (1024, (49, 51), True),
        (1023, (49, 51), False),
        (None, (49, 51), False),
        (1024, (39, 41), True),
        (1024, (39, 40), False),
        (1024, (59, 61), True),
        (1024, (60, 61), False),
        (5000, (0, 100), True),
        (5000, (0, 10), False),
        (5000, (90, 100), False),
    ],
)
def test_the_posir_protocol_selects_these_pairs(
    tokens: int | None, span: tuple[int, int], chosen: bool
) -> None:
    pair = TextPair("p", "q", "x" * 100, EvidenceSpan(*span), document_tokens=tokens)
    assert (len(posir_selection(Pairs([pair]))) == 1) is chosen


def test_selection_needs_evidence() -> None:
    assert not posir_selection(Pairs([TextPair("p", "q", "x" * 100, document_tokens=5000)]))


@pytest.mark.parametrize(
    ("language", "chosen"), [("eng", True), (None, True), ("cmn", False), ("pol", False)]
)
def test_the_protocol_selects_english_pairs(language: str | None, chosen: bool) -> None:
    """The published scripts read only the folder eng-Latn."""
    pair = TextPair("p", "q", "x" * 100, EvidenceSpan(49, 51), language, document_tokens=2000)
    assert (len(posir_selection(Pairs([pair]))) == 1) is chosen


# -- data sets by name -------------------------------------------------------------------------


def test_folders_are_read_by_registered_name(write: Write) -> None:
    root = write()
    datasets.register("mine", root)
    assert datasets.names()[-1] == "mine"
    assert len(datasets.read("mine").pairs) == 1
    assert datasets.read("mine") is datasets.read("mine")
    # After registering it again, it is read again.
    write(domain="pol/weather", queries=[query("q7")], qrels=[judgment("q7")])
    datasets.register("mine", root)
    assert len(datasets.read("mine").pairs) == 2
    with pytest.raises(UserError, match="sample is the name of a bundled data set"):
        datasets.register("sample", root)
    with pytest.raises(UserError, match="is not a folder"):
        datasets.register("other", root / "absent")


@pytest.mark.parametrize("name", ["", "../x", "/etc", "nothing", "x" * 5000])
def test_an_unknown_data_set_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(UserError, match="There is no data set") as caught:
        datasets.read(name)
    assert len(str(caught.value)) < 300


def test_every_file_is_checked_before_it_is_read(write: Write, checked: list[str]) -> None:
    posir.read(write([query(query_type=" why ")]), "mine").data_set()
    files = ("queries.parquet", "corpus.parquet", "qrels/test.parquet")
    assert checked[:3] == [f"eng/weather/{file}" for file in files]


def test_the_query_type_column_is_read(write: Write) -> None:
    found = posir.read(write([query(query_type=" why ")]), "mine").data_set()
    assert [pair.query_type for pair in found.pairs] == ["why"]


@pytest.mark.parametrize("unusable", [None, "", "x" * 5000])
def test_a_damaged_row_of_corpus_or_queries_is_reported_with_its_row(
    write: Write, unusable: str | None
) -> None:
    root = write(
        queries=[query(), query() | {"_id": unusable}],
        corpus=[{"_id": unusable, "text": DOCUMENT}, *CORPUS],
    )
    found = posir.read(root, "mine").data_set()
    assert [pair.pair_id for pair in found.pairs] == ["q1"]
    assert [(one.file, one.row) for one in found.rejected] == [
        ("eng/weather/corpus.parquet", 1),
        ("eng/weather/queries.parquet", 2),
    ]
    assert all("_id" in one.reason for one in found.rejected)

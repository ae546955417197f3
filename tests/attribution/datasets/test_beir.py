"""The BEIR reader: the join of three files, one pass over the corpus, and what is counted."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poslens.attribution import datasets, isolated
from poslens.attribution.datasets import beir, detect, languages, posir
from poslens.attribution.datasets.parquet import require_readable
from poslens.attribution.datasets.streams import File
from poslens.attribution.datasets.types import DataSet
from poslens.attribution.errors import UserError

pytestmark = pytest.mark.usefixtures("shared_children")

HEADER = "query-id\tcorpus-id\tscore\n"
CORPUS = [
    {"_id": "d1", "title": "Fog", "text": "It lifts at noon."},
    {"_id": "d2", "title": "", "text": "Lód topnieje wiosną."},
    {"_id": "d3", "title": "Unused", "text": "Nobody asks for it."},
]
QUERIES = [{"_id": "q1", "text": "when does fog lift"}, {"_id": "q2", "text": "co topnieje"}]
QRELS = HEADER + "q1\td1\t1\nq2\td2\t2\n"


def lines(rows: list[Any]) -> str:
    return "".join(
        (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)) + "\n"
        for row in rows
    )


def write(
    folder: Path,
    corpus: list[Any] | None = None,
    queries: list[Any] | None = None,
    qrels: str = QRELS,
    split: str = "test",
    pack: bool = False,
) -> Path:
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("corpus.jsonl", lines(CORPUS if corpus is None else corpus)),
        ("queries.jsonl", lines(QUERIES if queries is None else queries)),
        (f"qrels/{split}.tsv", qrels),
    ):
        if pack:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def reasons(found: DataSet) -> dict[int, str]:
    return {rejection.row: rejection.reason for rejection in found.rejected}


def test_judgments_without_a_pair_are_counted(tmp_path: Path) -> None:
    qrels = HEADER + (
        "q1\td1\t1\n"  # 2: a pair
        "q1\td2\t0\n"  # 3: not relevant, which is valid
        "q9\td1\t1\n"  # 4: no such query
        "q1\td9\t1\n"  # 5: no such document
        "q1\td1\t1\n"  # 6: repeated
        "q1\td1\n"  # 7: a missing cell
        "q1\td2\tmuch\n"  # 8: no score
        "q1\td3\tnan\n"  # 9: not a number either
        "q1\td4\t1\n"  # 10: an empty document
    )
    corpus = [*CORPUS, {"_id": "d4", "title": "", "text": " "}]
    found = beir.read(write(tmp_path / "set", corpus, qrels=qrels), "mine").data_set()
    assert [pair.pair_id for pair in found.pairs] == ["q1/d1"]
    said = reasons(found)
    assert sorted(said) == [4, 5, 6, 7, 8, 9, 10]
    assert {rejection.file for rejection in found.rejected} == {"qrels/test.tsv"}
    assert "'nan' is not a number" in said[9]
    assert said[4] == "q9/d1: query q9 does not exist"
    assert said[5] == "q1/d9: document d9 does not exist"
    assert said[6] == "q1/d1: an earlier row judges the same pair"
    assert "has 2 cells: write query-id, corpus-id and score, separated by tabs" in said[7]
    assert "'much' is not a number" in said[8]
    assert "The document is empty" in said[10]


def test_unreadable_corpus_lines_are_named(tmp_path: Path) -> None:
    corpus = [CORPUS[0], '{"_id": "d2", "text": ', "[1]", {"text": "no id"}]
    found = beir.read(write(tmp_path / "set", corpus), "mine").data_set()
    assert reasons(found)[3].startswith(
        "q2/d2: document d2 does not exist; 3 rows have no valid id, the first is corpus.jsonl "
        "row 2: the line is not JSON"
    )


def test_the_first_document_of_an_id_counts_in_pairs_as_in_a_search(tmp_path: Path) -> None:
    empty, other = ({"_id": "d1", "title": "", "text": text} for text in ("", "Another text."))
    folder = write(tmp_path / "set", [empty, *CORPUS, other, CORPUS[1]])
    judged = beir.read(folder, "mine")
    documents = {
        document.document_id: document.text for document in judged.collection().documents()
    }
    pairs = beir.read(folder, "mine").data_set().pairs
    assert [pair.document for pair in pairs] == [documents["d1"], documents["d2"]]
    assert documents["d1"].endswith(CORPUS[0]["text"])
    assert beir.read(folder, "mine").collection().n_lost == 0


def test_a_query_id_with_two_texts_is_refused_but_a_repeated_row_is_not(tmp_path: Path) -> None:
    queries = [*QUERIES, {"_id": "q1", "text": "another question"}, QUERIES[1]]
    found = beir.read(write(tmp_path / "set", CORPUS, queries), "mine").data_set()
    assert [pair.pair_id for pair in found.pairs] == ["q2/d2"]
    assert reasons(found) == {
        2: "q1/d1: query q1: queries.jsonl row 3: an earlier row with this id differs"
    }


def test_ids_may_be_numbers_or_escaped(tmp_path: Path) -> None:
    corpus = [{"_id": 7, "text": "Seven."}, '{"_id": "\\u00e9", "text": "E."}']
    queries = [{"_id": 1, "text": "which"}]
    qrels = HEADER + "1\t7\t1\n1\té\t1\n"
    found = beir.read(write(tmp_path / "set", corpus, queries, qrels), "mine").data_set()
    assert [pair.document for pair in found.pairs] == ["Seven.", "E."]


def test_judgments_have_the_columns_that_their_header_names(tmp_path: Path) -> None:
    # With numbers as ids, columns in another order would give other pairs, not an error.
    texts = [{"_id": n, "text": f"Text {n}."} for n in (1, 2)]
    for qrels in ("corpus-id\tQuery-ID\tscore\tby\n2\t1\t3\tme\n", "topic\tdoc\tgrade\n1\t2\t3\n"):
        judged = beir.read(write(tmp_path / "set", texts, texts, qrels), "mine").collection()
        assert [(query.query_id, query.relevant) for query in judged.queries] == [("1", {"2": 3})]
        assert not judged.rejected


def test_the_default_split_is_test(tmp_path: Path) -> None:
    folder = write(tmp_path / "set")
    write(folder, split="dev", qrels=HEADER + "q2\td1\t1\n")
    assert beir.read(folder, "mine").data_set().title == "mine (BEIR, test)"
    chosen = folder / "qrels" / "dev.tsv"
    assert detect(chosen) == "beir"
    found = beir.read(chosen, "mine").data_set()
    assert found.title == "mine (BEIR, dev)" and found.pairs[0].pair_id == "q2/d1"


def test_ids_of_several_sets_in_a_folder_stay_distinct(tmp_path: Path) -> None:
    write(tmp_path / "beir" / "cqadupstack" / "android")
    write(tmp_path / "beir" / "nq", corpus=[CORPUS[0] | {"text": "Else."}, CORPUS[1]])
    found = beir.read(tmp_path / "beir", "mine").data_set()
    assert len(found.pairs) == len(found.pairs.once) == 4
    assert {pair.domain for pair in found.pairs} == {"cqadupstack/android", "nq"}
    assert found.pair("nq/q1/d1").document == "Fog Else."


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("data/scifact", ("eng", "scifact")),
        ("data/scifact-pl", ("pol", "scifact")),
        ("beir-pl/SciFact", ("pol", "SciFact")),
        ("data/nq-de", ("deu", "nq")),
        ("cqadupstack/english", ("eng", "cqadupstack/english")),
        ("cqadupstack-pl/gis", ("pol", "cqadupstack/gis")),
        ("data/mine", (None, "mine")),
        ("data/trec-covid", ("eng", "trec-covid")),
        ("x-pl/mine", (None, "mine")),
        ("datasets--BeIR--nq-de/snapshots/0a1b", ("deu", "nq")),
        ("datasets--scifact/snapshots/0a1b", ("eng", "scifact")),
        ("x-pl/snapshots/nq", ("eng", "nq")),
    ],
)
def test_language_and_domain_come_from_names(folder: str, expected: tuple[str | None, str]) -> None:
    assert languages.of_folder(Path(folder)) == expected


@pytest.mark.parametrize("missing", ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    folder = write(tmp_path / "set")
    (folder / missing).unlink()
    with pytest.raises(UserError, match=r"corpus.jsonl|queries.jsonl is missing|no .tsv file"):
        beir.read(folder, "mine").data_set()


def test_damaged_gzip_is_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", pack=True)
    path = folder / "corpus.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(UserError, match=r"^corpus\.jsonl\.gz is damaged or truncated"):
        beir.read(folder, "mine").data_set()


def test_a_data_set_without_pairs_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", qrels=HEADER + "q1\td9\t1\n")
    with pytest.raises(UserError, match=r"has 1 row, but no .* document d9 does not exist"):
        beir.read(folder, "mine").data_set()
    write(folder, qrels=HEADER)
    with pytest.raises(UserError, match="has no rows"):
        beir.read(folder, "mine").data_set()


def test_a_large_corpus_is_never_held_in_memory(tmp_path: Path) -> None:
    """20,000 documents of 1,000 characters are 20 MB on disk, and only one document is needed."""
    corpus = [{"_id": f"d{n}", "title": "", "text": f"{n} " + "x" * 1000} for n in range(20_000)]
    folder = write(tmp_path / "set", corpus, qrels=HEADER + "q1\td19999\t1\n")
    del corpus
    tracemalloc.start()
    try:
        found = beir.read(folder, "mine").data_set()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.pairs[0].document.startswith("19999 ")
    assert peak < 8_000_000


IDS = st.sampled_from(["q1", "q2", "d1", "d2", "d3", "d9", ""])


@given(st.lists(st.tuples(IDS, IDS, st.sampled_from(["1", "0", "-1", "x", "nan", ""])), min_size=1))
def test_every_judgment_above_zero_is_accepted_or_rejected(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str]]
) -> None:
    qrels = HEADER + "".join("\t".join(row) + "\n" for row in [*rows, ("q1", "d1", "1")])
    found = beir.read(write(tmp_path_factory.mktemp("set"), qrels=qrels), "mine").data_set()
    irrelevant = sum(bool(row[0] and row[1]) and row[2] in ("0", "-1") for row in rows)
    assert len(found.pairs) + len(found.rejected) == len(rows) + 1 - irrelevant
    assert len(found.pairs.once) == len(found.pairs)


def test_a_registered_set_is_read_by_name(tmp_path: Path) -> None:
    assert datasets.register("mine", write(tmp_path / "set")) == ["mine"]
    assert len(datasets.read("mine").pairs) == 2


# -- as on the hub: Parquet in parts, and judgments as JSON lines --------------------------------

JUDGED = [
    {"query-id": "q1", "corpus-id": "d1", "score": 1},
    {"query-id": "q2", "corpus-id": "d2", "score": 2.0},
]


def parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_hub(folder: Path, corpus: list[Any] = CORPUS, judged: list[Any] = JUDGED) -> Path:
    """The corpus in two parts, one query file, judgments in `data/`."""
    for number, rows in enumerate((corpus[:1], corpus[1:])):
        parquet(folder / f"corpus/corpus-0000{number}-of-00002.parquet", rows)
    parquet(folder / "queries.parquet", QUERIES)
    parquet(folder / "data/test-00000-of-00001.parquet", judged)
    return folder


def test_parquet_and_json_judgments_give_the_same_pairs(tmp_path: Path) -> None:
    expected = beir.read(write(tmp_path / "lines"), "mine").data_set().pairs
    hub = write_hub(tmp_path / "hub")
    assert detect(hub) == "beir"
    found = beir.read(hub, "mine").data_set()
    assert [(p.query, p.document) for p in found.pairs] == [(p.query, p.document) for p in expected]
    assert (found.title, found.rejected) == ("mine (BEIR, test)", ())
    mixed = write(tmp_path / "mixed")
    (mixed / "qrels/test.tsv").unlink()
    (mixed / "qrels/test.jsonl").write_text(lines(JUDGED))
    assert detect(mixed / "qrels/test.jsonl") == detect(mixed) == "beir"
    for path in (mixed, mixed / "qrels/test.jsonl"):
        assert [p.pair_id for p in beir.read(path, "mine").data_set().pairs] == ["q1/d1", "q2/d2"]


def test_the_first_document_of_an_id_in_two_parts_counts(tmp_path: Path) -> None:
    again = {"_id": "d1", "title": "Fog", "text": "It stays."}
    found = beir.read(write_hub(tmp_path / "hub", [*CORPUS, again]), "mine").data_set()
    assert found.pairs[0].document.endswith(CORPUS[0]["text"]) and not found.rejected


def test_a_domain_of_posir_is_not_read_without_its_evidence(tmp_path: Path) -> None:
    sample = Path(posir.__file__).parent / "sample" / "posir" / "eng"
    with pytest.raises(UserError, match=r"queries.parquet is in the PosIR format: use the folder"):
        beir.read(sample, "mine").data_set()


def test_a_file_that_aborts_the_process_ends_only_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a failed assertion in Arrow: the child aborts and the reader gets one sentence."""
    folder = write_hub(tmp_path / "hub")
    monkeypatch.setattr(isolated, "_CHILD", "import os; os.abort()")
    with pytest.raises(
        UserError, match=r"data/test-00000-of-00001.parquet is not a readable Parquet file"
    ):
        beir.read(folder, "mine").data_set()


def test_a_file_is_tried_in_a_child_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_hub(tmp_path / "hub")
    found = beir.read(folder, "mine").data_set()
    monkeypatch.setattr(isolated, "_CHILD", "import os; os.abort()")
    assert beir.read(folder, "mine").data_set().pairs == found.pairs
    path = folder / "queries.parquet"
    path.write_bytes(path.read_bytes())
    with pytest.raises(UserError, match=r"queries.parquet is not a readable Parquet file"):
        beir.read(folder, "mine").data_set()


def test_files_that_ship_with_the_program_are_not_tried_in_a_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolated, "_CHILD", "import os; os.abort()")
    sample = Path(datasets.__file__).parent / "sample"
    (place, *_) = sample.rglob("queries.parquet")
    # Columns that no other test asks for, because a file is tried once for the same columns.
    require_readable([(File("queries.parquet", place), ["of this test"])])


def test_damaged_parquet_on_disk_is_refused_in_one_sentence(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "hub")
    path = folder / "queries.parquet"
    path.write_bytes(path.read_bytes()[:-20] + bytes(20))
    with pytest.raises(UserError, match=r"queries.parquet is not a readable Parquet file"):
        beir.read(folder, "mine").data_set()

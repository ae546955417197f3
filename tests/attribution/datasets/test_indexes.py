"""Large data sets are read from an index, which equals their files or is written again."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from poslens.attribution import datasets
from poslens.attribution.datasets import formats, index_writer, indexes
from poslens.attribution.datasets.indexed_pairs import IndexedPairs, PairIndex, packed, unpacked
from poslens.attribution.datasets.types import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.pairs import LabelName, Pairs
from poslens.attribution.types import TextPair
from poslens.compute.mean_curves import pairs_digest
from poslens.compute.selection import Filters, facets
from tests.attribution.datasets.test_readers import EXAMPLES, FOG, TIDE
from tests.support.format_files import write

ROWS = [
    {"query": f"when {n}", "document": FOG if n % 3 else TIDE, "pair_id": f"p{n}", "language": "en"}
    for n in range(600)
]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate data folder, in which data sets of any size and age get an index."""
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(index_writer, "IN_MEMORY", 0)
    monkeypatch.setattr(datasets, "_RESOLUTION_NS", -(10**15))
    return tmp_path / "home"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "rows", {"pairs.jsonl": ROWS}) / "pairs.jsonl"


def opened(source: Path | str) -> DataSet:
    """The data set as read by a new process."""
    datasets._forget()
    datasets.register("mine", source)
    return datasets.read("mine")


def index_of(home: Path) -> Path:
    (index,) = (home / "indexes").iterdir()
    return index


def all_pairs(data: DataSet) -> list[TextPair]:
    return list(data.pairs)


def sources() -> dict[str, Callable[[Path], Path | str]]:
    examples: dict[str, Callable[[Path], Path | str]] = {
        name: lambda folder, files=example.files: write(folder, files)  # type: ignore[misc]
        for name, example in EXAMPLES.items()
    }
    samples = Path(datasets.__file__).parent / "sample"
    for name in ("posir", "multilingual", "colder"):
        examples[f"sample {name}"] = lambda folder, path=samples / name: path  # type: ignore[misc]
    examples["a language"] = lambda folder: f"{samples / 'posir'}@eng"
    examples["rejected rows"] = lambda folder: write(
        folder, {"pairs.jsonl": [*ROWS[:3], {"query": "", "document": FOG}, ROWS[0]]}
    )
    corpus = "nq-de/corpus.jsonl"
    examples["a lost document"] = lambda folder: write(
        folder,
        EXAMPLES["beir"].files | {corpus: EXAMPLES["beir"].files[corpus][:1]},
    )
    return examples


SOURCES = sources()


@pytest.mark.parametrize("name", SOURCES)
def test_the_index_gives_the_same_data_as_the_files(
    name: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES[name](tmp_path / "data")
    path, variant = formats.split_variant(str(source))
    with monkeypatch.context() as patch:
        patch.setattr(index_writer, "IN_MEMORY", 10**12)
        expected = formats.read(Path(path).resolve(), "mine", "", variant)
    first = opened(source)
    monkeypatch.setattr(formats, "read", lambda *_: pytest.fail("the files were read again"))
    for data in (first, opened(source)):
        assert isinstance(data.pairs, IndexedPairs) and not isinstance(expected.pairs, IndexedPairs)
        assert data == expected and data.rejected == expected.rejected
        assert data.versions == expected.versions and data.version_name == expected.version_name
        assert same_columns(data.pairs, expected.pairs)
        assert same_columns(data.versions, expected.versions)
        assert pairs_digest(data.pairs) == pairs_digest(expected.pairs)
        assert [data.version_of(p) for p in data.pairs] == [
            expected.version_of(p) for p in expected.pairs
        ]


def same_columns(pairs: Pairs, expected: Pairs) -> bool:
    """Whether every column and lookup gives the same, also after a selection."""
    odd = np.arange(len(expected)) % 2 == 1
    back = np.arange(len(expected))[::-1]
    for own, other in (
        (pairs, expected),
        (pairs.select(odd), expected.select(odd)),
        (pairs.select(back), expected.select(back)),
    ):
        assert own == other and tuple(own) == tuple(other) and own[1:3] == other[1:3]
        assert list(reversed(own)) == list(reversed(other))
        for name in ("ids", "texts", "documents", "document_tokens"):
            assert getattr(own, name).tolist() == getattr(other, name).tolist()
        assert np.array_equal(own.evidence_positions, other.evidence_positions, equal_nan=True)
        for label in get_args(LabelName):
            (codes, values), (other_codes, other_values) = own.labels(label), other.labels(label)
            assert codes.tolist() == other_codes.tolist() and values == other_values
        assert {k: v.tolist() for k, v in own.places.items()} == {
            k: v.tolist() for k, v in other.places.items()
        }
        assert own.has_queries == other.has_queries and own.n_documents == other.n_documents
        assert [own.find(i) for i in other.ids] == [other.find(i) for i in other.ids]
        assert own.find("no such pair") is None and own.get("no such pair") is None
        assert own.once == other.once
        assert [own.get(i) for i in other.ids] == [other.get(i) for i in other.ids]
        assert own.containing(["FOG", "o"]).tolist() == other.containing(["FOG", "o"]).tolist()
        unique = len(set(expected.ids)) == len(expected)
        assert pairs.holds(own) == unique and (expected.holds(other) or not unique)
        assert not pairs.holds([replace(pair, query="another") for pair in own[:1]]) or not own
    return True


def test_filters_select_the_same_pairs(file: Path, home: Path) -> None:
    data = opened(file)
    plain = DataSet("mine", "Mine", Pairs(data.pairs))
    for filters in (
        Filters((("language", "eng"), ("domain", "any"))),
        Filters((("language", "deu"),)),
        Filters((("bucket", "Q1"),)),
        Filters(search="TIDE 30"),
        Filters(evidence=(0, 50)),
    ):
        assert facets(data).select(filters).pairs == facets(plain).select(filters).pairs
    assert facets(data).counts == facets(plain).counts


def test_small_data_sets_have_no_index(
    file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_writer, "IN_MEMORY", 10**9)
    assert not isinstance(opened(file).pairs, IndexedPairs)
    assert not (home / "indexes").exists()


def test_duplicate_ids_and_unusual_characters_survive_indexing(home: Path) -> None:
    pairs = [
        TextPair("a", "when \ud800", "Fog \0 lifts.", dataset="one"),
        TextPair("b\n", "", "النخلة 🚀", dataset="two", document_tokens=10**12),
        TextPair("a", "how", "Fog \0 lifts.", dataset="one", document_tokens=0),
    ]
    writer = index_writer.PairWriter()
    for pair in pairs:
        writer.add(pair)
    stored, versions = writer.finished("t", [TextPair("a", "wann", "Nebel.", dataset="three")])
    assert len(versions) == 1
    assert same_columns(stored, Pairs(pairs)) and stored.find("a") == 2
    assert versions.find("a") == 0 and versions.find("b\n") is None
    assert list(stored.places) == ["one", "two"]


@pytest.mark.parametrize("values", [[], [-1, 0, 127], [128], [-1, 40_000], [2**31], [10**12, -5]])
def test_packed_integers_round_trip(values: list[int]) -> None:
    assert unpacked(packed(array("q", values))).tolist() == values


# -- changed files -----------------------------------------------------------------------------


def test_a_changed_file_is_indexed_again(file: Path, home: Path) -> None:
    before = opened(file)
    text = file.read_text()
    stat = file.stat()
    file.write_text(text.replace('when 5"', 'when 6"'))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_size == stat.st_size
    after = opened(file)
    assert before.pair("p5").query == "when 5", "the open index is still the old one"
    assert after.pair("p5").query == "when 6" and after.pairs != before.pairs
    assert len(list((home / "indexes").iterdir())) == 1
    with file.open("r+") as stream:
        stream.truncate(len(text) // 2)
    cut = opened(file)
    assert len(cut.pairs) + len(cut.rejected) < 310 and len(cut.rejected) == 1


def test_an_index_written_by_other_code_is_not_read(
    file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(file)
    before = index_of(home).stat().st_ino
    monkeypatch.setattr(indexes, "code_digest", lambda: "another version")
    assert len(opened(file).pairs) == 600
    assert index_of(home).stat().st_ino != before


def test_files_that_changed_just_now_get_no_index(
    file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second change within the resolution of the file system's clock would go unnoticed."""
    monkeypatch.setattr(datasets, "_RESOLUTION_NS", 10**15)
    data = opened(file)
    assert isinstance(data.pairs, IndexedPairs) and data.pair("p7").query == "when 7"
    assert not (home / "indexes").exists()


def test_files_that_change_while_they_are_read_get_no_index(
    file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = formats.read

    def read_and_append(*about: str) -> DataSet:
        data = read(*about)  # type: ignore[arg-type]
        file.write_text(file.read_text() + "\n")
        return data

    monkeypatch.setattr(formats, "read", read_and_append)
    assert len(opened(file).pairs) == 600
    assert not (home / "indexes").exists()


# -- damaged indexes ---------------------------------------------------------------------------


def flipped(path: Path, at: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 0x55]))


@pytest.mark.parametrize("how", ["deleted", "empty", "cut", "no index", "header", "column"])
def test_a_damaged_index_is_written_again(how: str, file: Path, home: Path) -> None:
    expected = all_pairs(opened(file))
    index = index_of(home)
    size = index.stat().st_size
    if how == "deleted":
        index.unlink()
    elif how in ("empty", "cut"):
        os.truncate(index, 0 if how == "empty" else size - 4096)
    elif how == "no index":
        index.write_bytes(b"no database at all, but some text" * 1000)
    elif how == "header":
        flipped(index, 30)
    else:
        with sqlite3.connect(index) as db:
            db.execute("UPDATE columns SET data = zeroblob(length(data)) WHERE name = 'starts'")
    assert all_pairs(opened(file)) == expected
    assert all_pairs(opened(file)) == expected
    assert indexes.opened(index_of(home), datasets._stamp(file)) is not None


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE documents SET text = CAST(replace(text, 'noon', 'dusk') AS BLOB)",
        "UPDATE documents SET text = x'ff'",
        "DELETE FROM documents",
        "UPDATE pairs SET query = x'00' WHERE row = 400",
        "DELETE FROM pairs WHERE row = 400",
        "DROP TABLE documents",
    ],
)
def test_a_damaged_text_is_reported_and_reindexed_at_the_next_opening(
    change: str, file: Path, home: Path
) -> None:
    expected = all_pairs(opened(file))
    with sqlite3.connect(index_of(home)) as db:
        db.execute(change)
    db.close()
    data = opened(file)
    with pytest.raises(UserError, match=r"index of mine was damaged.*open the data set again"):
        all_pairs(data)
    assert data.damaged and not list((home / "indexes").glob("*"))
    assert all_pairs(datasets.read("mine")) == expected, "in the same process"
    assert all_pairs(opened(file)) == expected and index_of(home).exists()


def test_an_open_index_stays_readable_after_its_deletion(file: Path, home: Path) -> None:
    opened(file)
    data = opened(file)
    index_of(home).unlink()
    assert data.pairs[599].query == "when 599" and len(all_pairs(data)) == 600


def test_data_sets_are_read_without_an_index_if_it_cannot_be_written(
    file: Path, home: Path
) -> None:
    home.mkdir()
    (home / "indexes").write_text("a file in the way")
    for _ in range(2):
        assert len(all_pairs(opened(file))) == 600


@pytest.mark.parametrize("step", ["fingerprints", "put_columns"])
def test_a_full_temporary_folder_is_reported_in_one_sentence(
    step: str, file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(index_writer, step, fail)
    with pytest.raises(UserError, match=r"disk is full\): free space there"):
        opened(file)


def test_an_interrupted_writer_leaves_nothing(
    file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk is full")

    monkeypatch.setattr(PairIndex, "copy_to", fail)
    assert len(all_pairs(opened(file))) == 600
    assert not list((home / "indexes").iterdir())


# -- at the same time --------------------------------------------------------------------------

PROCESS = """
import sys
from dataclasses import replace
from pathlib import Path
from poslens.attribution import datasets
from poslens.attribution.datasets import index_writer
index_writer.IN_MEMORY, datasets._RESOLUTION_NS = 0, -(10**15)
sys.stdin.readline()
datasets.register("mine", Path(sys.argv[1]))
print(hash(tuple(p.query + p.document for p in datasets.read("mine").pairs)))
"""


def test_processes_that_open_an_index_at_once_all_read_it_in_full(file: Path, home: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(file)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    answers = {process.communicate("\n", timeout=120)[0] for process in processes}
    assert len(answers) == 1 and answers != {""}
    assert indexes.opened(index_of(home), datasets._stamp(file)) is not None


def test_threads_share_an_open_index(file: Path, home: Path) -> None:
    data = opened(file)
    expected = all_pairs(data)
    answers: list[list[TextPair]] = []
    threads = [threading.Thread(target=lambda: answers.append(all_pairs(data))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [expected] * 4

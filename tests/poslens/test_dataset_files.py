"""Digests of data sets: equal if and only if the files that were read have equal contents."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from poslens.attribution import datasets
from poslens.attribution.datasets import index_writer
from poslens.compute.dataset_files import dataset_digest
from tests.attribution.datasets.test_indexes import SOURCES
from tests.attribution.datasets.test_readers import FOG, TIDE
from tests.support.format_files import write

ROWS = [{"query": "when", "document": FOG}, {"query": "where", "document": TIDE}]


@pytest.fixture(autouse=True)
def separate_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))


def digest_of(source: Path | str, read: Callable[[str], object] = datasets.read) -> str:
    """The digest of a data set as read by a new process."""
    datasets._forget()
    datasets.register("mine", source)
    read("mine")
    return dataset_digest("mine")


def test_the_digest_of_one_file_is_its_sha256(tmp_path: Path) -> None:
    folder = write(tmp_path / "rows", {"pairs.jsonl": ROWS})
    content = (folder / "pairs.jsonl").read_bytes()
    expected = hashlib.sha256(content).hexdigest()[:16]
    assert digest_of(folder / "pairs.jsonl") == expected == digest_of(folder)


def test_the_digest_of_several_files_is_that_of_sha256sum(tmp_path: Path) -> None:
    folder = write(tmp_path / "rows", {"b/pairs.jsonl": ROWS, "a.jsonl": ROWS[:1]})
    folder = write(folder, {"c.jsonl": ROWS[1:]})
    command = "LC_ALL=C sha256sum a.jsonl c.jsonl | sha256sum"
    printed = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
    assert digest_of(folder) == printed.stdout[:16]


@pytest.mark.parametrize("name", SOURCES)
def test_pairs_corpus_and_index_have_one_digest(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCES[name](tmp_path / "data")
    digest = digest_of(source)
    assert len(digest) == 16
    monkeypatch.setattr(index_writer, "IN_MEMORY", 0)
    monkeypatch.setattr(datasets, "_RESOLUTION_NS", -(10**15))
    assert digest_of(source) == digest  # writes the index
    assert digest_of(source) == digest  # reads it
    if name not in ("colder", "sample colder"):  # bias tests have no corpus
        assert digest_of(source, datasets.corpus_of) == digest


def test_only_files_that_are_read_count(tmp_path: Path) -> None:
    folder = write(tmp_path / "rows", {"pairs.jsonl": ROWS})
    digest = digest_of(folder)
    (folder / "README.md").write_text("About the rows.")
    assert digest_of(folder) == digest
    write(folder, {"pairs.jsonl": ROWS[:1]})
    assert digest_of(folder) != digest


def test_files_that_changed_after_they_were_read_have_no_digest(tmp_path: Path) -> None:
    file = write(tmp_path / "rows", {"pairs.jsonl": ROWS}) / "pairs.jsonl"
    datasets.register("mine", file)
    datasets.read("mine")
    file.write_text(json.dumps(ROWS[0]))
    assert dataset_digest("mine") == ""
    file.unlink()
    assert dataset_digest("mine") == ""


def test_derived_data_sets_have_the_digest_of_their_files(tmp_path: Path) -> None:
    file = write(tmp_path / "rows", {"pairs.jsonl": ROWS}) / "pairs.jsonl"
    digest = digest_of(file)
    assert dataset_digest("mine, random word order 2") == digest
    assert dataset_digest("typed") == "" == dataset_digest("others, mine")

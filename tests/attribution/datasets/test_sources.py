"""Data sets of ir_datasets and MTEB, read with the libraries themselves from local texts."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import ir_datasets
import pytest
from ir_datasets.formats import GenericDoc, GenericQrel, GenericQuery
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.datasets import beir, formats, sources
from poslens.attribution.errors import UserError
from poslens.dashboard.__main__ import app
from poslens.names import data_name

DOCS = "1\tFog lifts at noon.\n2\tThe tide turns twice a day.\n3\tMoss grows \ud800 here.\n"
QUERIES = "1\twhen does fog lift\n2\twhen does the tide turn\n"
QRELS = "1 0 1 1\n2 0 2 2\n2 0 1 0\n2 0 9 1\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers a local data set in the library, under an id."""
    monkeypatch.setattr(ir_datasets.registry, "_registered", dict(ir_datasets.registry._registered))

    def put(identity: str, *components: Any) -> None:
        ir_datasets.registry.register(identity, ir_datasets.Dataset(*components))

    return put


class Docs(ir_datasets.formats.BaseDocs):
    """Three documents in English, one of them with an invalid character."""

    def docs_iter(self) -> Iterator[GenericDoc]:
        return (GenericDoc(*line.split("\t")) for line in DOCS.splitlines())

    def docs_lang(self) -> str:
        return "en"


class Queries(ir_datasets.formats.BaseQueries):
    def queries_iter(self) -> Iterator[GenericQuery]:
        return (GenericQuery(*line.split("\t")) for line in QUERIES.splitlines())


class Qrels(ir_datasets.formats.BaseQrels):
    def qrels_iter(self) -> Iterator[GenericQrel]:
        for line in QRELS.splitlines():
            query, _, document, grade = line.split()
            yield GenericQrel(query, document, int(grade))


class Gone(ir_datasets.formats.BaseDocs):
    def docs_iter(self) -> Iterator[GenericDoc]:
        yield GenericDoc("1", "Fog.")
        raise OSError("no route\nto host")


def test_a_data_set_of_ir_datasets_is_read_with_the_library(
    known: Callable[..., None], home: Path
) -> None:
    known("weather/test", Docs(), Queries(), Qrels())
    assert datasets.register("mine", "ir_datasets:weather/test") == ["mine"]
    found = datasets.read("mine")
    assert [(p.pair_id, p.query, p.document, p.language) for p in found.pairs] == [
        ("1/1", "when does fog lift", "Fog lifts at noon.", "eng"),
        ("2/2", "when does the tide turn", "The tide turns twice a day.", "eng"),
    ]
    asked = datasets.collection("mine")
    assert [dict(query.relevant) for query in asked.queries] == [{"1": 1}, {"2": 2, "9": 1}]
    assert [one.text for one in asked.documents()][
        2
    ] == "Moss grows \N{REPLACEMENT CHARACTER} here."
    # Ids of queries and documents are independent, so query 1 may find document 1.
    assert not asked.skips_own_id and asked.n_lost == 1
    (place,) = (home / "collections" / "ir_datasets").iterdir()
    assert place.name == "weather--test-eng"
    assert not list(home.rglob(".*"))


def test_it_is_written_once(known: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    known("weather/test", Docs(), Queries(), Qrels())
    place = sources.folder_of("ir_datasets:weather/test")
    monkeypatch.setattr(Docs, "docs_iter", Gone().docs_iter)
    assert sources.folder_of("ir_datasets:weather/test") == place


def test_documents_alone_are_a_corpus(known: Callable[..., None]) -> None:
    known("weather", Docs())
    place = sources.folder_of("ir_datasets:weather")
    assert formats.detect(place) == "documents"
    assert len(formats.read(place, "mine").pairs) == 3


def test_an_unusable_ir_datasets_id_is_refused_in_one_sentence(
    known: Callable[..., None], home: Path
) -> None:
    known("weather", Docs(), Queries())
    known("weather/test", Docs(), Queries(), Qrels())
    known("asked", Queries())
    known("gone", Gone(), Queries(), Qrels())
    for name, said in (
        ("ir_datasets:nowhere", "has no data set nowhere"),
        ("ir_datasets:weather", "use a part of it, such as weather/test"),
        ("ir_datasets:asked", "has no documents"),
        ("ir_datasets:gone", r"can't be downloaded \(no route to host\)"),
        ("ir_datasets:../x", "is not of the form ir_datasets:ID"),
        ("ir_datasets:", "is not of the form ir_datasets:ID"),
    ):
        with pytest.raises(UserError, match=said):
            datasets.register("mine", name)
    assert not list(home.rglob("corpus.jsonl")), "an interrupted one leaves nothing"


@pytest.mark.parametrize("name", ["ir_datasets:weather", "mteb:SciFact"])
def test_a_missing_library_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(module: str, *rest: Any, **more: Any) -> Any:
        if module.partition(".")[0] in ("ir_datasets", "mteb"):
            raise ImportError(module)
        return real(module, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"is not installed: run `pip install (ir_datasets|mteb)`"):
        sources.folder_of(name)


def test_a_command_accepts_an_ir_datasets_name(known: Callable[..., None]) -> None:
    known("weather/test", Docs(), Queries(), Qrels())
    assert data_name("ir_datasets:weather/test") == "weather-test"
    done = CliRunner().invoke(app, ["datasets", "--data", "mine=ir_datasets:weather/test"])
    assert done.exit_code == 0 and "mine" in done.stdout, done.stderr


# -- MTEB ------------------------------------------------------------------------------------------


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The library's tasks by name, including tasks with local texts."""
    get_tasks = import_module("mteb.get_tasks")
    from mteb.mocks.mock_tasks import classification, retrieval

    found = dict(get_tasks._TASKS_REGISTRY)
    for module in (retrieval, classification):
        for one in vars(module).values():
            if isinstance(one, type) and one.__name__.startswith("Mock"):
                found[one.metadata.name] = one
    monkeypatch.setattr(get_tasks, "_TASKS_REGISTRY", found)
    return found


def test_an_mteb_task_is_read_with_the_library(tasks: dict[str, Any], home: Path) -> None:
    task = tasks["MockRetrievalTask"]()
    task.load_data()
    held = task.dataset["default"]["test"]
    place = sources.folder_of("mteb:MockRetrievalTask")
    assert place.name == "MockRetrievalTask-eng" and (place / beir.KEEPS_OWN_IDS).is_file()
    found = formats.read(place, "mine")
    assert {pair.query for pair in found.pairs} <= set(held["queries"]["text"])
    judged = {
        (query, document)
        for query, grades in held["relevant_docs"].items()
        for document, grade in grades.items()
        if grade
    }
    assert {tuple(pair.pair_id.split("/")) for pair in found.pairs} == judged
    texts = [one.text for one in formats.collection(place, "mine").documents()]
    assert texts == [f"{row.get('title') or ''} {row['text']}".strip() for row in held["corpus"]]


def test_a_multilingual_task_is_written_as_one_folder_per_language(tasks: dict[str, Any]) -> None:
    place = sources.folder_of("mteb:MockMultilingualRetrievalTask")
    assert sorted(one.name for one in place.iterdir()) == ["eng-eng", "fra-fra"]
    found = formats.read(place, "mine")
    assert {pair.language for pair in found.pairs} == {"eng", "fra"}
    part = sources.folder_of("mteb:MockMultilingualRetrievalTask/fra")
    assert {pair.language for pair in formats.read(part, "mine").pairs} == {"fra"}


def test_an_unusable_mteb_task_is_refused_in_one_sentence(
    tasks: dict[str, Any], home: Path
) -> None:
    for name, said in (
        ("mteb:Nowhere", "has no task Nowhere"),
        ("mteb:MockClassificationTask", "is not a text retrieval task"),
        ("mteb:MockMultilingualRetrievalTask/xyz", "no subset xyz: choose from eng, fra"),
        ("mteb:MockRetrievalDialogTask", "are conversations"),
        ("mteb:SciFact", "can't be downloaded"),
    ):
        with pytest.raises(UserError, match=said):
            sources.folder_of(name)
    assert not list(home.rglob("*.jsonl"))

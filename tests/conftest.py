"""Fixtures of all tests: no network, one thread, a separate data folder, MiniLM loaded once."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

# Read when the libraries are imported, so set before anything imports them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests start with an empty cache; tests of shipped results set this themselves.
os.environ["POSLENS_SHIPPED"] = "no"
# Until all tests are collected: imported modules stay anyway, and searching them for garbage is
# slow.
gc.disable()

ROOT = Path(__file__).parents[1]
# The bare `pytest` command does not put the repository on the import path, `python -m pytest` does.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from typer.main import get_command  # noqa: E402

from tests.support.forked import Forked  # noqa: E402

if TYPE_CHECKING:
    from poslens.attribution.datasets import DataSet
    from poslens.attribution.retrievers.dense import DenseRetriever
    from tests.support.children import Children

# Shared machines are slow at times, so a slow example is not a failure.
settings.register_profile("poslens", deadline=None, max_examples=60)
settings.load_profile("poslens")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def poslens_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh POSLENS_HOME for the whole run, so that no test reads or writes the user's data."""
    home = tmp_path_factory.mktemp("poslens_home")
    before = os.environ.get("POSLENS_HOME")
    os.environ["POSLENS_HOME"] = str(home)
    yield home
    if before is None:
        del os.environ["POSLENS_HOME"]
    else:
        os.environ["POSLENS_HOME"] = before


@pytest.fixture(scope="module", autouse=True)
def names_of_the_module() -> Iterator[None]:
    """Unregister the data sets, models and runs that a module's fixtures register."""
    from tests.support.names import temporary_names

    with temporary_names():
        yield


@pytest.fixture(autouse=True)
def registered_names(names_of_the_module: None) -> Iterator[None]:
    """Unregister the data sets, models and runs that a test registers."""
    from tests.support.names import temporary_names

    with temporary_names():
        yield


@pytest.fixture(autouse=True)
def whole_log() -> None:
    """Reset the log level: a command silences this logger for its process, which all tests
    share."""
    logging.getLogger("poslens.attribution.retrievers").setLevel(logging.NOTSET)


@pytest.fixture(scope="session", autouse=True)
def commands_once() -> Iterator[None]:
    """Build an app's commands once, instead of at every call of `CliRunner.invoke`."""
    with patch("typer.testing._get_command", cache(get_command)):
        yield


@pytest.fixture(scope="session")
def one_thread() -> None:
    """Run torch on one thread. Only fixtures that load a model use this, so other tests don't
    import torch."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def minilm(one_thread: None) -> DenseRetriever:
    """The default retriever, on the CPU."""
    from poslens.attribution.retrievers.load import load
    from poslens.attribution.retrievers.resolve import resolve

    return load(resolve("MiniLM"), device="cpu")


@pytest.fixture(scope="session")
def sample() -> DataSet:
    """The bundled data set."""
    from poslens.attribution.datasets import read

    return read("sample")


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary folder that the run's workers share."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory, of_all_workers: Path) -> Iterator[Forked]:
    """Runs Python in separate processes that have the libraries loaded."""
    process = Forked(tmp_path_factory.mktemp("forks"), of_all_workers / "forked")
    yield process
    process.close()


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """The child processes of `shared_children`."""
    from tests.support.children import Children

    started = Children()
    yield started
    started.end()


@pytest.fixture
def shared_children(children: Children) -> Iterator[None]:
    """Read untrusted files in child processes that the module's tests share."""
    with children.shared():
        yield


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Callable[..., Path]:
    """`tiny_folder("bert")`: a sentence-transformers folder of a two-layer random model of that
    architecture, built once a run; see tests/support/tiny_models.py."""
    from tests.support import tiny_models

    built: dict[tuple, Path] = {}

    def build(name: str, **changes: object) -> Path:
        key = (name, *sorted(changes.items()))
        if key not in built:
            built[key] = tiny_models.build(name, tmp_path_factory.mktemp(name), **changes)
        return built[key]

    return build


@pytest.fixture(scope="session")
def tiny(tiny_folder: Callable[..., Path]) -> Callable[..., DenseRetriever]:
    """`tiny("bert", query_prompt=...)`: that model loaded through `retrievers.load`;
    keyword arguments are fields of its RetrieverSpec. Loaded anew at each call."""
    from poslens.attribution.retrievers.load import load
    from poslens.attribution.retrievers.specs import RetrieverSpec

    def load_tiny(name: str, **fields: object) -> DenseRetriever:
        spec = RetrieverSpec(
            name=f"tiny-{name}",
            title=name,
            family="dense",
            source=f"folder:{tiny_folder(name)}",
            **fields,  # type: ignore[arg-type]
        )
        return load(spec, device="cpu")

    return load_tiny


@pytest.fixture
def own_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Make pages and commands compute in this test's folder."""
    from poslens.compute.compute import service

    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    service.cache_clear()
    yield
    service.cache_clear()

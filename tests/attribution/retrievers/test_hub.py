"""Hub models are downloaded only on an explicit request."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import hub
from poslens.attribution.retrievers.fetch import can_fetch
from poslens.attribution.retrievers.hub import Size
from poslens.attribution.retrievers.resolve import resolve
from tests.conftest import ROOT
from tests.fake_hub import SHA, FakeHub, serving

NAME = "evil/repo"


@pytest.fixture
def repository(tiny_folder: Callable[..., Path]) -> Iterator[FakeHub]:
    with serving(FakeHub(NAME, tiny_folder("bert"))) as found:
        yield found


def python(there: FakeHub, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process that uses `there` as the hub, whose address is read when the library is
    imported."""
    environment = {**there.environment(home / "hub"), "POSLENS_HOME": str(home)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_naming_a_model_fetches_nothing(repository: FakeHub, tmp_path: Path) -> None:
    asked = ("-m", "poslens", "explain", "--model", NAME, "--query", "a", "--document", "b")
    found = python(repository, tmp_path, *asked)
    assert found.returncode == 2 and repository.requests == []
    assert found.stderr.strip().splitlines()[-1] == (
        f"{NAME} is not on this machine yet: run `python -m poslens models fetch {NAME}`."
    )
    fetched = python(repository, tmp_path, "-m", "poslens", "models", "fetch", NAME)
    assert fetched.returncode == 0, fetched.stderr
    assert Path(fetched.stdout.strip(), "model.safetensors").is_file()
    before = len(repository.requests)
    found = python(repository, tmp_path, *asked)
    assert found.returncode == 0 and len(repository.requests) == before, found.stderr


SIZES = """
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import hub
from poslens.attribution.retrievers.fetch import fetch
from poslens.attribution.retrievers.resolve import resolve
size = hub.size_of(resolve("evil/repo"))
print(size.bytes, size.free_bytes > 0)
try:
    fetch("evil/repo", lambda *told: None, {limit})
except UserError as error:
    print(error)
"""


def test_a_model_above_the_size_limit_is_not_downloaded(
    repository: FakeHub, tmp_path: Path
) -> None:
    found = python(repository, tmp_path, "-c", SIZES.format(limit="1000"))
    said = found.stdout.splitlines()
    # Files that are not part of the model are neither counted nor fetched.
    wanted = sum(size for name, size in repository.sizes().items() if not name.endswith(".md"))
    assert said[0] == f"{wanted} True", found.stderr
    assert "more than the 0.0 MB that pages may download" in said[1]
    assert not any("resolve" in request for request in repository.requests)


AGAIN = """
import shutil
from pathlib import Path
from types import SimpleNamespace
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.fetch import fetch
folder = fetch("evil/repo", lambda *told: None)
usage, shutil.disk_usage = shutil.disk_usage, lambda path: SimpleNamespace(free=0)
print(fetch("evil/repo", lambda *told: None, 0) == folder)
(folder / "model.safetensors").unlink()
try:
    fetch("evil/repo", lambda *told: None)
except UserError as error:
    print(error)
shutil.disk_usage = usage
print(fetch("evil/repo", lambda *told: None) == folder)
"""


def test_a_complete_model_is_not_requested_again(repository: FakeHub, tmp_path: Path) -> None:
    found = python(repository, tmp_path, "-c", AGAIN)
    assert found.stdout.splitlines()[:1] == ["True"], found.stderr
    # An incomplete download would be continued, but here there is no space for the rest.
    _, refused, fetched = found.stdout.splitlines()
    assert "not enough disk space" in refused and fetched == "True", found.stderr
    # Also offline.
    before = len(repository.requests)
    again = python(repository, tmp_path, "-m", "poslens", "models", "fetch", NAME)
    assert again.returncode == 0 and len(repository.requests) == before, again.stderr


BEGUN = """
from poslens.attribution.retrievers.fetch import fetch
from poslens.attribution.retrievers.resolve import installed, resolve
print(installed(resolve("evil/repo")))
print(fetch("evil/repo", lambda *told: None))
print(installed(resolve("evil/repo")))
"""


def test_a_download_that_another_program_began_is_completed(
    repository: FakeHub, tmp_path: Path
) -> None:
    place = tmp_path / "hub" / "hub" / f"models--{NAME.replace('/', '--')}"
    snapshot = place / "snapshots" / SHA
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(SHA)
    for name in ("config.json", "tokenizer.json"):
        (snapshot / name).write_bytes((repository.folder / name).read_bytes())
    found = python(repository, tmp_path, "-c", BEGUN)
    assert found.returncode == 0, found.stderr
    before, folder, after = found.stdout.splitlines()
    assert (before, after) == ("False", "True")
    assert Path(folder, "model.safetensors").is_file()
    # Some programs leave no list of files; existing weights are enough.
    shutil.rmtree(place / "trees")
    n_before = len(repository.requests)
    found = python(repository, tmp_path, "-m", "poslens", "models", "fetch", NAME)
    assert found.returncode == 0 and len(repository.requests) == n_before, found.stderr


def test_a_download_larger_than_announced_is_stopped(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "repository"
    folder.mkdir()
    for path in tiny_folder("bert").glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "model.safetensors").write_bytes(bytes(40 << 20))
    with serving(FakeHub(NAME, folder, said=1000)) as there:
        found = python(there, tmp_path, "-c", SIZES.format(limit="10**6"))
    assert (
        found.stdout.splitlines()[1] == f"{NAME} is larger than the hub stated, so it was not kept."
    )
    assert sum(path.stat().st_size for path in (tmp_path / "hub").rglob("*")) < 30 << 20


def test_a_download_leaves_free_space_on_the_disk() -> None:
    Size("m", 10**9, 3 * 10**9).require()
    with pytest.raises(UserError, match="not enough disk space for m: it needs"):
        Size("m", 10**9, 2 * 10**9).require()


def test_sources_and_repositories_of_models() -> None:
    assert hub.repositories(resolve(NAME)) == (NAME,)
    assert len(hub.repositories(resolve("dragon-plus"))) == 2, "an encoder a side"
    assert can_fetch(resolve("mpnet")) and can_fetch(resolve("bge-m3"))
    assert not can_fetch(resolve("MiniLM")) and not can_fetch(resolve("BM25"))


def test_an_unresponsive_hub_is_reported_in_one_sentence() -> None:
    with pytest.raises(UserError) as caught:
        hub.size_of(resolve("tests/attribution"))
    sentence = str(caught.value)
    assert sentence.startswith(
        "tests/attribution could not be downloaded from the Hugging Face hub ("
    )
    assert str(Path.home()) not in sentence and "\n" not in sentence

"""Results of uploaded and typed texts are private to their session and deleted with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from poslens.attribution import datasets
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.cache.jobs.loop import Progress
from poslens.cache.storage import index
from poslens.compute.compute import Compute, service
from poslens.compute.runs import Job, Report, Run
from poslens.dashboard.server import own_texts
from poslens.dashboard.server.own_texts import Session, remove_left_over
from poslens.studies.faithfulness import service as faithfulness
from tests.support.forked import Forked
from tests.support.pages import SECONDS, page_files, shown_scores

ROOT = Path(__file__).parents[3]
METHOD = make_method("saliency")
PAIR = TextPair("p", "what is quixotic", "A quixotic plan. Stone stays.", dataset="upload-x-1")


@pytest.fixture
def shared(tmp_path: Path) -> Compute:
    return Compute(tmp_path / "shared")


@pytest.fixture
def own(shared: Compute, tmp_path: Path) -> Session:
    (tmp_path / "own").mkdir()
    return Session(shared, tmp_path / "own")


@pytest.fixture
def spec(tiny_folder: Callable[..., Path]) -> RetrieverSpec:
    return RetrieverSpec("tiny", "tiny", "dense", f"folder:{tiny_folder('bert')}")


def holding(folder: Path, text: str) -> list[str]:
    """Names of the files below `folder` that hold `text`."""
    return [p.name for p in folder.rglob("*") if p.is_file() and text.encode() in p.read_bytes()]


def test_a_test_requested_by_two_sessions_is_stored_in_each_ones_folder(
    shared: Compute, own: Session, spec: RetrieverSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def folder_of(*asked: Any, **options: object) -> None:
        go.wait(60)
        raise UserError(str(asked[4].root))

    monkeypatch.setattr(faithfulness, "run_tests", folder_of)
    both = (own.compute, shared)
    places = [faithfulness.ask(one, PAIR, spec, METHOD, ErasureParameters()) for one in both]
    go.set()
    for place, one in zip(places, both, strict=True):
        with pytest.raises(UserError, match=f"^{one.root}$"):
            place.result()
        place.leave()


def test_a_sessions_results_are_private_and_deleted_with_it(
    shared: Compute, own: Session, spec: RetrieverSpec, tmp_path: Path
) -> None:
    own.compute.explain(PAIR, spec, METHOD)
    assert own.compute.explain(PAIR, spec, METHOD).from_cache
    assert len(shared.models._loaded) == 1, "the model is everybody's"
    model = shared.identify(spec).key
    assert shared.store.get(model, METHOD, PAIR) is None and not shared.store.folder.exists()
    assert holding(tmp_path, "upload-x-1")
    place = own.compute.store.path(model, METHOD)
    own.compute.store.curves(model, METHOD, [PAIR])
    own.end()
    assert not holding(tmp_path, "upload-x-1") and place not in index._kept
    # A result that arrives later isn't stored, and nothing reappears.
    with pytest.raises(UserError):
        own.compute.store.put_failures(model, METHOD, [(PAIR, "late")])
    assert own.compute.explain(PAIR, spec, METHOD).notice
    assert not holding(tmp_path, "upload-x-1") and [p.name for p in tmp_path.glob("own*")] == [
        "own"
    ]


def test_a_session_that_ends_stops_its_runs(own: Session) -> None:
    begun = threading.Event()

    def work(run: Run, report: Report) -> Progress:
        begun.set()
        while not run.stopping:
            threading.Event().wait(0.01)
        own.compute.root.mkdir(parents=True)  # the current batch is written
        return run.progress

    run = own.compute.job(("m", "f", "c", "s", "cpu"), "m", 1, work).start()
    assert begun.wait(60)
    own.end()
    assert not run.active and not own.folder.is_dir()


def test_a_session_sees_shared_runs_and_its_own(
    shared: Compute, own: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    other = Session(shared, tmp_path / "other")
    monkeypatch.setattr(own_texts, "service", lambda: shared)
    monkeypatch.setattr(own_texts.st, "session_state", {})

    def work(run: Run, report: Report) -> Progress:
        while not run.stopping:
            threading.Event().wait(0.01)
        return run.progress

    key = ("m", "f", "c", "s", "cpu")
    everybodys, mine, others = (
        one.job(key, "m", 1, work).start() for one in (shared, own.compute, other.compute)
    )
    export = Job(shared.runs, own.exports.folder, key, "m", 1, work).start()
    assert shared.runs.active(own_texts.owners(), upkeep=True) == [everybodys]
    own_texts.st.session_state["own texts"] = own
    assert shared.runs.active(own_texts.owners(), upkeep=True) == [everybodys, mine, export]
    for run in (everybodys, mine, others, export):
        run.stop()
        run.wait()


def test_a_reconnecting_browser_finds_its_results(
    own: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_texts, "GRACE_S", 0.2)
    own.leave()
    own.stay()
    threading.Event().wait(0.5)
    assert not own.ended
    own.leave()
    own.leave()
    for _ in range(1200):
        if own.ended:
            break
        threading.Event().wait(0.05)
    assert own.ended


HOLDS = """
import signal, tempfile, time
tempfile.tempdir = None  # as the environment has it
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
from poslens.dashboard.server import own_texts
folder = own_texts._new_folder()
(folder / "words").write_text("quixotic")
print(folder, flush=True)
time.sleep(600)
"""


def test_files_of_killed_processes_are_removed_and_of_running_ones_kept(
    forked: Forked, tmp_path: Path
) -> None:
    killed = forked.start(code=HOLDS, env={"TMPDIR": str(tmp_path)})
    # In a separate interpreter, which removes its files when it ends.
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        living = Path((process.stdout or sys.stdin).readline().strip())
        while not (told := killed.out.read_text()).endswith("\n"):
            assert killed.poll() is None, killed.err.read_text()
            time.sleep(0.05)
        dead = Path(told.strip())
        assert dead.parent.parent == living.parent.parent == tmp_path
        assert dead.parent.stat().st_mode & 0o077 == 0, "for its user alone"
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (dead / "words").exists()
        found = tempfile.tempdir
        tempfile.tempdir = str(tmp_path)
        try:
            remove_left_over()
        finally:
            tempfile.tempdir = found
        assert not dead.parent.exists() and (living / "words").exists()
        process.send_signal(signal.SIGINT)
        process.wait(60)
        assert not living.parent.exists(), "a process that ends takes its own along"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["typed", "upload-mine"])
def test_data_sets_cannot_have_the_name_of_private_texts(name: str) -> None:
    with pytest.raises(UserError, match="is reserved for uploaded and typed texts"):
        datasets.register(name, Path(datasets.__file__).parent / "sample" / "posir")
    assert name not in datasets.names()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("POSLENS_HOME", str(tmp_path / "home"))
    service.cache_clear()
    yield tmp_path / "home"
    service.cache_clear()


@pytest.mark.parametrize("kept", ["no", "yes"])
def test_a_typed_text_enters_the_shared_cache_only_with_consent(
    home: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    monkeypatch.setenv("POSLENS_KEEP_OWN_TEXTS", kept)
    app = AppTest.from_file(str(ROOT / "dashboard/app.py"), default_timeout=SECONDS)
    app.query_params.update({"text": "Own text", "q": "what is quixotic", "d": "A quixotic plan."})
    app.run()
    assert not app.exception and not app.error and shown_scores(app)
    assert bool(holding(home / "cache", "typed")) is (kept == "yes")


def test_pages_store_results_of_texts_with_their_session() -> None:
    """Only the Storage page uses the shared cache directly."""
    pages = {name: path.read_text() for name, path in page_files().items()}
    users = {name for name, source in pages.items() if "service()" in source}
    assert users == {"storage"}
    for name in (
        "cause/data_set.py",
        "widgets/null_controls.py",
        "widgets/pair_picker.py",
    ):
        assert "service()" not in (ROOT / "dashboard" / name).read_text(), name

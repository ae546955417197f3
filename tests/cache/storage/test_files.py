"""A file of the store is written together with its description, or not at all."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from poslens.attribution.methods import make_method
from poslens.cache.storage import blocks, connections, index
from poslens.cache.storage.encoded import curve_columns
from poslens.cache.storage.maintenance import compact, drop_file, listing, repair, verify
from poslens.cache.storage.store import ModelKey, Store

METHOD = make_method("saliency")
POINT = make_method("saliency", {"resampling": "point"})
MODEL = ModelKey("M", "0123456789abcdef")


def _says(path: Path) -> dict[str, str] | None:
    """The file's description, or None for a file without tables."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
            return None
        return dict(db.execute("SELECT key, value FROM meta"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_first_write_killed_at_any_statement_leaves_a_complete_file_or_none(
    tmp_path: Path, result, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, right = result("p1")
    opened, ended, statement = connections._open, False, 0
    while not ended:
        store = Store(tmp_path / str(statement))
        child = os.fork()
        if child == 0:
            left = [statement]

            def count(_: str, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)

            def traced(*args: str, count=count) -> sqlite3.Connection:
                db = opened(*args)
                db.set_trace_callback(count)
                return db

            monkeypatch.setattr(connections, "_open", traced)
            try:
                store.put(MODEL, METHOD, [(pair, right)])
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WEXITSTATUS(status) in (0, 9)
        ended = status == 0
        path = store.path(MODEL, METHOD)
        said = _says(path) if path.exists() else None
        assert said is None or said["core"] == METHOD.core
        assert (said is None) or ended
        assert [file.results for file in listing(store)] == [1] * ended
        assert store.curves(MODEL, METHOD, [pair]).pair_ids == ("p1",) * ended
        store.put(MODEL, METHOD, [(pair, right)])
        (file,) = listing(store)
        assert (file.model, file.method.core, file.results) == (MODEL, METHOD.core, 1)
        store.release()
        statement += 1
    assert statement > 20


def test_a_first_write_that_fails_leaves_no_file(
    store: Store, result, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patched:
        patched.setattr(blocks, "append", fail)
        with pytest.raises(RuntimeError):
            store.put(MODEL, METHOD, [result("p1")])
    path = store.path(MODEL, METHOD)
    assert not list(path.parent.iterdir())
    assert store.missing(MODEL, METHOD, [result("p1")[0]])
    store.put(MODEL, METHOD, [result("p1")])
    assert not store.missing(MODEL, METHOD, [result("p1")[0]])


def test_a_failed_write_keeps_an_existing_file(
    store: Store, result, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(MODEL, METHOD, [result("p1")])
    with monkeypatch.context() as patched:
        patched.setattr(blocks, "append", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.put(MODEL, METHOD, [result("p2")])
    assert store.curves(MODEL, METHOD, [result("p1")[0]]).pair_ids == ("p1",)


def drop_all(store: Store) -> None:
    for file in listing(store):
        drop_file(file)


def test_reading_does_not_recreate_a_deleted_file(
    store: Store, result, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deriving curves and repairing write to the file, but not if it is deleted meanwhile."""
    pair, right = result("p1")
    path = store.path(MODEL, METHOD)
    store.put(MODEL, METHOD, [(pair, right)])

    def gone(*args):
        drop_all(store)
        return curve_columns(*args)

    with monkeypatch.context() as patched:
        patched.setattr("poslens.cache.storage.store.curve_columns", gone)
        assert not store.curves(MODEL, POINT, [pair]).pair_ids
    assert not path.exists()
    store.put(MODEL, METHOD, [(pair, right)])
    with store.writing(MODEL, METHOD) as db:
        db.execute("UPDATE block SET checksum = checksum + 1")
    index.forget_below(Path("/"))

    def repaired(*args) -> None:
        drop_all(store)
        repair(*args)

    with monkeypatch.context() as patched:
        patched.setattr("poslens.cache.storage.maintenance.repair", repaired)
        assert not store.curves(MODEL, METHOD, [pair]).pair_ids
    assert not path.exists()
    assert verify(store, MODEL, METHOD).checked == 0 and compact(store, MODEL, METHOD) == 0
    assert not path.exists() and not listing(store)

"""Parts: published atomically by any host, ingested once, and damage is always noticed."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs

import poslens.cache.exchange.part_files
from poslens.attribution import isolated
from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.cache.exchange.incoming import require_readable
from poslens.cache.exchange.parquet_file import RowSource, SealedWriter
from poslens.cache.exchange.part_files import (
    MANIFEST,
    PartFolder,
    PartWriter,
    folder_of,
    ingest,
    read_manifest,
    verify,
)
from poslens.cache.storage.rows import ROW
from poslens.cache.storage.store import ModelKey, Store

pytestmark = pytest.mark.usefixtures("shared_children")
METHOD = make_method("saliency")
MODEL = ModelKey("M", "0123456789abcdef", '{"weights": "w"}')


def places(tmp_path: Path) -> dict[str, PartFolder]:
    (tmp_path / "tree").mkdir()
    below = fs.SubTreeFileSystem(str(tmp_path / "tree"), fs.LocalFileSystem())
    return {
        "path": PartFolder(tmp_path / "parts"),
        "address": PartFolder(f"file://{tmp_path}/addressed"),
        "sub-tree": PartFolder("parts", below),
        "memory": PartFolder("bucket/parts", fs._MockFileSystem()),
    }


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read parts in this process, since a child takes a second to start."""
    monkeypatch.setattr(
        isolated.Reader,
        "call",
        lambda _, function, arguments, data, **__: b"".join(function(data, *arguments)),
    )


@pytest.fixture(params=["path", "address", "sub-tree", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> PartFolder:
    if request.param != "path":  # the child gets bytes from any kind of location
        request.getfixturevalue("read_here")
    return places(tmp_path)[request.param]


def writer(place: PartFolder, tmp_path: Path) -> PartWriter:
    return PartWriter(place, tmp_path / "host", "1.2.3")


def equal(store: Store, pair, attribution) -> bool:
    found = store.get(MODEL, METHOD, pair)
    return (
        found is not None
        and found.document_scores.tobytes() == attribution.document_scores.tobytes()
        and (found.score, found.document) == (attribution.score, attribution.document)
    )


def test_published_results_are_ingested_once_bit_for_bit(
    place: PartFolder, result, tmp_path: Path
) -> None:
    results = [result(f"p{k}") for k in range(6)]
    one, two = writer(place, tmp_path), writer(place, tmp_path)
    pairs = [pair for pair, _ in results]
    bad = result("bad")[0]
    assert one.missing(MODEL, METHOD, [*pairs, bad]) == [*pairs, bad]
    one.put(MODEL, METHOD, results[:3])
    two.put(MODEL, METHOD, results[3:5], [(bad, "it has no token")])
    assert one.missing(MODEL, METHOD, [*pairs, bad]) == [pairs[5]]
    assert one.missing(MODEL, METHOD, [*pairs, bad], retry=True) == [pairs[5], bad]
    assert one.missing(MODEL, METHOD, [replace(pairs[0], document="new")]) != []
    store = Store(tmp_path / "cache")
    found = ingest(store, place)
    assert (found.parts, found.new, found.problems) == (2, 2, ())
    assert (found.taken.added, found.taken.conflicts) == (6, 0)
    assert all(equal(store, *each) for each in results[:5])
    direct = Store(tmp_path / "direct")
    direct.put(MODEL, METHOD, results[:5])
    np.testing.assert_array_equal(
        store.curves(MODEL, METHOD, pairs).curves, direct.curves(MODEL, METHOD, pairs).curves
    )
    assert store.curves(MODEL, METHOD, [bad]).failed == {"bad": "it has no token"}
    again = ingest(store, place)
    assert (again.parts, again.new, again.taken.added) == (2, 0, 0)
    # Later the failed pair succeeds: another part, whose result replaces the failure.
    one.put(MODEL, METHOD, [result("bad")])
    assert ingest(store, place).taken.added == 1
    assert equal(store, *result("bad"))
    assert verify(place) == (3, [])


@pytest.mark.usefixtures("read_here")
def test_a_part_never_changes_unless_it_is_damaged(result, tmp_path: Path) -> None:
    place = PartFolder(tmp_path / "parts")
    pair, attribution = result("p")
    writer(place, tmp_path).put(MODEL, METHOD, [(pair, attribution)])
    (path,) = (tmp_path / "parts").rglob("*.parquet")
    assert path.parent == tmp_path / "parts" / folder_of(MODEL, METHOD)
    whole = path.read_bytes()
    # Another host computes the same pair in a different time.
    writer(place, tmp_path).put(MODEL, METHOD, [(pair, replace(attribution, seconds=9.0))])
    assert path.read_bytes() == whole and len(list((tmp_path / "parts").rglob("*.*"))) == 1
    path.write_bytes(whole[:-9])
    other = writer(place, tmp_path)
    assert other.missing(MODEL, METHOD, [pair]) == [pair]
    other.put(MODEL, METHOD, [(pair, attribution)])
    assert path.read_bytes() == whole


@pytest.mark.usefixtures("read_here")
def test_hosts_can_publish_the_same_pairs_at_once(result, tmp_path: Path) -> None:
    place, results = PartFolder(tmp_path / "parts"), [result(f"p{k}") for k in range(4)]
    threads = [
        threading.Thread(target=writer(place, tmp_path).put, args=(MODEL, METHOD, [results[k % 4]]))
        for k in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(place.parts()) == 4 and verify(place) == (4, [])
    assert not list((tmp_path / "parts").rglob(".*"))


def test_damaged_parts_are_reported_and_the_rest_ingested(result, tmp_path: Path) -> None:
    place, store = PartFolder(tmp_path / "parts"), Store(tmp_path / "cache")
    published = writer(place, tmp_path)
    for k in range(3):
        published.put(MODEL, METHOD, [result(f"p{k}")])
    names = place.parts()
    damaged = tmp_path / "parts" / names[1]
    raw = bytearray(damaged.read_bytes())
    raw[60] ^= 1
    damaged.write_bytes(raw)
    found = ingest(store, place)
    assert (found.parts, found.new, found.taken.added) == (3, 2, 2)
    assert len(found.problems) == 1 and f"{names[1]} is damaged" in found.problems[0]
    assert set(read_manifest(place)) == {names[0], names[2]}
    # Replaced by another intact part, and deleted.
    (tmp_path / "parts" / names[0]).write_bytes((tmp_path / "parts" / names[2]).read_bytes())
    (tmp_path / "parts" / names[2]).unlink()
    n, problems = verify(place)
    assert n == 2 and any("differs from its entry in the manifest" in p for p in problems)
    assert any(problem == f"{names[2]} is gone." for problem in problems)
    (tmp_path / "parts" / MANIFEST).unlink()
    assert any("contains other pairs than its name states" in p for p in verify(place)[1])


def test_a_part_that_crashes_its_reader_counts_as_damaged_and_the_rest_is_ingested(
    result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part crashes the child, like a failed assertion in Arrow, and one takes too long."""
    place, store = PartFolder(tmp_path / "parts"), Store(tmp_path / "cache")
    for k in range(5):
        writer(place, tmp_path).put(MODEL, METHOD, [result(f"p{k}")])
    names = place.parts()
    deadly = f"""
import os
from poslens.attribution import isolated
from poslens.cache.exchange import incoming
read = incoming.checked
def checked(data, name, path):
    if name == {names[1]!r}:
        os.abort()
    return read(data, name, path)
incoming.checked = checked
isolated.serve()
"""
    monkeypatch.setattr(isolated, "_CHILD", deadly)
    found = ingest(store, place)
    assert (found.parts, found.new) == (5, 4)
    assert found.problems == (
        f"{names[1]} is damaged or not a Parquet file: copy or export it again.",
    )
    assert (
        len(writer(place, tmp_path).missing(MODEL, METHOD, [result(f"p{k}")[0] for k in range(5)]))
        == 1
    )
    monkeypatch.setattr(isolated, "_CHILD", "import time; time.sleep(60)")
    slow = isolated.Limits(seconds=0.2)
    with pytest.raises(UserError, match="is damaged"), isolated.Reader(slow) as reader:
        require_readable(reader, b"PAR1", "slow.parquet")


@pytest.mark.usefixtures("read_here")
def test_an_interrupted_ingest_is_completed_by_the_next(
    result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, store = PartFolder(tmp_path / "parts"), Store(tmp_path / "cache")
    results = [result(f"p{k}") for k in range(4)]
    for each in results:
        writer(place, tmp_path).put(MODEL, METHOD, [each])
    real, calls = poslens.cache.exchange.part_files.take, []

    def dies(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(poslens.cache.exchange.part_files, "take", dies)
    with pytest.raises(KeyboardInterrupt):
        ingest(store, place)
    monkeypatch.setattr(poslens.cache.exchange.part_files, "take", real)
    assert ingest(store, place).new == 2
    assert all(equal(store, *each) for each in results)
    assert len(read_manifest(place)) == 4


@pytest.mark.usefixtures("read_here")
def test_a_part_in_another_models_folder_is_refused(result, tmp_path: Path) -> None:
    place = PartFolder(tmp_path / "parts")
    writer(place, tmp_path).put(MODEL, METHOD, [result("p")])
    (name,) = place.parts()
    other = folder_of(ModelKey("N", "f" * 16), METHOD)
    place.write(f"{other}/{name.rpartition('/')[2]}", place.read(name) or b"")
    problems = ingest(Store(tmp_path / "cache"), place).problems
    assert len(problems) == 1 and "is in another model's folder" in problems[0]


@pytest.mark.usefixtures("read_here")
@pytest.mark.parametrize("batches", [0, 1], ids=["no batch", "an empty batch"])
def test_a_part_without_rows_is_reported_and_the_rest_ingested(
    result, tmp_path: Path, batches: int
) -> None:
    place = PartFolder(tmp_path / "parts")
    writer(place, tmp_path).put(MODEL, METHOD, [result("p")])
    source, stream = RowSource(MODEL, METHOD), io.BytesIO()
    with SealedWriter(stream, [source], "1.2.3") as sealed:
        for _ in range(batches):
            sealed.write(source, pa.RecordBatch.from_pylist([], schema=ROW))
    name = f"{folder_of(MODEL, METHOD)}/{'0' * 32}.parquet"
    place.write(name, stream.getvalue(), replace=False)
    found = ingest(Store(tmp_path / "cache"), place)
    assert (found.new, found.taken.added) == (1, 1)
    assert found.problems == (f"{name} contains no results: delete it.",)
    assert verify(place) == (2, list(found.problems))


def test_unusable_locations_are_reported_in_one_sentence(result, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"can't be used for parts: use a folder"):
        PartFolder("gopher://x/y")
    (tmp_path / "file").write_text("a file")
    with pytest.raises(UserError, match=r"The folder of parts .* can't be used"):
        writer(PartFolder(tmp_path / "file"), tmp_path).put(MODEL, METHOD, [result("p")])
    empty = PartFolder(tmp_path / "none")
    assert ingest(Store(tmp_path / "cache"), empty).parts == 0 and verify(empty) == (0, [])
    assert not (tmp_path / "none").exists()
    manifest = PartFolder(tmp_path / "m")
    manifest.write(MANIFEST, json.dumps([1]).encode())
    assert read_manifest(manifest) == {}

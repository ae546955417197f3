"""Files of the store: dropped while written, verified, repaired, compacted, listed; results that
are transferred as record batches; and what must be refused."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pyarrow as pa
import pytest

import poslens.cache.storage.index
from poslens.attribution.curves.positions import document_curve
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.chunk_plan import EncodingTime
from poslens.attribution.methods import make_method
from poslens.attribution.types import Method
from poslens.cache.exchange.rows import add, ingested
from poslens.cache.exchange.rows import stored as stored_rows
from poslens.cache.keys import text_digest
from poslens.cache.kinds.chunk_plan import ENCODING_TIMES
from poslens.cache.kinds.embeddings import EMBEDDING, EmbeddingStore
from poslens.cache.kinds.rankings import SEARCHES, Search
from poslens.cache.storage import blocks, connections, network_share
from poslens.cache.storage.files import open_for_reading
from poslens.cache.storage.maintenance import (
    Verified,
    compact,
    drop_file,
    drop_results,
    listing,
    older_layouts,
    repair,
    verify,
)
from poslens.cache.storage.results import Key, Results, itself
from poslens.cache.storage.rows import ROW
from poslens.cache.storage.store import ModelKey, Store
from tests.support.counts import Count, counts
from tests.support.stored import everything

ROOT = Path(__file__).parents[3]
METHOD = make_method("saliency")
POINT = make_method("saliency", {"resampling": "point"})
MODEL = ModelKey("M", "0123456789abcdef")


@contextlib.contextmanager
def sql(store: Store):
    with contextlib.closing(sqlite3.connect(store.path(MODEL, METHOD))) as db, db:
        yield db


def put(store: Store, result, names, **fields):
    stored = [result(name, **fields) for name in names]
    store.put(MODEL, METHOD, stored)
    return stored


def same_curves(store: Store, stored, method: Method = METHOD) -> None:
    found = store.curves(MODEL, method, [pair for pair, _ in stored])
    assert found.pair_ids == tuple(pair.pair_id for pair, _ in stored)
    np.testing.assert_array_equal(found.curves, [document_curve(a, method) for _, a in stored])
    assert found.scores.tolist() == [a.score for _, a in stored]


# -- aggregates ---------------------------------------------------------------------------------


def test_aggregates_are_read_without_decoding_results(store: Store, result) -> None:
    stored = put(store, result, [f"p{n}" for n in range(9)])
    with sql(store) as db:
        db.execute("UPDATE result SET payload = x'00'")
    same_curves(store, stored)
    assert store.missing(MODEL, METHOD, [pair for pair, _ in stored]) == []


def test_only_new_results_are_read(store: Store, result, monkeypatch: pytest.MonkeyPatch) -> None:
    first = put(store, result, ["a", "b"])
    same_curves(store, first)
    read: list[int] = []
    real = blocks.read

    def counted(db, name, after=0):
        for block, rows in real(db, name, after):
            read.append(rows.num_rows)
            yield block, rows

    monkeypatch.setattr(blocks, "read", counted)
    same_curves(store, first)
    assert read == []
    more = put(store, result, ["c"])
    same_curves(store, first + more)
    assert read == [1, 1]


@pytest.mark.parametrize("n", [1, 65, 200])
def test_a_superseded_result_leaves_no_trace_in_aggregates(store: Store, result, n: int) -> None:
    """Results are replaced one by one, so that small blocks are merged before, in between and
    after."""
    names = [f"p{k}" for k in range(n)]
    old = put(store, result, names)
    store.curves(MODEL, POINT, [pair for pair, _ in old])
    new = []
    for name in names:
        new += put(store, result, [name], document=f"another text of {name} with more words in it")
    for fresh in (False, True):
        if fresh:
            poslens.cache.storage.index.forget_below(Path("/"))
        found = everything(store, MODEL, METHOD)
        assert sorted(found.pair_ids) == sorted(names)
        expected = {pair.pair_id: document_curve(a, METHOD).tobytes() for pair, a in new}
        assert {
            p: c.tobytes() for p, c in zip(found.pair_ids, found.curves, strict=True)
        } == expected
        assert store.curves(MODEL, METHOD, [pair for pair, _ in old]).pair_ids == ()
        same_curves(store, new)
        same_curves(store, new, POINT)


# -- dropping -----------------------------------------------------------------------------------


def test_a_dropped_model_is_deleted_and_can_be_stored_again(store: Store, result) -> None:
    stored = put(store, result, ["a", "b"])
    (file,) = listing(store)
    assert drop_file(file) > 0
    assert not store.path(MODEL, METHOD).exists() and listing(store) == []
    assert store.get(MODEL, METHOD, stored[0][0]) is None
    assert everything(store, MODEL, METHOD).pair_ids == ()
    again = put(store, result, ["b"])
    same_curves(store, again)
    assert everything(store, MODEL, METHOD).pair_ids == ("b",)


def test_a_writer_of_a_dropped_file_loses_nothing_and_damages_nothing(store: Store, result) -> None:
    """Another process has the file open while it is dropped and recreated here. Then that process
    writes and ends, and its connections must not delete the new file's log."""
    body = """
        import sys
        from pathlib import Path
        import numpy as np
        from poslens.attribution.curves.positions import curve_params
        from poslens.attribution.types import Attribution, Method, TextPair, Token, TokenizedText
        from poslens.cache.storage.store import ModelKey, Store
        METHOD = Method("saliency", {"version": 1}, curve_params())
        store, model = Store(Path(sys.argv[1])), ModelKey("M", "0123456789abcdef")
        text = TokenizedText.of((Token("a", 0, 1),), 1, 9)
        def put(name):
            pair = TextPair(name, "query", "x", dataset="set")
            store.put(model, METHOD, [(pair, Attribution("M", METHOD, name, 1.0, text, text,
                                                         np.ones(1), np.ones(1)))])
            print(name, flush=True)
        put("theirs")
        for line in sys.stdin:
            put(line.strip())
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(body), str(store.root)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None and child.stdout is not None
    assert child.stdout.readline() == "theirs\n"
    (file,) = listing(store)
    drop_file(file)
    put(store, result, ["mine"])
    path = store.path(MODEL, METHOD)
    log = path.with_name(path.name + "-wal")
    inode = log.stat().st_ino
    child.stdin.write("later\n")
    child.stdin.close()
    assert child.stdout.readline() == "later\n"
    assert child.wait(60) == 0
    assert log.exists() and log.stat().st_ino == inode, "a log was deleted by its name"
    put(store, result, ["last"])
    poslens.cache.storage.index.forget_below(Path("/"))
    assert sorted(everything(store, MODEL, METHOD).pair_ids) == ["last", "later", "mine"]
    with sql(store) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# -- damage --------------------------------------------------------------------------------------


def test_verify_finds_flipped_bytes(store: Store, result) -> None:
    stored = put(store, result, [f"p{n}" for n in range(20)])
    assert verify(store, MODEL, METHOD).damaged == ()
    with sql(store) as db:
        for name in ("p3", "p11"):
            (data,) = db.execute("SELECT payload FROM result WHERE item = ?", (name,)).fetchone()
            flipped = bytearray(data)
            flipped[len(data) // 2] ^= 4
            db.execute("UPDATE result SET payload = ? WHERE item = ?", (bytes(flipped), name))
        # A result under another pair's name counts as damaged, too.
        db.execute("UPDATE result SET item = 'p99' WHERE item = 'p7'")
    steps: list[tuple[int, int]] = []
    found = verify(store, MODEL, METHOD, lambda done, total: steps.append((done, total)))
    assert (found.checked, set(found.damaged)) == (20, {"p3", "p11", "p99"})
    assert steps[-1] == (20, 20)
    missing = [pair.pair_id for pair in store.missing(MODEL, METHOD, [p for p, _ in stored])]
    assert missing == ["p3", "p7", "p11"]
    assert len(everything(store, MODEL, METHOD).curves) == 17


def test_verify_also_reads_other_kinds_of_results(store: Store, result) -> None:
    pairs = [pair for pair, _ in put(store, result, ["a", "b", "c"])]
    tests = counts(store.root)
    tests.put(MODEL, METHOD, [(pairs[0], Count(1)), (pairs[1], Count(2))])
    tests.put_failures(MODEL, METHOD, [(pairs[2], "no token")])
    vectors = EmbeddingStore(store.root)
    vectors.put(MODEL, "document", [(text, np.ones(3, np.float32)) for text in ("x", "y")])
    vectors.put_map(MODEL, "map", np.ones((2, 2), np.float32))
    assert verify(store, MODEL, METHOD) == Verified(6, (), 0)
    assert verify(store, MODEL, EMBEDDING) == Verified(3, (), 0)
    listed = {file.method.name: file.results for file in listing(store)}
    assert listed[EMBEDDING.name] == 3, "a map counts as a result"
    with sql(store) as db:
        db.execute(
            "UPDATE result SET payload = zeroblob(9) WHERE kind LIKE 'other%' AND item = 'b'"
        )
    with contextlib.closing(sqlite3.connect(store.path(MODEL, EMBEDDING))) as db, db:
        db.execute("UPDATE result SET payload = zeroblob(9) WHERE kind = 'map'")
        db.execute("UPDATE result SET payload = zeroblob(9) WHERE item = ?", (text_digest("y"),))
    assert verify(store, MODEL, METHOD) == Verified(6, ("b",), 0)
    assert verify(store, MODEL, EMBEDDING) == Verified(3, (text_digest("y"), "map"), 0)
    assert tests.missing(MODEL, METHOD, pairs) == [pairs[1]]
    assert verify(store, MODEL, METHOD).checked == 5


def test_verify_keeps_results_written_while_it_runs(
    store: Store, result, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [pair for pair, _ in put(store, result, ["a", "b"])]
    tests = counts(store.root)
    tests.put(MODEL, METHOD, [(pair, Count(1)) for pair in pairs])
    with sql(store) as db:
        db.execute("UPDATE result SET payload = zeroblob(9) WHERE kind LIKE 'other%'")
    change = Store.changing

    def changed_before(self: Store, model: ModelKey, method: Method):
        monkeypatch.setattr(Store, "changing", change)
        tests.put(MODEL, METHOD, [(pairs[1], Count(2))])
        return change(self, model, method)

    monkeypatch.setattr(Store, "changing", changed_before)
    assert verify(store, MODEL, METHOD) == Verified(4, ("a",), 0)
    assert tests.get(MODEL, METHOD, pairs[1]) == Count(2)


def test_text_in_place_of_bytes_is_damage(store: Store, result) -> None:
    pairs = [pair for pair, _ in put(store, result, ["a"])]
    tests = counts(store.root)
    tests.put(MODEL, METHOD, [(pairs[0], Count(1))])
    vectors = EmbeddingStore(store.root)
    vectors.put(MODEL, "document", [("x", np.ones(3, np.float32))])
    with sql(store) as db:
        db.execute("UPDATE result SET payload = 'text of a kind' WHERE kind LIKE 'other%'")
    with contextlib.closing(sqlite3.connect(store.path(MODEL, EMBEDDING))) as db, db:
        db.execute("UPDATE result SET payload = 'text of a kind'")
    assert tests.get(MODEL, METHOD, pairs[0]) is None
    assert verify(store, MODEL, METHOD) == Verified(2, ("a",), 0)
    assert verify(store, MODEL, EMBEDDING) == Verified(1, (text_digest("x"),), 0)


@pytest.mark.parametrize("column", ["data", "checksum", "n"])
def test_a_damaged_block_of_summaries_is_rebuilt(store: Store, result, column: str) -> None:
    stored = put(store, result, ["a", "b"]) + put(store, result, ["c"])
    store.put_failures(MODEL, METHOD, [(result("bad")[0], "no token")])
    damage(store, column, "name = 'summary'")
    same_curves(store, stored)
    everything_there = everything(store, MODEL, METHOD)
    assert sorted(everything_there.pair_ids) == ["a", "b", "c"]
    assert everything_there.failed == {"bad": "no token"}
    assert sql_ok(store)


def damage(store: Store, column: str, which: str) -> None:
    """Change one column of the first block of this kind."""
    with sql(store) as db:
        number, value = db.execute(f"SELECT id, {column} FROM block WHERE {which}").fetchone()
        changed = value + 1 if isinstance(value, int) else value[:30] + b"\x7f" + value[31:]
        db.execute(f"UPDATE block SET {column} = ? WHERE id = ?", (changed, number))
    poslens.cache.storage.index.forget_below(Path("/"))


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_results_superseded_by_a_damaged_block_do_not_reappear(
    store: Store, result, what: str
) -> None:
    stored = put(store, result, ["a", "b", "c"])
    kept = stored[1:]
    if what == "removed":
        repair(store, MODEL, METHOD, [1])
    else:
        kept += put(store, result, ["a"], document="another text of a with more words")
    with sql(store) as db:
        db.execute("UPDATE block SET checksum = 0 WHERE id = (SELECT max(id) FROM block)")
    poslens.cache.storage.index.forget_below(Path("/"))
    assert store.missing(MODEL, METHOD, [pair for pair, _ in stored]) == [stored[0][0]]
    same_curves(store, kept)
    assert sorted(everything(store, MODEL, METHOD).pair_ids) == sorted(p.pair_id for p, _ in kept)
    assert [file.results for file in listing(store)] == [len(kept)]
    compact(store, MODEL, METHOD)
    assert [file.results for file in listing(store)] == [len(kept)]
    # A new result has its own curve.
    same_curves(store, kept + put(store, result, ["d"]))
    assert sql_ok(store)


@pytest.mark.parametrize("column", ["data", "checksum", "n"])
def test_a_damaged_block_of_curves_is_derived_again(store: Store, result, column: str) -> None:
    stored = put(store, result, ["a", "b"]) + put(store, result, ["c"])
    damage(store, column, "name != 'summary'")
    same_curves(store, stored)
    same_curves(store, stored)
    assert sql_ok(store)


def sql_ok(store: Store) -> bool:
    """Whether no block is damaged any more."""
    with sql(store) as db:
        return all(
            rows is not None for name in blocks.names(db) for _, rows in blocks.read(db, name)
        )


def test_an_unreadable_result_is_missing_after_repair(store: Store, result) -> None:
    put(store, result, ["a", "b"])
    with sql(store) as db:
        db.execute("UPDATE result SET payload = x'01' WHERE item = 'a'")
        db.execute("UPDATE block SET checksum = 0")
    assert repair(store, MODEL, METHOD) == ["a"]
    assert everything(store, MODEL, METHOD).pair_ids == ("b",)
    assert len(store.missing(MODEL, METHOD, [result("a")[0], result("b")[0]])) == 1


def test_any_changed_byte_of_curves_changes_their_checksum() -> None:
    generator = np.random.default_rng(0)
    data = generator.bytes(408 * 37)
    whole = blocks._checksum("a", data)
    assert whole != blocks._checksum("b", data)
    for place in generator.integers(0, len(data), 400).tolist():
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        assert blocks._checksum("a", bytes(changed)) != whole
    words = np.frombuffer(data, np.uint64)
    for a, b in generator.integers(0, len(words), (200, 2)).tolist():
        swapped = words.copy()
        swapped[[a, b]] = swapped[[b, a]]
        assert (blocks._checksum("a", swapped.tobytes()) != whole) == (words[a] != words[b])


# -- listing and compacting -----------------------------------------------------------------------


def test_listing_and_compacting(store: Store, result) -> None:
    for n in range(80):
        put(store, result, [f"p{n}"])
    stored = []
    for n in range(80):
        stored += put(
            store, result, [f"p{n}"], document=f"text {n} is another one and longer " * 20
        )
    store.put_failures(MODEL, METHOD, [(result("bad")[0], "no token")])
    store.curves(MODEL, POINT, [pair for pair, _ in stored])
    (before,) = listing(store)
    assert (before.model, before.method) == (MODEL, Method("saliency", METHOD.params))
    assert (before.results, before.failed, before.problem) == (80, 1, "")
    assert [dict(v) for v in before.variants] == [
        dict(METHOD.curve_params),
        dict(POINT.curve_params),
    ]
    size = before.bytes
    assert compact(store, MODEL, METHOD) == size - listing(store)[0].bytes > 0
    with sql(store) as db:
        counted = "SELECT count(*), sum(n) FROM block WHERE name"
        assert db.execute(f"{counted} = 'summary'").fetchone() == (1, 81)
        assert db.execute(f"{counted} != 'summary'").fetchone() == (2, 160)
    same_curves(store, stored)
    same_curves(store, stored, POINT)
    assert store.missing(MODEL, METHOD, [result("bad")[0]]) == []
    more = put(store, result, ["new", "p3"])
    same_curves(store, more)
    assert len(everything(store, MODEL, METHOD).curves) == 81
    foreign = store.folder / ("f" * 16) / "saliency-0.db"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"not a database " * 99)
    problem = next(f.problem for f in listing(store) if f.model.fingerprint == "f" * 16)
    assert "is damaged or not a cache file: move it away" in problem


def test_times_and_unfinished_searches_are_not_counted_as_results(store: Store, result) -> None:
    ((pair, _),) = put(store, result, ["p0"])
    whole = Key(pair.dataset, "whole", "")
    for schema, value in (
        (ENCODING_TIMES, EncodingTime((0.5,))),
        (SEARCHES, Search(1, 1, np.zeros(1, np.int64))),
    ):
        Results(store.root, schema, key=itself).put(MODEL, METHOD, [(whole, value)])
    (file,) = listing(store)
    assert file.results == 1 and file.datasets == {pair.dataset: 1}


def test_results_of_one_data_set_are_dropped(store: Store, result) -> None:
    kept = put(store, result, [f"p{n}" for n in range(8)], dataset="kept")
    gone = put(store, result, [f"p{n}" for n in range(8)], dataset="gone")
    store.put_failures(MODEL, METHOD, [(result("bad", dataset="gone")[0], "no token")])
    (file,) = listing(store)
    assert file.datasets == {"gone": 9, "kept": 8}
    drop_results(store, file, "gone")
    (file,) = listing(store)
    assert (file.datasets, file.failed) == ({"kept": 8}, 0)
    same_curves(store, kept)
    missing = [pair for pair, _ in gone] + [result("bad", dataset="gone")[0]]
    assert store.missing(MODEL, METHOD, missing) == missing
    assert drop_results(store, file, "kept") > 0 and listing(store) == []


# -- entries --------------------------------------------------------------------------------------


def test_entries_are_added_to_another_cache_once(store: Store, result, tmp_path: Path) -> None:
    stored = put(store, result, [f"p{n}" for n in range(7)])
    store.put_failures(MODEL, METHOD, [(result("bad")[0], "no token")])
    batches = list(stored_rows(store, MODEL, METHOD, size=3))
    assert [batch.num_rows for batch in batches] == [3, 3, 2]
    assert all(batch.schema == ROW for batch in batches)
    other = Store(tmp_path / "other")
    assert add(other, MODEL, METHOD, batches) == (8, 0)
    assert add(other, MODEL, METHOD, batches) == (0, 0)
    same_curves(other, stored)
    for pair, attribution in stored:
        found = other.get(MODEL, METHOD, pair)
        assert found is not None
        assert found.document_scores.tobytes() == attribution.document_scores.tobytes()
    assert everything(other, MODEL, METHOD).failed == {"bad": "no token"}
    assert pa.Table.from_batches(stored_rows(other, MODEL, METHOD)).equals(
        pa.Table.from_batches(batches).combine_chunks()
    )


def test_parts_are_added_once_and_results_replace_failures(
    store: Store, result, tmp_path: Path
) -> None:
    put(store, result, ["a", "b"])
    other = Store(tmp_path / "other")
    other.put_failures(MODEL, METHOD, [(result("a")[0], "out of memory")])
    batches = list(stored_rows(store, MODEL, METHOD))
    assert add(other, MODEL, METHOD, batches, part="one") == (2, 0)
    assert add(other, MODEL, METHOD, batches, part="one") == (0, 0)
    assert ingested(other, MODEL, METHOD) == {"one"}
    found = everything(other, MODEL, METHOD)
    assert found.pair_ids == ("a", "b") and found.failed == {}
    failures = list(stored_rows(other, MODEL, METHOD))
    store.put_failures(MODEL, METHOD, [(result("c")[0], "no")])
    assert add(other, MODEL, METHOD, stored_rows(store, MODEL, METHOD)) == (1, 0) and failures


# -- refusals -------------------------------------------------------------------------------------


def test_a_file_of_a_newer_version_is_refused_in_one_sentence(store: Store, result) -> None:
    put(store, result, ["a"])
    store.release()
    with sql(store) as db:
        db.execute(f"PRAGMA user_version = {connections.VERSION + 1}")
    for use in (lambda: store.curves(MODEL, METHOD, []), lambda: put(store, result, ["b"])):
        with pytest.raises(
            UserError, match=r"because a newer version of PosLens wrote it: update PosLens"
        ):
            use()
    assert "newer" in listing(store)[0].problem


def test_a_file_of_an_older_version_is_refused_in_one_sentence(store: Store, result) -> None:
    put(store, result, ["a"])
    store.release()
    with sql(store) as db:
        db.execute(f"PRAGMA user_version = {connections.VERSION - 1}")
    for use in (lambda: store.curves(MODEL, METHOD, []), lambda: put(store, result, ["b"])):
        with pytest.raises(
            UserError, match=r"older version of PosLens wrote it: .*export.* and .*import"
        ):
            use()
    assert "older" in listing(store)[0].problem


MOUNTS = (
    ("/", "ext4"),
    ("/home/lab", "nfs4"),
    ("/home/lab/local", "xfs"),
    ("/mnt/a b", "cifs"),
    ("/mnt/a b/over", "cifs"),
    ("/mnt/a b/over", "ext4"),
)


def test_a_network_share_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in MOUNTS]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    network_share._kind.cache_clear()
    expected = {
        "/": "ext4",
        "/home": "ext4",
        "/home/lab": "nfs4",
        "/home/labx": "ext4",
        "/home/lab/me/cache": "nfs4",
        "/home/lab/local/x": "xfs",
        "/mnt/a b/c": "cifs",
        "/mnt/a b/over/c": "ext4",
    }
    assert {folder: network_share._kind(folder) for folder in expected} == expected
    network_share._kind.cache_clear()


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="Linux's table of mounts")
def test_the_file_system_of_a_local_mount_is_recognized(tmp_path: Path) -> None:
    said = subprocess.run(
        ["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True
    )
    network_share._kind.cache_clear()
    kind = network_share._kind(str(tmp_path.resolve()))
    # stat cannot tell ext2, ext3 and ext4 apart.
    assert kind and (kind in said.stdout or said.stdout.startswith(kind[:3]))


def test_the_refusal_of_a_network_share_mentions_parts(
    store: Store, result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_share, "_kind", lambda folder: "nfs4")
    with pytest.raises(UserError, match=r"network share \(nfs4\): set .* as Parquet parts"):
        put(store, result, ["a"])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a folder read-only, which only root may")
def test_a_read_only_folder_can_be_read(store: Store, result) -> None:
    stored = put(store, result, ["a", "b"])
    store.release()
    folder = str(store.root)
    bound = subprocess.run(["mount", "--bind", folder, folder], capture_output=True)
    if bound.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True, capture_output=True)
        poslens.cache.storage.index.forget_below(Path("/"))
        same_curves(store, stored)
        assert store.get(MODEL, METHOD, stored[0][0]) is not None
        assert listing(store)[0].results == 2
        with pytest.raises(UserError, match="check its permissions, or set POSLENS_HOME"):
            put(store, result, ["c"])
    finally:
        store.release()
        subprocess.run(["umount", folder], check=False)
    put(store, result, ["c"])


def test_no_file_descriptor_is_left_open(tmp_path: Path, result) -> None:
    """Twenty stores used and released."""
    stored = [result("a")]

    def use(n: int) -> None:
        store = Store(tmp_path / str(n))
        store.put(MODEL, METHOD, stored)
        same_curves(store, stored)
        store.release()

    use(0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for n in range(1, 21):
        use(n)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


def test_many_threads_reading_many_files_use_at_most_64_descriptors(tmp_path: Path, result) -> None:
    """Like pages over many imported models: each thread reads one file after another."""
    store, stored = Store(tmp_path), [result("a")]
    models = [ModelKey("M", f"{n:016x}") for n in range(40)]
    for model in models:
        store.put(model, METHOD, stored)
    store.release()
    before = len(list(Path("/proc/self/fd").iterdir()))
    together = threading.Barrier(6)

    def read(_: int) -> int:
        found = 0
        for model in models:
            with open_for_reading(store.path(model, METHOD)) as db:
                together.wait(30)
                assert db is not None
                found += store.get(model, METHOD, stored[0][0]) is not None
        return found

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(read, range(6))) == {len(models)}
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 64
    store.release()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


def test_a_folder_of_an_older_layout_is_reported_with_what_to_do(store: Store, result) -> None:
    store.put(MODEL, METHOD, [result("a")])
    assert older_layouts(store) == ""
    (store.root / "v1").mkdir()
    assert older_layouts(store) == "", "nothing is in it"
    (store.root / "v1" / "0123").mkdir()
    (store.root / "v1" / "0123" / "saliency-0.db").write_bytes(b"")
    said = older_layouts(store)
    assert f"({store.root.name}/v1)" in said and "cache export" in said
    assert str(store.root) not in said

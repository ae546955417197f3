"""Shipped results are a fallback: read where the user has none, never written or counted."""

from __future__ import annotations

import io
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from poslens.attribution.methods import make_method
from poslens.attribution.types import Method
from poslens.cache.exchange.transfer import rows_of, take_stream
from poslens.cache.kinds.embeddings import EMBEDDING, EmbeddingStore
from poslens.cache.shipped.layer import UNPACKED, Shipped, folder_name
from poslens.cache.shipped.manifest import NAME, shipped_files
from poslens.cache.storage.files import set_fallback
from poslens.cache.storage.maintenance import drop_file, listing, models
from poslens.cache.storage.store import ModelKey, Store
from tests.support.counts import Count, counts
from tools.shipped import write_all

ROOT = Path(__file__).parents[3]
MODEL = ModelKey("M", "0" * 16, '{"spec": {}}')
SALIENCY = make_method("saliency")
POINT = make_method("saliency", {"resampling": "point"})
TEST = Method("test", {"version": 1})


@pytest.fixture
def known(result) -> list:
    return [result(f"p{k}") for k in range(12)]


@pytest.fixture
def source(tmp_path: Path, known) -> Path:
    """A folder of shipped results: attributions of twelve pairs, another kind of result,
    vectors."""
    work = Store(tmp_path / "work")
    work.put(MODEL, SALIENCY, known)
    counts(work.root).put(MODEL, TEST, [(pair, Count(k)) for k, (pair, _) in enumerate(known)])
    vectors = EmbeddingStore(work.root)
    vectors.put(MODEL, "query", [("a", np.arange(3, dtype=np.float32))])
    vectors.put_map(MODEL, "key", np.ones((2, 2), np.float32))
    write_all(work, tmp_path / "source")
    return tmp_path / "source"


@pytest.fixture
def store(tmp_path: Path, source: Path) -> Iterator[Store]:
    """An empty cache with that fallback."""
    root = tmp_path / "home" / "cache"
    set_fallback(root, Shipped(root, source))
    yield Store(root)
    set_fallback(root, None)


def test_shipped_results_are_read_bit_for_bit(store: Store, known) -> None:
    pairs = [pair for pair, _ in known]
    assert store.missing(MODEL, SALIENCY, pairs) == []
    for pair, made in known:
        found = store.get(MODEL, SALIENCY, pair)
        assert found is not None and found.score == made.score
        assert (found.document, found.query) == (made.document, made.query)
        np.testing.assert_array_equal(found.document_scores, made.document_scores)
    alone = Store(store.root.parents[1] / "work")
    for method in (SALIENCY, POINT):
        here, there = (one.curves(MODEL, method, pairs) for one in (store, alone))
        assert here.pair_ids == there.pair_ids == tuple(pair.pair_id for pair in pairs)
        np.testing.assert_array_equal(here.curves, there.curves)
        np.testing.assert_array_equal(here.magnitudes, there.magnitudes)
        np.testing.assert_array_equal(here.scores, there.scores)
    kept = counts(store.root)
    assert kept.get(MODEL, TEST, pairs[3]) == Count(3)
    assert kept.missing(MODEL, TEST, pairs) == []
    assert list(kept.select(MODEL, TEST, pairs).results.values())[-1] == Count(11)
    vectors = EmbeddingStore(store.root)
    assert vectors.select(MODEL, "query", ["a", "b"])["a"].tolist() == [0, 1, 2]
    found_map = vectors.get_map(MODEL, "key")
    assert found_map is not None and found_map.shape == (2, 2)


def test_the_users_own_result_takes_precedence(store: Store, known, result) -> None:
    pair, made = known[4]
    own = replace(made, score=7.0, document_scores=made.document_scores * 2)
    failed, typed = known[5][0], result("typed")
    store.put(MODEL, SALIENCY, [(pair, own), typed], [(failed, "too long")])
    assert store.get(MODEL, SALIENCY, pair).score == 7.0
    pairs = [typed[0], *(one for one, _ in known)]
    found = store.curves(MODEL, SALIENCY, pairs)
    assert found.pair_ids == tuple(one.pair_id for one in pairs)
    assert found.scores[5] == 7.0 and found.scores[0] == pytest.approx(typed[1].score)
    assert found.failed == {}, "a failure gives way to a result"
    counts(store.root).put(MODEL, TEST, [(pair, Count(-1))])
    assert counts(store.root).get(MODEL, TEST, pair) == Count(-1)
    assert counts(store.root).get(MODEL, TEST, failed) == Count(5)


def test_a_pair_with_other_texts_has_no_result(store: Store, known) -> None:
    changed = replace(known[0][0], query="another query")
    assert store.get(MODEL, SALIENCY, changed) is None
    assert store.missing(MODEL, SALIENCY, [changed]) == [changed]


def test_shipped_results_are_not_part_of_the_cache(store: Store, known, source: Path) -> None:
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    store.get(MODEL, SALIENCY, known[0][0])
    assert listing(store) == [] and models(store) == []
    store.put(MODEL, SALIENCY, [known[0]])
    (file,) = listing(store)
    assert file.results == 1
    assert sum(rows.num_rows for _, rows in rows_of(store, file)) == 1
    drop_file(file)
    assert store.get(MODEL, SALIENCY, known[0][0]) is not None
    # The copy may be deleted at any time.
    shutil.rmtree(store.root / UNPACKED)
    assert store.get(MODEL, SALIENCY, known[1][0]) is not None
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


@pytest.mark.parametrize(
    ("model", "method"),
    [
        (ModelKey("M", "1" * 16), SALIENCY),
        (MODEL, Method("saliency", {"version": 2}, SALIENCY.curve_params)),
    ],
    ids=["other weights", "another version"],
)
def test_stale_results_are_never_shown(store: Store, known, model, method) -> None:
    pairs = [pair for pair, _ in known]
    assert store.get(model, method, pairs[0]) is None
    assert store.missing(model, method, pairs) == pairs
    assert store.curves(model, method, pairs).pair_ids == ()
    assert not (store.root / UNPACKED).exists()


def test_curves_of_another_version_are_derived_again(store: Store, known, monkeypatch) -> None:
    from poslens.attribution.curves import positions

    pairs = [pair for pair, _ in known]
    wanted = store.curves(MODEL, SALIENCY, pairs).curves
    monkeypatch.setattr(positions, "CURVE_VERSION", positions.CURVE_VERSION + 1)
    monkeypatch.setattr(positions, "_normalized", lambda rows, lengths, how: 2 * np.abs(rows))
    changed = make_method("saliency")
    assert changed != SALIENCY and changed.core == SALIENCY.core
    found = store.curves(MODEL, changed, pairs)
    assert len(found.pair_ids) == 12
    assert not np.allclose(found.curves, wanted)


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "no parquet"])
def test_a_damaged_file_is_skipped_and_logged_once(
    store: Store, known, source: Path, caplog, damage: str
) -> None:
    path = source / "M-saliency.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes({"cut": data[:-9], "no parquet": b"PAR1"}.get(damage, bytes(data)))
    if damage == "gone":
        path.unlink()
    with caplog.at_level(logging.WARNING):
        for pair, _ in known:
            assert store.get(MODEL, SALIENCY, pair) is None
    (said,) = caplog.messages
    assert said.startswith("Included results skipped, M-saliency.parquet: It ")
    # The other files are intact.
    assert counts(store.root).get(MODEL, TEST, known[2][0]) == Count(2)
    store.put(MODEL, SALIENCY, [known[0]])
    assert store.get(MODEL, SALIENCY, known[0][0]) is not None


@pytest.mark.parametrize("text", ["", "[]", '{"files": [{}]}', '{"files": [{"name": "../x"}]}'])
def test_a_damaged_list_counts_as_missing(source: Path, tmp_path: Path, caplog, text) -> None:
    (source / NAME).write_text(text)
    assert shipped_files(source) == ()
    assert len(caplog.messages) == 1
    assert Shipped(tmp_path, source).folder(MODEL, SALIENCY) is None


def test_a_damaged_copy_is_skipped_and_replaced_at_the_next_start(
    store: Store, known, source: Path, caplog
) -> None:
    pair = known[0][0]
    assert store.get(MODEL, SALIENCY, pair) is not None
    layer = Shipped(store.root, source)
    copy = layer.folder(MODEL, SALIENCY)
    assert copy is not None
    Store(copy).release()
    (database,) = copy.rglob("*.db")
    database.write_bytes(b"not a database" * 1000)
    with caplog.at_level(logging.WARNING):
        assert store.get(MODEL, SALIENCY, pair) is None
        assert store.get(MODEL, SALIENCY, pair) is None
    assert len(caplog.messages) == 1
    set_fallback(store.root, layer)
    assert store.get(MODEL, SALIENCY, pair) is not None


def test_copies_from_an_earlier_version_are_deleted(store: Store, known, source: Path) -> None:
    """Of other files, and of the same files in another layout."""
    for name in ("f" * 16, *(file.sha256[:16] for file in shipped_files(source))):
        (store.root / UNPACKED / name / "v2").mkdir(parents=True)
    assert store.get(MODEL, SALIENCY, known[0][0]) is not None
    counts(store.root).get(MODEL, TEST, known[0][0])
    names = {path.name for path in (store.root / UNPACKED).iterdir()}
    wanted = {folder_name(f) for f in shipped_files(source) if f.method != EMBEDDING.core}
    assert names == wanted


def test_shipped_results_are_skipped_if_the_folder_cannot_be_written(
    store: Store, known, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    assert store.get(MODEL, SALIENCY, known[0][0]) is None
    assert "cannot be written" in caplog.text


def test_the_files_can_be_read_by_any_reader_and_imported(
    source: Path, tmp_path: Path, known
) -> None:
    frame = pd.read_parquet(source / "M-saliency.parquet")
    assert frame["score"].tolist() == [
        pytest.approx(made.score) for _, made in sorted(known, key=lambda one: one[0].pair_id)
    ]
    assert np.stack(frame["curve"]).shape == (12, 100)
    other = Store(tmp_path / "other")
    data = io.BytesIO((source / "M-saliency.parquet").read_bytes())
    assert take_stream(other, data, "file").added == 12
    listed = json.loads((source / NAME).read_text())["files"]
    assert [(one["name"], one["rows"]) for one in listed] == [
        ("M-embedding.parquet", 2),
        ("M-saliency.parquet", 12),
        ("M-test.parquet", 12),
    ]


def test_the_command_unpacks_what_is_missing(tmp_path: Path) -> None:
    """Runs the dashboard's unpacking process on the real shipped results. All files but one are
    unpacked before, since the process has the lowest priority and would take minutes on a busy
    machine."""
    Shipped(tmp_path).unpack()
    place = tmp_path / UNPACKED
    whole = {folder.name for folder in place.iterdir()}
    assert whole == {folder_name(file) for file in shipped_files()}
    gone = place / folder_name(shipped_files()[-1])
    shutil.rmtree(gone)
    subprocess.run(
        [sys.executable, "-m", "poslens.cache.shipped", str(tmp_path)], cwd=ROOT, check=True
    )
    assert {folder.name for folder in place.iterdir()} == whole and any(gone.rglob("*.db"))

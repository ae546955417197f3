"""Curves of another version are derived again from the stored scores, and signed curves are stored
with their magnitudes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import poslens.cache.storage.index
from poslens.attribution.curves import positions
from poslens.attribution.curves.positions import document_curve, document_magnitudes
from poslens.attribution.curves.text_axis import over_text
from poslens.attribution.methods import make_method
from poslens.attribution.types import Attribution, Method, TextPair
from poslens.cache.exchange import parquet_file
from poslens.cache.exchange.part_files import PartFolder, PartWriter, ingest
from poslens.cache.exchange.transfer import export, import_file, take_stream
from poslens.cache.storage import blocks
from poslens.cache.storage.maintenance import compact, listing
from poslens.cache.storage.store import ModelKey, Store

MODEL = ModelKey("M", "0123456789abcdef")
SIGNED = make_method("decomposition")
UNSIGNED = make_method("saliency")
_CURVES = "SELECT count(*) FROM block WHERE name != 'summary'"
Stored = list[tuple[TextPair, Attribution]]


def signed(result, names: list[str]) -> Stored:
    """Results whose tokens have both signs, many per bin."""
    made = []
    for name in names:
        pair, attribution = result(name, document=f"{name} says fog " * 150 + "end")
        scores = np.random.default_rng(list(name.encode())).normal(
            size=len(attribution.document.tokens)
        )
        made.append((pair, replace(attribution, method=SIGNED, document_scores=scores)))
    return made


def same(store: Store, method: Method, stored: Stored) -> None:
    found = store.curves(MODEL, method, [pair for pair, _ in stored])
    results = [attribution for _, attribution in stored]
    assert found.pair_ids == tuple(pair.pair_id for pair, _ in stored)
    np.testing.assert_array_equal(found.curves, [document_curve(a, method) for a in results])
    expected = [document_magnitudes(a, method) for a in results]
    np.testing.assert_array_equal(found.magnitudes, expected)


def column(store: Store, method: Method, what: str) -> list:
    with closing(sqlite3.connect(store.path(MODEL, method))) as db:
        return [row[0] for row in db.execute(what)]


# -- magnitudes ----------------------------------------------------------------------------------


def test_signed_curves_are_read_back_with_their_magnitudes(store: Store, result) -> None:
    """Results are put one by one, so that small blocks are merged; then read again, derived and
    compacted."""
    stored = []
    for n in range(70):
        stored += signed(result, [f"p{n}"])
        store.put(MODEL, SIGNED, stored[-1:])
    assert (np.abs(document_curve(stored[0][1])) < document_magnitudes(stored[0][1])).any()
    same(store, SIGNED, stored)
    poslens.cache.storage.index.forget_below(Path("/"))
    same(store, SIGNED, stored)
    point = make_method("decomposition", {"resampling": "point", "normalization": "max"})
    same(store, point, stored[::-1])
    compact(store, MODEL, SIGNED)
    same(store, SIGNED, stored)
    same(store, point, stored)


def test_a_curve_without_signs_is_stored_once_and_is_its_own_magnitude(
    store: Store, result
) -> None:
    stored = [result(f"p{n}") for n in range(3)]
    store.put(MODEL, UNSIGNED, stored)
    same(store, UNSIGNED, stored)
    found = store.curves(MODEL, UNSIGNED, [pair for pair, _ in stored])
    assert found.magnitudes is found.curves
    assert column(store, UNSIGNED, _CURVES) == [1]


def test_curves_with_and_without_signs_can_be_mixed(store: Store, result) -> None:
    plain = [(pair, replace(a, method=SIGNED)) for pair, a in (result("a"), result("b"))]
    mixed = signed(result, ["c"])
    store.put(MODEL, SIGNED, plain[:1])
    same(store, SIGNED, plain[:1])
    store.put(MODEL, SIGNED, mixed)
    same(store, SIGNED, [*plain[:1], *mixed])
    store.put(MODEL, SIGNED, plain[1:])
    same(store, SIGNED, [*plain, *mixed])
    compact(store, MODEL, SIGNED)
    same(store, SIGNED, [*plain, *mixed])


def test_magnitudes_are_included_in_exports_and_parts(store: Store, result, tmp_path: Path) -> None:
    stored = signed(result, ["a", "b"])
    store.put(MODEL, SIGNED, stored)
    path = tmp_path / "out.parquet"
    export(store, listing(store), path, poslens="1")
    rows = pq.read_table(path).to_pylist()
    for row, (_, attribution) in zip(rows, stored, strict=True):
        np.testing.assert_array_equal(row["magnitudes"], document_magnitudes(attribution, SIGNED))
    for name, fill in (("file", None), ("parts", PartFolder(tmp_path / "parts"))):
        other = Store(tmp_path / name)
        if fill is None:
            import_file(other, path)
        else:
            PartWriter(fill, tmp_path / "work", "1").put(MODEL, SIGNED, stored)
            ingest(other, fill)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "poslens.cache.storage.store.curve_columns", lambda *_: pytest.fail("made again")
            )
            found = other.curves(MODEL, SIGNED, [pair for pair, _ in stored])
        expected = [document_magnitudes(a, SIGNED) for _, a in stored]
        np.testing.assert_array_equal(found.magnitudes, expected)


# -- versions --------------------------------------------------------------------------------------


@pytest.fixture
def repaired(monkeypatch: pytest.MonkeyPatch):
    """Change resampling and its version from here on."""

    def repair() -> Method:
        real = positions._resampled
        monkeypatch.setattr(positions, "_resampled", lambda *given: 2 * real(*given))
        monkeypatch.setattr(positions, "CURVE_VERSION", positions.CURVE_VERSION + 1)
        return make_method("decomposition")

    return repair


def test_a_raised_version_derives_curves_again_from_the_stored_scores(
    store: Store, result, repaired
) -> None:
    stored = signed(result, ["a", "b", "c"])
    store.put(MODEL, SIGNED, stored)
    pairs = [pair for pair, _ in stored]
    before = store.curves(MODEL, SIGNED, pairs)
    method = repaired()
    assert method != SIGNED and method.core == SIGNED.core
    assert store.missing(MODEL, method, pairs) == []
    assert [a.method for a in store.get_many(MODEL, method, pairs) if a] == [method] * 3
    after = store.curves(MODEL, method, pairs)
    np.testing.assert_array_equal(after.curves, 2 * before.curves)
    np.testing.assert_array_equal(after.magnitudes, 2 * before.magnitudes)
    assert after.scores.tolist() == before.scores.tolist()
    # They are stored, and derived once.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "poslens.cache.storage.store.curve_columns", lambda *_: pytest.fail("made again")
        )
        store.curves(MODEL, method, pairs)


def test_exports_contain_curves_of_this_version(
    store: Store, result, repaired, tmp_path: Path
) -> None:
    stored = signed(result, ["a", "b"])
    store.put(MODEL, SIGNED, stored)
    method = repaired()
    assert listing(store)[0].variants == ()
    path = tmp_path / "out.parquet"
    export(store, listing(store), path, poslens="1")
    for row, (_, attribution) in zip(pq.read_table(path).to_pylist(), stored, strict=True):
        np.testing.assert_array_equal(row["curve"], document_curve(attribution, method))
        np.testing.assert_array_equal(row["magnitudes"], document_magnitudes(attribution, method))


def test_curves_over_whole_texts_are_not_exported_and_are_derived_again(
    store: Store, result, tmp_path: Path
) -> None:
    """They have gaps where text was truncated, and imports refuse such gaps."""
    made = [result(f"p{n}", n_full=900) for n in range(3)]
    stored = [(replace(pair, document=2 * pair.document), a) for pair, a in made]
    store.put(MODEL, UNSIGNED, stored)
    pairs = [pair for pair, _ in stored]
    whole = over_text(UNSIGNED)
    expected = store.curves(MODEL, whole, pairs).curves
    assert np.isnan(expected).any()
    compact(store, MODEL, UNSIGNED)
    np.testing.assert_array_equal(store.curves(MODEL, whole, pairs).curves, expected)
    with closing(sqlite3.connect(store.path(MODEL, UNSIGNED))) as db:  # the only ones
        db.execute("DELETE FROM block WHERE name = ?", (blocks.curve_name(UNSIGNED),))
        db.commit()
    poslens.cache.storage.index.forget_below(Path("/"))
    path = tmp_path / "out.parquet"
    export(store, listing(store), path, poslens="1")
    for row, (_, attribution) in zip(pq.read_table(path).to_pylist(), stored, strict=True):
        assert "axis" not in row["variant"]
        np.testing.assert_array_equal(row["curve"], document_curve(attribution))
    other = Store(tmp_path / "other")
    import_file(other, path)
    np.testing.assert_array_equal(other.curves(MODEL, whole, pairs).curves, expected)


def test_compacting_drops_curves_of_another_version(store: Store, result, repaired) -> None:
    stored = signed(result, ["a", "b"])
    store.put(MODEL, SIGNED, stored)
    method = repaired()
    same(store, method, stored)
    assert column(store, method, _CURVES) == [4]
    compact(store, MODEL, method)
    assert column(store, method, _CURVES) == [2]
    same(store, method, stored)


def test_a_file_of_the_first_format_is_read_and_its_curves_are_derived_again(
    store: Store, result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That format had neither magnitudes nor a version."""
    source = Store(tmp_path / "source")
    stored = signed(result, ["a", "b"])
    source.put(MODEL, SIGNED, stored)
    path = tmp_path / "old.parquet"
    with monkeypatch.context() as patch:
        former = parquet_file._FORMER
        patch.setattr(parquet_file, "FORMAT", 1)
        patch.setattr(parquet_file, "FILE", former)
        real = parquet_file.SealedWriter.write

        def write(self, of, rows):
            real(self, of, rows.drop_columns(["magnitudes"]))

        patch.setattr(parquet_file.SealedWriter, "write", write)
        unversioned = {"normalization": "p99", "resampling": "bin_mean", "bins": 100}
        patch.setattr("poslens.cache.exchange.transfer.curve_params", lambda: unversioned)
        patch.setattr("poslens.cache.exchange.transfer.listing", listing)
        patch.setattr("poslens.cache.storage.blocks.current_names", lambda: set())
        export(source, listing(source), path, poslens="0")
    row = pq.read_table(path).to_pylist()[0]
    assert "magnitudes" not in row and "curve_version" not in row["variant"]
    with path.open("rb") as stream:
        assert take_stream(store, stream, path.name).added == 2
    assert listing(store)[0].variants == ()
    same(store, SIGNED, stored)

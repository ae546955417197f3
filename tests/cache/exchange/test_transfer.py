"""Results are transferred between caches bit for bit, once, and never damaged."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.curves.positions import document_curve
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.methods import make_method
from poslens.attribution.types import EvidenceSpan
from poslens.cache.exchange import parquet_file
from poslens.cache.exchange.incoming import require_whole
from poslens.cache.exchange.rows import stored as stored_rows
from poslens.cache.exchange.transfer import Taken, export, import_file, merge, take_stream
from poslens.cache.kinds.embeddings import EMBEDDING, EmbeddingStore
from poslens.cache.storage.maintenance import listing
from poslens.cache.storage.rows import ROW
from poslens.cache.storage.store import ModelKey, Store
from tests.support.counts import Count, counts
from tests.support.forked import Forked

pytestmark = pytest.mark.usefixtures("shared_children")
METHOD = make_method("saliency")
ABOUT = json.dumps({"spec": {"name": "M"}, "weights": "w" * 16, "precision": "float32"})
MODEL = ModelKey("M", "0123456789abcdef", ABOUT)


def same(store: Store, pair, attribution) -> bool:
    found = store.get(MODEL, METHOD, pair)
    return (
        found is not None
        and found.document_scores.tobytes() == attribution.document_scores.tobytes()
        and found.query_scores.tobytes() == attribution.query_scores.tobytes()
        and (found.score, found.seconds, found.query, found.document)
        == (attribution.score, attribution.seconds, attribution.query, attribution.document)
    )


def filled(store: Store, result, n: int = 5) -> list:
    stored = [result(f"p{k}") for k in range(n)]
    stored[0] = (
        replace(
            stored[0][0],
            evidence=EvidenceSpan(2, 9),
            language="eng",
            domain="fog",
            document_tokens=700,
        ),
        stored[0][1],
    )
    store.put(MODEL, METHOD, stored)
    store.put_failures(MODEL, METHOD, [(result("bad")[0], "it has no token")])
    return stored


def written(store: Store, path: Path, **options) -> Path:
    export(store, listing(store), path, poslens="1.2.3", **options)
    return path


def taken_from(store: Store, path: Path) -> Taken:
    """An import without the child process that reads the file first."""
    with path.open("rb") as stream:
        return take_stream(store, stream, path.name)


# -- export and import -------------------------------------------------------------------------


def test_an_import_restores_everything_and_a_second_one_adds_nothing(
    store: Store, result, tmp_path: Path
) -> None:
    stored = filled(store, result)
    path = written(store, tmp_path / "results.parquet")
    other = Store(tmp_path / "other")
    first = import_file(other, path)
    assert (first.rows, first.added, first.conflicts) == (6, 6, 0)
    for pair, attribution in stored:
        assert same(other, pair, attribution)
    pairs = [pair for pair, _ in stored]
    np.testing.assert_array_equal(
        other.curves(MODEL, METHOD, pairs).curves, store.curves(MODEL, METHOD, pairs).curves
    )
    bad = result("bad")[0]
    assert other.curves(MODEL, METHOD, [bad]).failed == {"bad": "it has no token"}
    (file,) = listing(other)
    assert (file.model, file.model.name, file.model.about) == (MODEL, "M", ABOUT)
    again = taken_from(other, path)
    assert (again.rows, again.added, again.conflicts) == (6, 0, 0)
    # An export of the new cache has the same results.
    second = pq.read_table(written(other, tmp_path / "again.parquet"))
    assert second.equals(pq.read_table(path))


def test_an_export_can_be_read_by_any_parquet_reader(store: Store, result, tmp_path: Path) -> None:
    stored = filled(store, result)
    path = written(store, tmp_path / "results.parquet")
    frame = pd.read_parquet(path).set_index("pair_id")
    pair, attribution = stored[0]
    row = frame.loc[pair.pair_id]
    assert (row["model"], row["method"], row["kind"]) == ("M", METHOD.core, "attribution")
    assert (row["language"], row["domain"], row["document_tokens"]) == ("eng", "fog", 700)
    assert (row["evidence_start"], row["evidence_end"]) == (2, 9)
    assert row["characters"] == len(pair.document) and not row["truncated"]
    assert row["score"] == attribution.score
    np.testing.assert_array_equal(row["curve"], document_curve(attribution, METHOD))
    assert frame.loc["bad", "reason"] == "it has no token" and frame.loc["bad", "curve"] is None
    assert json.loads(row["variant"]) == dict(METHOD.curve_params)
    says = json.loads(pq.read_schema(path).metadata[b"poslens"])
    assert says["poslens"] == "1.2.3"
    assert says["sources"] == [
        {
            "model": "M",
            "fingerprint": MODEL.fingerprint,
            "about": json.loads(ABOUT),
            "method": ["saliency", dict(METHOD.params)],
            "core": METHOD.core,
        }
    ]
    columns = pq.ParquetFile(path).metadata.row_group(0)
    assert {columns.column(i).compression for i in range(columns.num_columns)} == {"ZSTD"}


def test_a_single_data_set_can_be_exported(store: Store, result, tmp_path: Path) -> None:
    filled(store, result)
    store.put(MODEL, METHOD, [result("q", dataset="another")])
    seen: list[tuple[int, int]] = []
    path = written(
        store, tmp_path / "a.parquet", datasets=["another"], report=lambda *at: seen.append(at)
    )
    assert pd.read_parquet(path)["pair_id"].tolist() == ["q"]
    assert seen[-1] == (7, 7), "progress counts all results that are read"
    with pytest.raises(UserError, match="The cache has no results of the data set none"):
        written(store, tmp_path / "b.parquet", datasets=["none"])
    assert not (tmp_path / "b.parquet").exists() and not list(tmp_path.glob(".*.part"))


def test_several_models_and_other_kinds_of_results_are_transferred(
    store: Store, result, tmp_path: Path
) -> None:
    stored = filled(store, result)
    second = ModelKey("N", "f" * 16)
    store.put(second, make_method("occlusion"), [result("p0")])
    vectors = EmbeddingStore(store.root)
    vector = np.arange(4, dtype=np.float32)
    vectors.put(MODEL, "query", [("a text", vector)])
    points = np.arange(6, dtype=np.float32).reshape(3, 2)
    vectors.put_map(MODEL, "key", points)
    pair = stored[0][0]

    counts(store.root).put(MODEL, METHOD, [(pair, Count(2))])
    counts(store.root).put_failures(MODEL, METHOD, [(stored[1][0], "too short")])
    path = written(store, tmp_path / "all.parquet")
    other = Store(tmp_path / "other")
    taken = taken_from(other, path)
    assert taken.added == taken.rows == 6 + 1 + 2 + 2
    assert taken_from(other, path).added == 0
    got = EmbeddingStore(other.root).select(MODEL, "query", ["a text"])["a text"]
    assert got.tobytes() == vector.tobytes()
    found = EmbeddingStore(other.root).get_map(MODEL, "key")
    assert found is not None and found.tobytes() == points.tobytes()
    kept = counts(other.root).select(MODEL, METHOD, [p for p, _ in stored[:2]])
    assert kept.results == {"p0": Count(2)} and kept.failed == {"p1": "too short"}
    assert {file.model for file in listing(other)} == {MODEL, second}
    assert EMBEDDING in {file.method for file in listing(other)}


def test_a_pair_with_another_text_is_counted_and_kept(store: Store, result, tmp_path: Path) -> None:
    filled(store, result)
    path = written(store, tmp_path / "results.parquet")
    other = Store(tmp_path / "other")
    own = result("p1", document="Quite another text of the same pair")
    other.put(MODEL, METHOD, [own])
    taken = taken_from(other, path)
    assert (taken.rows, taken.added, taken.conflicts) == (6, 5, 1)
    assert "1 were skipped: the cache has other texts" in taken.sentence()
    assert same(other, *own)


def test_a_result_replaces_a_failure(store: Store, result, tmp_path: Path) -> None:
    stored = filled(store, result)
    path = written(store, tmp_path / "results.parquet")
    other = Store(tmp_path / "other")
    other.put_failures(MODEL, METHOD, [(stored[2][0], "out of memory")])
    other.put(MODEL, METHOD, [result("bad")])
    assert taken_from(other, path).added == 5  # its failure of `bad` is not new
    assert same(other, *stored[2])
    assert other.curves(MODEL, METHOD, [result("bad")[0]]).failed == {}


def test_matrices_and_other_curves_are_transferred(store: Store, result, tmp_path: Path) -> None:
    pair, attribution = result("p")
    matrix = np.random.default_rng(0).normal(
        size=(len(attribution.query.tokens), len(attribution.document.tokens))
    )
    attribution = replace(attribution, matrix=matrix)
    store.put(MODEL, METHOD, [(pair, attribution)])
    other = Store(tmp_path / "other")
    taken_from(other, written(store, tmp_path / "m.parquet"))
    found = other.get(MODEL, METHOD, pair)
    assert found is not None and found.matrix is not None and attribution.matrix is not None
    assert found.matrix.tobytes() == attribution.matrix.tobytes()
    point = make_method("saliency", {"resampling": "point"})
    np.testing.assert_array_equal(
        other.curves(MODEL, point, [pair]).curves[0], document_curve(attribution, point)
    )


# -- damaged and foreign files -----------------------------------------------------------------


def rejected(store: Store, data: bytes, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        take_stream(store, io.BytesIO(data), "f.parquet")
    assert "\n" not in str(caught.value)
    assert not store.root.exists(), "something was added"


def test_every_changed_byte_is_detected(
    store: Store, result, tmp_path: Path, forked: Forked
) -> None:
    """Read in a child as in an import, since a changed footer can crash the reading process."""
    filled(store, result, 2)
    whole = written(store, tmp_path / "results.parquet").read_bytes()
    program = """
import io, sys
from pathlib import Path
import numpy as np
from poslens.attribution.errors import UserError
from poslens.cache.exchange.transfer import take_stream
from poslens.cache.storage.store import Store
whole = Path(sys.argv[1]).read_bytes()
rows = []
for place in np.random.default_rng(int(sys.argv[2])).integers(0, len(whole), 80).tolist():
    damaged = bytearray(whole)
    damaged[place] ^= 1 << place % 8
    try:
        take_stream(Store(Path(sys.argv[3])), io.BytesIO(bytes(damaged)), "f")
        rows.append(place)
    except UserError:
        pass
print(rows)
"""
    survived = 0
    for seed in range(1, 3):
        status, printed, errors = forked.run(
            *(str(tmp_path / "results.parquet"), str(seed), str(tmp_path / f"other{seed}")),
            code=program,
        )
        assert "Traceback" not in errors, errors
        if status == 0:
            survived += 1
            places = json.loads(printed)
            # Irrelevant bytes of the footer (the writer's name, statistics) may change.
            footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
            assert all(place >= footer for place in places)
            # Results accepted despite such changes equal the stored ones.
            other = Store(tmp_path / f"other{seed}")
            for k in range(2):
                pair, attribution = result(f"p{k}")
                if places:
                    assert same(other, pair, attribution)
    assert survived


def test_truncated_and_foreign_files_are_refused_in_one_sentence(
    store: Store, result, tmp_path: Path
) -> None:
    source = Store(tmp_path / "source")
    filled(source, result)
    whole = written(source, tmp_path / "results.parquet").read_bytes()
    for data in (b"", b"PAR1", whole[: len(whole) // 2], whole[:-1], b"x" * 5000, whole + b"x"):
        rejected(store, data, "f.parquet is damaged or not a Parquet file: copy or export it again")
    foreign = io.BytesIO()
    pq.write_table(pa.table({"curve": [1.0]}), foreign)
    rejected(store, foreign.getvalue(), "is not a file that PosLens exported")
    # The same rows written by another program, without a seal.
    copied = io.BytesIO()
    pq.write_table(pq.read_table(tmp_path / "results.parquet").replace_schema_metadata({}), copied)
    rejected(store, copied.getvalue(), "is not a file that PosLens exported")


def test_a_file_of_a_newer_version_is_refused_in_one_sentence(
    store: Store, result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Store(tmp_path / "source")
    filled(source, result)
    monkeypatch.setattr("poslens.cache.exchange.parquet_file.FORMAT", parquet_file.FORMAT + 1)
    data = written(source, tmp_path / "new.parquet").read_bytes()
    monkeypatch.undo()
    rejected(store, data, "was written by a newer PosLens: update this one")


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "../../../../etc"},
        {"method": ["../up", {}]},
        {"model": "a\nb"},
        {"core": "saliency(norm=other)"},
    ],
)
def test_names_that_leave_the_folder_are_refused(
    store: Store, result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict
) -> None:
    import poslens.cache.exchange.parquet_file

    source = Store(tmp_path / "source")
    filled(source, result)
    real = poslens.cache.exchange.parquet_file._described
    monkeypatch.setattr(
        poslens.cache.exchange.parquet_file, "_described", lambda source: real(source) | change
    )
    data = written(source, tmp_path / "bad.parquet").read_bytes()
    monkeypatch.undo()
    rejected(store, data, "is damaged or not a Parquet file")


def test_a_payload_stored_under_another_pair_is_refused(
    store: Store, result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An intact file whose rows were swapped before it was sealed."""
    import poslens.cache.exchange.transfer

    source = Store(tmp_path / "source")
    filled(source, result)
    real = poslens.cache.exchange.transfer.stored

    def exchanged(*args: object) -> Iterator[pa.RecordBatch]:
        for batch in real(*args):
            rows = batch.to_pylist()
            rows[0]["payload"], rows[1]["payload"] = rows[1]["payload"], rows[0]["payload"]
            yield pa.RecordBatch.from_pylist(rows, schema=ROW)

    monkeypatch.setattr(poslens.cache.exchange.transfer, "stored", exchanged)
    data = written(source, tmp_path / "bad.parquet").read_bytes()
    rejected(store, data, "The row of set p0 in f.parquet is damaged")


def test_the_child_refuses_a_damaged_file(store: Store, result, tmp_path: Path) -> None:
    source = Store(tmp_path / "source")
    filled(source, result)
    path = written(source, tmp_path / "results.parquet")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"results\.parquet is damaged"):
        import_file(store, path)
    with pytest.raises(UserError, match=r"gone.parquet cannot be read \(No such file"):
        import_file(store, tmp_path / "gone.parquet")
    assert not store.root.exists()


def test_an_export_to_a_missing_folder_is_refused_in_one_sentence(
    store: Store, result, tmp_path: Path
) -> None:
    filled(store, result)
    with pytest.raises(UserError, match=r"cannot be written \(No such file or directory\)"):
        written(store, tmp_path / "none" / "f.parquet")
    with pytest.raises(UserError, match="The cache has no results to export"):
        written(Store(tmp_path / "empty"), tmp_path / "f.parquet")


def test_an_export_can_be_stopped_and_leaves_nothing(store: Store, result, tmp_path: Path) -> None:
    filled(store, result)
    with pytest.raises(Stopped), stoppable(lambda: True):
        written(store, tmp_path / "f.parquet")
    assert list(tmp_path.glob("*.part")) == [] and not (tmp_path / "f.parquet").exists()


# -- merging -----------------------------------------------------------------------------------


def test_two_caches_are_merged(store: Store, result, tmp_path: Path) -> None:
    stored = filled(store, result)
    other = Store(tmp_path / "other")
    own = [result("p1"), result("q1"), result("q2")]
    other.put(MODEL, METHOD, own)
    before = listing(other)[0].results
    seen: list[tuple[int, int]] = []
    taken, problems = merge(store, other, report=lambda *at: seen.append(at))
    assert (taken.rows, taken.added, taken.conflicts, problems) == (3, 2, 0, [])
    assert seen[-1] == (3, 3)
    assert merge(store, other)[0].added == 0
    for pair, attribution in [*stored, *own[1:]]:
        assert same(store, pair, attribution)
    assert listing(store)[0].results == 7 and listing(other)[0].results == before


def test_merging_reports_what_cannot_be_merged(store: Store, result, tmp_path: Path) -> None:
    filled(store, result)
    with pytest.raises(UserError, match="This is the current cache"):
        merge(store, Store(store.root))
    with pytest.raises(UserError, match="is not a cache: use the folder `cache`"):
        merge(store, Store(tmp_path / "nothing"))
    other = Store(tmp_path / "other")
    filled(other, result)
    bad = other.path(MODEL, make_method("occlusion"))
    bad.write_bytes(b"not a database" * 100)
    taken, problems = merge(store, other)
    assert taken.added == 0 and len(problems) == 1 and "not a cache file" in problems[0]


def test_a_damaged_result_is_not_merged(store: Store, tmp_path: Path, result) -> None:
    other = Store(tmp_path / "other")
    other.put(MODEL, METHOD, [result("a"), result("b")])
    with other.changing(MODEL, METHOD) as db:
        db.execute(
            "UPDATE result SET payload = substr(payload, 1, length(payload) - 1) WHERE item = 'b'"
        )
    with pytest.raises(UserError, match=r"The row of set b in saliency-.*\.db is damaged"):
        merge(store, other)
    assert listing(store) == []


@pytest.mark.parametrize(
    "change",
    [
        {"payload": b"short"},
        {"pair_id": "x"},
        {"text": "0" * 16},
        {"score": None},
        {"payload": None},
    ],
)
def test_each_row_is_checked_before_any_is_stored(store: Store, result, change: dict) -> None:
    store.put(MODEL, METHOD, [result("a"), result("b")])
    (batch,) = stored_rows(store, MODEL, METHOD)
    first, second = batch.to_pylist()
    bad = pa.RecordBatch.from_pylist([first, second | change], schema=ROW)
    with pytest.raises(UserError, match=r"The row of set .* in the file is damaged"):
        require_whole(bad, "the file")

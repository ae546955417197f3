"""Forged data is refused before it is stored, and never breaks its readers."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.types import Method
from poslens.cache.exchange.fitting import fitting
from poslens.cache.exchange.incoming import checked
from poslens.cache.exchange.parquet_file import RowSource, SealedWriter, opened
from poslens.cache.exchange.transfer import import_file, rows_of
from poslens.cache.kinds.embeddings import EmbeddingStore
from poslens.cache.kinds.interventions import AmongOthers, OtherScores
from poslens.cache.kinds.interventions import others as others_of
from poslens.cache.storage import codec
from poslens.cache.storage.codec import DamagedPayload, decode, identity_of
from poslens.cache.storage.maintenance import listing
from poslens.cache.storage.rows import ROW
from poslens.cache.storage.store import ModelKey, Store

pytestmark = pytest.mark.usefixtures("shared_children")
METHOD = make_method("saliency")
MODEL = ModelKey("M", "0123456789abcdef", json.dumps({"spec": {"name": "M"}, "weights": "w"}))
SOURCE = RowSource(MODEL, Method(METHOD.name, METHOD.params))


def file_of(source: RowSource, *batches: pa.RecordBatch) -> bytes:
    """A sealed file with valid checksums, whatever it contains."""
    stream = io.BytesIO()
    with SealedWriter(stream, [source], "1.0") as writer:
        for rows in batches:
            writer.write(source, rows)
    return stream.getvalue()


def changed(rows: pa.RecordBatch, **values: Any) -> pa.RecordBatch:
    """The rows with changed values in the first one."""
    listed = rows.to_pylist()
    listed[0] |= values
    return pa.RecordBatch.from_pylist(listed, schema=ROW)


Arrays = dict[str, np.ndarray]


def packed(pair: Any, arrays: Arrays, header: dict[str, Any]) -> bytes:
    """A payload with a valid checksum, whatever it contains."""
    text = json.dumps(header).encode()
    names = (
        "query_spans",
        "document_spans",
        "query_scores",
        "document_scores",
        "matrix",
        "strings",
    )
    parts = [arrays[name].tobytes() for name in names if name in arrays]
    raw = b"".join([len(text).to_bytes(4, "little"), text, *parts])
    return codec._sealed(len(raw), codec._CODEC.compress(raw, asbytes=True), identity_of(pair))


def parts_of(data: bytes, pair: Any) -> tuple[Arrays, dict[str, Any]]:
    header, *texts, scores = codec._parts(codec._raw(data, identity_of(pair)))
    query, document = map(codec.pack_text, texts)
    arrays = {
        "query_spans": np.frombuffer(query.spans, np.int32).copy(),
        "document_spans": np.frombuffer(document.spans, np.int32).copy(),
        "query_scores": scores[0].copy(),
        "document_scores": scores[1].copy(),
        "strings": np.frombuffer(query.strings + document.strings, np.uint8).copy(),
    }
    return arrays, header


@pytest.fixture
def rows(store: Store, result) -> pa.RecordBatch:
    store.put(MODEL, METHOD, [result("p0"), result("p1")])
    (file,) = listing(store)
    ((_, found),) = rows_of(store, file)
    return found


def beside(kind: str, payload: bytes, **values: Any) -> pa.RecordBatch:
    row: dict[str, Any] = dict.fromkeys(ROW.names)
    row |= {"kind": kind, "dataset": "set", "pair_id": "p", "text": "t", "payload": payload}
    return pa.RecordBatch.from_pylist([row | values], schema=ROW)


def floats(*values: float) -> bytes:
    return codec.pack_floats(np.array(values, np.float32))


RANKING = {"query_id": "p", "document_ids": ["d"], "scores": [1.0], "languages": [None]}


def made_up(payload: bytes) -> bytes:
    """A payload with a valid checksum, whatever it contains."""
    return zlib.crc32(payload).to_bytes(4, "big") + payload


def test_files_that_poslens_wrote_are_accepted(rows: pa.RecordBatch) -> None:
    more = [
        beside("other: ranking", codec.pack_fields(RANKING)),
        beside("embedding: query", floats(1, 2, 3)),
        beside("map", floats(1, 2)),
        beside("other: ranking", None, reason="it has no token"),  # type: ignore[arg-type]
    ]
    assert list(checked(file_of(SOURCE, rows), "x", "")) == [b""]
    data = file_of(SOURCE, rows, *more)
    assert list(checked(data, "x", "")) == [(6).to_bytes(8, "big")]
    (bits,) = fitting(data, "x", "")
    assert np.unpackbits(np.frombuffer(bits, np.uint8), count=6).all()


@pytest.mark.parametrize(
    "values",
    [
        {"evidence_start": 9, "evidence_end": 2},
        {"evidence_start": 1},
        {"characters": -5},
        {"document_tokens": -1},
        {"score": float("inf")},
        {"language": "x" * 100_000},
        {"variant": '{"a": Infinity}'},
        {"variant": "[" * 100_000},
        {"variant": '{"a": {"b": []}}'},
        {"curve": [float("nan")] * 100},
        {"text": "0"},
        {"reason": "x"},
    ],
    ids=str,
)
def test_forged_summaries_are_refused(rows: pa.RecordBatch, values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="is damaged"):
        list(checked(file_of(SOURCE, changed(rows, **values)), "x", ""))


MADE_UP = (
    beside("other: ranking", codec.pack_fields(RANKING | {"scores": [float("inf")]})),
    beside("other: ranking", codec.pack_fields(RANKING | {"more": 1})),
    beside("other: ranking", codec.pack_fields(RANKING), reason="both"),
    beside("other: ranking", None, reason="x" * 5001),  # type: ignore[arg-type]
    beside("other: ranking", made_up(b"[1]")),
    beside("other: ranking", made_up(b"\xff")),
    beside("other: ranking", made_up(b"[" * 100_000)),
    beside("other: nothing known", codec.pack_fields(RANKING)),
    beside("other: faithfulness x", codec.pack_fields(RANKING)),
    beside("other: ranking", codec.pack_fields(RANKING), pair_id="x" * 4001),
    beside("embedding: query", floats(1, float("nan"))),
    beside("embedding: query", floats()),
    beside("embedding: else", floats(1)),
    beside("map", floats(1, 2, 3)),
    beside("nothing known", floats(1)),
)


@pytest.mark.parametrize("row", MADE_UP)
def test_forged_results_of_other_kinds_do_not_fit(row: pa.RecordBatch) -> None:
    data = file_of(SOURCE, row, beside("map", floats(1, 2)))
    (bits,) = fitting(data, "x", "")
    assert np.unpackbits(np.frombuffer(bits, np.uint8), count=2).tolist() == [0, 1]


def test_forged_results_of_other_kinds_are_rejected_and_counted(
    rows: pa.RecordBatch, tmp_path: Path
) -> None:
    path, store = tmp_path / "made-up.parquet", Store(tmp_path / "taken")
    path.write_bytes(file_of(SOURCE, rows, *MADE_UP, beside("map", floats(1, 2))))
    taken = import_file(store, path)
    n = len(MADE_UP)
    assert (taken.rows, taken.added, taken.rejected) == (n + 3, 3, n)
    assert f"{n} were rejected" in taken.sentence()


@pytest.mark.parametrize("kind", ["other: ranking", "embedding: query", "map"])
def test_a_wrong_checksum_of_another_kind_of_result_is_damage(kind: str) -> None:
    with pytest.raises(UserError, match="is damaged"):
        list(checked(file_of(SOURCE, beside(kind, b"12345678")), "x", ""))


@pytest.mark.parametrize(
    "about",
    [
        {"spec": {"max_length": float("inf")}},
        {"spec": {"max_length": 10**400}},
        {"spec": {"name": "x" * 100_000}},
        {"spec": {"name": [["M"]]}},
        {"spec": {"a": {"b": {}}}},
        {"weights": "\0"},
        {str(n): n for n in range(1000)},
    ],
    ids=lambda about: str(about)[:40],
)
def test_forged_models_are_refused(rows: pa.RecordBatch, about: dict[str, Any]) -> None:
    source = RowSource(replace(MODEL, about=json.dumps(about)), SOURCE.method)
    with pytest.raises(UserError, match="is damaged"):
        list(checked(file_of(source, rows), "x", ""))


Change = Callable[[Arrays, dict[str, Any]], object]
CHANGES: dict[str, Change] = {
    "score": lambda arrays, header: header.update(score="high"),
    "no score": lambda arrays, header: header.update(score=None),
    "infinite share": lambda arrays, header: header.update(bias_share=float("inf")),
    "seconds": lambda arrays, header: header.update(seconds=[1]),
    "full": lambda arrays, header: header["document"].__setitem__(2, "9"),
    "query": lambda arrays, header: header.update(query=[]),
    "negative length": lambda arrays, header: header["query"].__setitem__(0, -1),
    "huge length": lambda arrays, header: header["document"].__setitem__(0, 1 << 40),
    "spans": lambda arrays, header: arrays.update(query_spans=arrays["query_spans"] - 5),
    "scores": lambda arrays, header: arrays.update(query_scores=arrays["query_scores"] * np.nan),
    "matrix": lambda arrays, header: header.update(matrix=True),
    "fewer tokens": lambda arrays, header: header["query"].__setitem__(0, 5),
    "no UTF-8": lambda arrays, header: arrays["strings"].fill(255),
}


@pytest.mark.parametrize("name", CHANGES)
def test_forged_results_count_as_damaged(store: Store, result, name: str) -> None:
    pair, attribution = result("p0")
    arrays, header = parts_of(codec.encode(attribution, pair), pair)
    CHANGES[name](arrays, header)
    data = packed(pair, arrays, header)
    with pytest.raises(DamagedPayload):
        decode(data, "M", METHOD, "p0", identity_of(pair))
    store.put(MODEL, METHOD, [(pair, attribution)])
    (file,) = listing(store)
    ((_, rows),) = rows_of(store, file)
    with pytest.raises(UserError, match="is damaged"):
        list(checked(file_of(SOURCE, changed(rows, payload=data)), "x", ""))


def test_a_few_kilobytes_that_expand_to_gigabytes_are_refused(result) -> None:
    pair, attribution = result("p0")
    arrays, header = parts_of(codec.encode(attribution, pair), pair)
    matrix = np.zeros((4097, 4096), np.float32)
    data = packed(pair, arrays | {"matrix": matrix}, header | {"matrix": True})
    assert len(data) < 10_000
    with pytest.raises(DamagedPayload) as error:
        decode(data, "M", METHOD, "p0", identity_of(pair))
    assert "unpacks to" in str(error.value.__cause__), "refused before it was unpacked"


def test_rows_that_expand_to_many_times_the_file_are_refused() -> None:
    row = beside("other: ranking", None, reason="x" * 4000)  # type: ignore[arg-type]
    many = pa.Table.from_batches([row] * 20_000).combine_chunks().to_batches()[0]
    stream = io.BytesIO()
    with SealedWriter(stream, [SOURCE], "1.0") as writer:
        writer._writer.write_table(
            pa.Table.from_arrays(
                [
                    *(
                        pa.repeat(pa.scalar(v), many.num_rows)
                        for v in (MODEL.name, MODEL.fingerprint, SOURCE.method.core)
                    ),
                    *many.columns,
                ],
                schema=writer._writer.schema,
            )
        )
        writer.rows = many.num_rows
    data = stream.getvalue()
    assert len(data) < 100_000
    with pytest.raises(UserError, match="is damaged"), opened(io.BytesIO(data), "x") as sealed:
        list(sealed.batches())


def test_vectors_of_another_length_are_left_out(tmp_path: Path) -> None:
    from poslens.cache.exchange.rows import add
    from poslens.cache.kinds.embeddings import EMBEDDING

    kept, store = EmbeddingStore(tmp_path), Store(tmp_path)
    kept.put(MODEL, "query", [("fog", np.ones(3, np.float32))])
    rows = beside("embedding: query", floats(1, 2), pair_id="0" * 32)
    assert add(store, MODEL, EMBEDDING, [rows]) == (0, 1)


@pytest.mark.parametrize("fields", ["[]", '"a"', '{"other": 1}', '{"scores": [NaN]}', "[" * 9999])
def test_an_unusable_result_counts_as_missing(tmp_path: Path, result, fields: str) -> None:
    """It is computed again, and pages still show the other results."""
    results = others_of(tmp_path)
    items = [AmongOthers(result(f"p{n}")[0], ["x", "y"]) for n in range(3)]
    results.put(MODEL, METHOD, [(item, OtherScores(np.ones(2, np.float32))) for item in items])
    text = fields.encode()
    with Store(tmp_path).writing(MODEL, METHOD) as db:
        db.execute(
            "UPDATE result SET payload = ? WHERE item = 'p1'",
            (zlib.crc32(text).to_bytes(4, "big") + text,),
        )
    assert set(results.select(MODEL, METHOD, items).results) == {"p0", "p2"}
    assert results.get(MODEL, METHOD, items[1]) is None
    assert results.missing(MODEL, METHOD, items) == [items[1]]

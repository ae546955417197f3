"""Which rows of a file are valid results of their kind: invalid rows from third parties must not
break a page.

This module imports torch, so files that contain only attributions are read without it.
"""

from __future__ import annotations

import io
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.types import Method
from poslens.cache import kinds
from poslens.cache.exchange.parquet_file import RowSource, opened
from poslens.cache.kinds.faithfulness import (
    FAITHFULNESS,
    RANDOM_ORDER,
    random_orders_schema,
    schema_of,
)
from poslens.cache.storage.codec import unpack_fields, unpack_floats
from poslens.cache.storage.rows import ATTRIBUTION, EMBEDDING, MAP, OTHER
from poslens.cache.storage.schema import SCHEMAS, Misfit, Owner, Schema

for _module in pkgutil.iter_modules(kinds.__path__):  # each registers its schemas
    import_module(f"{kinds.__name__}.{_module.name}")

_MAX_NAME, _MAX_REASON, _MAX_FIELDS = 4000, 5000, 64 << 20
_SIDES = ("query", "document")
_NAMES = ("kind", "dataset", "pair_id", "text")


def fitting(data: bytes, name: str, path: str) -> Iterator[bytes]:
    """Yield one bit for each row of the file in `data`, or at `path`: whether it is a valid result
    of its kind. Runs in the child process, after `incoming.checked`.

    Raises:
        UserError: the file is damaged.
    """
    with (
        Path(path).open("rb") if path else io.BytesIO(data) as stream,
        opened(stream, name) as sealed,
    ):
        arrays = [fits(source, rows) for source, rows in sealed.batches()]
    yield np.packbits(np.concatenate(arrays) if arrays else np.zeros(0, np.bool_)).tobytes()


def fits(source: RowSource, rows: pa.RecordBatch) -> NDArray[np.bool_]:
    """Which of these rows (schema `parquet_file.ROW`) are valid results of their kind [N].
    Attributions always are: `incoming.require_whole` validates them."""
    columns = [*_NAMES, "payload", "reason"]
    return np.array(
        [_fits(source, row) for row in rows.select(columns).to_pylist()], dtype=np.bool_
    )


def _fits(source: RowSource, row: dict[str, Any]) -> bool:
    if any(row[name] is None or len(row[name]) > _MAX_NAME for name in _NAMES):
        return False
    kind, payload, reason = row["kind"], row["payload"], row["reason"]
    if kind == ATTRIBUTION:
        return True
    if kind.startswith(OTHER):
        return _is_result(source, kind.removeprefix(OTHER), row)
    values = unpack_floats(payload)
    if values is None or reason is not None or not np.isfinite(values).all():
        return False
    if kind == MAP:
        return len(values) % 2 == 0
    return kind.removeprefix(EMBEDDING) in _SIDES and len(values) > 0


def _is_result(source: RowSource, kind: str, row: dict[str, Any]) -> bool:
    schema = schema_for(kind, source.method)
    payload, reason = row["payload"], row["reason"]
    if schema is None or (payload is None) == (reason is None):
        return False
    if payload is None:
        return len(reason) <= _MAX_REASON
    fields = unpack_fields(payload) if len(payload) <= _MAX_FIELDS else None
    if fields is None:
        return False
    try:
        schema.unpack(fields, Owner(source.model, source.method, row["pair_id"]))
    except Misfit:
        return False
    return True


def schema_for(kind: str, method: Method) -> Schema[Any] | None:
    """The schema of a kind of results under a method; None if this version doesn't support the
    kind."""
    if not kind.startswith(FAITHFULNESS):
        return SCHEMAS.get(kind)
    try:
        parameters = ErasureParameters.parse(kind.removeprefix(FAITHFULNESS))
    except UserError:
        return None
    return random_orders_schema(parameters) if method == RANDOM_ORDER else schema_of(parameters)

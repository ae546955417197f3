"""Validation of result files from third parties before any of their rows are stored.

A child process (attribution/isolated.py) first reads each file to its end and decodes every result
in it. A file with a damaged row is rejected as a whole. Intact rows that are neither attributions
nor valid results of another kind are skipped and counted, so that no page reads them later.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poslens.attribution.errors import UserError, printable
from poslens.attribution.isolated import Limits, Reader
from poslens.attribution.paths import open_regular
from poslens.attribution.types import Method
from poslens.cache.exchange.parquet_file import are_plain, damaged, opened
from poslens.cache.storage.codec import DamagedPayload, decode, identity, is_whole
from poslens.cache.storage.rows import ATTRIBUTION, is_intact

LIMITS = Limits(memory=3 << 30, seconds=None)
UPLOAD = Limits(memory=1 << 30, seconds=120)
"""Limits for a file uploaded from a browser."""

_MAX_NAME, _MAX_REASON = 4000, 5000
_AT_ONCE = 1000
_CHECKED = tuple(
    "kind dataset pair_id text language domain document_tokens tokens evidence_start "
    "evidence_end characters reason score variant curve magnitudes payload".split()
)
_NUMBERS = ("document_tokens", "tokens", "evidence_start", "evidence_end", "characters")
_TEXT = re.compile(r"[0-9a-f]{16}")
_METHOD = Method("imported")


def require_readable(reader: Reader, content: Path | bytes, name: str) -> NDArray[np.bool_] | None:
    """Read a result file to its end in a child process, including all rows and checksums. Returns
    which of its rows [N] are valid results of their kind, or None if all of them are attributions.

    Raises:
        UserError: the file is damaged, of another program, or crashed the child process.
    """
    arguments = [name, str(content.absolute()) if isinstance(content, Path) else ""]
    data = b"" if isinstance(content, Path) else content
    answer = reader.call(checked, arguments, data, damaged=damaged(name))
    if not answer:
        return None
    from poslens.cache.exchange.fitting import fitting  # imports torch, as adding these rows does

    # A separate child process: its resource limits apply after its imports.
    with Reader(reader.limits) as other:
        bits = other.call(fitting, arguments, data, damaged=damaged(name))
    n = int.from_bytes(answer, "big")
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=n).astype(np.bool_)


def checked(data: bytes, name: str, path: str) -> Iterator[bytes]:
    """Read the file in `data`, or at `path`. Yields the number of its rows (8 bytes) if some are
    not attributions, else nothing. Runs in the child process.

    Raises:
        UserError: as `require_readable`.
    """
    n, has_others = 0, False
    try:
        with (
            open_regular(path) if path else io.BytesIO(data) as stream,
            opened(stream, name) as sealed,
        ):
            for _, rows in sealed.batches():
                require_whole(rows, name, decoded=True)
                n += rows.num_rows
                has_others = has_others or set(rows.column("kind").to_pylist()) != {ATTRIBUTION}
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}).") from error
    yield n.to_bytes(8, "big") if has_others else b""


def require_whole(rows: pa.RecordBatch, name: str, *, decoded: bool = False) -> None:
    """Check each row (schema `parquet_file.ROW`): the payload must match the checksum computed by
    its producer, and an attribution's numbers must be finite. With `decoded`, the payload must also
    decode.

    Raises:
        UserError: a row is not what was stored.
    """
    for start in range(0, rows.num_rows, _AT_ONCE):
        for row in rows.slice(start, _AT_ONCE).select(_CHECKED).to_pylist():
            if not _is_whole(row, decoded):
                names = (str(row[name] or "")[:80] for name in ("dataset", "pair_id"))
                bad = printable(" ".join(names)).strip() or printable(str(row["kind"])[:80])
                raise UserError(f"The row of {bad} in {name} is damaged: copy or export it again.")


def _is_whole(row: dict[str, Any], decoded: bool) -> bool:
    if row["kind"] == ATTRIBUTION:
        return _is_attribution(row, decoded)
    kind, payload = row["kind"] or "", row["payload"]
    if payload is None:
        return row["reason"] is not None
    return is_intact(kind, "", "", "", payload)


def _is_attribution(row: dict[str, Any], decoded: bool) -> bool:
    names = [row[name] for name in ("dataset", "pair_id", "language", "domain")]
    if None in (*names[:2], row["text"]) or not _TEXT.fullmatch(row["text"]):
        return False
    if any(len(name) > _MAX_NAME for name in names if name is not None):
        return False
    if any(row[name] is not None and row[name] < 0 for name in _NUMBERS):
        return False
    start, end, characters = row["evidence_start"], row["evidence_end"], row["characters"]
    if (start is None) != (end is None):
        return False
    if start is not None and (start >= end or end > (end if characters is None else characters)):
        return False
    for values in (row["curve"], row["magnitudes"]):
        if values is not None and not np.isfinite(np.array(values, np.float32)).all():
            return False
    # Magnitudes are unsigned; a negative one would break every index computed from them.
    if row["magnitudes"] is not None and min(row["magnitudes"]) < 0:
        return False
    if row["variant"] is not None and not _is_variant(row["variant"]):
        return False
    if row["reason"] is not None:
        return row["payload"] is None and len(row["reason"]) <= _MAX_REASON
    key = identity(row["dataset"], row["pair_id"], row["text"])
    score = row["score"]
    if score is None or not math.isfinite(score) or not is_whole(row["payload"], key):
        return False
    if decoded:
        try:
            decode(row["payload"], "", _METHOD, row["pair_id"], key)
        except DamagedPayload:
            return False
    return True


def _is_variant(text: str) -> bool:
    """Whether `text` contains curve parameters as JSON."""
    try:
        parameters = json.loads(text) if len(text) <= _MAX_NAME else None
    except (ValueError, RecursionError):
        return False
    return are_plain(parameters)

"""Identities of the models behind endpoints, cached on disk.

Where weights are remote, the answer to a fixed text distinguishes models. Servers reproduce an
answer only approximately, so it can't be hashed directly: an answer close to a cached one gets the
same fingerprint, and any other answer a new fingerprint, under which no results are stored yet.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.endpoint_client import far
from poslens.attribution.retrievers.specs import data_folder
from poslens.attribution.types import Array
from poslens.cache.exchange.atomic_file import json_object, replacing

_MAX_MODELS = 50
"""Maximum number of models stored per endpoint; the oldest is dropped first."""
_WAIT_S = 10

_guard = threading.Lock()
_known: dict[tuple[Path, str, bytes], str] = {}


def probed_weights(name: str, source: str, values: Array) -> str:
    """16 hexadecimal digits that identify the weights behind `source`, whose answer to the probe is
    `values` [H]. Logs a message if another model answered before."""
    place = data_folder() / "cache" / "endpoints.json"
    key = (place, source, values.tobytes())
    with _guard:
        if key not in _known:
            _known[key] = _looked_up(place, name, source, values)
        return _known[key]


def _looked_up(place: Path, name: str, source: str, values: Array) -> str:
    # If the file can't be locked or written, nothing is cached: a later start then recognizes this
    # model only by an identical answer.
    with suppress(OSError, Timeout, UserError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock", timeout=_WAIT_S):
            return _remembered(place, name, source, values)
    return exact_weights(source, values)


def _remembered(place: Path, name: str, source: str, values: Array) -> str:
    probes = _read(place)
    models = probes.get(source, [])
    for weights, vector in models:
        if not far(values, vector):
            return weights
    weights = exact_weights(source, values)
    if models:
        logging.getLogger(__name__).warning(
            "%s returns other vectors than when its results were stored, so its model has changed "
            "and results are computed again.",
            name,
        )
    probes[source] = [*models, (weights, values)][-_MAX_MODELS:]
    packed = {
        where: [{"weights": weights, "probe": [float(x) for x in v]} for weights, v in rows]
        for where, rows in probes.items()
    }
    with replacing(place) as file:
        file.write(json.dumps(packed).encode())
    return weights


def exact_weights(source: str, values: Array) -> str:
    """16 hexadecimal digits that identify a model by an exact answer [H]."""
    return hashlib.sha256(source.encode() + b"\0" + values.tobytes()).hexdigest()[:16]


def _read(place: Path) -> dict[str, list[tuple[str, Array]]]:
    """The cached answers by source; a damaged file counts as empty."""
    return {
        source: [probe for row in rows if (probe := _row(row)) is not None]
        for source, rows in json_object(place).items()
        if isinstance(rows, list)
    }


def _row(row: Any) -> tuple[str, Array] | None:
    with suppress(ValueError, TypeError, LookupError, OverflowError):
        weights, vector = row["weights"], np.array(row["probe"], dtype=np.float32)
        if isinstance(weights, str) and len(weights) == 16 and np.isfinite(vector).all():
            return weights, vector
    return None

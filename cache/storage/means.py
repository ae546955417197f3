"""Mean curves of many results, in a block of their file: after a restart they are read instead of
the curves that they average.

A block belongs to a `key`, which covers the averaged pairs and how they were averaged, and to the
`state` of the results, so that it is used only while no result was added, replaced or removed. It
is derived data: a missing or damaged block means that the mean is computed again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.curve_summary import CurveSummary
from poslens.attribution.curves.positions import positions
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.types import N_BINS, Method, PositionCurve, as_array
from poslens.cache.storage import blocks
from poslens.cache.storage.blocks import MEAN, SUMMARY, curve_name, magnitudes_name
from poslens.cache.storage.files import Files, ModelKey

if TYPE_CHECKING:
    from poslens.attribution.interventions.null_controls import Control, ControlledCurve

T = TypeVar("T")

MAX_MEANS = 64
"""Maximum number of means in one file; the oldest are dropped."""

_FLOATS = ("mean", "std", "ci_low", "ci_high", "magnitudes", "quartiles")

# A valid checksum does not mean that the values are valid: anyone may have written the file.
_FORGED = (pa.ArrowException, UserError, ValueError, TypeError, LookupError)


def state_of(store: Files, model: ModelKey, method: Method) -> str:
    """The state of the method's results, in the store and in its fallback; empty parts where there
    are none. It changes with each result that is added, replaced or removed, and never returns to
    an earlier value: ids of blocks grow within an epoch."""
    curve = curve_name(method)

    def state_in(files: Files) -> str:
        with files.reading(model, method) as db:
            if db is None:
                return ""
            last = [
                db.execute("SELECT max(id) FROM block WHERE name = ?", (name,)).fetchone()[0] or 0
                for name in (SUMMARY, curve, magnitudes_name(curve))
            ]
            return f"{blocks.epoch(db)}.{'.'.join(map(str, last))}"

    return f"{state_in(store)}/{store.read_fallback(model, method, state_in) or ''}"


def find(
    store: Files, model: ModelKey, method: Method, key: str, state: str, dataset: str
) -> CurveSummary | None:
    """The mean with this key, if it was computed in this state; its curve gets the names of model
    and data set."""
    about = {"model": model.name, "dataset": dataset, "method": method}
    return _read(store, model, method, key, state, partial(_summary, about=about))


def find_controlled(
    store: Files, model: ModelKey, method: Method, key: str, state: str, control: Control
) -> ControlledCurve | None:
    """The mean curve minus that of its controls with this key, if it was computed in this state."""
    return _read(store, model, method, key, state, partial(_controlled, control=control))


def _read(
    store: Files,
    model: ModelKey,
    method: Method,
    key: str,
    state: str,
    mean_of: Callable[[dict[str, Any]], T],
) -> T | None:
    with store.reading(model, method) as db, suppress(*_FORGED):
        for _, rows in blocks.read(db, MEAN + key) if db is not None else ():
            (row,) = [] if rows is None else rows.to_pylist()
            if row["state"] == state:
                return mean_of(json.loads(row["mean"]))
    return None


def put(
    store: Files,
    model: ModelKey,
    method: Method,
    key: str,
    state: str,
    mean: CurveSummary | ControlledCurve,
) -> None:
    """Store the mean of results in this state in place of the one with the same key, so that it is
    read after a restart. Lost without an error if the file can't be written."""
    name, values = MEAN + key, json.dumps(asdict(mean), default=lambda array: array.tolist())
    rows = pa.RecordBatch.from_pylist([{"state": state, "mean": values}], blocks.schema_of(name))
    with suppress(UserError), store.changing(model, method) as db:
        if db is None:
            return
        db.execute("DELETE FROM block WHERE name = ?", (name,))
        blocks.append(db, name, rows)
        db.execute(
            "DELETE FROM block WHERE id IN (SELECT id FROM block WHERE name > ? AND name < ? "
            "ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (MEAN, MEAN + "~", MAX_MEANS),
        )


def _controlled(fields: dict[str, Any], control: Control) -> ControlledCurve:
    # Importing it here keeps torch out of the store.
    from poslens.attribution.interventions.null_controls import ControlledCurve

    names = ("n", "n_documents", "n_truncated", "n_zero")
    n, n_documents, n_truncated, n_zero = (fields[name] for name in names)
    if not (0 < n_documents <= n and 0 <= n_truncated <= n and 0 <= n_zero <= n):
        raise ValueError("no mean of pairs")
    for name in ("mean", "ci_low", "ci_high"):
        if fields[name] is not None or name == "mean":
            fields[name] = as_array(fields[name], (N_BINS,), "a curve")
    if (about := fields["comparison"]) is not None:
        about["difference"] = _estimate(about["difference"])
        about["narrow"] = None if about["narrow"] is None else (*map(float, about["narrow"]),)
        fields["comparison"] = Comparison(**about)
    fields["distance"] = _estimate(fields["distance"])
    return ControlledCurve(**fields | {"control": control})


def _estimate(about: dict[str, Any] | None) -> Estimate | None:
    if about is not None and not math.isfinite(about["value"]):
        raise ValueError("no number")
    return None if about is None else Estimate(**about)


def _summary(fields: dict[str, Any], about: dict[str, Any]) -> CurveSummary:
    curve = fields["curve"] | about
    if None in (curve["mean"], curve["std"]) or not 0 < curve["n_documents"] <= curve["n"]:
        raise ValueError("no mean of pairs")
    curve["positions"] = positions(curve["method"].curve_params["resampling"])
    for name in (*_FLOATS, "n_read"):
        if curve[name] is not None:
            curve[name] = np.array(curve[name], np.float32 if name in _FLOATS else np.int64)
    numbers = (_estimate(fields[name]) for name in ("center_of_mass", "primacy_recency_index"))
    return CurveSummary(PositionCurve(**curve), *numbers)

"""Mean curves of many results, in a block of their file: after a restart they are read instead of
the curves that they average.

A block belongs to a `key`, which covers the averaged pairs and how they were averaged, and to the
`state` of the results, so that it is used only while no result was added, replaced or removed. It
is derived data: a missing or damaged block means that the mean is computed again.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.curve_summary import CurveSummary
from poslens.attribution.curves.positions import positions
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.types import N_BINS, Method, PositionCurve, as_array
from poslens.cache.storage import blocks
from poslens.cache.storage.blocks import CONTROLLED, MEAN, SUMMARY, curve_name, magnitudes_name
from poslens.cache.storage.files import Files, ModelKey

if TYPE_CHECKING:
    from poslens.attribution.interventions.null_controls import Control, ControlledCurve

MAX_MEANS = 64
"""Maximum number of means in one file; the oldest are dropped."""

_COUNTS = ("n", "n_documents", "n_truncated", "n_failed")
_CONTROLLED_COUNTS = ("n", "n_documents", "n_truncated", "n_zero")
_CURVES = {
    **dict.fromkeys(("mean", "std", "ci_low", "ci_high", "magnitudes", "quartiles"), np.float32),
    "n_read": np.int64,
}
_NUMBERS = ("center_of_mass", "primacy_recency_index")

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
    row = _row(store, model, method, MEAN + key, state)
    with suppress(*_FORGED):
        return None if row is None else _summary(row, model.name, dataset, method)
    return None


def find_controlled(
    store: Files, model: ModelKey, method: Method, key: str, state: str, control: Control
) -> ControlledCurve | None:
    """The mean curve minus that of its controls with this key, if it was computed in this state."""
    row = _row(store, model, method, CONTROLLED + key, state)
    with suppress(*_FORGED):
        return None if row is None else _controlled(row, control)
    return None


def _row(
    store: Files, model: ModelKey, method: Method, name: str, state: str
) -> dict[str, Any] | None:
    with store.reading(model, method) as db, suppress(*_FORGED):
        for _, rows in blocks.read(db, name) if db is not None else ():
            (row,) = [] if rows is None else rows.to_pylist()
            if row["state"] == state:
                return dict(row)
    return None


def put(
    store: Files, model: ModelKey, method: Method, key: str, state: str, summary: CurveSummary
) -> None:
    """Store the mean of results in this state in place of the one with the same key, so that it is
    read after a restart. Lost without an error if the file can't be written."""
    curve = summary.curve
    row: dict[str, Any] = {"state": state}
    row |= {name: getattr(curve, name) for name in _COUNTS}
    for name in _CURVES:
        values: NDArray[Any] | None = getattr(curve, name)
        row[name] = None if values is None else values.ravel().tolist()
    for name in _NUMBERS:
        number: Estimate | None = getattr(summary, name)
        row[name] = None if number is None else [number.value, number.low, number.high]
    _put(store, model, method, MEAN + key, row)


def put_controlled(
    store: Files, model: ModelKey, method: Method, key: str, state: str, curve: ControlledCurve
) -> None:
    """The same as `put` for a mean curve minus that of its controls."""
    row: dict[str, Any] = {"state": state}
    row |= {name: getattr(curve, name) for name in _CONTROLLED_COUNTS}
    for name in ("mean", "ci_low", "ci_high"):
        values: NDArray[Any] | None = getattr(curve, name)
        row[name] = None if values is None else values.tolist()
    for name in ("comparison", "distance"):
        number: Comparison | Estimate | None = getattr(curve, name)
        row[name] = None if number is None else json.dumps(asdict(number))
    _put(store, model, method, CONTROLLED + key, row)


def _put(store: Files, model: ModelKey, method: Method, name: str, row: dict[str, Any]) -> None:
    with suppress(UserError), store.changing(model, method) as db:
        if db is None:
            return
        db.execute("DELETE FROM block WHERE name = ?", (name,))
        blocks.append(db, name, pa.RecordBatch.from_pylist([row], blocks.schema_of(name)))
        db.execute(
            "DELETE FROM block WHERE id IN (SELECT id FROM block WHERE name > ? AND name < ? "
            "ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (MEAN, MEAN + "~", MAX_MEANS),
        )


def _controlled(row: dict[str, Any], control: Control) -> ControlledCurve:
    # Importing it here keeps torch out of the store.
    from poslens.attribution.interventions.null_controls import ControlledCurve

    n, n_documents, n_truncated, n_zero = (row[name] for name in _CONTROLLED_COUNTS)
    if not (0 < n_documents <= n and 0 <= n_truncated <= n and 0 <= n_zero <= n):
        raise ValueError("no mean of pairs")
    mean, low, high = (
        None if row[name] is None else as_array(row[name], (N_BINS,), "a curve")
        for name in ("mean", "ci_low", "ci_high")
    )
    if mean is None:
        raise ValueError("no mean")
    comparison = None
    if row["comparison"] is not None:
        about = json.loads(row["comparison"])
        about["difference"] = _estimate(about["difference"])
        about["narrow"] = None if about["narrow"] is None else (*map(float, about["narrow"]),)
        comparison = Comparison(**about)
    distance = None if row["distance"] is None else _estimate(json.loads(row["distance"]))
    counts = n, n_documents, n_truncated, n_zero
    return ControlledCurve(control, *counts, mean, low, high, comparison, distance)


def _estimate(about: dict[str, Any]) -> Estimate:
    if not math.isfinite(about["value"]):
        raise ValueError("no number")
    return Estimate(**about)


def _summary(row: dict[str, Any], model: str, dataset: str, method: Method) -> CurveSummary:
    counts = {name: row[name] for name in _COUNTS}
    if (
        None in (*counts.values(), row["mean"], row["std"])
        or not 0 < counts["n_documents"] <= counts["n"]
    ):
        raise ValueError("no mean of pairs")
    of_curve: dict[str, Any] = {
        name: None if row[name] is None else np.array(row[name], kind)
        for name, kind in _CURVES.items()
    }
    if of_curve["quartiles"] is not None:
        of_curve["quartiles"] = of_curve["quartiles"].reshape(3, -1)
    numbers: dict[str, Estimate | None] = dict.fromkeys(_NUMBERS)
    for name in _NUMBERS:
        if row[name] is not None:
            value, low, high = row[name]
            if value is None:
                raise ValueError("an interval of nothing")
            numbers[name] = Estimate(value, low, high, counts["n"], counts["n_documents"])
    at = positions(method.curve_params["resampling"])
    curve = PositionCurve(model, dataset, method, positions=at, **of_curve, **counts)
    return CurveSummary(curve, **numbers)

"""Null controls: control pairs, and the curves of pairs minus those of their controls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.null_controls import (
    CONTROLS,
    QUERY_CONTROLS,
    Control,
    ControlledCurve,
    control,
    controlled_id,
    controls_for,
    curves_agree,
    minus_null,
    null_method,
)
from poslens.attribution.pairs import Pairs, columns_of
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.cache.lru_cache import LRUCache, digest
from poslens.cache.storage.store import StoredCurves
from poslens.compute.compute import Compute
from poslens.compute.runs import Job

_answers: LRUCache[ControlledCurve] = LRUCache(64)
_controls: LRUCache[Pairs] = LRUCache(32)


def controls(kind: Control, pairs: Sequence[TextPair], among: Sequence[TextPair]) -> Pairs:
    """The control pair of each of `pairs` that has one, in order, cached; unrelated queries are
    drawn from `among`."""

    sources = columns_of(among)

    def control_pairs() -> Iterator[TextPair]:
        for pair in pairs:
            with suppress(UserError):
                yield control(kind, pair, sources)

    key = (kind, columns_of(pairs).digest, sources.digest)
    return _controls.get(key, lambda: Pairs(control_pairs()))


def control_job(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    kind: Control,
    nulls: Sequence[TextPair],
    scope: str,
) -> Job:
    """The job that computes the attributions of control pairs. It is identified by the scope of the
    pairs that they belong to."""
    how = null_method(kind, method)
    job = compute.attribution_job(spec, how, nulls, f"{scope} minus {kind}")
    return replace(job, doing=f"{job.doing}, {CONTROLS[kind]}")


def controlled(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    kind: Control,
    pairs: Sequence[TextPair],
    among: Sequence[TextPair],
) -> ControlledCurve:
    """The mean of the stored curves of `pairs` minus those of their controls.

    Raises:
        UserError: no pair has both.
    """

    def computed() -> ControlledCurve:
        stored = compute.store.curves(model, method, pairs)
        nulls, of_null = _nulls(compute, spec, method, kind, pairs, among)
        both = [(row, of_null[i]) for row, i in enumerate(stored.pair_ids) if i in of_null]
        if not both:
            raise UserError(
                f"No pair has both a curve and a control curve of {spec.name} yet: compute them "
                "first."
            )
        rows, null_rows = (np.array(side) for side in zip(*both, strict=True))
        curves, of_nulls = stored.curves[rows], nulls.curves[null_rows]
        weights = stored.magnitudes[rows], nulls.magnitudes[null_rows]
        groups = columns_of(pairs).documents_of([stored.pair_ids[row] for row in rows.tolist()])
        truncated = int(stored.truncated[rows].sum())
        key = (kind, digest(curves, of_nulls, *weights), tuple(groups), truncated)
        return _answers.get(
            key, lambda: minus_null(kind, curves, of_nulls, groups, weights, truncated)
        )

    model = compute.identify(spec).key
    return compute.means.controlled(model, method, kind, pairs, among, computed)


def query_controls_agree(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    pairs: Sequence[TextPair],
    among: Sequence[TextPair],
) -> Estimate | None:
    """The agreement of the mean curves of the two controls without the query (`curves_agree`), over
    the pairs that have both; None without such pairs, or if the profile is not a control for the
    method and the model."""
    if "profile" not in controls_for(method, [family_of(spec)]):
        return None
    both = [_nulls(compute, spec, method, kind, pairs, among) for kind in QUERY_CONTROLS]
    ids = [i for i in both[0][1] if i in both[1][1]]
    if not ids:
        return None
    of_both = (nulls.curves[[rows[i] for i in ids]] for nulls, rows in both)
    return curves_agree(*of_both)


def _nulls(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    kind: Control,
    pairs: Sequence[TextPair],
    among: Sequence[TextPair],
) -> tuple[StoredCurves, dict[str, int]]:
    """The stored curves of the controls, and their rows by pair id."""
    key = compute.identify(spec).key
    nulls = compute.store.curves(key, null_method(kind, method), controls(kind, pairs, among))
    return nulls, {controlled_id(kind, i): row for row, i in enumerate(nulls.pair_ids)}

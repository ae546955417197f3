"""Tables of a model before and after calibration."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.rows import Table, frame_of
from poslens.studies.debias.answers import ChangedQueryRow, PointRow
from poslens.studies.debias.service import HALF, DebiasResult, Point
from poslens.studies.ranking.tables import first_rank


def _points(result: DebiasResult) -> Iterator[PointRow]:
    for point in result.points:
        calibration, own, changed = point.spec.calibration, point.quality, point.change
        yield PointRow(
            point.name,
            point.strength,
            calibration.block if calibration else None,
            str(calibration.layers or HALF) if calibration else None,
            own.n,
            point.front,
            result.recommended is point,
            own.psi,
            own.psi_under_permutation,
            own.p,
            own.mean,
            own.harmonic,
            changed.mean if changed else None,
            changed.harmonic if changed else None,
            changed.psi if changed else None,
        )


POINTS = Table(PointRow, _points)
"""One row per setting, the plain model first: nDCG@10, its harmonic mean, PSI, and their
changes."""


def queries_frame(result: DebiasResult, point: Point) -> pd.DataFrame:
    """One row per query with a known evidence position: nDCG@10 and the rank of the first relevant
    document before and after, sorted by decreasing size of the change. `pair` is a pair of the
    query, for Explain."""
    before, after = (setting.ranked.evaluation.per_query[NDCG] for setting in (result.plain, point))
    rows = [
        ChangedQueryRow(
            query.text,
            float(before[number]),
            float(after[number]),
            float(after[number] - before[number]),
            first_rank(result.plain.ranked, query),
            first_rank(point.ranked, query),
            100 * query.evidence,
            "selection" if query.query_id in result.chosen_on else "held out",
            query.query_id,
            next(iter(query.pairs.values()), ""),
        )
        for number, query in enumerate(result.setup.queries)
        if query.evidence is not None
    ]
    return frame_of(ChangedQueryRow, sorted(rows, key=lambda row: -abs(row.change)))

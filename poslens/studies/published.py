"""Published curves and measures as tables, shown by the pages Curves, Compare and Ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.curve_summary import (
    CurveSummary,
    center_of_mass,
    primacy_recency_index,
)
from poslens.attribution.curves.positions import LENGTH_BUCKETS, positions
from poslens.attribution.curves.published import PublishedCurves, PublishedMeasures
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.types import N_BINS, as_array
from poslens.figures.curves import Mean
from poslens.studies.curves.answers import CurveSummaryRow
from poslens.studies.ranking.benchmarks import OVERALL


def curves_frame(curves: Sequence[PublishedCurves]) -> pd.DataFrame:
    """100 rows per model: position in [0, 1], mean, standard deviation and number of pairs."""
    frames = [
        pd.DataFrame(
            {
                "model": published.model,
                "position": positions("point"),
                "mean": published.mean,
                "std": published.std,
                "n": published.n,
            }
        )
        for published in curves
    ]
    return pd.concat(frames, ignore_index=True)


def means(published: Sequence[PublishedCurves], *, band: bool = True) -> dict[str, Mean]:
    """Published curves by model, for figures. The band is one standard deviation over pairs on each
    side."""
    drawn = {}
    for curves in published:
        mean, low, high = (
            as_array(values, (N_BINS,), "a published curve")
            for values in (curves.mean, curves.mean - curves.std, curves.mean + curves.std)
        )
        note = f"{curves.n:,} pairs of {curves.source}"
        drawn[curves.model] = Mean(mean, positions("point"), (low, high) if band else None, note)
    return drawn


def summary_rows(
    summaries: Sequence[CurveSummary], published: Sequence[PublishedCurves] = ()
) -> Iterator[CurveSummaryRow]:
    """One row per model: numbers of pairs and documents, center of mass and primacy-recency
    index."""
    for summary in summaries:
        curve = summary.curve
        yield CurveSummaryRow(
            curve.model,
            curve.n,
            curve.n_documents,
            curve.n_truncated,
            curve.n_failed,
            summary.center_of_mass,
            summary.primacy_recency_index,
        )
    for curves in published:
        magnitudes = np.abs(curves.mean)[None]
        mass = Estimate(float(np.squeeze(center_of_mass(magnitudes, positions("point")))))
        index = Estimate(float(np.squeeze(primacy_recency_index(magnitudes))))
        yield CurveSummaryRow(f"{curves.model}, published", curves.n, None, None, None, mass, index)


def measures_frame(rows: Sequence[PublishedMeasures]) -> pd.DataFrame:
    """Published measures: one row per model, setting and length, with the column names of `rank
    --table psi`."""
    frames = []
    for row in rows:
        key = {"model": row.model, "setting": row.setting}
        frames.append(key | {"length": OVERALL, "PSI": row.psi, NDCG: row.ndcg})
        for bucket in LENGTH_BUCKETS:
            frames.append(
                key
                | {
                    "length": bucket,
                    "PSI": row.bucket_psi[bucket],
                    f"{NDCG}, mean of bins": row.bucket_ndcg[bucket],
                }
            )
    columns = ["model", "setting", "length", "PSI", NDCG, f"{NDCG}, mean of bins"]
    return pd.DataFrame(frames, columns=columns)

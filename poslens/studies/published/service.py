"""Published curves and measures as tables. No Streamlit here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from poslens.attribution.curves.curve_summary import center_of_mass, primacy_recency_index
from poslens.attribution.curves.positions import LENGTH_BUCKETS, positions
from poslens.attribution.curves.published import PublishedCurves, PublishedMeasures
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.studies.ranking.tables import OVERALL


def curves_frame(found: Sequence[PublishedCurves]) -> pd.DataFrame:
    """100 rows a model: position in [0, 1], mean, std and n."""
    frames = [
        pd.DataFrame(
            {
                "model": one.model,
                "position": positions("point"),
                "mean": one.mean,
                "std": one.std,
                "n": one.n,
            }
        )
        for one in found
    ]
    return pd.concat(frames, ignore_index=True)


def curves_summary(found: Sequence[PublishedCurves]) -> pd.DataFrame:
    """A row a model: n, both ends, centre of mass and primacy-recency index of the mean."""
    rows = []
    for one in found:
        mean = one.mean[None]
        rows.append(
            {
                "model": one.model,
                "n": one.n,
                "start": float(one.mean[0]),
                "end": float(one.mean[-1]),
                "centre of mass": float(
                    np.squeeze(center_of_mass(np.abs(mean), positions("point")))
                ),
                "primacy-recency index": float(np.squeeze(primacy_recency_index(np.abs(mean)))),
            }
        )
    return pd.DataFrame(rows)


def measures_frame(rows: Sequence[PublishedMeasures]) -> pd.DataFrame:
    """Published measures, a row for each model, setting and length, under the names of
    `ranking.tables.psi_frame`."""
    found = []
    for one in rows:
        at = {"model": one.model, "setting": one.setting}
        found.append(at | {"length": OVERALL, "PSI": one.psi, NDCG: one.ndcg})
        for bucket in LENGTH_BUCKETS:
            found.append(
                at
                | {
                    "length": bucket,
                    "PSI": one.bucket_psi[bucket],
                    f"{NDCG}, mean of bins": one.bucket_ndcg[bucket],
                }
            )
    columns = ["model", "setting", "length", "PSI", NDCG, f"{NDCG}, mean of bins"]
    return pd.DataFrame(found, columns=columns)

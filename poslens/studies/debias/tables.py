"""Tables of a model before and after calibration. No Streamlit here."""

from __future__ import annotations

import pandas as pd

from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.compute.estimates import comparison_columns, estimate_columns
from poslens.studies.debias.service import HALF, DebiasResult, Point
from poslens.studies.ranking.tables import first_rank


def points_frame(result: DebiasResult) -> pd.DataFrame:
    """A row a setting, the plain model first: nDCG@10, its harmonic mean, PSI with chance, and
    what each changed, with intervals and verdicts."""
    rows = []
    for point in result.points:
        how, own = point.spec.calibration, point.quality
        row: dict[str, object] = {
            "model": point.name,
            "strength": point.strength,
            "block": how.block if how else None,
            "layers": (how.layers or HALF) if how else None,
            "queries": own.n,
            "on the front": point.front,
            "recommended": result.recommended is point,
            "PSI": own.psi,
            "PSI under permutation": own.psi_under_permutation,
            "p": own.p,
        }
        changed = point.change
        row |= estimate_columns(NDCG, own.mean) | estimate_columns("harmonic mean", own.harmonic)
        for name, comparison in (
            (NDCG, changed.mean if changed else None),
            ("harmonic mean", changed.harmonic if changed else None),
            ("PSI", changed.psi if changed else None),
        ):
            row |= comparison_columns(f"{name} change", comparison)
        rows.append(row)
    frame = pd.DataFrame(rows)
    whole = ["block", *(name for name in frame.columns if name.endswith("documents needed"))]
    return frame.astype({**dict.fromkeys(whole, "Int64"), "layers": "string"})


def points_text(result: DebiasResult) -> pd.DataFrame:
    """The same for the eye: each number with its interval, and a change with its verdict, in one
    cell."""
    rows = []
    for point in result.points:
        own, changed = point.quality, point.change
        rows.append(
            {
                "model": point.name,
                NDCG: str(own.mean),
                "harmonic mean": str(own.harmonic),
                "PSI": own.psi,
                "PSI under permutation": own.psi_under_permutation,
                "change of nDCG@10": changed.mean.text() if changed else "",
                "change of the harmonic mean": changed.harmonic.text() if changed else "",
                "change of PSI": changed.psi.text() if changed and changed.psi else "",
            }
        )
    return pd.DataFrame(rows)


def queries_frame(result: DebiasResult, point: Point) -> pd.DataFrame:
    """A row a query with a place: nDCG@10 and the first relevant document's rank before and after,
    those that changed most first; `pair` is a pair of it for Explain."""
    rows = []
    before, after = (setting.ranked.evaluation.per_query[NDCG] for setting in (result.plain, point))
    for number, query in enumerate(result.setup.queries):
        if query.evidence is None:
            continue
        rows.append(
            {
                "query": query.text,
                "before": float(before[number]),
                "after": float(after[number]),
                "change": float(after[number] - before[number]),
                "rank before": first_rank(result.plain.ranked, query),
                "rank after": first_rank(point.ranked, query),
                "evidence": 100 * query.evidence,
                "half": "selection" if query.query_id in result.chosen_on else "held out",
                "id": query.query_id,
                "pair": next(iter(query.pairs.values()), ""),
            }
        )
    frame = pd.DataFrame(rows).astype({"rank before": "Int64", "rank after": "Int64"})
    order = frame["change"].abs().sort_values(ascending=False, kind="stable").index
    return frame.loc[order].reset_index(drop=True)

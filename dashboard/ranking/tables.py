"""Tables of rankings by groups of queries."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from attribution.evaluation.ranking_measures import CUTOFF_MEASURES, NDCG
from dashboard.ranking.service import Measured

HARMONIC = "harmonic mean"


def groups_frame(found: Sequence[Measured]) -> pd.DataFrame:
    """A row for each model and group of queries: how many queries and documents, how much of the
    evidence was read, and Recall and nDCG at each depth with the ends of its interval."""
    rows = []
    for one in found:
        if (by_group := one.by_group) is None:
            continue
        for group, read in zip(by_group.measures, by_group.profile.read, strict=True):
            row: dict[str, object] = {
                "model": one.name,
                "group": group.name,
                "queries": group.n,
                "documents": group.n_documents,
                "evidence read": read,
            }
            for name in CUTOFF_MEASURES:
                estimate = group.measures.get(name)
                row |= {
                    name: estimate.value if estimate else None,
                    f"{name} low": estimate.low if estimate else None,
                    f"{name} high": estimate.high if estimate else None,
                }
            rows.append(row)
    return pd.DataFrame(rows)


def positions_frame(found: Sequence[Measured]) -> pd.DataFrame:
    """A row a model, as position-aware benchmarks print it: nDCG@10 of each group, PSI over them
    with what chance gives, and their harmonic mean with the ends of its interval."""
    rows = []
    for one in found:
        if (by_group := one.by_group) is None:
            continue
        profile, harmonic = by_group.profile, by_group.harmonic
        rows.append(
            {
                "model": one.name,
                "queries": one.evaluation.n - by_group.n_outside,
                **dict(zip(by_group.groups.names, profile.means, strict=True)),
                "PSI": profile.psi,
                "PSI by chance": profile.psi_by_chance,
                "p": profile.p,
                NDCG: profile.mean,
                HARMONIC: harmonic.value,
                f"{HARMONIC} low": harmonic.low,
                f"{HARMONIC} high": harmonic.high,
                "in no group": by_group.n_outside,
            }
        )
    return pd.DataFrame(rows)


def positions_text(found: Sequence[Measured]) -> pd.DataFrame:
    """The same for the eye: each group's nDCG@10 with its interval in one cell."""
    rows = []
    for one in found:
        if (by_group := one.by_group) is None:
            continue
        profile = by_group.profile
        rows.append(
            {
                "model": one.name,
                **{group.name: str(group.measures.get(NDCG, "")) for group in by_group.measures},
                "PSI": profile.psi,
                "PSI by chance": profile.psi_by_chance,
                "p": profile.p,
                HARMONIC: str(by_group.harmonic),
                "evidence read": profile.mean_read,
            }
        )
    return pd.DataFrame(rows)

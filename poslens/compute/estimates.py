"""How tables write an estimate or a comparison. No Streamlit here."""

from __future__ import annotations

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.comparison import Comparison


def estimate_columns(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """Three columns of a row: the value as `name` and the ends of its interval, empty where there
    is none."""
    return {
        name: estimate.value if estimate else None,
        f"{name} low": estimate.low if estimate else None,
        f"{name} high": estimate.high if estimate else None,
    }


def comparison_columns(name: str, comparison: Comparison | None) -> dict[str, object]:
    """Seven columns of a row: those of the difference, its verdict, p adjusted by Holm, margin, and
    the documents that would decide."""
    columns: dict[str, object] = {}
    columns |= estimate_columns(name, comparison.difference if comparison else None)
    return columns | {
        f"{name} verdict": comparison.verdict if comparison else None,
        f"{name} p (Holm)": comparison.p_holm if comparison else None,
        f"{name} margin": comparison.margin if comparison else None,
        f"{name} documents needed": comparison.needed if comparison else None,
    }

"""How tables write an estimate and its interval. No Streamlit here."""

from __future__ import annotations

from poslens.attribution.curves.bootstrap import Estimate


def estimate_columns(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """Three columns of a row: the value as `name` and the ends of its interval, empty where there
    is none."""
    return {
        name: estimate.value if estimate else None,
        f"{name} low": estimate.low if estimate else None,
        f"{name} high": estimate.high if estimate else None,
    }

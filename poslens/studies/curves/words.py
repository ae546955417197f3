"""What stands beside mean curves: how many pairs and documents, what was cut, what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS
from poslens.attribution.curves.curve_summary import CurveSummary
from poslens.attribution.types import PositionCurve

MIN_PAIRS = 10
"""Pairs from which on a mean curve is shown as a data set's."""


def too_few(name: str, n: int, total: int) -> str:
    """Why the mean of `n` of `total` pairs is not shown yet; empty where it is."""
    if n >= min(MIN_PAIRS, total):
        return ""
    return (
        f"{name} has curves of {n:,} of {total:,} pairs: a data set's is drawn from {MIN_PAIRS} "
        "pairs on."
    )


def small(total: int) -> str:
    """What has to be said of the mean of so many pairs; empty where there are enough."""
    if total >= MIN_PAIRS:
        return ""
    return f"The mean of {_several(total, 'pair')} says little about a data set."


def _several(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def read_unlike(curves: Sequence[PositionCurve], limits: Sequence[int | None]) -> bool:
    """Whether models with these limits in tokens read other parts of their texts: they cut other
    numbers of pairs, or cut at other lengths."""
    said = {(curve.n_truncated, curve.n) for curve in curves}
    cut = any(curve.n_truncated for curve in curves)
    return cut and (len(said) > 1 or len(set(limits)) > 1)


def over_what(curves: Sequence[PositionCurve], limits: Sequence[int | None] = ()) -> str:
    """Over what the curves' common axis stands, and what that keeps from being compared; `limits`
    are those of their models in tokens, where they may differ."""
    cut = {curve.model: (curve.n_truncated, curve.n) for curve in curves if curve.n_truncated}
    listed = ", ".join(f"{name} cuts {n_cut:,} of {n:,}" for name, (n_cut, n) in cut.items())
    if any(curve.n_read is not None for curve in curves):
        said = "Positions are in hundredths of the whole text's characters."
        if cut:
            said += (
                f" A place's mean is over the pairs that were read there ({listed} pairs), so "
                "further along it is over fewer and shorter documents; where those are fewer than "
                f"{MIN_DOCUMENTS}, nothing is drawn. Centre of mass and index stay over what each "
                "model read."
            )
        return said
    said = "Positions are relative to what each model read."
    if cut:
        said += f" Documents longer than a model reads are cut: {listed} pairs."
    if read_unlike(curves, limits):
        said += (
            " So the same place on this axis is not the same place of the text for all of them; "
            "over the whole text, which Curves offers, it is."
        )
    return said


def why_no_number(summaries: Sequence[CurveSummary]) -> str:
    """A sentence for each curve that has no centre of mass or no index."""
    return " ".join(f"{one.curve.model}: {one.undefined}" for one in summaries if one.undefined)

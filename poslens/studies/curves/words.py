"""Sentences shown with mean curves: primacy-recency index, numbers of pairs, truncation and
undefined numbers."""

from __future__ import annotations

from collections.abc import Sequence

from poslens.attribution.curves.bootstrap import MIN_DOCUMENTS, Estimate
from poslens.attribution.curves.curve_summary import CurveSummary
from poslens.attribution.curves.positions import BANDS
from poslens.attribution.evaluation.comparison import INDEX_MARGIN, documents_needed, judged
from poslens.attribution.nouns import counted
from poslens.attribution.text import listed
from poslens.attribution.types import PositionCurve

NUMBERS = (
    "Center of mass: 0 = start, 1 = end. Primacy-recency index, -1 to 1: negative = more "
    "attribution near the beginning, positive = near the end."
)
"""How to read the two numbers of a curve."""

BAND_WORDS = {
    BANDS[0]: (
        "Each line is a model's mean curve; the band is a 95% bootstrap interval, resampling "
        "documents with all their pairs (1,000 resamples, fixed seed). With fewer than 10 "
        "documents there is no interval."
    ),
    BANDS[1]: (
        "Each line is a model's mean curve; the band is one standard deviation over pairs above "
        "and below the mean."
    ),
    BANDS[2]: (
        "Each line is a model's mean curve; the band contains the middle half of the pairs (25th "
        "to 75th percentile)."
    ),
}
"""What a chart of mean curves shows, by the kind of its bands."""

PUBLISHED_BAND = "Published curves have no band except the standard deviation."

MIN_PAIRS = 10
"""Minimum number of pairs for the mean curve of a data set."""


def too_few(name: str, n: int, total: int) -> str:
    """Why the mean of `n` of `total` pairs is not shown yet; empty if it is shown."""
    if n >= min(MIN_PAIRS, total):
        return ""
    return (
        f"{name} has curves for {n:,} of {total:,} pairs. The mean curve needs at least "
        f"{MIN_PAIRS} pairs."
    )


def averaged(curves: Sequence[tuple[PositionCurve, int]]) -> str:
    """How many pairs and documents each mean covers. A curve comes with the number of selected
    pairs, of which some may have no result yet."""
    models: dict[str, list[str]] = {}
    for curve, total in curves:
        share = f"{curve.n:,} of " if curve.n < total else "all " if total > 1 else ""
        words = f"{share}{counted(total, 'pair')}, from {counted(curve.n_documents, 'document')}"
        models.setdefault(words, []).append(curve.model)
    if len(models) < 2:
        return "".join(f"Mean over {words}." for words in models)
    means = "; ".join(f"{listed(names)}, over {words}" for words, names in models.items())
    return f"Means: {means}."


def small(total: int) -> str:
    """A caveat for the mean of this many pairs; empty if there are enough."""
    if total >= MIN_PAIRS:
        return ""
    return f"The mean of {counted(total, 'pair')} isn't representative of a data set."


def read_unlike(curves: Sequence[PositionCurve], limits: Sequence[int | None]) -> bool:
    """Whether models with these context limits read different parts of their texts, because they
    truncate different numbers of pairs, or at different lengths."""
    counts = {(curve.n_truncated, curve.n) for curve in curves}
    cut = any(curve.n_truncated for curve in curves)
    return cut and (len(counts) > 1 or len(set(limits)) > 1)


def over_what(curves: Sequence[PositionCurve], limits: Sequence[int | None] = ()) -> str:
    """Sentences on what the curves' common axis covers and which comparisons it does not allow.
    `limits` are the models' context limits, if they may differ."""
    cut = {curve.model: (curve.n_truncated, curve.n) for curve in curves if curve.n_truncated}
    truncating = ", ".join(
        f"{listed(names)} {'truncates' if len(names) == 1 else 'each truncate'} the document in "
        f"{n_cut:,} of {n:,}"
        for n_cut, n in dict.fromkeys(cut.values())
        if (names := [name for name, size in cut.items() if size == (n_cut, n)])
    )
    if any(curve.n_read is not None for curve in curves):
        text = "Positions are percentages of the whole text's characters."
        if cut:
            text += (
                " At each position, the mean covers the pairs whose text the model read there "
                f"({truncating} pairs), so later positions cover fewer and shorter documents. "
                f"Positions with fewer than {MIN_DOCUMENTS} documents aren't drawn. The center "
                "of mass and the index are relative to the tokens that each model read."
            )
        return text
    text = "Positions are relative to the tokens that each model read."
    if cut:
        text += f" Documents longer than the context limit are truncated: {truncating} pairs."
    if read_unlike(curves, limits):
        text += (
            " The same position on this axis is therefore a different position in the text for "
            "different models. Select whole text to compare the same positions."
        )
    return text


def why_no_number(summaries: Sequence[CurveSummary]) -> str:
    """One sentence for each curve without a center of mass or index."""
    return " ".join(
        f"{summary.curve.model}: {summary.undefined}" for summary in summaries if summary.undefined
    )


def index_sentence(what: str, index: Estimate | None) -> str:
    """The primacy-recency index of `what`, and its meaning."""
    if index is None:
        return f"{what}: the curve has no primacy-recency index."
    verdict = judged(index, INDEX_MARGIN)
    if verdict == "too few documents":
        n, units = documents_needed(index, INDEX_MARGIN), index.resampled
        would = f"; about {n:,} {units} would be needed" if n else ""
        if index.interval is None and index.n_resampled >= MIN_DOCUMENTS:
            would = ": no interval can be estimated"
        meaning = f"Too few {units} to decide{would}."
    elif verdict == "equivalent":
        meaning = f"Equivalent to 0 within the margin of {INDEX_MARGIN:g}."
    else:
        side = "end" if verdict == "higher" else "beginning"
        meaning = f"Attribution leans toward the {side} of the tokens read."
    return f"{what}: the primacy-recency index is {index.text('+.3f')}. {meaning}"

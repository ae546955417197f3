"""What `calibrate` prints as JSON; see `poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from poslens.attribution.evaluation.comparison import Verdict
from poslens.commands.answers import (
    NDCG,
    PSI,
    ComparisonEntry,
    Documents,
    High,
    Interval,
    Low,
    Model,
    P,
    PSIUnderPermutation,
    Queries,
    ResultSource,
)

ChangeVerdict = Annotated[
    Verdict | None, "higher, lower, equivalent (within the margin) or too few documents."
]
PHolm = Annotated[float | None, "p of the change, adjusted by Holm for all of the table."]
Margin = Annotated[float | None, "Change up to which two settings are equivalent."]
Needed = Annotated[
    int | None, "About how many documents would decide; null once decided, or unknown."
]
Harmonic = Annotated[float | None, "Harmonic mean of nDCG@10 over positions, 0 to 1."]


class QualityEntry(TypedDict):
    """What a model's rankings are worth."""

    ndcg_at_10: NDCG
    harmonic_mean: Harmonic
    psi: PSI
    psi_under_permutation: PSIUnderPermutation


class ChangeEntry(TypedDict):
    """What calibration changed."""

    ndcg_at_10: Annotated[ComparisonEntry | None, "Change of nDCG@10."]
    harmonic_mean: Annotated[ComparisonEntry | None, "Change of its harmonic mean over positions."]
    psi: Annotated[ComparisonEntry | None, "Change of PSI."]


class CurveEntry(TypedDict):
    """A curve before or after."""

    curve: Annotated[str, "relocation or saliency."]
    model: Model
    n: Annotated[int, "Pairs averaged."]
    documents: Documents
    last_minus_first: NotRequired[
        Annotated[Interval | None, "Of relocation: last third minus first, in the score."]
    ]
    index: NotRequired[Annotated[Interval | None, "Of saliency: primacy-recency index, -1 to 1."]]
    mean: Annotated[list[float | None], "Mean at 100 positions of what is read."]


class RecommendationEntry(TypedDict):
    """What is recommended, and how the setting that was tested does on held-out queries."""

    recommended: Annotated[str, "Name of the recommended model, the plain one if none is better."]
    tested: Annotated[str, "Name of the best setting on the queries used for selection."]
    sentence: Annotated[str, "The recommendation in words."]
    queries_chosen_on: Annotated[int, "Queries used for selection."]
    queries_judged_on: Annotated[int, "Held-out queries."]
    before: Annotated[QualityEntry, "The plain model on the held-out queries."]
    after: Annotated[QualityEntry, "The tested model on the held-out queries."]
    change: Annotated[ChangeEntry | None, "After less before; null where the plain one is tested."]


PointRow = TypedDict(
    "PointRow",
    {
        "model": Model,
        "strength": Annotated[float, "Strength of the calibration, 0 (plain) to 1."],
        "block": Annotated[int | None, "Tokens of a block; null for the plain model."],
        "layers": Annotated[str | None, "half, or the last so many; null of the plain model."],
        "queries": Queries,
        "on the front": Annotated[bool, "Whether none is both better and more even."],
        "recommended": Annotated[bool, "Whether it is the recommended one."],
        "PSI": PSI,
        "PSI under permutation": PSIUnderPermutation,
        "p": P,
        "nDCG@10": NDCG,
        "nDCG@10 low": Low,
        "nDCG@10 high": High,
        "harmonic mean": Harmonic,
        "harmonic mean low": Low,
        "harmonic mean high": High,
        "nDCG@10 change": Annotated[float | None, "Less the plain model's; null of itself."],
        "nDCG@10 change low": Low,
        "nDCG@10 change high": High,
        "nDCG@10 change verdict": ChangeVerdict,
        "nDCG@10 change p (Holm)": PHolm,
        "nDCG@10 change margin": Margin,
        "nDCG@10 change documents needed": Needed,
        "harmonic mean change": Annotated[float | None, "Less the plain model's; null of itself."],
        "harmonic mean change low": Low,
        "harmonic mean change high": High,
        "harmonic mean change verdict": ChangeVerdict,
        "harmonic mean change p (Holm)": PHolm,
        "harmonic mean change margin": Margin,
        "harmonic mean change documents needed": Needed,
        "PSI change": Annotated[float | None, "Less the plain model's; null of itself."],
        "PSI change low": Low,
        "PSI change high": High,
        "PSI change verdict": ChangeVerdict,
        "PSI change p (Holm)": PHolm,
        "PSI change margin": Margin,
        "PSI change documents needed": Needed,
    },
)
"""A setting of the calibration."""

ChangedQueryRow = TypedDict(
    "ChangedQueryRow",
    {
        "query": Annotated[str, "The query."],
        "before": Annotated[float, "nDCG@10 by the plain model, 0 to 1."],
        "after": Annotated[float, "nDCG@10 by the tested setting, 0 to 1."],
        "change": Annotated[float, "After less before, -1 to 1."],
        "rank before": Annotated[int | None, "Rank of the first relevant document; null if none."],
        "rank after": Annotated[int | None, "The same by the tested setting."],
        "evidence": Annotated[float, "Where the evidence begins, in percent of the document."],
        "half": Annotated[str, "selection or held out."],
        "id": Annotated[str, "Id of the query."],
        "pair": Annotated[str, "Id of a pair of it, for explain; empty without one."],
    },
)
"""A query before and after."""


class CalibrationTable(TypedDict):
    """The table that was asked for."""

    points: NotRequired[Annotated[list[PointRow], "With --table points: a row for each setting."]]
    queries: NotRequired[
        Annotated[list[ChangedQueryRow], "With --table queries: those that changed most first."]
    ]


class CalibrationAnswer(RecommendationEntry, CalibrationTable):
    """Rankings before and after calibration."""

    model: Model
    provenance: Annotated[list[ResultSource], "Where the numbers come from."]
    curves: NotRequired[
        Annotated[list[CurveEntry], "With --curves: relocation and saliency before and after."]
    ]

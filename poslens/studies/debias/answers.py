"""JSON shapes and table rows of the command `calibrate`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypeAlias, TypedDict

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.comparison import Comparison
from poslens.commands.answers import ComparisonEntry, Documents, Interval, Model, ResultSource
from poslens.rows import answer_of, column
from poslens.studies.ranking.rows import MODEL, NDCG, PERMUTED, PSI, QUERIES, P

HARMONIC = "Harmonic mean of nDCG@10 over positions, 0 to 1."
CHANGE = "Less the plain model's; null of itself."


class QualityEntry(TypedDict):
    """Measures of a model's rankings."""

    ndcg_at_10: Annotated[float | None, NDCG]
    harmonic_mean: Annotated[float | None, HARMONIC]
    psi: Annotated[float | None, PSI]
    psi_under_permutation: Annotated[float | None, PERMUTED]


class ChangeEntry(TypedDict):
    """Changes by calibration."""

    ndcg_at_10: Annotated[ComparisonEntry | None, "Change of nDCG@10."]
    harmonic_mean: Annotated[ComparisonEntry | None, "Change of its harmonic mean over positions."]
    psi: Annotated[ComparisonEntry | None, "Change of PSI."]


class CurveEntry(TypedDict):
    """A curve before or after calibration."""

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
    """The recommendation, and the measures of the tested setting on held-out queries."""

    recommended: Annotated[str, "Name of the recommended model, the plain one if none is better."]
    tested: Annotated[str, "Name of the best setting on the queries used for selection."]
    sentence: Annotated[str, "The recommendation in words."]
    queries_chosen_on: Annotated[int, "Queries used for selection."]
    queries_judged_on: Annotated[int, "Held-out queries."]
    before: Annotated[QualityEntry, "The plain model on the held-out queries."]
    after: Annotated[QualityEntry, "The tested model on the held-out queries."]
    change: Annotated[ChangeEntry | None, "After less before; null where the plain one is tested."]


@dataclass(frozen=True, slots=True)
class PointRow:
    """A setting of the calibration."""

    model: str = column(MODEL)
    strength: float = column("Strength of the calibration, 0 (plain) to 1.", shown=False)
    block: int | None = column("Tokens of a block; null for the plain model.", shown=False)
    layers: str | None = column("half, or the last so many; null of the plain model.", shown=False)
    queries: int = column(QUERIES, shown=False)
    front: bool = column(
        "Whether none is both better and more even.", key="on the front", shown=False
    )
    recommended: bool = column("Whether it is the recommended one.", shown=False)
    psi: float | None = column(PSI, key="PSI")
    permuted: float | None = column(PERMUTED, key="PSI under permutation")
    p: float | None = column(P, shown=False)
    mean: Estimate = column(NDCG, key="nDCG@10")
    harmonic: Estimate = column(HARMONIC, key="harmonic mean")
    mean_change: Comparison | None = column(CHANGE, key="nDCG@10 change", form="+.3f")
    harmonic_change: Comparison | None = column(CHANGE, key="harmonic mean change", form="+.3f")
    psi_change: Comparison | None = column(CHANGE, key="PSI change", form="+.3f")


@dataclass(frozen=True, slots=True)
class ChangedQueryRow:
    """A query before and after calibration."""

    query: str = column("The query.")
    before: float = column("nDCG@10 by the plain model, 0 to 1.")
    after: float = column("nDCG@10 by the tested setting, 0 to 1.")
    change: float = column("After less before, -1 to 1.")
    rank_before: int | None = column(
        "Rank of the first relevant document; null if none.", key="rank before"
    )
    rank_after: int | None = column("The same by the tested setting.", key="rank after")
    evidence: float = column("Where the evidence begins, in percent of the document.")
    half: str = column("selection or held out.")
    id: str = column("Id of the query.")
    pair: str = column("Id of a pair of it, for explain; empty without one.")


if TYPE_CHECKING:
    PointAnswer: TypeAlias = dict[str, Any]
    ChangedQueryAnswer: TypeAlias = dict[str, Any]
else:
    PointAnswer, ChangedQueryAnswer = answer_of(PointRow), answer_of(ChangedQueryRow)


class CalibrationTable(TypedDict):
    """The table that --table selects."""

    points: NotRequired[
        Annotated[list[PointAnswer], "With --table points: a row for each setting."]
    ]
    queries: NotRequired[
        Annotated[list[ChangedQueryAnswer], "With --table queries: those that changed most first."]
    ]


class CalibrationAnswer(RecommendationEntry, CalibrationTable):
    """Rankings before and after calibration."""

    model: Model
    provenance: Annotated[list[ResultSource], "Where the numbers come from."]
    curves: NotRequired[
        Annotated[list[CurveEntry], "With --curves: relocation and saliency before and after."]
    ]

"""JSON shapes of the commands `precompute` and `curve`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypedDict

from poslens.attribution.curves.bootstrap import Estimate
from poslens.commands.answers import DataSet, Documents, Method, Model
from poslens.rows import ModelRow, Table, column


class Precomputed(TypedDict):
    """The attributions that were computed for a data set."""

    model: Model
    method: Method
    dataset: DataSet
    total: Annotated[int, "Number of requested pairs."]
    done: Annotated[int, "Number of pairs in the cache, including failed ones."]
    computed: Annotated[int, "Number of pairs that this command computed."]
    failed: Annotated[int, "Number of those pairs that failed."]
    seconds: Annotated[float, "Duration in seconds."]


class CurveRow(TypedDict):
    """A position of a data set's curve."""

    model: Model
    dataset: DataSet
    method: Method
    bin: Annotated[int, "Index of the position, 0 to 99."]
    position: Annotated[float, "Position, 0 to 1 of the tokens read, or of the whole text."]
    mean: Annotated[
        float | None, "Mean attribution at the position, in the unit of the normalization."
    ]
    std: Annotated[float | None, "Standard deviation over pairs, in the same unit."]
    ci_low: Annotated[
        float | None, "Lower end of the mean's 95% interval; null with fewer than 10 documents."
    ]
    ci_high: Annotated[
        float | None, "Upper end of the mean's 95% interval; null with fewer than 10 documents."
    ]
    lower_quartile: Annotated[float | None, "25th percentile over pairs; null if not stored."]
    median: Annotated[float | None, "50th percentile over pairs; null if not stored."]
    upper_quartile: Annotated[float | None, "75th percentile over pairs; null if not stored."]
    magnitude: Annotated[float | None, "Mean absolute attribution; null if not stored."]
    n: Annotated[int, "Number of pairs in the mean."]
    n_documents: Documents
    n_truncated: Annotated[int, "Number of pairs whose document exceeds the context limit."]
    n_failed: Annotated[int, "Number of failed pairs, which are excluded."]
    n_read: Annotated[
        int | None,
        "Number of pairs whose text was read at this position; null if it is all of them.",
    ]


class PublishedCurveRow(TypedDict):
    """One position of a published mean curve."""

    model: Model
    position: Annotated[float, "Position in the text, 0 to 1."]
    mean: Annotated[float, "Mean over the published curves."]
    std: Annotated[float, "Standard deviation over the published curves."]
    n: Annotated[int, "Curves averaged."]


@dataclass(frozen=True)
class CurveSummaryRow(ModelRow):
    """A model's mean curve in numbers. Published curves have no intervals, because only means were
    published."""

    pairs: int = column("Number of pairs in the mean.")
    documents: int | None = column("Number of distinct documents; null for published curves.")
    truncated: int | None = column("Number of pairs whose document exceeds the context limit.")
    failed: int | None = column("Number of failed pairs, which are excluded.")
    center_of_mass: Estimate | None = column(
        "Center of mass of the mean absolute attribution over the tokens read, 0 to 1; null if it "
        "is undefined."
    )
    primacy_recency_index: Estimate | None = column(
        "Primacy-recency index over the tokens read, from -1 (all in the first third) to 1 (all in "
        "the last); null if it is undefined.",
        title="primacy-recency index",
        form="+.3f",
    )


SUMMARY: Table[CurveSummaryRow] = Table(CurveSummaryRow, lambda row: [row], "Mean curves")
"""The numbers of mean curves, as the command, the page Curves and the Python call give them."""

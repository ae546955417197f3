"""JSON shapes of the command `cause`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import Documents, High, Low, Method, Model, ResultSource

Intervention = Annotated[str, "The intervention with its parameters."]
Failed = Annotated[int, "Those that gave no result and are left out."]
Notes = Annotated[list[str], "What to know of the numbers, in sentences."]
Provenance = Annotated[ResultSource, "Where the numbers come from."]
CausalCurve = Annotated[list[float | None], "Mean at 100 positions of what is read, in the score."]
CosineCurve = Annotated[list[float | None], "Mean at 100 positions of what is read, as a cosine."]
CurveLow = Annotated[
    list[float | None] | None, "Lower ends of its 95% intervals, 100; null of too few documents."
]
CurveHigh = Annotated[
    list[float | None] | None, "Upper ends of its 95% intervals, 100; null of too few documents."
]


class CauseEstimate(TypedDict):
    """A number with its interval and sample size."""

    value: Annotated[float, "The number."]
    low: Low
    high: High
    n: Annotated[int, "Pairs or documents that it is over."]
    documents: Annotated[int, "Documents that were resampled for the interval."]


class AgreementEntry(TypedDict):
    """Agreement of a method's curves with the causal curves."""

    method: Method
    n: Annotated[int, "Pairs compared."]
    documents: Documents
    left_out: Annotated[int, "Pairs that could not be compared."]
    of_the_means: Annotated[
        CauseEstimate | None, "Spearman's correlation of the mean curves, -1 to 1."
    ]
    mean_over_pairs: Annotated[
        CauseEstimate | None, "Mean of the correlations pair by pair, -1 to 1."
    ]


class Cause(TypedDict):
    """Effect of relocation or ablation on the score, averaged over pairs."""

    model: Model
    intervention: Intervention
    n: Annotated[int, "Pairs averaged."]
    documents: Documents
    failed: Failed
    left_out: Annotated[int, "Pairs with fewer than two positions that are read whole."]
    last_minus_first: Annotated[
        CauseEstimate | None, "Mean of the curve's last third less its first, in the score."
    ]
    lost_past_the_limit: Annotated[
        CauseEstimate | None, "What the score loses where the evidence is not read; null if it is."
    ]
    notes: Notes
    curve: CausalCurve
    ci_low: CurveLow
    ci_high: CurveHigh
    agreement: Annotated[list[AgreementEntry], "An entry for each method of --against."]
    provenance: Provenance


class SegmentCurveAnswer(TypedDict):
    """Similarity of each part of a document to the whole document, averaged over documents."""

    model: Model
    intervention: Intervention
    n: Annotated[int, "Documents averaged."]
    failed: Failed
    last_minus_first: Annotated[
        CauseEstimate | None, "Mean of the curve's last third less its first, as a cosine."
    ]
    notes: Notes
    curve: CosineCurve
    ci_low: CurveLow
    ci_high: CurveHigh
    provenance: Provenance


class EditMeans(TypedDict):
    """Similarity of a document to itself after insertion or removal, averaged over documents."""

    model: Model
    intervention: Intervention
    n: Annotated[int, "Documents averaged."]
    failed: Failed
    shortened: Annotated[int, "Documents of which only the part that is read was edited."]
    shares: Annotated[list[float], "How much was inserted or removed, in parts of the document."]
    cosine: Annotated[
        dict[str, list[CauseEstimate | None]],
        "Cosine with the whole document's vector by position, a number for each of shares.",
    ]
    notes: Notes
    provenance: Provenance

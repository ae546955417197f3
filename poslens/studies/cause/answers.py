"""JSON shapes of the command `cause`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import Documents, High, Low, Method, Model, ResultSource

Intervention = Annotated[str, "The intervention with its parameters."]
Failed = Annotated[int, "Number of failed pairs or documents, which are excluded."]
Notes = Annotated[list[str], "Notes on the numbers, in sentences."]
Provenance = Annotated[ResultSource, "Provenance of the numbers."]
CausalCurve = Annotated[
    list[float | None],
    "Mean change of the score at 100 positions, relative to the tokens that the model reads.",
]
CosineCurve = Annotated[
    list[float | None],
    "Mean cosine at 100 positions, relative to the tokens that the model reads.",
]
CurveLow = Annotated[
    list[float | None] | None,
    "Lower ends of the curve's 95% intervals, 100 numbers; null with too few documents.",
]
CurveHigh = Annotated[
    list[float | None] | None,
    "Upper ends of the curve's 95% intervals, 100 numbers; null with too few documents.",
]


class CauseEstimate(TypedDict):
    """A number with its interval and sample size."""

    value: Annotated[float, "The number."]
    low: Low
    high: High
    n: Annotated[int, "Number of pairs or documents that the number covers."]
    documents: Annotated[int, "Number of documents resampled for the interval."]


class AgreementEntry(TypedDict):
    """Agreement of a method's curves with the causal curves."""

    method: Method
    n: Annotated[int, "Number of compared pairs."]
    documents: Documents
    left_out: Annotated[int, "Number of pairs that could not be compared."]
    of_the_means: Annotated[
        CauseEstimate | None, "Spearman's correlation of the mean curves, -1 to 1."
    ]
    mean_over_pairs: Annotated[
        CauseEstimate | None, "Mean over pairs of Spearman's correlation of their curves, -1 to 1."
    ]


class Cause(TypedDict):
    """Effect of relocation or ablation on the score, averaged over pairs."""

    model: Model
    intervention: Intervention
    n: Annotated[int, "Number of averaged pairs."]
    documents: Documents
    failed: Failed
    left_out: Annotated[
        int, "Number of pairs with fewer than two positions where the evidence is read whole."
    ]
    last_minus_first: Annotated[
        CauseEstimate | None,
        "Mean score in the last third of positions minus that in the first third.",
    ]
    lost_past_the_limit: Annotated[
        CauseEstimate | None,
        "Mean score with the evidence read whole minus that with it truncated; null if it is never "
        "truncated.",
    ]
    notes: Notes
    curve: CausalCurve
    ci_low: CurveLow
    ci_high: CurveHigh
    agreement: Annotated[list[AgreementEntry], "One entry for each method of --against."]
    provenance: Provenance


class SegmentCurveAnswer(TypedDict):
    """Similarity of each part of a document to the whole document, averaged over documents."""

    model: Model
    intervention: Intervention
    n: Annotated[int, "Number of averaged documents."]
    failed: Failed
    last_minus_first: Annotated[
        CauseEstimate | None,
        "Mean cosine in the last third of positions minus that in the first third.",
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
    n: Annotated[int, "Number of averaged documents."]
    failed: Failed
    shortened: Annotated[int, "Number of documents that were first shortened to the context limit."]
    shares: Annotated[
        list[float], "Amounts that were inserted or removed, as shares of the document's length."
    ]
    cosine: Annotated[
        dict[str, list[CauseEstimate | None]],
        "Mean cosine with the whole document's vector, by position: one number for each of shares.",
    ]
    notes: Notes
    provenance: Provenance

"""Results of interventions as tables, and models compared by the last-minus-first differences, for
pages, commands and exports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.comparison import DEVIATIONS_MARGIN, SCORE_MARGIN
from poslens.attribution.interventions.ablation import Ablation
from poslens.attribution.interventions.agreement import Agreement
from poslens.attribution.interventions.displacement import Displacement
from poslens.attribution.interventions.null_controls import CONTROLS, ControlledCurve
from poslens.attribution.interventions.relocation import Relocation, rank_among
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import N_BINS, Array, Method, TextPair
from poslens.compute.compute import Compute
from poslens.export.files import curve_frame
from poslens.paired import ItemMeasure, MeasuredModel, PairedDifference, paired_differences
from poslens.studies.cause.service import DataSetCause, last_minus_first, stored

Numbers = Mapping[str, Array]

READ_ONLY = (
    "Positions are relative to what the model reads; truncated text does not count. Brackets: 95% "
    "bootstrap intervals over documents."
)
READ_WHOLE = (
    f"{READ_ONLY} Relocation uses only positions at which the model reads all of the evidence; "
    "pairs with fewer than two such positions are left out. Lost past the context limit: mean "
    "score with the evidence read whole minus mean score with it truncated, over pairs with both; "
    "this loss is due to truncation, not position bias."
)
"""Captions of tables of causal curves: for interventions on documents, and on evidence."""


def relocation_frame(
    results: Mapping[str, Relocation], others: Numbers | None = None, unknown: Collection[str] = ()
) -> pd.DataFrame:
    """One row per model and position of the evidence, with the rank among the scores of `others` if
    given. The evidence read is missing for models in `unknown`."""
    rows = [
        {
            "model": name,
            "slot": slot,
            "position": float(relocation.positions[slot]),
            "score": float(relocation.scores[slot]),
            "evidence read": None if name in unknown else float(relocation.read[slot]),
            **(
                {"rank": rank_among(float(relocation.scores[slot]), others[name])}
                if others and name in others
                else {}
            ),
        }
        for name, relocation in results.items()
        for slot in range(len(relocation.positions))
    ]
    return pd.DataFrame(rows)


def ablation_frame(results: Mapping[str, Ablation]) -> pd.DataFrame:
    """One row per model and part of the document: its characters, and the decrease of the score
    without it."""
    rows = [
        (name, ablation.by, part, *ablation.spans[part], float(ablation.effects[part]))
        for name, ablation in results.items()
        for part in range(len(ablation.spans))
    ]
    return pd.DataFrame(rows, columns=["model", "replaced by", "part", "start", "end", "effect"])


def displacement_frame(results: Mapping[str, Displacement]) -> pd.DataFrame:
    """One row per label and distance: score, and share of the text that was read."""
    rows = [
        (label, tokens, float(displacement.scores[k]), float(displacement.read[k]))
        for label, displacement in results.items()
        for k, tokens in enumerate(displacement.tokens)
    ]
    return pd.DataFrame(rows, columns=["moved", "tokens", "score", "text read"])


def cause_frame(causes: Sequence[DataSetCause]) -> pd.DataFrame:
    """One row per model, as shown on pages: the score with the evidence in the last third minus
    that in the first, and the decrease of the score past the context limit."""
    return pd.DataFrame(
        [
            {
                "model": cause.summary.curve.model,
                "intervention": cause.summary.curve.method.name,
                "pairs": cause.summary.curve.n,
                "documents": cause.summary.curve.n_documents,
                "truncated documents": cause.summary.curve.n_truncated,
                "failed pairs": cause.summary.curve.n_failed,
                "pairs left out": cause.n_left_out,
                "last third minus first (score)": _text(cause.last_minus_first),
                "lost past the context limit (score)": _text(cause.lost),
                "pairs with positions past the limit": 0 if cause.lost is None else cause.lost.n,
            }
            for cause in causes
        ]
    )


def segments_frame(causes: Sequence[DataSetCause]) -> pd.DataFrame:
    """One row per model and order of segments, as shown on pages: the cosine to the whole text of
    the last third minus that of the first."""
    return pd.DataFrame(
        [
            {
                "model": cause.summary.curve.model,
                "segments": cause.summary.curve.method.params.get("order", "in order"),
                "documents": cause.summary.curve.n_documents,
                "truncated": cause.summary.curve.n_truncated,
                "failed": cause.summary.curve.n_failed,
                "last third minus first (cosine)": _text(cause.last_minus_first),
            }
            for cause in causes
        ]
    )


def _text(value: Estimate | None) -> str:
    return "" if value is None else value.text("+.4f")


def causal_curve_frame(causes: Sequence[DataSetCause]) -> pd.DataFrame:
    """100 rows per model: the mean causal curve, and in every row the last-minus-first difference
    and the decrease past the context limit with the ends of their intervals."""
    frames = []
    for cause in causes:
        frame = curve_frame([cause.summary.curve])
        for name, value in (
            ("last_minus_first", cause.last_minus_first),
            ("lost_past_the_limit", cause.lost),
        ):
            ends = (None, None) if value is None else (value.low, value.high)
            frame[name] = None if value is None else value.value
            frame[f"{name}_low"], frame[f"{name}_high"] = ends
        frame["n_left_out"] = cause.n_left_out
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def agreement_frame(agreements: Sequence[tuple[str, Agreement]]) -> pd.DataFrame:
    """One row per agreement of a method with the intervention named by its label."""
    return pd.DataFrame(
        [
            {
                "model": agreement.model,
                "method": agreement.method.name,
                "intervention": cause,
                "n": agreement.n,
                "documents": agreement.n_documents,
                "left out": agreement.n_left_out,
                "mean curves": "" if agreement.means is None else str(agreement.means),
                "mean over pairs": "" if agreement.each is None else str(agreement.each),
            }
            for cause, agreement in agreements
        ]
    )


def controlled_frame(curves: Sequence[tuple[str, ControlledCurve]]) -> pd.DataFrame:
    """100 rows per model: the mean curve minus its control, with the interval of the mean."""
    positions = (np.arange(N_BINS) + 0.5) / N_BINS
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "model": name,
                    "control": CONTROLS[controlled.control],
                    "position": positions,
                    "mean": controlled.mean,
                    "ci_low": controlled.ci_low,
                    "ci_high": controlled.ci_high,
                    "n": controlled.n,
                    "n_documents": controlled.n_documents,
                }
            )
            for name, controlled in curves
        ],
        ignore_index=True,
    )


# -- models compared -------------------------------------------------------------------------------

IN_DEVIATIONS = (
    "Each model's scores are divided by their standard deviation, because models have different "
    f"scales; two models are equivalent within {DEVIATIONS_MARGIN:g}."
)

TITLES = {"relocation": "relocation difference", "ablation": "last minus first, ablation"}


def cause_differences(
    compute: Compute,
    specs: Sequence[RetrieverSpec],
    methods: Sequence[Method],
    pairs: Sequence[TextPair],
) -> list[PairedDifference]:
    """Paired differences between models in the last-minus-first difference of each intervention;
    none for a single model. Differences of scores are in standard deviations of each model's scores
    of the unchanged documents, because models have different scales; cosines are not scaled."""
    if len(specs) < 2:
        return []
    return paired_differences(
        [
            MeasuredModel(
                spec.name, [cause_measure(compute, spec, method, pairs) for method in methods]
            )
            for spec in specs
        ]
    )


def cause_measure(
    compute: Compute, spec: RetrieverSpec, method: Method, pairs: Sequence[TextPair]
) -> ItemMeasure:
    """The last-minus-first difference of one intervention by pair, from stored results; scaled as
    in `cause_differences`."""
    results = stored(compute, spec, method, pairs).results
    differences = {
        pair_id: value
        for pair_id, result in results.items()
        if (value := last_minus_first(result)) is not None
    }
    scale, margin = 1.0, SCORE_MARGIN
    if method.name in TITLES:
        scores = [
            result.original if isinstance(result, Relocation) else result.score
            for result in results.values()
        ]
        scale, margin = float(np.std(scores)) or 1.0, DEVIATIONS_MARGIN
    order = method.params.get("order")
    title = TITLES.get(method.name) or f"last minus first, {order or method.name}"
    documents = {pair.pair_id: pair.document for pair in pairs}
    return ItemMeasure(
        title,
        "pairs" if method.name in TITLES else "documents",
        margin,
        {pair_id: np.array([value / scale]) for pair_id, value in differences.items()},
        {pair_id: documents[pair_id] for pair_id in differences},
    )

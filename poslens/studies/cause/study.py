"""The study `cause`: moves the evidence or removes parts of documents, and measures the change of
the score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import DEVIATIONS_MARGIN, Comparison
from poslens.attribution.evaluation.comparison_words import change_in_words, size_in_words
from poslens.attribution.interventions.ablation import REPLACEMENTS, ablation_method
from poslens.attribution.interventions.relocation import relocation_method, require_movable
from poslens.attribution.types import TextPair
from poslens.figures.palettes import Style
from poslens.figures.stacked import stacked
from poslens.parameters import Choice, Parameters, Settings, Several
from poslens.rows import ModelRow, Table, column
from poslens.studies.cause.figures import causal_curves
from poslens.studies.cause.over_items import (
    NOTES,
    POINTS,
    SIDES,
    CauseItems,
    CauseSummary,
    CurveStudy,
    basis,
    notes_of,
)
from poslens.studies.cause.service import DataSetCause
from poslens.studies.selections import READABLE, number_of, selected
from poslens.study import Figure, register
from poslens.study_part import Number, StudyPart, moved_pairs, number


@dataclass(frozen=True)
class EffectRow(ModelRow):
    """The effect of one intervention on the score."""

    intervention: str = column("relocation or ablation.")
    n: int = column("Number of pairs.", title="pairs")
    documents: int = column("Number of distinct documents, which intervals resample.")
    truncated: int = column("Pairs whose document the model truncates.")
    failed: int = column("Number of failed pairs, which are excluded.")
    left_out: int = column(
        "Pairs whose evidence is read whole at fewer than two of the positions that it moves to."
    )
    last_minus_first: Estimate | None = column(
        "Relocation: mean score with the evidence in the last third of what the model reads, minus "
        "that in the first. Ablation: mean score drop from removing a part of the last third, "
        "minus that of the first. Negative means primacy.",
        title="last third minus first (score)",
        form="+.4f",
    )
    n_difference: int = column(
        "Pairs with a position in both thirds, over which the difference is taken.",
        title="pairs with both thirds",
    )
    in_deviations: Comparison | None = column(
        "Last minus first in standard deviations of the model's scores.",
        title="in standard deviations",
        form="+.3f",
    )
    lost: Estimate | None = column(
        "Mean score with the evidence read whole minus mean score with it truncated; null if it is "
        "never truncated.",
        title="lost past the context limit (score)",
        form="+.4f",
    )
    n_lost: int = column(
        "Pairs with positions where the evidence is read whole, and others where it is truncated.",
        title="pairs with positions past the limit",
    )
    notes: str = column(NOTES)


def _effects(summary: CauseSummary) -> list[EffectRow]:
    cause, curve = summary.cause, summary.cause.summary.curve
    return [
        EffectRow(
            curve.model,
            curve.method.name,
            curve.n,
            curve.n_documents,
            curve.n_truncated,
            curve.n_failed,
            cause.n_left_out,
            cause.last_minus_first,
            0 if cause.last_minus_first is None else cause.last_minus_first.n,
            summary.test,
            cause.lost,
            0 if cause.lost is None else cause.lost.n,
            notes_of(summary),
        )
    ]


def _curves(name: str, summaries: Sequence[CauseSummary], style: Style) -> go.Figure:
    """The mean curves of the intervention of this name, or those of all below each other if it is
    empty, because interventions measure different quantities.

    Raises:
        UserError: there are none.
    """
    by_intervention: dict[str, list[DataSetCause]] = {}
    for each in summaries:
        if name in ("", each.asked.method.name):
            by_intervention.setdefault(each.asked.method.name, []).append(each.cause)
    if not by_intervention:
        raise UserError(f"There is no result of {name} to draw.")
    several = len(by_intervention) > 1
    figures = [causal_curves(causes, style, named=several) for causes in by_intervention.values()]
    return stacked(figures, style)


def _numbers(summary: CauseSummary) -> list[Number]:
    cause = summary.cause
    change = "score with the evidence in the last third minus first third (negative: primacy)"
    lost = "mean score with the evidence read whole, minus mean score with it truncated"
    difference = cause.last_minus_first
    return [
        *number("last_minus_first", change, difference, "+.4f", measure=summary.unscaled),
        *number("lost", lost, cause.lost, "+.4f"),
    ]


PART = StudyPart(
    "relocation",
    "Effect of the evidence's position on the score",
    "Moving evidence removes it from its context. The first and last third include only positions "
    "where the model reads the evidence whole; pairs without such a position in each of the two "
    "thirds are left out.",
    "pairs",
    _numbers,
    {"interventions": ("relocation",)},
    moved_pairs,
)


class CauseStudy(CurveStudy):
    """Moves the evidence or removes parts of each document, and measures the score."""

    name = "cause"
    question = "Does moving the evidence change the score?"
    reads = (
        "Relocation: mean score with the evidence at each position, relative to each pair's mean. "
        "Ablation: mean drop in score when the part of the document at each position is removed. "
        "Bands are 95% intervals over documents."
    )
    limits = (
        "Positions are relative to what the model reads; truncated text does not count. Relocation "
        "uses only positions at which the model reads all of the evidence; pairs with fewer than "
        "two such positions are left out. Lost past the context limit: mean score with the "
        "evidence read whole minus mean score with it truncated, over pairs with both; this loss "
        "is due to truncation, not position bias. For tests and comparisons, each model's scores "
        "are divided by their standard deviation, because models have different scales; equivalent "
        f"means within {DEVIATIONS_MARGIN:g}. Brackets are 95% bootstrap intervals over documents."
    )
    parameters = Parameters(
        interventions=Several(
            option="--intervention",
            default=("relocation", "ablation"),
            options=("relocation", "ablation"),
            closed=True,
            help="relocation of the evidence, or ablation of parts of the document; both by "
            "default.",
        ),
        by=Choice(
            title="Ablation",
            default=REPLACEMENTS[0],
            options=REPLACEMENTS,
            help="How a part is removed. delete: the text after it moves up. mask: its tokens "
            "become padding. filler: neutral text of as many tokens replaces it.",
        ),
        pairs=number_of("pairs"),
        readable=READABLE,
    )
    tables: ClassVar = {"effects": Table(EffectRow, _effects), "curve": POINTS}
    figures = (
        Figure("Mean curves", partial(_curves, ""), on_page=False, intervals="curve"),
        Figure("Relocation", partial(_curves, "relocation"), half=True, intervals="curve"),
        Figure("Ablation", partial(_curves, "ablation"), half=True, intervals="curve"),
    )
    part = PART

    def corpus(self, data: DataSet, settings: Settings) -> CauseItems:
        """The pairs. If relocation is among the interventions, all of them use only pairs whose
        evidence can be moved.

        Raises:
            UserError: no evidence can be moved, or `by` has no effect.
        """
        if "ablation" not in settings.interventions and settings.by != REPLACEMENTS[0]:
            raise UserError("`by` applies only to ablation: remove it, or choose ablation.")
        methods = {"relocation": relocation_method(), "ablation": ablation_method(settings.by)}
        usable: Sequence[TextPair] = data.pairs
        left_out = ""
        if "relocation" in settings.interventions:
            try:
                usable, left_out = require_movable(data)
            except UserError as reason:
                if "ablation" in settings.interventions:
                    raise UserError(f"{reason} Ablation alone needs no evidence.") from reason
                raise
        elif not len(usable):
            raise UserError(f"{data.title} has no query-document pairs: select another data set.")
        chosen = tuple(method for name, method in methods.items() if name in settings.interventions)
        return CauseItems(data.name, *selected(usable, settings.pairs), chosen, left_out)

    def verdict(self, summary: CauseSummary) -> str:
        """How the score changes with the position, and whether that is decided."""
        name, cause, test = summary.name, summary.cause, summary.test
        if cause.last_minus_first is None:
            return f"{name}: no pair has positions in both the first and the last third."
        tested = (
            "not tested with a single pair"
            if cause.last_minus_first.n < 2
            else "not tested, because the unchanged documents all have the same score, and so no "
            "standard deviation"
        )
        if test is not None:
            deviations = test.difference.value
            tested = f"{deviations:+z.2f} standard deviations of the model's scores; {basis(test)}"
        if summary.asked.method.name == "ablation":
            value = cause.last_minus_first
            more, less = ("first", "last") if value.value < 0 else ("last", "first")
            size = size_in_words(value, ".4f")
            if not size:
                return (
                    f"{name}: removing a part of the last third changes the score as much as "
                    f"removing a part of the first third ({tested})."
                )
            if test is not None and test.verdict == "equivalent":
                return (
                    f"{name}: removing a part of the first or of the last third lowers the score "
                    f"about equally (last minus first: {value.text('+.4f')}; {tested})."
                )
            return (
                f"{name}: removing a part of the {more} third lowers the score by "
                f"{size} more than removing a part of the {less} third (last minus "
                f"first: {tested})."
            )
        change = change_in_words(cause.last_minus_first, ".4f")
        sentence = (
            f"{name}: the score {change} when the evidence moves from the first to the last third "
            f"of what the model reads ({tested})."
        )
        verdict = test.verdict if test is not None else ""
        if side := SIDES.get(verdict):
            sentence += f" Documents score higher with the evidence near the {side}."
        if cause.lost is not None and (size := size_in_words(cause.lost, ".4f")):
            less = "lower" if cause.lost.value >= 0 else "higher"
            sentence += f" Where the evidence is truncated, the score is {less} by {size}."
        return sentence


CAUSE = register(CauseStudy())

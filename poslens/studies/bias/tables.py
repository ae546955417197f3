"""Results of one model's bias tests, their table rows and their chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.bias_pairs import BiasPairs
from poslens.attribution.evaluation.bias_tests import TESTS, BiasResult, PairScores
from poslens.attribution.retrievers import limits
from poslens.figures.figure_base import canvas, intervals, labeled_bars, legend_name, with_legend
from poslens.figures.palettes import PRESETS, Style, escape, text_width, wrap
from poslens.rows import P_VALUE, ModelRow, column
from poslens.study import Asked, ModelSummary

BiasSubject: TypeAlias = Asked[tuple[BiasPairs, ...]]


@dataclass(frozen=True, slots=True)
class ScoredTest:
    """One model's result of one test, with its pairs and scores.

    `missing` counts the pairs without scores; `failed` has the reasons why pairs cannot be scored,
    by item. `adjusted_p` is adjusted (Holm) for all results shown together; None without a p value.
    """

    pairs: BiasPairs
    result: BiasResult
    scores: dict[str, PairScores]
    missing: int
    failed: dict[str, str]
    adjusted_p: float | None = None

    @property
    def name(self) -> str:
        """Name of the test, with its variant."""
        return ", ".join(filter(None, (self.pairs.test, self.pairs.variant)))

    @property
    def difference(self) -> Estimate | None:
        """The mean of s(d1) - s(d2) with its t interval."""
        result = self.result
        if result.difference is None:
            return None
        ends = result.low, result.high
        return Estimate(
            result.difference, *ends, result.n, result.n_documents, formula="t interval"
        )


@dataclass(frozen=True)
class BiasSummary(ModelSummary[BiasSubject]):
    """The tests of one model that have at least one scored pair."""

    tests: tuple[ScoredTest, ...]

    def of(self, name: str) -> ScoredTest | None:
        """The test with this name (`ScoredTest.name`); None without one."""
        return next((test for test in self.tests if test.name == name), None)


VARIANT = (
    "The variant of the test, if `--vary` is given. Position: percent of the other sentences "
    "before the evidence. Literal: the name in the query and in d1. Repetition: added sentences of "
    "d1 that name the entity."
)


@dataclass(frozen=True)
class BiasRow(ModelRow):
    """A bias test of one model."""

    test: str = column("Name of the test, as for `--test`.", title="name", shown=False)
    title: str = column("Title of the test.", title="test")
    variant: str = column(VARIANT)
    n: int = column("Pairs of documents tested.")
    documents: int = column("Number of distinct documents.")
    t: float | None = column("Paired t statistic; null where it is not defined.", form=".2f")
    p: float | None = column("Two-sided p value of t.", form=P_VALUE)
    p_holm: float | None = column(
        "p after Holm's correction over all rows.", title="p (Holm)", form=P_VALUE
    )
    mean_difference: Estimate | None = column(
        "Mean of s(d1) - s(d2), in the model's score, with its t interval.", form="+.4f"
    )
    d_z: float | None = column(
        "Mean difference in standard deviations of differences.", title="d_z", form=".2f"
    )
    d1_preferred: float | None = column("Share of pairs with s(d1) > s(d2), 0 to 1.", form=".0%")
    resistance: float | None = column(
        "Share of pairs in which the document that mteb prefers scores higher, 0 to 1.",
        title="resistance (mteb)",
        form=".0%",
    )
    mteb_prefers: str = column(
        "d1 or d2: the document with the answer, or the one that the bias does not favor."
    )
    mean_d1: float | None = column(
        "Mean score of the first documents.", title="mean s(d1)", form=".4f"
    )
    mean_d2: float | None = column(
        "Mean score of the second documents.", title="mean s(d2)", form=".4f"
    )
    identical: int = column("Number of pairs excluded because their documents are identical.")
    truncated: int = column("Number of pairs with a document longer than the context limit.")
    evidence_not_read_whole: int = column(
        "Number of pairs excluded because the model truncates the evidence.",
        title="evidence truncated",
    )
    mean_difference_there: float | None = column(
        "Mean of s(d1) - s(d2) over the pairs with truncated evidence.",
        title="mean difference, evidence truncated",
        form="+.4f",
    )
    failed: int = column("Number of failed pairs.")
    missing: int = column("Number of pairs that are not computed yet.")
    positive_t_means: str = column("What a positive t means.", title="t > 0 means")
    pairs: str = column("How the pairs were built.")
    remarks: str = column("Remarks on the row, such as why a number is undefined; can be empty.")


@dataclass(frozen=True)
class PairRow(ModelRow):
    """A scored pair of documents; rows are sorted by decreasing difference."""

    test: str = column("Name of the test, as for `--test`.", title="name", shown=False)
    title: str = column("Title of the test.", title="test")
    variant: str = column(VARIANT)
    difference: float = column("s(d1) - s(d2), in the model's score.", form=".4f")
    score_d1: float = column("Score of the first document.", title="s(d1)", form=".4f")
    score_d2: float = column("Score of the second document.", title="s(d2)", form=".4f")
    evidence_read: float | None = column(
        "Share of the evidence's characters that the model reads, 0 to 1, in the document where "
        "that share is smaller; null if the context limit is unknown.",
        form=".0%",
    )
    query: str = column("The query.")
    d1: str = column("The first document.")
    d2: str = column("The second document.")
    pair: str = column("Id of the pair.")


def test_rows(summary: BiasSummary) -> Iterator[BiasRow]:
    """One row for each test of a model."""
    for scored in summary.tests:
        result, test = scored.result, TESTS[scored.result.test]
        yield BiasRow(
            model=summary.name,
            test=result.test,
            title=test.title,
            variant=scored.pairs.variant,
            n=result.n,
            documents=result.n_documents,
            t=result.t,
            p=result.p,
            p_holm=scored.adjusted_p,
            mean_difference=scored.difference,
            d_z=result.effect_size,
            d1_preferred=result.share_first,
            resistance=result.resistance,
            mteb_prefers=test.mteb_prefers,
            mean_d1=result.mean_first,
            mean_d2=result.mean_second,
            identical=result.n_identical,
            truncated=result.n_truncated,
            evidence_not_read_whole=result.n_unread,
            mean_difference_there=result.lost,
            failed=len(scored.failed),
            missing=scored.missing,
            positive_t_means=test.positive,
            pairs=scored.pairs.source,
            remarks=" ".join(result.remarks),
        )


def pair_rows(summary: BiasSummary) -> Iterator[PairRow]:
    """One row for each scored document pair of each test of a model."""
    unknown = limits.unknown(summary.model.spec)
    for test in summary.tests:
        rows = [
            PairRow(
                summary.name,
                test.result.test,
                TESTS[test.result.test].title,
                test.pairs.variant,
                scores.first - scores.second,
                scores.first,
                scores.second,
                None if unknown else scores.read,
                pair.first.query,
                pair.first.document,
                pair.second.document,
                pair.item_id,
            )
            for pair in test.pairs.pairs
            if (scores := test.scores.get(pair.item_id)) is not None
        ]
        yield from sorted(rows, key=lambda row: -row.difference)


# -- chart -----------------------------------------------------------------------------------------

MEASURES = {
    "t": "Paired t statistic",
    "effect size": "Effect size d_z (mean difference over its standard deviation)",
    "mean difference": "Mean s(d1) − s(d2), in each model's own score units",
}
"""Measures that bars can show, with axis titles. Only the mean difference depends on the scale of a
model's scores."""

_AXES = {
    "position": "Other sentences before the evidence of d2",
    "literal": "Entity's name in the query and in d1",
    "repetition": "Added sentences of d1 that name the entity",
}
"""Titles of the x axis for the variants of a test."""


def bias_chart(summaries: Sequence[BiasSummary], style: Style) -> go.Figure:
    """A group of bars for each test, or each variant of a test, with one bar per model; above zero,
    d1 scores higher. The measure is that of the first summary.

    Whiskers are 95% intervals. A label replaces a bar without a value. The customdata of a bar is
    [model, name of the test and its variant].
    """
    measure = summaries[0].asked.settings.measure
    tests = [test for summary in summaries for test in summary.tests]
    axis = next((_AXES[test.pairs.test] for test in tests if test.pairs.variant), "")
    figure = canvas("bias_tests", style, axis, MEASURES[measure])
    order = list(TESTS)
    tests.sort(key=lambda test: order.index(test.pairs.test))
    labels = list(dict.fromkeys(map(_label, tests)))
    # Labels get the largest legible font size at which neighbors don't overlap; if there is none,
    # they turn.
    room = (style.width_px - 6 * style.font_size) / max(1, len(labels))
    longest = max(
        (text_width(w, 1.0) for label in labels for w in label.split("<br>")), default=1.0
    )
    for index, summary in enumerate(summaries):
        model = summary.name
        values = [_value(test, measure) for test in summary.tests]
        bars = list(zip(summary.tests, values, strict=True))
        figure.add_trace(
            go.Bar(
                x=[_label(test) for test in summary.tests],
                y=[value.value if value else 0.0 for value in values],
                name=legend_name(model, style),
                customdata=[[model, test.name] for test in summary.tests],
                text=["" if value else _instead(test) for test, value in bars],
                **labeled_bars(index, style),
                error_y={**intervals(values, style.colors.ink), "thickness": 1.2, "width": 3},
                hovertext=[_hover(model, test, value, measure) for test, value in bars],
            )
        )
    figure.add_hline(0, line={"color": style.colors.ink, "width": 1})
    figure.update_layout(barmode="group", bargap=0.25, hovermode="closest")
    figure.update_xaxes(
        categoryorder="array",
        categoryarray=labels,
        type="category",
        ticks="",
        showline=False,
        # Labels turn only if the page is too narrow for horizontal ones; at less than 90 degrees,
        # lines of neighbors would overlap.
        autotickangles=[0, 90],
        automargin=True,
        tickfont={"size": max(min(style.small, room / longest), PRESETS["single column"].small)},
    )
    figure.update_yaxes(showgrid=True)
    return with_legend(figure, style)


def _label(test: ScoredTest) -> str:
    """The label below a bar: the title of a test, one word per line, or the variant."""
    return test.pairs.variant or TESTS[test.pairs.test].title.replace(" ", "<br>")


def _value(test: ScoredTest, measure: str) -> Estimate | None:
    """The value of a bar with its 95% interval; None if it is not defined."""
    if measure == "mean difference":
        return test.difference
    t, interval = test.result.t, test.result.t_interval
    if t is None or interval is None:
        return None
    return Estimate(t, *interval).times(1.0 if measure == "t" else test.result.n_documents**-0.5)


def _instead(test: ScoredTest) -> str:
    """The label in place of a bar without a value."""
    return "tie" if test.result.difference == 0 else "none"


def _hover(model: str, test: ScoredTest, value: Estimate | None, measure: str) -> str:
    title = ", ".join(filter(None, (TESTS[test.pairs.test].title, test.pairs.variant)))
    head = f"{escape(model)}<br>{escape(title)}"
    if value is None:
        note = " ".join(test.result.remarks)
        return f"{head}<br>{'<br>'.join(map(escape, wrap(note, 320, 13)))}"
    return f"{head}<br>{escape(measure)} {value.text('.3g')}"

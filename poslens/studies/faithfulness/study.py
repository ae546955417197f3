"""The declaration of the study `faithfulness`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import ClassVar, TypeAlias

import numpy as np
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import SHARE_MARGIN, Comparison
from poslens.attribution.evaluation.comparison_words import p_in_words
from poslens.attribution.evaluation.faithfulness import (
    MAX_RANDOM,
    N_RANDOM,
    UNITS,
    ErasureParameters,
    Faithfulness,
)
from poslens.attribution.evaluation.faithfulness_summary import FaithfulnessSummary, summarize
from poslens.attribution.pairs import columns_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.cache.storage.results import Stored
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity, of_model, removed_units
from poslens.compute.runs import Job
from poslens.figures.palettes import Style
from poslens.paired import DifferenceRow, ItemMeasure, MeasuredModel
from poslens.parameters import Choice, Integer, Parameters, Settings
from poslens.rows import ModelRow, Table, column
from poslens.studies.faithfulness import service
from poslens.studies.faithfulness.figures import gains, mean_erasure_curves
from poslens.studies.selections import (
    METHOD_CHOICE,
    READABLE,
    OfPairs,
    SelectedPairs,
    methods_for,
    number_of,
    selected,
)
from poslens.study import AskedMethod, Figure, ModelSummary, register

TestedOrder: TypeAlias = AskedMethod[SelectedPairs]
"""One order of units, a method's or one by position, on one model."""


def _parameters(subject: TestedOrder) -> ErasureParameters:
    settings = subject.settings
    return ErasureParameters(unit=settings.unit, n_random=settings.random_orders)


@dataclass(frozen=True)
class OrderSummary(ModelSummary[TestedOrder]):
    """The tests of one order. `measure` has the deletion gain of each pair, and `over_random`
    compares their mean with 0, that is, with random orders."""

    summary: FaithfulnessSummary
    measure: ItemMeasure
    over_random: Comparison | None
    n_failed: int

    @property
    def name(self) -> str:
        """Model and order, for labels."""
        return f"{self.summary.model}, {service.title_of(self.asked.method)}"


@dataclass(frozen=True)
class OrderRow(ModelRow):
    """The means of one order over pairs."""

    method: str = column(
        "Name of the method, or of the order by position.", words=service.ORDER_TITLES
    )
    n: int = column("Number of averaged pairs, without those left out.")
    documents: int = column("Number of distinct documents, which intervals resample.")
    score_unchanged: int = column(
        "Pairs left out because the scores of the full and the empty document differ by at most "
        "0.1%.",
        title="left out (score unchanged)",
    )
    score_rises: int = column(
        "Pairs left out because the empty document scores higher.",
        title="left out (score rises)",
    )
    failed: int = column("Number of failed tests.")
    truncated: int = column("Pairs whose document the model truncates.")
    deletion_area: Estimate = column(
        "Area under the deletion curve; lower is better. The full document scores 1, the empty one "
        "0."
    )
    insertion_area: Estimate = column("Area under the insertion curve; higher is better.")
    comprehensiveness: Estimate = column(
        "Score lost without the top units, divided by the difference between the full and the "
        "empty document; mean over the top 1, 5, 10, 20 and 50%; higher is better."
    )
    sufficiency: Estimate = column(
        "Score lost with only the top units, divided and averaged in the same way; lower is better."
    )
    deletion_gain: Comparison | None = column(
        "Deletion area of random orders minus that of this order; positive is better.", form="+.3f"
    )
    insertion_gain: Estimate = column(
        "Insertion area of this order minus that of random orders; positive is better.",
        form="+.3f",
    )
    enrichment: Estimate | None = column(
        "The evidence's share of the attribution divided by its share of tokens; null without "
        "evidence, and for orders by position.",
        form=".2f",
    )
    seconds: Estimate = column(
        "Time of one pair's attribution in seconds.", title="run time (s)", form=".2f"
    )


def _rows(result: OrderSummary) -> list[OrderRow]:
    means, method = result.summary, result.asked.method
    return [
        OrderRow(
            means.model,
            service.name_of(method),
            means.n,
            means.n_documents,
            means.n_equal,
            means.n_below,
            result.n_failed,
            means.n_truncated,
            means.deletion_area,
            means.insertion_area,
            means.comprehensiveness,
            means.sufficiency,
            result.over_random,
            means.insertion_gain,
            means.enrichment,
            means.seconds,
        )
    ]


def _gains(results: Sequence[OrderSummary], style: Style) -> go.Figure:
    rows = [(result.name, result.summary.deletion_gain) for result in results]
    return gains(rows, "Deletion gain", style)


def _curves(kind: str, results: Sequence[OrderSummary], style: Style) -> go.Figure:
    several = len({result.summary.model for result in results}) > 1
    named = {
        result.name if several else service.title_of(result.asked.method): result.summary
        for result in results
    }
    return mean_erasure_curves(named, kind, style)


class FaithfulnessTest(OfPairs[SelectedPairs, TestedOrder, OrderSummary]):
    """Deletes and inserts words in the order of each method, at random, and by position."""

    name = "faithfulness"
    question = (
        "Does deleting a method's top words lower the score faster than deleting random words?"
    )
    unit = "pair"
    reads = (
        "Words are removed in order of attribution, highest first (deletion), or restored to an "
        "empty text in that order (insertion). If a method is faithful, the score drops early in "
        "deletion and rises early in insertion, compared with random orders and with orders by "
        "position alone."
    )
    limits = (
        "Gain: improvement over random orders of the document's words, positive is better. Front "
        "to back and back to front order words by position alone; a method that doesn't beat both "
        "may reflect only position. Means over pairs; brackets and bands are 95% bootstrap "
        f"intervals over documents. p is Holm-adjusted; equivalent: within {SHARE_MARGIN:g}. Pairs "
        "are left out if the empty document scores as high as the full one, or higher. Deleted "
        "words are replaced with padding embeddings; BM25, endpoints and objects that only encode "
        "get the text without them. A model may react to such texts as it never does to real ones."
    )
    parameters = Parameters(
        methods=METHOD_CHOICE,
        pairs=number_of("pairs"),
        readable=READABLE,
        unit=Choice(
            default="word",
            options=UNITS,
            help="What is removed: words, tokens or sentences.",
        ),
        random_orders=Integer(
            default=N_RANDOM,
            low=1,
            high=MAX_RANDOM,
            help="Number of random orders of each document.",
        ),
    )
    tests = ("over_random",)
    tables: ClassVar = {"methods": Table(OrderRow, _rows)}
    figures = (
        Figure("Deletion gain over random orders", _gains),
        Figure("Deletion, mean over pairs", partial(_curves, "deletion"), half=True),
        Figure("Insertion, mean over pairs", partial(_curves, "insertion"), half=True),
    )

    def corpus(self, data: DataSet, settings: Settings) -> SelectedPairs:
        """The pairs, spread evenly over the data set.

        Raises:
            UserError: the data set has no pairs.
        """
        if not len(data.pairs):
            raise UserError(f"{data.title} has no query-document pairs: select another data set.")
        return SelectedPairs(data.name, *selected(data.pairs, settings.pairs))

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: SelectedPairs, settings: Settings
    ) -> list[TestedOrder]:
        methods = methods_for(compute, spec, settings.methods)
        return [
            AskedMethod(spec, corpus, settings, method) for method in (*methods, *service.BASELINES)
        ]

    def job(self, compute: Compute, subject: TestedOrder) -> Job:
        """A job that attributes and tests the pairs; progress counts pairs."""
        compute.require_fit(compute.identify(subject.spec), subject.method)
        corpus, parameters = subject.corpus, _parameters(subject)
        return service.job(
            compute, subject.spec, subject.method, corpus.pairs, corpus.scope, parameters
        )

    def summarize(self, compute: Compute, subject: TestedOrder) -> OrderSummary | None:
        """The means over pairs; None while a pair is not tested.

        Raises:
            UserError: every test failed, or no document scores higher than an empty one.
        """
        stored = _stored(compute, subject)
        if len(stored.results) + len(stored.failed) < len(subject.corpus.pairs):
            return None
        if not stored.results:
            raise UserError(
                f"Every test of {service.name_of(subject.method)} on {subject.spec.name} failed: "
                f"{next(iter(stored.failed.values()))}"
            )
        return self.so_far(compute, subject)

    def so_far(self, compute: Compute, subject: TestedOrder) -> OrderSummary | None:
        """The means over the pairs that are tested."""
        stored = _stored(compute, subject)
        if not stored.results:
            return None
        model = compute.identify(subject.spec)
        tested = (subject.corpus.dataset, subject.corpus.selection)
        how = (repr(subject.method), repr(_parameters(subject)))
        key = (model.spec.name, model.key, *how, *tested, stored.digest)
        return self.summaries.get(key, lambda: _summary(model, subject, stored))

    def measured(self, summary: OrderSummary) -> MeasuredModel:
        """The deletion gain of each pair. Orders are compared on the same model only."""
        return MeasuredModel(summary.name, [summary.measure])

    def verdict(self, summary: OrderSummary) -> str:
        """Whether the score falls faster than in random order."""
        means, test = summary.summary, summary.over_random
        gain = f"deletion gain {means.deletion_gain.text('+.3f')}"
        if test is None or test.verdict == "too few documents":
            return f"{summary.name}: {gain}. {test.sentence if test else ''}".rstrip()
        speed, basis = {
            "higher": ("faster than", p_in_words(test)),
            "lower": ("more slowly than", p_in_words(test)),
            "equivalent": ("as fast as", test.clause),
        }[test.verdict]
        units = f"{means.parameters.unit}s"
        return (
            f"{summary.name}: the score falls {speed} in random order when {units} are deleted in "
            f"this order ({gain}; {basis})."
        )

    def differences(self, summaries: Sequence[OrderSummary]) -> list[DifferenceRow]:
        """The reverse order makes methods the first, and orders by position the second, of each
        comparison."""
        return super().differences(summaries[::-1])

    def provenance(self, summary: OrderSummary) -> Provenance:
        means = summary.summary
        return of_model(
            summary.model,
            f"{means.parameters!r} of {means.method!r}",
            summary.asked.corpus.dataset,
            n_pairs=means.n,
            n_documents=means.n_documents,
            truncated=means.n_truncated,
            selection=summary.asked.corpus.selection,
            units=removed_units(means),
        )


def _stored(compute: Compute, subject: TestedOrder) -> Stored[Faithfulness]:
    pairs = subject.corpus.pairs
    return service.stored(compute, subject.spec, subject.method, pairs, _parameters(subject))


def _summary(
    model: ModelIdentity, subject: TestedOrder, stored: Stored[Faithfulness]
) -> OrderSummary:
    results, columns = stored.results, columns_of(subject.corpus.pairs)
    summary = summarize(list(results.values()), columns.documents_of(list(results)))
    # Orders are compared on the same model only.
    gains = {
        (model.key.fingerprint, pair_id): np.array([result.gain.deletion_area])
        for pair_id, result in results.items()
        if result.gap is not None and result.gap > 0 and result.gain is not None
    }
    documents = columns.documents_of([pair_id for _, pair_id in gains])
    of_items = dict(zip(gains, documents, strict=True))
    measure = ItemMeasure(
        "deletion gain", "pairs", SHARE_MARGIN, gains, of_items, label=itemgetter(1)
    )
    failed = len(stored.failed)
    return OrderSummary(model, subject, summary, measure, measure.test(), failed)


FAITHFULNESS = register(FaithfulnessTest())

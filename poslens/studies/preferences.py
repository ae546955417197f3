"""The study `preferences`: which position an attribution method itself prefers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, TypeAlias, cast

import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.preferences import (
    BASE,
    CONDITIONS,
    EXCERPT_TOKENS,
    METHOD,
    ORDER_BLIND,
    STRENGTHS,
    Condition,
    Preference,
    Thirds,
    make_order_blind,
    pairs_for,
    preference,
    thirds,
    with_query,
)
from poslens.attribution.methods import METHOD_TITLES, METHODS, make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.dense import FAMILY, DenseRetriever
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, Provenance, TextPair
from poslens.cache.kinds.study_items import MeasuredMethod, method_id, preferences
from poslens.cache.shipped.preferences import words
from poslens.compute.compute import Compute
from poslens.compute.item_job import item_job
from poslens.compute.model_pool import load_model
from poslens.compute.provenance import ModelIdentity, of_model
from poslens.compute.runs import Job
from poslens.figures.figure_base import canvas, faint, group, intervals, legend_name, with_legend
from poslens.figures.palettes import Style
from poslens.parameters import Integer, Parameters, Settings, Several, Switch
from poslens.rows import Table, column
from poslens.studies.faithfulness.figures import gains
from poslens.study import AskedMethod, Figure, Study, register

FITTING = tuple(name for name, entry in METHODS.items() if entry.fits(FAMILY))
DOCUMENTS = 12


@dataclass(frozen=True)
class PreferenceCorpus:
    """The pairs, the pairs `among` which unrelated queries are drawn, and the models with a known
    bias (conditions)."""

    pairs: tuple[TextPair, ...]
    among: Pairs
    conditions: tuple[Condition, ...]


PreferenceSubject: TypeAlias = AskedMethod[PreferenceCorpus]
"""One method, which is measured on models with a known bias."""


@dataclass(frozen=True)
class PreferenceSummary:
    """The preference of one method on a data set."""

    preference: Preference
    model: ModelIdentity
    dataset: str


@dataclass(frozen=True)
class PreferenceRow:
    """The preference of one method."""

    method: str = column("Name of the method.", words=METHOD_TITLES)
    documents: int = column("Number of distinct documents.")
    order_blind: Estimate = column(
        "Primacy-recency index on the order-blind encoder, -1 to 1; 0 is expected.",
        title="method preference",
        form="+.3f",
    )
    slope: Estimate | None = column(
        "Change of the index per unit of planted strength; null if only the order-blind encoder "
        "was measured.",
        form="+.3f",
    )
    rank_correlation: Estimate | None = column(
        "Spearman correlation of the index with the strength; null if all indices are equal.",
        form="+.2f",
    )
    primacy_from: float | None = column(
        "Detection limit: smallest strength of the primacy adapter, 0 to 1, from which the "
        "interval of the index minus the order-blind encoder's excludes 0; null if not detected.",
        form="g",
    )
    recency_from: float | None = column(
        "Detection limit for the recency adapter; null if not detected.", form="g"
    )
    query_free: Estimate | None = column(
        "Difference between the adapters' indices under an unrelated query, divided by that under "
        "the pair's own query; null if the method does not tell the adapters apart.",
        form=".2f",
    )


@dataclass(frozen=True)
class StrengthRow:
    """A method's index at one strength of the planted bias."""

    method: str = column("Name of the method.", words=METHOD_TITLES)
    strength: float = column(
        "Strength of the planted bias: negative primacy, 0 none, positive recency.", form="+g"
    )
    index: Estimate = column("Primacy-recency index, -1 to 1.", form="+.3f")


def preference_rows(summary: PreferenceSummary) -> list[PreferenceRow]:
    """One row per method."""
    preference, planted = summary.preference, summary.preference.planted
    name = preference.method.name
    of_method = (name, preference.n_documents, preference.order_blind)
    if planted is None:
        return [PreferenceRow(*of_method, None, None, None, None, None)]
    slope, correlation = planted.slope, planted.rank_correlation
    detected = (planted.primacy, planted.recency)
    return [PreferenceRow(*of_method, slope, correlation, *detected, planted.query_free)]


def strength_rows(summary: PreferenceSummary) -> list[StrengthRow]:
    """One row per strength."""
    name, planted = summary.preference.method.name, summary.preference.planted
    if planted is None:
        return []
    indices = zip(STRENGTHS, planted.indices, strict=True)
    return [StrengthRow(name, strength, index) for strength, index in indices]


def order_blind_indices(summaries: Sequence[PreferenceSummary], style: Style) -> go.Figure:
    """Each method's index on the order-blind encoder with its interval; 0 is expected."""
    preferences = [summary.preference for summary in summaries]
    rows = [
        (METHODS[preference.method.name].title, preference.order_blind)
        for preference in preferences
    ]
    return gains(rows, "Index, order-blind encoder", style)


def index_by_strength(summaries: Sequence[PreferenceSummary], style: Style) -> go.Figure:
    """Each method's index against the strength of the planted bias, with its interval.

    Raises:
        UserError: no method was measured on models with a planted bias.
    """
    if all(summary.preference.planted is None for summary in summaries):
        raise UserError("No method has been measured on the models with a planted bias.")
    title = "Strength (-1 primacy, 1 recency)"
    figure = canvas("preferences", style, title, "Primacy-recency index")
    figure.add_hline(0, line={"color": style.colors.muted, "width": 1, "dash": "dot"})
    for number, summary in enumerate(summaries):
        planted, look = summary.preference.planted, style.line(number)
        if planted is None:
            continue
        name = METHODS[summary.preference.method.name].title
        trace = go.Scatter(
            x=STRENGTHS,
            y=[index.value for index in planted.indices],
            mode="lines+markers",
            name=legend_name(name, style),
            line=look,
            marker=style.marker(number, 0.6),
            error_y=intervals(planted.indices, faint(str(look["color"]), 0.6)),
            customdata=[[index.text("+.3f")] for index in planted.indices],
            hovertemplate="%{customdata[0]}",
        )
        figure.add_trace(group(trace, f"method {number}", name))
    figure.update_xaxes(tickvals=list(STRENGTHS), unifiedhovertitle={"text": "strength %{x}"})
    figure.update_layout(hovermode="x unified")
    return with_legend(figure, style)


class Preferences(Study[PreferenceCorpus, PreferenceSubject, PreferenceSummary]):
    """Measures primacy-recency indices of methods on an order-blind encoder and on models with a
    planted bias."""

    name = "preferences"
    question = "Which position does an attribution method itself prefer?"
    unit = "measurement"
    reads = (
        "Each method is measured on models whose position bias is known: MiniLM made blind to word "
        "order (position embeddings 0, attention replaced by the mean over tokens), and MiniLM "
        "with a planted bias of growing strength (-1: primacy adapter, 0: no adapter, 1: recency "
        "adapter). A method without a preference has an index near 0 on the first, and an index "
        "that grows with the strength on the others."
    )
    limits = (
        "The index on the order-blind encoder also contains the texts' own preference: content "
        "that matches the query may be more frequent in the first or last third. All models are "
        "variants of MiniLM, and texts are excerpts of about 128 tokens: on other models and "
        "longer texts, a method may prefer another position. Brackets are 95% bootstrap intervals "
        "over documents."
    )
    parameters = Parameters(
        methods=Several(
            option="--method",
            default=FITTING,
            options=FITTING,
            closed=True,
            titles={name: METHOD_TITLES[name] for name in FITTING},
            help="Attribution methods, with default parameters; by default, all that fit.",
        ),
        documents=Integer(
            default=DOCUMENTS,
            low=2,
            high=1000,
            help="Number of English documents. An excerpt of each is attributed, for one query.",
        ),
        order_blind_only=Switch(
            title="Order-blind encoder only",
            help="Skip the models with a planted bias, which take seven eighths of the time.",
        ),
    )
    models = (BASE,)
    tables: ClassVar = {
        "methods": Table(PreferenceRow, preference_rows),
        "strengths": Table(StrengthRow, strength_rows, "Index by strength of the planted bias"),
    }
    figures = (
        Figure("Index on the order-blind encoder", order_blind_indices, ("methods",)),
        Figure("Index by strength of the planted bias", index_by_strength, ("strengths",)),
    )

    def corpus(self, data: DataSet, settings: Settings) -> PreferenceCorpus:
        """One pair for each of some English documents, and all pairs for unrelated queries."""
        conditions = (ORDER_BLIND,) if settings.order_blind_only else CONDITIONS
        pairs = pairs_for(data, settings.documents)
        return PreferenceCorpus(pairs, data.pairs, conditions)

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: PreferenceCorpus, settings: Settings
    ) -> list[PreferenceSubject]:
        if spec != resolve(BASE):
            raise UserError(
                f"{spec.name} has no variants with a known position bias: select {BASE}."
            )
        return [AskedMethod(spec, corpus, settings, make_method(name)) for name in settings.methods]

    def job(self, compute: Compute, subject: PreferenceSubject) -> Job:
        """A job that attributes the pairs under each condition."""
        blind = cache(lambda: _order_blind(subject.spec))

        def worker(given: Compute, retriever: Retriever) -> Callable[[MeasuredMethod], Thirds]:
            def measure(item: MeasuredMethod) -> Thirds:
                model = (
                    blind()
                    if item.condition == ORDER_BLIND
                    else given.retriever(given.identify(resolve(item.condition.model)))
                )
                return thirds(model, item.method, item.pairs)

            return measure

        title, items = METHODS[subject.method.name].title, _items(compute, subject)
        scope = f"{items[0].pairs[0].dataset}: {len(items[0].pairs)} documents, {title}"
        scope += "" if len(items) > 1 else ", without planted biases"
        job = item_job(
            compute, subject.spec, METHOD, items, preferences, worker, scope=scope, doing=self.name
        )
        return replace(job, label=title)

    def summarize(self, compute: Compute, subject: PreferenceSubject) -> PreferenceSummary | None:
        """The method's preference; None until all conditions are measured."""
        return summary_of(compute, subject, subject.method)

    def so_far(self, compute: Compute, subject: PreferenceSubject) -> PreferenceSummary | None:
        """The index on the order-blind encoder, which is measured first."""
        alone = replace(subject, corpus=replace(subject.corpus, conditions=(ORDER_BLIND,)))
        return summary_of(compute, alone, subject.method)

    def verdict(self, summary: PreferenceSummary) -> str:
        preference = summary.preference
        title = METHODS[preference.method.name].title
        sentences = [f"{title}: {words(preference.order_blind)}."]
        if (planted := preference.planted) is not None:
            limits = " and ".join(
                f"{name} from strength {value:g}" if value is not None else f"no {name}"
                for name, value in (("primacy", planted.primacy), ("recency", planted.recency))
            )
            slope, ratio = planted.slope.text("+.3f"), planted.query_free
            sentences.append(
                f"The index grows by {slope} per unit of strength; the method detects {limits}."
            )
            if ratio is not None:
                sentences.append(
                    "With an unrelated query, the difference between the indices at strengths 1 "
                    f"and −1 is {ratio.text('.2f')} times as large."
                )
        return " ".join(sentences)

    def provenance(self, summary: PreferenceSummary) -> Provenance:
        preference = summary.preference
        return of_model(
            summary.model,
            f"{METHOD!r} of {preference.method!r}",
            summary.dataset,
            n_documents=preference.n_documents,
            selection=f"English documents, an excerpt of about {EXCERPT_TOKENS} tokens of each",
        )


def summary_of(
    compute: Compute, subject: PreferenceSubject, method: Method
) -> PreferenceSummary | None:
    """The preference of `method`, which is the subject's method with any curve settings; None while
    a measurement is missing.

    Raises:
        UserError: all scores of the method are 0.
    """
    model, items = compute.identify(subject.spec), _items(compute, subject)
    stored = preferences(compute.root).select(model.key, METHOD, items).results
    if len(stored) < len(items):
        return None
    measured = {item.condition: stored[method_id(item.method, item.condition)] for item in items}
    documents = [pair.document for pair in subject.corpus.pairs]
    return PreferenceSummary(
        preference(method, measured, documents), model, subject.corpus.pairs[0].dataset
    )


def _items(compute: Compute, subject: PreferenceSubject) -> list[MeasuredMethod]:
    corpus = subject.corpus
    return [
        MeasuredMethod(
            subject.method,
            condition,
            tuple(with_query(condition, corpus.pairs, corpus.among)),
            compute.identify(resolve(condition.model)).key.fingerprint,
        )
        for condition in corpus.conditions
    ]


def _order_blind(spec: RetrieverSpec) -> DenseRetriever:
    """A separate copy of the model without word order, which leaves loaded models unchanged."""
    retriever = cast(DenseRetriever, load_model(spec))
    make_order_blind(retriever)
    return retriever


PREFERENCES = register(Preferences())

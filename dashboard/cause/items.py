"""The pair, pairs or documents to which interventions are applied, for the Cause and Methods
pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.datasets.types import spread_words
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.ablation import Ablation
from poslens.attribution.interventions.displacement import Displacement
from poslens.attribution.interventions.relocation import Relocation, movable, relocation_method
from poslens.attribution.interventions.segments import documents_of, require_vector
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, Provenance, TextPair
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_intervention
from poslens.compute.runs import Job
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import choices, say, sending
from poslens.dashboard.widgets.reading_panel import readable_pairs
from poslens.studies.cause import service as interventions


@dataclass(frozen=True, slots=True)
class CauseItems:
    """Selected pairs (or documents, as pairs without a query), the models, and interventions by
    name. `words` describes the selection, `scope` identifies it in runs, and `prefix` begins the
    keys of its widgets."""

    data: DataSet
    specs: tuple[RetrieverSpec, ...]
    interventions: Mapping[str, Method]
    items: Sequence[TextPair]
    words: str
    scope: str
    unit: str = "pair"
    prefix: str = "cause."

    @property
    def compute(self) -> Compute:
        """The service that stores their results."""
        return service_for(self.data.name)

    def job(self, spec: RetrieverSpec, method: Method) -> Job:
        """The job that applies an intervention."""
        return interventions.job(self.compute, spec, method, self.items, self.scope)

    def jobs(self) -> list[Job]:
        """A job for each intervention and model."""
        return [
            self.job(spec, method) for spec in self.specs for method in self.interventions.values()
        ]


def choose_movable(
    data: DataSet, models: Sequence[str], ablation: Method, key: str
) -> CauseItems | None:
    """The pairs that the user selects, spread evenly over the data set. None if fewer than two are
    left; the page then shows the reason.

    Raises:
        UserError: a model is unknown.
    """
    usable, left_out = movable(data.pairs)
    if left_out:
        say.caption(left_out)
    if len(usable) < 2:
        st.info(
            "Fewer than two pairs of this data set have an evidence span that can be moved. "
            "Select a data set with evidence."
        )
        return None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = choices.spread("Pairs", usable, interventions.DEFAULT_PAIRS, key, least=2)
        specs = tuple(choices.spec(name, data.name) for name in models)
        pairs, unreadable = readable_pairs(specs, chosen)
    if len(pairs) < 2:
        st.info("The models can read fewer than two of these pairs. Select more pairs.")
        return None
    words = ", ".join(filter(None, (spread_words(len(chosen)), unreadable)))
    methods = {"relocation": relocation_method(), f"ablation ({ablation.params['by']})": ablation}
    return CauseItems(data, specs, methods, pairs, words, f"{data.name}: cause, {words}")


def choose_documents(
    data: DataSet, models: Sequence[str], methods: Mapping[str, Method]
) -> CauseItems | None:
    """The documents that the user selects, spread evenly over the data set. None if no model has
    one vector per text; the page then shows the reasons.

    Raises:
        UserError: a model is unknown.
    """
    documents = documents_of(data.pairs)
    chosen = choices.spread("Documents", documents, interventions.DEFAULT_PAIRS, "corpus.documents")
    specs: list[RetrieverSpec] = []
    for name in models:
        spec = choices.spec(name, data.name)
        try:
            require_vector(spec)
            specs.append(spec)
        except UserError as reason:
            say.caption(reason)
    if not specs:
        return None
    words = "" if len(chosen) == len(documents) else spread_words(len(chosen), "documents")
    scope = f"{data.name}: documents"
    return CauseItems(
        data, tuple(specs), methods, chosen, words, scope, unit="document", prefix="corpus."
    )


@dataclass(frozen=True)
class CausePair:
    """The selected pair, its data set (None for typed texts), and the settings of its
    interventions."""

    pair: TextPair
    data: DataSet | None
    models: tuple[str, ...]
    method: Method
    ablation: Method

    @property
    def compute(self) -> Compute:
        """The service that stores the pair's results."""
        return service_for(self.pair.dataset)

    def spec(self, name: str) -> RetrieverSpec:
        """The retriever with this name.

        Raises:
            UserError: there is no such retriever.
        """
        return choices.spec(name, self.pair.dataset)

    def may_send(
        self, name: str, what: str, *methods: Method, explain: Method | None = None
    ) -> bool:
        """Whether interventions on this pair, and its attribution by `explain`, may be computed. If
        the model is an endpoint, the user must agree first.

        Raises:
            UserError: the endpoint doesn't answer, or the method doesn't fit the model.
        """
        compute, spec = self.compute, self.spec(name)
        if not spec.remote or (model := compute.identify(spec)).stored_only:
            return True
        scope = f"pair {self.pair.pair_id}"
        jobs = [interventions.job(compute, spec, method, [self.pair], scope) for method in methods]
        if explain is not None:
            compute.require_fit(model, explain)
            jobs.append(compute.attribution_job(spec, explain, [self.pair], scope))
        if sending.agreed_to(spec, jobs, (methods, explain, self.pair), what):
            return True
        if explain is not None:
            sending.propose_sentences(compute, spec, explain, [self.pair], scope)
        return False

    def intervened(self, name: str, intervention: Method) -> Any:
        """The result of an intervention on this pair with one model; waits in the device queue.

        Raises:
            UserError: it can't be computed.
        """
        return wait(interventions.ask(self.compute, self.pair, self.spec(name), intervention))

    def provenance(
        self, name: str, intervention: Method, result: Relocation | Ablation | Displacement
    ) -> Provenance:
        """The provenance of an intervention on this pair."""
        model = self.compute.identify(self.spec(name))
        return of_intervention(model, self.pair, intervention, result)

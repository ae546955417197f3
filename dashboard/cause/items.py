"""The pair to which the Cause page applies interventions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poslens.attribution.datasets import DataSet
from poslens.attribution.interventions.ablation import Ablation
from poslens.attribution.interventions.displacement import Displacement
from poslens.attribution.interventions.relocation import Relocation
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, Provenance, TextPair
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_intervention
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import choices, sending
from poslens.studies.cause import service as interventions


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
        return sending.agreed(self.compute, self.spec(name), explain, self.pair, what, methods)

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

"""Selection of pairs whose evidence can be moved, shared by the Cause and Methods pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.interventions.relocation import movable, relocation_method
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.compute.compute import Compute
from poslens.compute.runs import Job
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, panels
from poslens.dashboard.widgets.reading_panel import readable_pairs
from poslens.studies.cause import service as interventions


@dataclass(frozen=True, slots=True)
class MovablePairs:
    """Selected pairs, the models, and relocation and ablation by name. `words` describes the
    selection."""

    data: DataSet
    specs: tuple[RetrieverSpec, ...]
    interventions: Mapping[str, Method]
    pairs: Sequence[TextPair]
    words: str

    @property
    def compute(self) -> Compute:
        """The service that stores their results."""
        return service_for(self.data.name)

    @property
    def scope(self) -> str:
        """The selection's name in runs."""
        return f"{self.data.name}: cause, {self.words}"

    def jobs(self) -> list[Job]:
        """A job for each intervention and model."""
        return [
            interventions.job(self.compute, spec, intervention, self.pairs, self.scope)
            for spec in self.specs
            for intervention in self.interventions.values()
        ]


def choose_movable(
    data: DataSet, models: Sequence[str], ablation: Method, key: str
) -> MovablePairs | None:
    """The pairs that the user selects, spread evenly over the data set. None if fewer than two are
    left; the page then shows the reason.

    Raises:
        UserError: a model is unknown.
    """
    usable, left_out = movable(data.pairs)
    if left_out:
        st.caption(panels.plain(left_out))
    if len(usable) < 2:
        st.info(
            "Fewer than two pairs of this data set have an evidence span that can be moved. "
            "Select a data set with evidence."
        )
        return None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = choices.spread(
            "Pairs", usable, interventions.DEFAULT_PAIRS, key, least=2, width=240
        )
        specs = tuple(choices.spec(name, data.name) for name in models)
        pairs, unreadable = readable_pairs(specs, chosen)
    if len(pairs) < 2:
        st.info("The models can read fewer than two of these pairs. Select more pairs.")
        return None
    words = ", ".join(filter(None, (f"{len(chosen)} pairs spread evenly", unreadable)))
    methods = {"relocation": relocation_method(), f"ablation ({ablation.params['by']})": ablation}
    return MovablePairs(data, specs, methods, pairs, words)

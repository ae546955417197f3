"""The Methods page's third tab: agreement of methods' curves with relocation and ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.ablation import ablation_method
from poslens.attribution.interventions.agreement import Agreement
from poslens.attribution.types import Method, Provenance
from poslens.compute.provenance import of_model
from poslens.compute.runs import Job
from poslens.dashboard.cause.items import CauseItems, choose_movable
from poslens.dashboard.widgets import panels
from poslens.dashboard.widgets.run_board import any_active, run_board, watched
from poslens.dashboard.widgets.tables import show_table
from poslens.figures.captions import method_title
from poslens.studies.cause import service as interventions
from poslens.studies.cause import tables as intervention_tables


def section(data: DataSet, models: Sequence[str], methods: Mapping[str, Method]) -> None:
    """The number of pairs, progress, and the agreement of each method."""
    st.caption(
        "How well does a method's curve over positions correlate with the change in the score when "
        "the evidence is moved (relocation) or parts are deleted (ablation)?"
    )
    choice = choose_movable(data, models, ablation_method(), "cause.pairs")
    if choice is None:
        return

    def jobs() -> list[Job]:
        return [
            *choice.jobs(),
            *(
                choice.compute.attribution_job(spec, method, choice.items, choice.scope)
                for spec in choice.specs
                for method in methods.values()
            ),
        ]

    def board() -> None:
        """Progress and the table."""
        results = st.container()
        done = run_board(jobs(), "agreement.", unit="results")
        with results, panels.guarded():
            if not done:
                st.info("No results have been computed. Press Compute.")
            else:
                _table(choice, methods)

    watched(lambda: any_active(jobs()), board)


def _table(choice: CauseItems, methods: Mapping[str, Method]) -> None:
    rows: list[tuple[str, Agreement]] = []
    provenance: list[Provenance] = []
    for spec in choice.specs:
        model = choice.compute.identify(spec)
        for label, intervention in choice.interventions.items():
            for method in methods.values():
                try:
                    agreement = interventions.agreement_of(
                        choice.compute, spec, method, intervention, choice.items
                    )
                except UserError:  # no stored results
                    continue
                rows.append((label, agreement))
                provenance.append(
                    of_model(
                        model,
                        f"agreement of {method!r} with {intervention!r}",
                        choice.data.name,
                        n_pairs=agreement.n,
                        n_documents=agreement.n_documents,
                        selection=choice.words,
                        interval=agreement.each or agreement.means,
                    )
                )
    if not rows:
        return
    table = intervention_tables.agreement_frame(rows)
    show_table(table.assign(method=table["method"].map(method_title)))
    st.caption(
        "Spearman correlation with 95% bootstrap intervals over documents. Mean curves: between "
        "the method's mean curve and the mean causal curve, at 11 positions. Mean over pairs: "
        "between each pair's own curves, where the positions of relevant words outweigh any bias. "
        "Relocation uses only positions at which the model reads all of the evidence; pairs with "
        "fewer than two such positions are left out."
    )
    panels.caption(provenance)
    panels.downloads(
        "agreement",
        [choice.data.name, "agreement"],
        provenance,
        tables={"Numbers": lambda: table},
    )

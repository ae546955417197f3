"""The Methods page's second tab: deletion and insertion tests averaged over a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.datasets.types import spread_words
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.faithfulness_summary import FaithfulnessSummary, summarize
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, Provenance, TextPair
from poslens.compute.provenance import of_model, removed_units
from poslens.compute.runs import Job
from poslens.dashboard.methods.pair import MEASURES, PARAMETERS, RUN_TIME
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, panels, say
from poslens.dashboard.widgets.reading_panel import readable_pairs, what_is_read
from poslens.dashboard.widgets.run_board import any_active, failed_items, run_board, watched
from poslens.dashboard.widgets.tables import show_table
from poslens.figures.palettes import Style
from poslens.studies import faithfulness as faithfulness_service
from poslens.studies.faithfulness import gains


def section(data: DataSet, models: Sequence[str], methods: Mapping[str, Method]) -> None:
    """The number of pairs, progress, and the table of methods."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen = choices.spread(
            "Pairs", data.pairs, faithfulness_service.DEFAULT_PAIRS, "faithfulness.pairs"
        )
        specs: list[RetrieverSpec] = []
        for name in models:
            with panels.guarded():
                specs.append(choices.spec(name, data.name))
        pairs, left_out = readable_pairs(specs, chosen)
    scope = f"{data.name}: {spread_words(len(chosen))}"
    scope = ", ".join(filter(None, (scope, left_out)))
    if not pairs:
        st.info("The models can read none of these pairs. Select more pairs, or another model.")
        return

    def jobs() -> list[Job]:
        jobs = []
        for spec in specs:
            for method in methods.values():
                with suppress(UserError):  # reported with the results
                    jobs.append(_job(data, spec, method, pairs, scope))
        return jobs

    def board() -> None:
        """Progress and results."""
        results = st.container()
        run_board(jobs(), "faithfulness.", unit="tests", verb="Test")
        with results, panels.guarded():
            _results(data, specs, methods, pairs, scope)

    watched(lambda: any_active(jobs()), board)


def _job(
    data: DataSet, spec: RetrieverSpec, method: Method, pairs: Sequence[TextPair], scope: str
) -> Job:
    return faithfulness_service.job(service_for(data.name), spec, method, pairs, scope, PARAMETERS)


def _results(
    data: DataSet,
    specs: Sequence[RetrieverSpec],
    methods: Mapping[str, Method],
    pairs: Sequence[TextPair],
    scope: str,
) -> None:
    compute = service_for(data.name)
    by_id = {pair.pair_id: pair for pair in pairs}
    summaries: list[tuple[str, FaithfulnessSummary]] = []
    provenance: list[Provenance] = []
    failed: list[tuple[Job, Mapping[str, str]]] = []
    for spec in specs:
        for title, method in faithfulness_service.with_baselines(methods.values()).items():
            stored = faithfulness_service.stored(compute, spec, method, pairs, PARAMETERS)
            if method.name in METHODS:
                failed.append((_job(data, spec, method, pairs, scope), stored.failed))
            if not stored.results:
                continue
            try:
                documents = [by_id[pair_id].document for pair_id in stored.results]
                summary = summarize(list(stored.results.values()), documents)
            except UserError as reason:
                say.caption(f"{spec.name}, {title}: {reason}")
                continue
            summaries.append((title, summary))
            provenance.append(
                of_model(
                    compute.identify(spec),
                    f"{summary.parameters!r} of {summary.method!r}",
                    data.name,
                    n_pairs=summary.n,
                    n_documents=summary.n_documents,
                    truncated=summary.n_truncated,
                    selection=scope,
                    units=removed_units(summary),
                    interval=summary.deletion_area,
                )
            )
    failed_items(failed, "faithfulness.")
    if not summaries:
        return
    frame = pd.DataFrame([_row(label, summary) for label, summary in summaries])
    rows = [(f"{summary.model}, {label}", summary.deletion_gain) for label, summary in summaries]

    def draw(style: Style) -> go.Figure:
        return gains(rows, "Deletion gain", style, provenance)

    panels.show(
        draw(panels.screen_style(height_px=140 + 34 * len(rows))),
        "faithfulness.gains",
        "Gain of each method, and of orders by position, over random order",
    )
    show_table(frame, column_config=RUN_TIME)
    st.caption(MEASURES)
    say.caption(
        f"Means over pairs ({scope}), with 95% bootstrap intervals over documents. Gain: "
        "improvement over random orders, positive is better; the chart shows deletion gains. "
        "Run times are for the attribution alone. Pairs whose score doesn't change or rises "
        "when all words are removed are left out."
    )
    what_is_read(specs, pairs, "faithfulness")
    panels.caption(provenance)
    panels.downloads(
        "faithfulness.set",
        [data.name, "faithfulness"],
        provenance,
        figures={"Gains": draw},
        tables={"Numbers": lambda: frame},
    )


def _row(label: str, summary: FaithfulnessSummary) -> dict[str, object]:
    return {
        "model": summary.model,
        "method": label,
        "n": summary.n,
        "documents": summary.n_documents,
        "left out (score unchanged)": summary.n_equal,
        "left out (score rises)": summary.n_below,
        "truncated": summary.n_truncated,
        "deletion area": str(summary.deletion_area),
        "insertion area": str(summary.insertion_area),
        "comprehensiveness": str(summary.comprehensiveness),
        "sufficiency": str(summary.sufficiency),
        "deletion gain": str(summary.deletion_gain),
        "insertion gain": str(summary.insertion_gain),
        "enrichment": "" if summary.enrichment is None else str(summary.enrichment),
        "seconds": str(summary.seconds),
    }

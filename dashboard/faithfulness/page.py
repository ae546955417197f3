"""Faithfulness: do methods order words by what they really do? For one pair and for many."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.faithfulness import ErasureParameters, Faithfulness
from poslens.attribution.evaluation.faithfulness_summary import (
    FaithfulnessSummary,
    summarize,
)
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.types import Method, Provenance
from poslens.compute.provenance import of_faithfulness, of_faithfulness_set
from poslens.compute.runs import Job
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import choices, links, panels
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.pair_picker import choose_pair
from poslens.dashboard.widgets.reading_panel import readable_pairs, what_is_read
from poslens.dashboard.widgets.run_board import any_active, failed_items, run_board
from poslens.dashboard.widgets.tables import show_table
from poslens.figures.curves import Style
from poslens.studies.faithfulness import service as faithfulness_service
from poslens.studies.faithfulness.figures import deletion_insertion, gains, scalable

PARAMETERS = ErasureParameters()

st.markdown(
    "# Faithfulness: do methods order words by what they do?\n"
    "Words are replaced by padding tokens, the largest contribution first, and put back in the "
    "same order; random orders stand beside them. A faithful order makes the score fall early "
    "when words go and rise early when they come."
)
offered = pair = None
with st.sidebar, panels.guarded():
    offered = choices.data_set(with_uploader=False)
with panels.guarded():
    if offered is not None:
        pair = choose_pair(offered)
with st.sidebar:
    models = choices.models(["MiniLM"])
    names = choices.methods(models, [n for n, entry in METHODS.items() if not entry.slow])
    choices.say_unfit(choices.unfit_methods(models))
methods: dict[str, Method] = {name: make_method(name) for name in names}
if pair is None or not models or not methods:
    st.info("Choose a pair, a model and a method in the sidebar.")
    st.stop()


the_pair = pair
st.markdown("**This pair**")
results: dict[str, Faithfulness] = {}
tested: list[tuple[str, Faithfulness]] = []
# A test takes seconds to minutes, so only what is stored is shown unasked.
asked = st.session_state.get("faithfulness.asked") == pair
for model in models:
    for name, method in methods.items():
        title = METHODS[name].title
        label = title if len(models) == 1 else f"{model}, {title}"
        with panels.guarded():
            compute, spec = service_for(pair.dataset), choices.spec(model, pair.dataset)
            kept = faithfulness_service.stored(compute, spec, method, [pair], PARAMETERS)
            found = kept.results.get(pair.pair_id)
            if found is None and asked:
                with st.spinner(f"Testing {panels.plain(label)}", show_time=True):
                    place = faithfulness_service.ask(compute, pair, spec, method, PARAMETERS)
                    found = wait(place)
            if found is not None:
                results[label] = found
                tested.append((model, found))


def test_it() -> None:
    """Test what is chosen on the pair that is shown."""
    st.session_state["faithfulness.asked"] = the_pair


n_tests = len(models) * len(methods)
if len(results) < n_tests and not asked:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(
            f"{len(results):,} of {n_tests:,} tests of this pair are stored.", width="content"
        )
        st.button("Test this pair", key="faithfulness.pair", on_click=test_it)


def provenance() -> list[Provenance]:
    """Where the numbers of this pair come from."""
    return [
        of_faithfulness(
            service_for(the_pair.dataset).identify(choices.spec(model, the_pair.dataset)),
            the_pair,
            found,
        )
        for model, found in tested
    ]


def pair_frame() -> pd.DataFrame:
    """A row for each method: areas, comprehensiveness and sufficiency with their gains."""
    rows = []
    for label, result in results.items():
        found, gain = result.measures, result.gain
        if found is None or gain is None:
            continue
        rows.append(
            {
                "method": label,
                "deletion area": found.deletion_area,
                "insertion area": found.insertion_area,
                "comprehensiveness": found.comprehensiveness,
                "sufficiency": found.sufficiency,
                "gain over random (deletion)": gain.deletion_area,
                "gain over random (insertion)": gain.insertion_area,
                "enrichment": result.enrichment,
                "seconds": result.attribution_seconds,
            }
        )
    return pd.DataFrame(rows)


with panels.guarded():
    drawn = scalable(results)
    if without := [label for label in results if label not in drawn]:
        st.info(
            panels.plain(
                f"{', '.join(without)}: without its words this document scores what it does with "
                "them, so there is nothing to share out. It may share no word with the query."
            )
        )
    if drawn:
        left, right = panels.side_by_side("faithfulness.curves")
        style = panels.screen_style(width_px=panels.BESIDE_PX, height_px=360)
        for column, kind in ((left, "deletion"), (right, "insertion")):
            with column:
                panels.show(
                    deletion_insertion(drawn, kind, style),
                    f"faithfulness.{kind}",
                    f"{kind} curves of each method and of random orders",
                )
        table = pair_frame()
        four = st.column_config.NumberColumn(format="%.4f")
        show_table(table, column_config=dict.fromkeys(table.columns[1:], four))
        known = provenance()
        panels.caption(known)
        panels.downloads(
            "faithfulness.pair",
            [pair.pair_id, "faithfulness"],
            known,
            figures={
                "Deletion": lambda style: deletion_insertion(drawn, "deletion", style, known),
                "Insertion": lambda style: deletion_insertion(drawn, "insertion", style, known),
            },
            frame=table,
        )

source = choices.data_of(pair)
if source is not None:
    links.other_views(
        "faithfulness", source.name, pair.pair_id, models, next(iter(methods.values()))
    )
if source is None:
    st.stop()
data = source

st.markdown("**Over the data set**")
chosen = choices.spread(
    "Pairs", data.pairs, faithfulness_service.DEFAULT_PAIRS, "faithfulness.pairs", width=240
)
by_id = {one.pair_id: one for one in chosen}
scope = f"{data.name}: {len(chosen)} pairs spread evenly"
with panels.guarded():
    the_specs = [choices.spec(model, data.name) for model in models]
    readable, left_out = readable_pairs(the_specs, chosen)
    by_id = {one.pair_id: one for one in readable}
    chosen, scope = list(readable), ", ".join(filter(None, (scope, left_out)))
if not chosen:
    st.info("None of these pairs can be read: choose more pairs, or another model.")
    st.stop()


def jobs() -> list[Job]:
    """A job for each method on each model that is here."""
    found = []
    for model in models:
        for method in methods.values():
            with suppress(UserError):
                spec = choices.spec(model, data.name)
                found.append(
                    faithfulness_service.job(
                        service_for(data.name), spec, method, chosen, scope, PARAMETERS
                    )
                )
    return found


def summary_row(label: str, found: FaithfulnessSummary) -> dict[str, object]:
    """One row of the table of methods and models."""
    return {
        "model": found.model,
        "method": label,
        "n": found.n,
        "documents": found.n_documents,
        "left out, no difference": found.n_equal,
        "left out, below empty": found.n_below,
        "truncated": found.n_truncated,
        "deletion area": str(found.deletion_area),
        "insertion area": str(found.insertion_area),
        "comprehensiveness": str(found.comprehensiveness),
        "sufficiency": str(found.sufficiency),
        "deletion gain": str(found.deletion_gain),
        "insertion gain": str(found.insertion_gain),
        "enrichment": "" if found.enrichment is None else str(found.enrichment),
        "seconds": str(found.seconds),
    }


ticking = any_active(jobs())


@fragment(run_every=2.0 if ticking else None)
def board() -> None:
    """Progress and the table; refreshed by itself while a run is active."""
    chart = st.container()
    summaries: list[tuple[str, FaithfulnessSummary]] = []
    made: list[Provenance] = []
    failed: dict[str, Mapping[str, str]] = {}
    with panels.guarded():
        for model in models:
            spec = choices.spec(model, data.name)
            for name, method in methods.items():
                stored = faithfulness_service.stored(
                    service_for(data.name), spec, method, chosen, PARAMETERS
                )
                failed[faithfulness_service.label(spec, method)] = stored.failed
                if stored.results:
                    try:
                        documents = [by_id[i].document for i in stored.results]
                        found = summarize(list(stored.results.values()), documents)
                    except UserError as nothing:
                        st.caption(panels.plain(f"{model}, {METHODS[name].title}: {nothing}"))
                        continue
                    summaries.append((METHODS[name].title, found))
                    made.append(
                        of_faithfulness_set(
                            service_for(data.name).identify(spec), data.name, found, scope
                        )
                    )
    run_board(jobs(), "faithfulness.", unit="tests", verb="Test")
    if any_active(jobs()) != ticking:
        st.rerun()
    for job in jobs():
        failed_items(job, failed.get(job.label, {}), "faithfulness.")
    if not summaries:
        return
    with panels.guarded():
        frame = pd.DataFrame([summary_row(label, found) for label, found in summaries])
        rows = [(f"{found.model}, {label}", found.deletion_gain) for label, found in summaries]

        def draw(style: Style) -> go.Figure:
            """Gain of each method over random order."""
            return gains(rows, "Deletion gain", style, made)

        height = 140 + 34 * len(rows)
        with chart:
            panels.show(
                draw(panels.screen_style(height_px=height)),
                "faithfulness.gains",
                "Gain of each method over random order",
            )
        show_table(frame)
        st.caption(
            panels.plain(
                f"Means over pairs with 95% bootstrap intervals over documents; {PARAMETERS!r}; "
                f"{scope}. Gains are over random order, positive is better. Seconds are of the "
                "attribution alone. Left out of every mean: pairs whose document scores what it "
                "does without its words (no difference to share), and those where it scores less "
                "(below empty)."
            )
        )
        what_is_read(the_specs, chosen, "faithfulness")
        panels.caption(made)
        panels.downloads(
            "faithfulness.set",
            [data.name, "faithfulness"],
            made,
            figures={"Gains": draw},
            frame=frame,
        )


board()

"""Bias tests: what makes a retriever prefer one document to another, over many pairs of them."""

from __future__ import annotations

from contextlib import suppress

import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.datasets import SAMPLE_BIAS
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.bias_pairs import (
    PLACES,
    BiasPairs,
    lacking,
    pairs_for,
    unknown_files,
)
from poslens.attribution.evaluation.bias_tests import TESTS, DocumentPair
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.types import Provenance
from poslens.compute.runs import Job
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.server.waiting import wait
from poslens.dashboard.widgets import choices, links, panels, url_state
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.reading_panel import readable_pairs
from poslens.dashboard.widgets.run_board import any_active, failed_items, run_board
from poslens.dashboard.widgets.sending import agreed
from poslens.dashboard.widgets.tables import chosen_row, show_table
from poslens.figures.curves import Style
from poslens.studies.bias import service as bias_service
from poslens.studies.bias.figures import MEASURES, bar, bias_chart
from poslens.studies.bias.service import Tested

MAX_PAIRS = 250  # as many a test as the paper has

data = None
tests: list[BiasPairs] = []
with st.sidebar:
    with panels.guarded():
        data = choices.data_set(SAMPLE_BIAS)
    models = choices.models(["MiniLM-primacy", "MiniLM", "MiniLM-recency"])
st.markdown(
    "# Bias tests: what does the model prefer, all else equal?\n"
    "Two documents answer, or seem to answer, one query; the test asks over many such pairs "
    "which of the two scores higher. Bars above zero: the first document, d1."
)
if data is None:
    st.stop()
narrowing = st.sidebar.expander("Tests")
with narrowing, panels.guarded():
    lacks = lacking(data)
    offered = [name for name, reason in lacks.items() if not reason]
    chosen = st.multiselect("Tests", offered, default=offered, key="tests", bind="query-params")
    place = PLACES[0]
    if any(lacks.values()) and "position" in chosen:
        place = (
            st.selectbox(
                "Evidence moves to",
                PLACES,
                key="place",
                bind="query-params",
                help="Where the position test's second document has the evidence, if it is built "
                "from evidence spans: at the end, behind half of the other sentences, or where the "
                "data set has it.",
            )
            or place
        )
    limit = url_state.whole_number(
        "Pairs a test",
        "pairs",
        2,
        100_000,
        MAX_PAIRS,
        step=50,
        help="At most so many of each test, spread evenly over the data set.",
    )
    for name, reason in lacks.items():
        if reason:
            st.caption(panels.plain(f"Not {TESTS[name].title.lower()}: {reason}."))
    if unknown := unknown_files(data):
        st.caption(panels.plain(f"No test is known for: {', '.join(unknown)}."))
for name in chosen:
    with panels.guarded():
        tests.append(pairs_for(data, name, place, limit))
if not tests or not models:
    st.info(
        "Choose a model and a test in the sidebar. Tests need ColDeR files, or a data set whose "
        "pairs have evidence spans."
    )
    st.stop()
scope = f"{data.name}: {', '.join(chosen)}; {place}; {limit}"
the_data = data
with narrowing, panels.guarded():
    the_specs = []
    for model in models:
        with suppress(UserError):
            the_specs.append(choices.spec(model, data.name))
    readable, left_out = readable_pairs(the_specs, bias_service.documents(tests))
    if left_out:
        tests = bias_service.narrowed(tests, readable, left_out)
        scope = f"{scope}; {left_out}"

for one in tests:
    if one.rejected:
        lines = "; ".join(f"{n:,}: {reason}" for reason, n in one.rejected.items())
        st.caption(panels.plain(f"{TESTS[one.test].title}, pairs left out: {lines}"))
if not (tests := [one for one in tests if one.pairs]):
    st.info("None of these pairs can be read: choose more pairs, or another model.")
    st.stop()


def jobs() -> list[Job]:
    """A job for each model that is here; of the others it is said where results are read."""
    found = []
    for model in models:
        with suppress(UserError):
            spec = choices.spec(model, the_data.name)
            found.append(bias_service.job(service_for(the_data.name), spec, tests, scope))
    return found


ticking = any_active(jobs())


@fragment(run_every=1.0 if ticking else None)
def board() -> None:
    """Progress, chart and pairs; refreshed by itself while a run is active."""
    results: list[Tested] = []
    for model in models:
        with panels.guarded():
            spec = choices.spec(model, the_data.name)
            service_for(the_data.name).identify(
                spec
            )  # what is wrong with the model is said once, not for each test
            for one in tests:
                with panels.guarded():
                    results += bias_service.tested(service_for(the_data.name), spec, [one])
    run_board(jobs(), "bias.", unit="pairs of documents scored", verb="Test")
    if any_active(jobs()) != ticking:
        st.rerun()
    for job in jobs():
        of = [one.failed for one in results if one.model.spec.name == job.label]
        failed_items(job, {item: why for failed in of for item, why in failed.items()}, "bias.")
    found = bias_service.with_adjusted_p([one for one in results if one.scores])
    if not found:
        st.info("Nothing is scored for these pairs yet: press Test.")
        return
    with panels.guarded():
        chart(found)
    with panels.guarded():
        behind(found)


def provenance(found: list[Tested]) -> list[Provenance]:
    """One for each model."""
    by_model: dict[str, list[Tested]] = {}
    for one in found:
        by_model.setdefault(one.model.spec.name, []).append(one)
    return [bias_service.provenance_of(group) for group in by_model.values()]


def chart(found: list[Tested]) -> None:
    """All models by all tests, the table and what has to be said about it."""
    figure = st.container()
    measure = (
        st.segmented_control(
            "Bars show",
            list(MEASURES),
            default="t",
            key="measure",
            bind="query-params",
            required=True,
            wrap=True,
        )
        or "t"
    )
    made = provenance(found)

    def draw(style: Style) -> go.Figure:
        """The chart in a style."""
        bars = [bar(one.model.spec.name, one.result, measure) for one in found]
        return bias_chart(bars, measure, style, made)

    with figure:
        event = panels.show(
            draw(panels.screen_style()),
            "bias.figure",
            "Bias tests, a group of bars for each test and a bar for each model",
            on_select="rerun",
            selection_mode="points",
        )
    if bar_clicked := panels.clicked(event, "bias"):
        st.session_state["under"], st.session_state["test"] = bar_clicked
    frame = bias_service.test_frame(found)
    show_table(
        frame,
        key="bias.table",
        column_config={
            **{name: st.column_config.NumberColumn(format="%.2f") for name in ("t", "d_z")},
            **{name: st.column_config.NumberColumn(format="%.2g") for name in ("p", "p (Holm)")},
            **{
                name: st.column_config.NumberColumn(format="%.4f")
                for name in (
                    "mean difference",
                    "low",
                    "high",
                    "mean s(d1)",
                    "mean s(d2)",
                    "mean difference there",
                )
            },
            **{
                name: st.column_config.NumberColumn(format="percent")
                for name in ("d1 preferred", "resistance (mteb)")
            },
        },
    )
    for sentence, labels in bias_service.remarks(found).items():
        st.warning(panels.plain(f"{', '.join(labels)}: {sentence}"), icon=":material/info:")
    if any(one.missing for one in found):
        st.caption("Some of these tests stand on part of their pairs so far.")
    st.caption(
        "Paired t-test over documents, one mean difference each; tests of Fayyaz et al. 2025. "
        "t, p, low and high: of the mean of s(d1) − s(d2) over documents, one mean difference for "
        "each, as pairs made from one document are no independent draws. d_z: that mean over the "
        "standard deviation. d1 preferred: share of pairs in which d1 scores higher. Resistance "
        "(mteb): share in which the document that mteb counts as correct scores higher; it is d2 "
        "for every test except answer importance. A tie counts in neither. "
        "p (Holm): adjusted for all tests of the table. Pairs whose evidence the model does "
        "not read whole in both documents are left out; the mean difference there is what is lost "
        "behind the limit. The paper gives the foil's t and the moved evidence's t the other sign."
    )
    panels.caption(made)
    panels.downloads(
        "bias", [the_data.name, "bias tests"], made, figures={"Bias tests": draw}, frame=frame
    )


def behind(found: list[Tested]) -> None:
    """The pairs of one test under one model, and one of them with both documents."""
    st.markdown("**The pairs behind a bar**")
    left, right = st.columns(2)
    test = left.selectbox(
        "Test (or click a bar)",
        list(dict.fromkeys(one.result.test for one in found)),
        key="test",
        bind="query-params",
    )
    under = right.selectbox(
        "Under",
        list(dict.fromkeys(one.model.spec.name for one in found)),
        key="under",
        bind="query-params",
    )
    one = next((o for o in found if (o.result.test, o.model.spec.name) == (test, under)), None)
    if one is None:
        st.info("This model has no scores for this test yet.")
        return
    st.caption(f"d1: {TESTS[one.result.test].d1}. d2: {TESTS[one.result.test].d2}.")
    frame = bias_service.pair_frame(one)
    row = chosen_row(
        frame,
        f"bias.pairs.{under}.{test}",
        "pair",
        height=260,
        column_config={
            name: st.column_config.NumberColumn(format="%.4f")
            for name in ("difference", "s(d1)", "s(d2)")
        }
        | {"evidence read": st.column_config.NumberColumn(format="percent")},
    )
    panels.downloads(
        "bias.pairs",
        [the_data.name, str(test), str(under)],
        [bias_service.provenance_of([one])],
        frame=frame,
    )
    if row is not None:
        url_state.put("item", str(frame["pair"].iloc[row]))
    item = url_state.get("item")
    pair = next((p for p in one.pairs.pairs if p.item_id == item), None)
    if pair is None:
        st.caption("Choose a row to see both documents.")
        return
    contrast(one, pair)


def contrast(one: Tested, pair: DocumentPair) -> None:
    """Both documents side by side: what of s(d1) - s(d2) each token carries."""
    spec = one.model.spec
    method = st.selectbox(
        "Method",
        bias_service.fitting(service_for(the_data.name), spec),
        key=f"contrast.{spec.family}",
        format_func=lambda name: (
            f"{METHODS[name].title} (adds up)" if METHODS[name].additive else METHODS[name].title
        ),
    )
    compute, made_by = service_for(the_data.name), make_method(method or "")
    sides = (("d1", pair.first), ("d2", pair.second))
    may = [agreed(compute, spec, made_by, one, label) for label, one in sides]
    if not all(may):  # both questions stand there at once
        return
    with st.spinner(f"Computing {METHODS[method].title}", show_time=True):
        first, second = (wait(compute.ask(one, spec, made_by)) for _, one in sides)
    found = bias_service.contrasted(first, second)
    shown = found.shown()
    st.markdown(f"**{panels.plain(pair.first.query)}**")
    scores = one.scores[pair.item_id]
    with st.container(horizontal=True, gap="medium"):
        st.metric("s(d1)", f"{scores.first:.4f}", width="content")
        st.metric("s(d2)", f"{scores.second:.4f}", width="content")
        st.metric("s(d1) − s(d2)", f"{scores.first - scores.second:+.4f}", width="content")
    if found.contrast is None:
        st.info(panels.plain(f"{found.reason} Each document is shown with its own values."))
    else:
        st.caption(panels.plain(bias_service.contrast_note(found.contrast)))
    drawn = panels.panes(shown)
    view = panels.token_heatmap(drawn, shown[0].attribution.method, key="bias.heatmap")
    for label, side in (("d1", found.first), ("d2", found.second)):
        st.caption(panels.plain(f"{label}: {panels.reading_note(side)}"))
    made = found.provenance()
    panels.caption(made)
    panels.downloads(
        "bias.contrast",
        [pair.item_id, spec.name, str(method), "contrast"],
        made,
        heatmap=drawn,
        view=view,
        frame=lambda: panels.explained_frame(shown, "document"),
    )
    made_of = (pair.source, pair.first.query)
    source = next((p for p in the_data.pairs if (p.document, p.query) == made_of), None)
    if source is not None:
        links.other_views("bias", the_data.name, source.pair_id, [spec.name], made_by)


board()

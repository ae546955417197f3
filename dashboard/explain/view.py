"""The view of one pair for one to four models: heatmap, curves, numbers and matrix. Shared by the
pages Explain and Compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.positions import positions
from poslens.attribution.curves.published import PublishedCurves
from poslens.attribution.interventions.null_controls import CONTROLS
from poslens.attribution.nouns import counted
from poslens.attribution.types import Method, Provenance, TextPair
from poslens.compute.compute import Explained
from poslens.compute.provenance import of_published
from poslens.compute.runs import duration
from poslens.dashboard.explain import comparison
from poslens.dashboard.explain.matrix import matrix_view, terms_view
from poslens.dashboard.explain.subject import BOTH, DATA_SET, PAIR, ExplainedSubject
from poslens.dashboard.server import first_heatmap
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.server.waiting import stopped, wait
from poslens.dashboard.widgets import choices, links, null_controls, panels, say
from poslens.dashboard.widgets.run_board import any_active, run_board, watched
from poslens.dashboard.widgets.sending import agreed
from poslens.dashboard.widgets.tables import NOTHING, show_table
from poslens.export.files import curve_frame
from poslens.figures.curves import pair_curves
from poslens.figures.figure_base import quantity
from poslens.figures.palettes import Style
from poslens.heatmap.data import Pane, View
from poslens.studies.curves.words import MIN_PAIRS, NUMBERS, why_no_number
from poslens.studies.explain import service
from poslens.studies.explain.service import Difference, head
from poslens.studies.explain.tables import explained_frame
from poslens.studies.published import means as published_means

PAUSE_S, FIRST_PAUSE_S = 0.15, 2.0
"""Seconds before charts are sent to the browser: usually, and at most for the first heatmap of a
browser tab. A chart that arrives with the heatmap delays the heatmap by 250 ms; the first one,
which loads Plotly's script, by a second or more."""
SIDE_BY_SIDE, MINUS = "side by side", "A − B"


def explained(pairs: Sequence[TextPair], names: Sequence[str], method: Method) -> list[Explained]:
    """The result of each pair with each model, from the cache or computed now. Failures are shown
    on the page, identical ones once."""
    explained_pairs: list[Explained] = []
    failures = set[str]()
    for pair in pairs:
        for name in names:
            with (
                panels.guarded(failures),
                st.spinner(f"Computing {panels.plain(name)}", show_time=True),
            ):
                spec, compute = choices.spec(name, pair.dataset), service_for(pair.dataset)
                stop_key = f"stopped.{name}.{method.core}.{hash(pair)}"
                if stopped(stop_key) or not agreed(compute, spec, method, pair):
                    continue
                loaded = compute.loaded(compute.identify(spec))
                started = time.monotonic()
                result = wait(compute.ask(pair, spec, method), stop_key)
                if loaded and not result.from_cache:
                    st.session_state[_pace_key(name, method)] = time.monotonic() - started
                explained_pairs.append(result)
    return explained_pairs


def _pace_key(name: str, method: Method) -> str:
    """The session key for the seconds that the model recently needed for one pair."""
    return f"pace.{name}.{method.core}"


def pair_view(
    results: Sequence[Explained],
    method: Method,
    key: str,
    *,
    comparing: bool = False,
    published: Sequence[PublishedCurves] = (),
) -> None:
    """Draw the view of `results`, which share one query and one method. `comparing` adds the
    comparison of two models, and `published` curves are drawn with the means. `key` is the page's
    prefix of widget keys.

    The view is a fragment, so that neither its widgets nor runs of the data set's curves rerun the
    rest of the page.
    """
    kind = null_controls.chosen(method, [result.model.spec for result in results])
    subject = ExplainedSubject(results, method, kind, published)
    watched(
        lambda: any_active(subject.jobs()),
        lambda: _draw(subject, key, comparing and len(results) == 2),
    )


def _draw(subject: ExplainedSubject, key: str, comparing: bool) -> None:
    results = subject.results
    painted = SIDE_BY_SIDE
    if comparing:
        both = [SIDE_BY_SIDE, MINUS]
        painted = choices.one_of("Show", both, "paint", label_visibility="collapsed")
    text = charts = st.container()
    if len(results) == 1:
        with text:
            text, charts = panels.side_by_side(key, "beside_text")
    picture, progress = text.container(), text.container()
    with charts:
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            which = _tools(subject)
            # Filled last, because only then is it known which figures can be exported.
            export = st.container(horizontal=True, horizontal_alignment="right")
        chart = st.container()
    subject.read()
    gap = subject.gap(0, 1) if comparing else None
    with picture:
        panes = _panes(subject, gap, painted == MINUS)
        view = panels.token_heatmap(panes, subject.method, key=f"{key}.heatmap")
    with progress:
        _progress(subject, key)
    _let_the_text_be_drawn()
    with chart:
        figures: dict[str, panels.Draw] = {"Curves": _curves(subject, which, key)}
        with panels.guarded():
            _indices(subject)
        pair, data = results[0].pair, subject.columns[0].data
        names = [result.model.spec.name for result in results if result.pair == pair]
        links.other_views(key, data, pair.pair_id, names, subject.method)
    if len(results) > 1:
        with panels.guarded():
            figures |= comparison.differences(subject, which, key)
    if comparing:
        with panels.guarded():
            figures |= comparison.word_by_word(subject, view)
            comparison.furthest(subject, gap)
    for number, (label, result) in enumerate(zip(subject.labels, results, strict=True)):
        with panels.guarded():
            matrix_view(result, f"matrix{number}", label)
            terms_view(result, f"terms{number}", label)
    published = [] if which == PAIR else map(of_published, subject.published)
    origin, means = subject.provenance(minus_control=True), subject.mean_provenance()
    panels.caption([*origin, *means, *published])
    with export:
        # The rail shows the means too; under A − B it shows the mean difference, if there is one.
        if painted == MINUS:
            with_mean = any(pane.rail is not None and pane.rail.mean for pane in panes)
            means = list(gap.provenance) if gap is not None and with_mean else []
        _export(subject, figures, panes, view, [*origin, *means], key, comparing)


def _let_the_text_be_drawn() -> None:
    drawn = first_heatmap.of_tab().drawn
    before = drawn.is_set()
    until = time.monotonic() + (PAUSE_S if before else FIRST_PAUSE_S)
    while time.monotonic() < until and (before or not drawn.is_set()):
        time.sleep(0.05)
        # Reading the session state ends the script if the user has clicked in the meantime, so that
        # Streamlit handles the click immediately.
        st.session_state.get("waiting")
    drawn.set()


def _tools(subject: ExplainedSubject) -> str:
    """Widgets for what the charts show and for the null control, which is set in `subject`; returns
    what the charts show."""
    if not subject.of_data_set:
        subject.kind = None
        return PAIR
    which = choices.one_of(
        "Curves",
        [BOTH, PAIR, DATA_SET],
        "curves_of",
        help="Show this pair's curve, the data set's mean curve, or both, on the same axis and in "
        "the same unit.",
    )
    subject.kind = null_controls.switch(subject.method, subject.specs)
    return which


def _panes(subject: ExplainedSubject, gap: Difference | None, minus: bool) -> Sequence[Pane]:
    rails = [
        service.rail(column.result, column.average, column.control) for column in subject.columns
    ]
    if minus:
        return comparison.minus(subject, rails, gap)
    return panels.panes(subject.results, rails, [head(result) for result in subject.results])


def _progress(subject: ExplainedSubject, key: str) -> None:
    """The progress of the data sets' mean curves and a button that completes them; nothing if they
    are complete."""
    if not (jobs := subject.incomplete_jobs()):
        shown = {column.data.name: column.data for column in subject.columns if column.data}
        for data in shown.values():
            if len(data.pairs) < MIN_PAIRS:
                too_small = f"the data set has {counted(len(data.pairs), 'pair')}"
                st.caption(f"No mean curve: {too_small}, and a mean takes {MIN_PAIRS}.")
        return
    run_board(jobs, f"{key}.", label="Mean curves", unit="pairs", rate_unit="pairs", others=True)
    sentences = []
    averages = [column.average for column in subject.columns]
    if any(average is not None and average.mean is None for average in averages):
        sentences.append(f"The mean curve appears once {MIN_PAIRS} pairs have results.")
    paces = [st.session_state.get(_pace_key(job.label, subject.method)) for job in jobs]
    if not any_active(jobs) and all(paces):
        seconds = sum(
            pace * (job.total - job.n_done()) for pace, job in zip(paces, jobs, strict=True) if pace
        )
        sentences.append(f"At this pair's speed, the remaining pairs take {duration(seconds)}.")
    if sentences:
        st.caption(" ".join(sentences))


def pair_figure(subject: ExplainedSubject, style: Style, which: str = BOTH) -> go.Figure:
    """The pair's curve for each model, minus its control's, with the models' means and published
    curves. Positions, including those of the evidence, are relative to the tokens read. `which`
    selects the pair, the means, or both."""
    published = () if which == PAIR else subject.published
    columns = subject.columns
    means = {
        column.label: column.average.mean
        for column in columns
        if which != PAIR and column.average is not None and column.average.mean is not None
    }
    drawn = [] if which == DATA_SET and means else columns
    evidence = {
        column.label: span
        for column in drawn
        if (span := service.evidence_range(column.result)) is not None
    }
    title = quantity(subject.method)
    if subject.kind is not None and any(column.control is not None for column in columns):
        title += f", minus {CONTROLS[subject.kind]}"
    return pair_curves(
        {column.label: service.pair_curve(column.result, column.control) for column in drawn},
        evidence,
        style,
        title,
        {column.label: service.read_share(column.result) for column in drawn},
        means=means,
        published=published_means(published, band=False),
        x=positions(subject.method.curve_params["resampling"]),
        provenance=[
            *(subject.provenance(minus_control=True) if drawn else ()),
            *(subject.mean_provenance() if means else ()),
            *map(of_published, published),
        ],
    )


def _curves(subject: ExplainedSubject, which: str, key: str) -> panels.Draw:
    draw = partial(pair_figure, subject, which=which)
    # Model fingerprint, method and pair determine an attribution, so they identify its numbers.
    content = (
        which,
        subject.kind,
        # A control that couldn't be computed now may be available later.
        tuple(column.control is not None for column in subject.columns),
        repr(subject.method),
        tuple(
            (column.result.model.key, column.label, column.result.pair)
            for column in subject.columns
        ),
        tuple(
            (column.average.mean.note, column.average.mean.values.tobytes())
            for column in subject.columns
            if column.average and column.average.mean
        ),
        tuple(published.mean.tobytes() for published in subject.published),
    )
    panels.show(
        panels.drawn(content, draw, panels.screen_style(height_px=320)),
        f"{key}.curve",
        "Attribution by relative position in the tokens read, with the evidence shaded",
    )
    null_controls.hint(subject.method, subject.kind, subject.specs, offered=subject.of_data_set)
    for column in subject.columns:
        if column.average is not None and column.average.controlled is not None:
            sentence = column.average.controlled.sentence
            say.caption(f"{column.label}, data set: {sentence}")
    return draw


def _indices(subject: ExplainedSubject) -> None:
    """Center of mass and primacy-recency index of the pair and of the data set."""
    rows: list[tuple[str, ...]] = []
    summaries = []
    for column in subject.columns:
        mass, index = service.pair_numbers(column.result)
        rows.append((column.label, "this pair", *_texts(index, mass)))
        summary = column.average.summary if column.average is not None else None
        if summary is None:
            continue
        summaries.append(summary)
        if summary.curve.n >= MIN_PAIRS:
            numbers = _texts(summary.primacy_recency_index, summary.center_of_mass)
            documents = counted(summary.curve.n_documents, "document")
            text = f"{counted(summary.curve.n, 'pair')} of {documents}"
            rows.append((column.label, text, *numbers))
    columns = ["model", "curve", "primacy-recency index", "center of mass"]
    # Skip rows without any number.
    show_table(pd.DataFrame([row for row in rows if set(row[2:]) != {NOTHING}], columns=columns))
    sentences = [NUMBERS]
    if subject.of_data_set:
        sentences.append(
            "Brackets are 95% bootstrap intervals over documents; a single pair has none. The "
            "numbers are computed before any control is subtracted."
        )
    st.caption(" ".join([*sentences, panels.plain(why_no_number(summaries))]))


def _texts(index: Estimate | None, mass: Estimate | None) -> tuple[str, str]:
    """The cells of a primacy-recency index and a center of mass."""
    return index.text("+.3f") if index else NOTHING, mass.text(".3f") if mass else NOTHING


def _export(
    subject: ExplainedSubject,
    figures: Mapping[str, panels.Draw],
    drawn: Sequence[Pane],
    view: View,
    rails: Sequence[Provenance],
    key: str,
    comparing: bool,
) -> None:
    names = [result.model.spec.name for result in subject.results]
    if comparing:
        names.insert(1, "vs")
    curves = [
        column.average.summary.curve
        for column in subject.columns
        if column.average and column.average.summary and column.average.mean
    ]
    tables: dict[str, Callable[[], pd.DataFrame]] = {
        "Numbers": lambda: explained_frame(subject.results)
    }
    if curves:
        tables["Mean numbers"] = lambda: curve_frame(curves)
    panels.downloads(
        key,
        [subject.results[0].pair.pair_id, *dict.fromkeys(names), subject.method.name],
        subject.provenance(),
        figures=figures,
        heatmap=drawn,
        view=view,
        tables=tables,
        sources={"Heatmap": lambda: rails, "Mean numbers": subject.mean_provenance},
    )

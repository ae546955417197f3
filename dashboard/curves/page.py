"""Curves: saliency over relative positions, averaged over a data set, for several models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from poslens.attribution.curves.positions import BANDS
from poslens.attribution.curves.published import PublishedCurves
from poslens.attribution.curves.text_axis import over_text
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.compute.compute import DataSetCurve
from poslens.compute.provenance import of_published
from poslens.compute.runs import Job
from poslens.compute.selection import Selection
from poslens.dashboard.curves.behind_bin import pairs_behind_bin
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, links, null_controls, panels, published_files
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.paired import differences_table, show_differences
from poslens.dashboard.widgets.reading_panel import readable_pairs, what_is_read
from poslens.dashboard.widgets.run_board import failed_items, results_unit, run_board
from poslens.dashboard.widgets.tables import rejected_rows, show_table
from poslens.export.files import curve_frame
from poslens.figures.curves import mean_curves
from poslens.figures.palettes import Style
from poslens.paired import curve_differences
from poslens.studies import published as published_service
from poslens.studies.curves.words import (
    NUMBERS,
    over_what,
    read_unlike,
    small,
    too_few,
    why_no_number,
)

WATCH_S = 3.0

st.markdown("# Curves: where in a document does each model look?")
chosen_data = picked = chosen = None
posir = False
with st.sidebar:
    with panels.guarded():
        chosen_data = choices.data_set()
    names = choices.models(["MiniLM-primacy", "MiniLM", "MiniLM-recency"])
    narrowing = st.expander("Filter pairs")
    if chosen_data is not None:
        with panels.guarded(), narrowing:
            posir = choices.posir_protocol()
            filtered = choices.filters(chosen_data)
            picked = filtered.posir if posir else filtered
    with panels.guarded():
        chosen = choices.method(names, posir=posir)
if chosen_data is None or picked is None or chosen is None:
    st.stop()
data, selection, method = chosen_data, picked, chosen


def specs() -> list[RetrieverSpec]:
    """The selected models that exist."""
    specs = []
    for name in names:
        with suppress(UserError):
            specs.append(choices.spec(name, data.name, posir=posir))
    return specs


with narrowing, panels.guarded():
    readable, left_out = readable_pairs(specs(), selection.pairs)
    selection = Selection(data, readable, ", ".join(filter(None, (selection.words, left_out))))

n_pairs = "" if len(selection.pairs) == len(data.pairs) else f"{len(selection.pairs):,} of "
st.markdown(
    f"{panels.plain(data.title)}: {METHODS[method.name].title} by position, averaged over "
    f"{n_pairs or 'all '}{len(data.pairs):,} pairs"
    + (f" ({panels.plain(selection.words)})." if selection.words else ".")
)
rejected_rows(data.rejected, f"{len(data.rejected):,} rows of the data set were rejected")
if not selection.pairs:
    st.info("No pair matches the filters. Change them in the sidebar.")
    st.stop()
if not names:
    st.info("Select a model in the sidebar.")
    st.stop()
if METHODS[method.name].needs_query and not selection.pairs.has_queries:
    free = [name for name, entry in METHODS.items() if not entry.needs_query]
    st.info(
        panels.plain(
            f"These documents have no queries, and {METHODS[method.name].title} needs one. "
            f"Select {' or '.join(METHODS[name].title for name in free)} as the method, or use "
            "the Audit page, which searches the documents for their own sentences."
        )
    )
    asked: dict[str, str | Sequence[str]] = {"dataset": data.name, "models": names}
    with st.container(horizontal=True):
        for name in free:
            links.page_link("curves/page.py", METHODS[name].title, "", {**asked, "method": name})
        links.page_link("audit/page.py", "Audit", "", asked)
    st.stop()
BAND_WORDS = {
    BANDS[0]: (
        "Each line is a model's mean curve; the band is a 95% bootstrap interval, resampling "
        "documents with all their pairs (1,000 resamples, fixed seed). With fewer than 10 "
        "documents there is no interval."
    ),
    BANDS[1]: (
        "Each line is a model's mean curve; the band is one standard deviation over pairs above "
        "and below the mean."
    ),
    BANDS[2]: (
        "Each line is a model's mean curve; the band contains the middle half of the pairs (25th "
        "to 75th percentile)."
    ),
}
scope = f"{data.name}: {selection.words}"


def job_of(name: str) -> Job:
    """The job that computes a model's attributions of this selection."""
    spec = choices.spec(name, data.name, posir=posir)
    return service_for(data.name).attribution_job(spec, method, selection.pairs, scope)


def curve_of(name: str) -> DataSetCurve | None:
    """One model's curve, if enough results are stored; failures are listed on the page."""
    spec = choices.spec(name, data.name, posir=posir)
    job = job_of(name)
    if not job.n_done():
        return None
    curve = None
    try:
        curve = service_for(data.name).curve(
            spec, method, selection.pairs, data.name, selection.words
        )
        failed = curve.failed
    except UserError:  # every attempted pair failed
        failed = dict(job.failures())
    failed_items([(job, failed)])
    if curve is None:
        return None
    if reason := too_few(name, curve.summary.curve.n, curve.total - len(failed)):
        st.caption(panels.plain(reason))
        return None
    return curve


# The position axes that a user can choose.
AXES = ("tokens read", "whole text")


def axis_choice(curves: list[DataSetCurve]) -> str:
    """The axis that the user selected. The default is the whole text if the models have different
    context limits. PosIR's protocol fixes the axis."""
    if posir:
        return AXES[0]
    unlike = read_unlike([curve.summary.curve for curve in curves], limits(curves))
    usual = AXES[1] if unlike else AXES[0]
    # New results may change the default; a user's own selection is kept.
    former = st.session_state.get("curves.usual_axis", usual)
    if usual != former and st.session_state.get("axis") == former:
        st.session_state["axis"] = usual
    st.session_state["curves.usual_axis"] = usual
    chosen = st.segmented_control(
        "Position axis",
        AXES,
        default=usual,
        key="axis",
        bind="query-params",
        required=True,
        width="content",
        wrap=True,
        help=(
            "Tokens read: relative to the tokens that each model reads. Whole "
            "text: as a percentage of the document's characters, so that the same position means "
            "the same text for every model."
        ),
    )
    return chosen or usual


def limits(curves: list[DataSetCurve]) -> list[int | None]:
    """The context limit of each curve's model in tokens."""
    return [curve.model.spec.max_length for curve in curves]


def on_axis(curves: list[DataSetCurve], axis: str) -> list[DataSetCurve]:
    """The same models' curves on the given axis."""
    if axis == AXES[0]:
        return curves
    return [
        service_for(data.name).curve(
            curve.model.spec, over_text(method), selection.pairs, data.name, selection.words
        )
        for curve in curves
    ]


def jobs() -> list[Job]:
    """A job for each selected model that exists."""
    jobs = []
    for name in names:
        with suppress(UserError):
            jobs.append(job_of(name))
    return jobs


def draw(curves: list[DataSetCurve], theirs: Sequence[PublishedCurves], style: Style) -> go.Figure:
    """Mean curves with their bands, and the published curves."""
    kind = st.session_state.get("band") or BANDS[0]
    return mean_curves(
        [curve.summary.curve for curve in curves],
        style,
        kind=kind,
        published=published_service.means(theirs, band=kind == BANDS[1]),
        provenance=provenance(curves, theirs),
    )


def provenance(curves: list[DataSetCurve], theirs: Sequence[PublishedCurves]) -> list[Provenance]:
    """The provenance of a figure's curves."""
    return [*(curve.provenance() for curve in curves), *map(of_published, theirs)]


def summary_frame(curves: list[DataSetCurve], theirs: Sequence[PublishedCurves]) -> pd.DataFrame:
    """One row for each model: n, center of mass and primacy-recency index with their intervals."""
    rows = []
    for mean_curve in curves:
        curve, summary = mean_curve.summary.curve, mean_curve.summary
        rows.append(
            {
                "model": curve.model,
                "pairs": curve.n,
                "documents": curve.n_documents,
                "truncated": curve.n_truncated,
                "failed": curve.n_failed,
                "center of mass": str(summary.center_of_mass or "–"),
                "primacy-recency index": str(summary.primacy_recency_index or "–"),
            }
        )
    rows += published_service.summary_rows(theirs)
    return pd.DataFrame(rows)


def is_active() -> bool:
    """Whether any of the selected models is being run, in this process or another."""
    if any(job.active or job.active_elsewhere for job in jobs()):
        return True
    with suppress(UserError):
        return null_controls.active(service_for(data.name), specs(), method, scope, control)
    return False


with st.sidebar:
    with st.expander("Control"):
        control = null_controls.switch(method)
    published = published_files.curves()

# The refresh interval is fixed when the whole page runs; the board reruns the page if a run has
# started or ended since.
ticking = is_active()


@fragment(run_every=1.0 if ticking else None)
def board() -> None:
    """Progress and curves, refreshed automatically while a run is active."""
    curves: list[DataSetCurve] = []
    progress = st.container()
    for name in names:
        with panels.guarded():
            if (curve := curve_of(name)) is not None:
                curves.append(curve)
    computing = jobs()
    if computing:
        with progress:
            unit = results_unit("pair", len(computing))
            run_board(computing, unit=unit, rate_unit="pairs", others=True)
    if is_active() != ticking:
        st.rerun()
    if not curves:
        if not is_active():
            st.info("No curve has been computed for these pairs. Press Compute.")
        if not published:
            return
    elif control is not None:
        null_controls.section(
            service_for(data.name),
            specs(),
            method,
            control,
            selection.pairs,
            data.pairs,
            scope,
            selection.words,
        )
    with panels.guarded():
        figure = st.container()
        with st.container(horizontal=True, gap="medium"):
            st.segmented_control(
                "Band",
                BANDS,
                default=BANDS[0],
                key="band",
                bind="query-params",
                required=True,
                width="content",
                wrap=True,
                help="The uncertainty of the mean, or how much documents differ.",
            )
            shown = on_axis(curves, axis_choice(curves)) if curves else []
        whole = any(curve.summary.curve.n_read is not None for curve in shown)
        theirs = [] if whole else published
        origin = provenance(shown, theirs)
        content = (
            tuple(curve.content for curve in shown),
            tuple(published.mean.tobytes() for published in theirs),
        )
        with figure:
            event = panels.show(
                panels.drawn(
                    (content, tuple(origin), st.session_state.get("band")),
                    lambda style: draw(shown, theirs, style),
                    panels.screen_style(),
                ),
                "curves.figure",
                "Mean attribution by relative position, one line per model",
                on_select="rerun",
                selection_mode="points",
            )
        words = BAND_WORDS[st.session_state.get("band") or BANDS[0]]
        if shown:
            over = over_what([curve.summary.curve for curve in shown], limits(shown))
            words += f" {panels.plain(over)}"
        if whole and published:
            words += " Published curves are over what each model read, not over whole texts."
        st.caption(words)
        if text := small(len(selection.pairs)):
            st.caption(panels.plain(text))
        null_controls.hint(method, control)
        what_is_read(specs(), selection.pairs, "curves")
        show_table(summary_frame(curves, theirs))
        st.caption(NUMBERS)
        if missing := why_no_number([curve.summary for curve in curves]):
            st.caption(panels.plain(missing))
        differences = curve_differences(curves, selection.pairs)
        show_differences(differences, "curves.differences")
        custom = panels.clicked(event, "curves")
        bin_index = custom[0] if isinstance(custom, list) else custom
        if bin_index is not None:
            st.session_state["curves.bin"] = int(bin_index)
            st.session_state["curves.pairs"] = True
        if shown:
            pairs_behind_bin(shown, data, method)
        panels.caption(origin)
        tables = {"Numbers": lambda: curve_frame([curve.summary.curve for curve in shown])}
        if theirs:
            tables["Published"] = lambda: published_service.curves_frame(theirs)
        tables |= differences_table(differences)
        panels.downloads(
            "curves",
            [data.name, method.name, *names],
            origin,
            figures={"Curves": lambda style: draw(shown, theirs, style)},
            tables=tables if shown else {"Published": tables["Published"]},
        )


board()


@fragment(run_every=None if ticking else WATCH_S)
def watch() -> None:
    """Rerun the page when another process starts to compute what is shown here."""
    if not ticking and is_active():
        st.rerun()


watch()

"""Mean curves of the selected models with their numbers, differences and downloads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from poslens.attribution.curves.positions import BANDS
from poslens.attribution.curves.published import PublishedCurves
from poslens.attribution.curves.text_axis import over_text
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import TEST, TEST_BY_ERROR
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.compute.compute import Compute, DataSetCurve
from poslens.compute.provenance import of_published
from poslens.compute.runs import Job
from poslens.compute.selection import Selection
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, links, null_controls, panels, say
from poslens.dashboard.widgets.reading_panel import what_is_read
from poslens.dashboard.widgets.run_board import failed_items
from poslens.dashboard.widgets.tables import column_settings, show_table
from poslens.figures.curves import mean_curves
from poslens.paired import (
    DIFFERENCES,
    ITEMS,
    ITEMS_TITLE,
    TITLE,
    DifferenceRow,
    difference_sentences,
)
from poslens.rows import Table
from poslens.studies import published as published_service
from poslens.studies.curves.answers import SUMMARY
from poslens.studies.curves.null_controls import control_job
from poslens.studies.curves.result import Curves
from poslens.studies.curves.words import (
    BAND_WORDS,
    NUMBERS,
    PUBLISHED_BAND,
    averaged,
    index_sentence,
    over_what,
    read_unlike,
    small,
    too_few,
    why_no_number,
)

AXES = ("tokens read", "whole text")
"""The position axes that a user can choose."""

_DIFFERENCES: Table[Any] = Table(DifferenceRow, list, TITLE, joint=True)


@dataclass(frozen=True)
class CurvesView:
    """The selections on the Curves page."""

    data: DataSet
    names: tuple[str, ...]
    method: Method
    selection: Selection
    posir: bool

    @property
    def compute(self) -> Compute:
        """Computes and stores the data set's results."""
        return service_for(self.data.name)

    @property
    def scope(self) -> str:
        """The data set and its filters, as run boards name them."""
        return f"{self.data.name}: {self.selection.words}"

    def specs(self) -> list[RetrieverSpec]:
        """The selected models that exist."""
        return choices.specs(self.names, self.data.name, posir=self.posir)

    def jobs(self) -> list[Job]:
        """A job for each selected model that can be read, which computes its attributions."""
        jobs = []
        for spec in self.specs():
            with suppress(UserError):
                jobs.append(self._job(spec))
        return jobs

    def active(self) -> bool:
        """Whether any of the selected models, or its control, is being run, in this process or
        another."""
        with suppress(UserError):  # the results can't be read, which the board reports
            if any(job.active or job.active_elsewhere for job in self.jobs()):
                return True
        control = null_controls.chosen(self.method, self.specs())
        if control is None:
            return False
        with suppress(UserError):
            args = self.method, control, (), self.scope
            return any(control_job(self.compute, s, *args).active for s in self.specs())
        return False

    def curves(self) -> list[DataSetCurve]:
        """The curves of the models that have enough results; for the others, the page says why
        there is none."""
        curves = []
        for name in self.names:
            with panels.guarded():
                spec = choices.spec(name, self.data.name, posir=self.posir)
                if (curve := self._stored(spec)) is not None:
                    curves.append(curve)
        return curves

    def over_text(self, curves: Sequence[DataSetCurve]) -> list[DataSetCurve]:
        """The same models' curves over the whole text."""
        return [self._curve(curve.model.spec, over_text(self.method)) for curve in curves]

    def _curve(self, spec: RetrieverSpec, method: Method) -> DataSetCurve:
        selection = self.selection
        return self.compute.curve(spec, method, selection.pairs, self.data.name, selection.words)

    def _job(self, spec: RetrieverSpec) -> Job:
        pairs = self.selection.pairs
        return self.named(self.compute.attribution_job(spec, self.method, pairs, self.scope))

    def named(self, job: Job) -> Job:
        """The job with the number of pairs in its name if they are a selection. Everyone who may
        stop the run sees its name, so that has neither filters nor the name of an upload."""
        n = len(self.selection.pairs)
        selected = counted(n, "pair") if n < len(self.data.pairs) else ""
        return replace(job, doing=", ".join(filter(None, (job.doing, selected))))

    def _stored(self, spec: RetrieverSpec) -> DataSetCurve | None:
        """A model's curve, if enough results are stored; failures are listed on the page."""
        job = self._job(spec)
        if not job.n_done():
            return None
        curve = None
        try:
            curve = self._curve(spec, self.method)
            failed = curve.failed
        except UserError:  # every attempted pair failed
            failed = dict(job.failures())
        failed_items([(job, failed)])
        if curve is None:
            return None
        if reason := too_few(spec.name, curve.summary.curve.n, curve.total - len(failed)):
            say.caption(reason)
            return None
        return curve


def results(
    view: CurvesView, curves: Sequence[DataSetCurve], published: Sequence[PublishedCurves]
) -> None:
    """Draw the curves, how to read them, their numbers and differences, the pairs behind a point,
    provenance and downloads."""
    if curves and null_controls.chosen(view.method, view.specs()) is not None:
        say.heading("Curves before subtraction")
    figure = st.container()
    with st.container(horizontal=True, gap="medium"):
        about = "The uncertainty of the mean, or how much documents differ."
        band = choices.one_of("Band", BANDS, "band", width="content", help=about)
        whole = bool(curves) and _axis_choice(curves, posir=view.posir) == AXES[1]
    shown = view.over_text(curves) if whole else list(curves)
    # Published curves are over what each model read, not over whole texts.
    beside = [] if whole else list(published)
    with_std = band == BANDS[1]
    of_figure = [
        *(curve.provenance(band) for curve in shown),
        *(of_published(curves, band=with_std) for curves in beside),
    ]
    draw = partial(
        mean_curves,
        [curve.summary.curve for curve in shown],
        kind=band,
        published=published_service.means(beside, band=with_std),
        provenance=of_figure,
    )
    content = (
        tuple(curve.content for curve in shown),
        tuple(curves.mean.tobytes() for curves in beside),
    )
    with figure:
        event = panels.show(
            panels.drawn((content, tuple(of_figure), band), draw, panels.screen_style()),
            "curves.figure",
            "Mean attribution by relative position, one line per model",
            on_select="rerun",
            selection_mode="points",
        )
    for curve in curves:
        say.sentence(index_sentence(curve.model.spec.name, curve.summary.primacy_recency_index))
    words = [BAND_WORDS[band]] if shown or with_std else []
    if beside and not with_std:
        words.append(PUBLISHED_BAND)
    if shown:
        words.insert(0, averaged([(curve.summary.curve, curve.total) for curve in shown]))
        words.append(over_what([curve.summary.curve for curve in shown], _limits(shown)))
    if whole and published:
        words.append("Published curves are over what each model read, not over whole texts.")
    say.caption(" ".join(words))
    if text := small(len(view.selection.pairs)):
        say.caption(text)
    null_controls.hint(view.method, null_controls.chosen(view.method, view.specs()), view.specs())
    what_is_read(view.specs(), view.selection.pairs, "curves")
    # Indices are over the tokens read even if the chart is over whole texts.
    indices = Curves(curves, view.selection.pairs, published=beside)
    numbers = list(published_service.summary_rows([curve.summary for curve in curves], beside))
    show_table(SUMMARY.text_frame(numbers), column_config=column_settings(SUMMARY))
    st.caption(NUMBERS)
    if missing := why_no_number([curve.summary for curve in curves]):
        say.caption(missing)
    _show_differences(indices.differences)
    custom = panels.clicked(event, "curves")
    bin_index = custom[0] if isinstance(custom, list) else custom
    if bin_index is not None:
        st.session_state["curves.bin"] = int(bin_index)
        st.session_state["curves.pairs"] = True
    if shown:
        _pairs_behind_bin(shown, view.data, view.method)
    drawn = Curves(shown, view.selection.pairs, published=beside)
    panels.caption(drawn.provenance)
    tables = {
        title: (result, table)
        for title, result, table, filled in (
            ("Summary", indices, "summary", bool(numbers)),
            ("Numbers", drawn, "curves", bool(shown)),
            ("Published", drawn, "published", bool(beside)),
            (TITLE, indices, DIFFERENCES, bool(indices.differences)),
            (ITEMS_TITLE, indices, ITEMS, bool(curves)),
        )
        if filled
    }
    panels.downloads(
        "curves",
        [view.data.name, view.method.name, *view.names],
        drawn.provenance,
        figures={"Curves": draw},
        tables={name: partial(result.to_frame, table) for name, (result, table) in tables.items()},
        sources={name: partial(result.sources, table) for name, (result, table) in tables.items()},
    )


def _show_differences(differences: Sequence[DifferenceRow]) -> None:
    """A sentence for each pair of models, the table, and the margins of equivalence; nothing
    without differences."""
    if not differences:
        return
    say.heading(TITLE)
    for sentence in difference_sentences(differences):
        say.sentence(sentence)
    show_table(
        _DIFFERENCES.text_frame(differences),
        key="curves.differences",
        column_config=column_settings(_DIFFERENCES),
    )
    margins = dict.fromkeys(f"{each.measure} {each.difference.margin:g}" for each in differences)
    by_error = all(each.difference.by_error for each in differences)
    test = TEST_BY_ERROR if by_error else TEST
    say.caption(f"{test}. Margins of equivalence: {', '.join(margins)}.")


def _pairs_behind_bin(curves: Sequence[DataSetCurve], data: DataSet, method: Method) -> None:
    """The pairs with the most weight in the bin that the user selects."""
    list_of_pairs = st.expander(
        "Pairs with the most weight at a position", key="curves.pairs", on_change="rerun"
    )
    # The list needs all curves, which take seconds to read for hundreds of thousands of pairs.
    if not list_of_pairs.open:
        return
    with list_of_pairs:
        left, right = st.columns(2)
        bin_index = left.number_input(
            "Position (%)",
            0,
            99,
            key="curves.bin",
            step=1,
            help="One of the curve's 100 points: 30 covers 30 to 31% of the tokens read, or of "
            "the whole text. Clicking a point on a curve selects its position.",
        )
        by_name = {curve.model.spec.name: curve for curve in curves}
        name = right.selectbox("Model", list(by_name), key="curves.bin_model")
        stored = by_name[name or next(iter(by_name))].stored
        values = stored.curves[:, int(bin_index)]
        # For curves over whole texts, only pairs that the model read at that position.
        order = [k for k in np.argsort(-values).tolist() if np.isfinite(values[k])][:50]
        frame = pd.DataFrame(
            {
                "value": values[order],
                "query": [data.pair(stored.pair_ids[i]).query for i in order],
                "score": stored.scores[order],
                "pair": [stored.pair_ids[i] for i in order],
            }
        )
        links.open_pairs(
            frame, data.name, list(by_name), f"curves.behind.{name}.{bin_index}", method
        )


def _axis_choice(curves: Sequence[DataSetCurve], *, posir: bool) -> str:
    """The axis that the user selected. The default is the whole text if the models have different
    context limits. PosIR's protocol fixes the axis."""
    if posir:
        return AXES[0]
    unlike = read_unlike([curve.summary.curve for curve in curves], _limits(curves))
    usual = AXES[1] if unlike else AXES[0]
    # New results may change the default; a user's own selection is kept.
    former = st.session_state.get("curves.usual_axis", usual)
    if usual != former and st.session_state.get("axis") == former:
        st.session_state["axis"] = usual
    st.session_state["curves.usual_axis"] = usual
    return choices.one_of(
        "Position axis",
        AXES,
        "axis",
        usual,
        width="content",
        help="Tokens read: relative to the tokens that each model reads. Whole text: as a "
        "percentage of the document's characters, so that the same position means the same text "
        "for every model.",
    )


def _limits(curves: Sequence[DataSetCurve]) -> list[int | None]:
    """The context limit of each curve's model in tokens."""
    return [curve.model.spec.max_length for curve in curves]

"""The generic page of a study: parameters in the sidebar, a run board, verdicts, figures, tables
and downloads. A page adds only what is specific to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import Compute
from poslens.dashboard.server.own_texts import service_for
from poslens.dashboard.widgets import choices, links, panels, say, url_state
from poslens.dashboard.widgets.reading_panel import told, what_is_read
from poslens.dashboard.widgets.run_board import (
    any_active,
    failed_items,
    results_unit,
    run_board,
    start_once,
    watched,
)
from poslens.dashboard.widgets.tables import column_settings, show_table
from poslens.figures.figure_base import captioned
from poslens.figures.palettes import Style
from poslens.figures.plain import plain
from poslens.parameters import (
    Choice,
    Integer,
    ModelName,
    Numbers,
    Parameter,
    Settings,
    Several,
    Switch,
    Text,
)
from poslens.study import Figure, Study
from poslens.study_plan import Plan, SoFar, plan, so_far, stored

MAX_DIFFERENCES = 3
"""Number of paired differences up to which each has a sentence: those of three models."""


@dataclass(frozen=True)
class Opened:
    """The selections on a study's page, and the results that are complete."""

    data: DataSet
    settings: Settings
    corpus: Any
    compute: Compute
    summaries: tuple[Any, ...]


@dataclass(frozen=True)
class Chosen:
    """The selections in the sidebar of a study's page."""

    data: DataSet
    models: tuple[str, ...]
    settings: Settings


def study_page(
    study: Study[Any, Any, Any], on_click: Callable[[Any], None] | None = None
) -> Opened | None:
    """Draw a study on a tab of a page; the caller may add elements below it. Returns None if
    nothing can be computed for the selections. `on_click` is called with the custom data of a point
    of the first figure that the user clicks."""
    if (chosen := study_choices(study, heading=False)) is None:
        return None
    with panels.guarded():
        return study_section(study, chosen.data, chosen.models, chosen.settings, on_click=on_click)
    return None


def study_choices(
    study: Study[Any, Any, Any], elsewhere: Collection[str] = (), *, heading: bool = True
) -> Chosen | None:
    """Data set, models and parameters in the sidebar, and the page's heading; None if the data set
    can't be read. The parameters in `elsewhere` get no widget here. A tab omits the `heading`,
    because its page has one."""
    chosen: Chosen | None = None
    with st.sidebar, panels.guarded():
        data = choices.data_set(study.dataset)
        names = choices.models(list(study.compared or study.models))
        chosen = Chosen(data, tuple(names), study_settings(study, data, elsewhere))
    if heading:
        question = study.question[0].lower() + study.question[1:]
        st.markdown(f"# {panels.plain(study.title)}: {panels.plain(question)}")
    else:
        say.heading(study.question)
    say.sentence(study.reads)
    return chosen


def study_settings(
    study: Study[Any, Any, Any], data: DataSet, elsewhere: Collection[str] = ()
) -> Settings:
    """The study's parameters from widgets; those in `elsewhere` have their defaults."""
    offered = study.parameters_for(data)
    for name in offered.keys() - links.shared() - set(elsewhere):
        _own(study.name, name)
    given = {
        name: _widget(name, parameter)
        for name, parameter in offered.items()
        if name not in elsewhere
    }
    return study.parameters.settings(given)


def _own(study: str, name: str) -> None:
    """Forget the value that a parameter of the same name has in another study, such as the seed,
    unless the address has one."""
    owner = f"{name}.study"
    if st.session_state.get(owner) != study and name not in st.query_params:
        for key in (name, *url_state.keys(name)):
            st.session_state.pop(key, None)
    st.session_state[owner] = study


def study_section(
    study: Study[Any, Any, Any],
    data: DataSet,
    names: Sequence[str],
    settings: Settings,
    *,
    spec_of: Callable[[str, str], RetrieverSpec] = choices.spec,
    on_click: Callable[[Any], None] | None = None,
    start: bool = False,
    compute: Compute | None = None,
) -> Opened | None:
    """Run board and results of the study for models selected elsewhere; can also be part of another
    page. `spec_of` returns the retriever for the names of a model and a data set; the other
    arguments are those of `study_page`. With `start`, missing results are computed at once, unless
    texts would be sent to an endpoint. Results are those of `compute`, by default of the data set's
    service.

    Raises:
        UserError: the data set lacks what the study needs.
    """
    corpus = study.corpus(data, settings)
    if not names and not study.without_models(corpus):
        st.info("Select a model.")
        return None
    specs: list[RetrieverSpec] = []
    for name in names:
        with panels.guarded():
            specs.append(spec_of(name, data.name))
    compute = compute or service_for(data.name)
    with told("Reading the documents") as report:
        corpus = study.narrowed(compute, specs, corpus, settings, report)
    for sentence in study.notes(data, corpus):
        say.caption(sentence)
    others = study.without_models(corpus)

    def planned() -> Plan[Any]:
        return plan(study, compute, specs, corpus, settings)

    first = planned()
    nothing = not first.subjects and not others
    for reason in first.refused:
        (say.info if nothing else say.caption)(reason)
    if nothing:
        return None
    prefix = f"{study.name}."
    if start:
        start_once(first.jobs)

    def board() -> None:
        """Progress and results, refreshed while a run is active."""
        with panels.guarded():
            jobs = planned().jobs
            results = st.container()
            ended = [(job, job.failures()) for job in jobs if not job.active]
            failed = [why for job, each in ended if job.counts_items for why in each.values()]
            unit = results_unit(study.unit, len(jobs))
            done = run_board(jobs, prefix, unit=unit, failed=failed) if jobs else 0
            if not any_active(jobs):
                _estimates(study, compute, first)
            with results, panels.guarded():
                errors = list[UserError]()
                results_so_far = so_far(
                    study,
                    compute,
                    first.subjects,
                    first.jobs,
                    without_models=others,
                    on_error=errors.append,
                )
                for error in dict.fromkeys(map(str, errors)):
                    say.error(error, icon=":material/error:")
                if results_so_far.summaries:
                    _results(data, results_so_far, on_click)
                elif not errors:
                    say.info(_nothing_yet(done > 0, any_active(jobs)))
            failed_items(ended, prefix, unit="item")

    watched(lambda: any_active(first.jobs), board)
    complete = stored(
        study, compute, first.subjects, without_models=others, on_error=lambda error: None
    )
    return Opened(data, settings, corpus, compute, tuple(complete))


def chosen_result(summaries: Sequence[Any], label: str, key: str) -> Any:
    """The result of the model that the user selects, at first that of the first model."""
    by_name = {summary.name: summary for summary in summaries}
    return by_name[st.selectbox(plain(label), list(by_name), key=key) or summaries[0].name]


def study_with(
    study: Study[Any, Any, Any],
    data: DataSet,
    names: Sequence[str],
    fixed: Mapping[str, Any],
    reading: bool,
) -> None:
    """The section of a study that shares a tab's models and the parameters in `fixed`; the others
    have widgets in the sidebar. With `reading`, it says how much of the pairs the models read."""
    with st.sidebar:
        settings = study_settings(study, data, elsewhere=fixed)
    settings = study.parameters.settings({**settings, **fixed})
    say.sentence(study.reads)
    opened = study_section(study, data, names, settings)
    if opened is not None and reading:
        specs = [choices.spec(name, data.name) for name in names]
        what_is_read(specs, opened.corpus.pairs, study.name)


def _estimates(study: Study[Any, Any, Any], compute: Compute, planned: Plan[Any]) -> None:
    """How much is left to compute, if the study can estimate it."""
    for subject, job in zip(planned.subjects, planned.jobs, strict=True):
        with panels.guarded():
            if job.n_done() < job.total and (words := study.estimate(compute, subject)):
                say.caption(f"{job.label}: {words}")


def _widget(name: str, parameter: Parameter[Any]) -> Any:
    title = panels.plain(parameter.title)
    if isinstance(parameter, Integer):
        return url_state.whole_number(
            title,
            name,
            parameter.low,
            parameter.high,
            parameter.default,
            step=parameter.step,
            placeholder=None if parameter.default is not None else parameter.unlimited,
            help=parameter.help,
        )
    if isinstance(parameter, Several):
        # An empty field has the default, which for no or all options means all that fit.
        means_all = parameter.closed and parameter.default in ((), parameter.options)
        placeholder = "all" if means_all else None
    if isinstance(parameter, Several) and (titles := parameter.titles):
        return url_state.several(
            parameter.title,
            name,
            parameter.options,
            parameter.default,
            titles.__getitem__,
            help=parameter.help,
            placeholder=placeholder,
        )
    bound: dict[str, Any] = {"key": name, "bind": "query-params", "help": parameter.help}
    if isinstance(parameter, Several):
        return st.multiselect(
            title,
            parameter.options,
            default=list(parameter.default),
            accept_new_options=not parameter.closed,
            placeholder=placeholder,
            **bound,
        )
    if isinstance(parameter, Switch):
        return st.toggle(title, parameter.default, **bound)
    if isinstance(parameter, Numbers):
        return st.text_input(title, parameter.text(), **bound)
    if isinstance(parameter, ModelName):
        return choices.model(title, name, parameter.default, at=None)
    if isinstance(parameter, Text):
        return st.text_input(title, parameter.default or "", **bound) or None
    if isinstance(parameter, Choice):
        return choices.one_of(
            parameter.title, parameter.options, name, parameter.default, help=parameter.help
        )
    raise TypeError(f"{type(parameter).__name__} has no widget")


def _nothing_yet(begun: bool, active: bool) -> str:
    """Why there is no result, and what to press unless a run is active."""
    if not begun and not active:
        return "No results have been computed. Press Compute."
    sentence = "Nothing to show yet, because more results are needed."
    return sentence if active else f"{sentence} Press Compute remaining."


def _results(data: DataSet, results: SoFar[Any], on_click: Callable[[Any], None] | None) -> None:
    study, summaries, provenance = results.study, results.summaries, results.provenances()

    def draw(figure: Figure[Any], style: Style) -> go.Figure:
        return captioned(figure.draw(summaries, style), results.provenances(figure.title), style)

    figures: dict[str, Callable[[Style], go.Figure]] = {}
    row: list[DeltaGenerator] = []
    # Verdicts are between the first row of figures and the others.
    leading, verdicts, further = st.container(), st.container(), st.container()
    for number, declared in enumerate(figure for figure in study.figures if figure.on_page):
        title, key = declared.title, f"{study.name}.figure{number or ''}"
        width = {"width_px": panels.BESIDE_PX} if declared.half else {}
        try:
            figure = draw(declared, panels.screen_style(height_px=380, **width))
        except UserError:  # there is nothing to draw
            continue
        with further if figures else leading:
            if declared.half:
                row = row or list(panels.side_by_side(key))
                with row.pop(0):
                    say.heading(title)
                    panels.show(figure, key, title)
            elif number or on_click is None:
                panels.show(figure, key, title)
            else:
                event = panels.show(figure, key, title, on_select="rerun", selection_mode="points")
                if point := panels.clicked(event, study.name):
                    on_click(point)
                    st.rerun(scope="app")
        figures[title] = partial(draw, declared)
    differences = results.differences
    if len(differences) > MAX_DIFFERENCES:  # the table of differences has them
        differences = []
    with verdicts:
        for sentence in (*results.verdicts, *differences):
            say.sentence(sentence)
        for sentence in study.remarks(summaries):
            say.warning(sentence, icon=":material/info:")
    tables = dict(study.tables_of(summaries))
    for name, table in list(tables.items()):
        if not table.on_page:
            continue
        frame = table.text_frame(summaries)
        if frame.empty:
            del tables[name]  # nor is it exported
            continue
        if table.title:
            say.heading(table.title)
        show_table(frame, key=f"{study.name}.{name}", column_config=column_settings(table))
    say.caption(study.limits_of(summaries))
    panels.caption(provenance)
    if not figures and not tables:
        return
    titles = {name: table.title or name.capitalize() for name, table in tables.items()}
    panels.downloads(
        f"{study.name}.results",
        [data.name, study.name],
        provenance,
        figures=figures,
        tables={title: partial(study.frame, summaries, name) for name, title in titles.items()},
        sources={title: partial(results.provenances, name) for name, title in titles.items()},
    )

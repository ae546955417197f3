"""The command of a study: options from its parameters, tables, figures and progress.

`poslens NAME --model M --dataset D [parameters] [--table T] [--figure FILE] [--out FILE]`
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic

import typer

from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted, uncapitalized
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.commands.answers import print_table, table_answer
from poslens.commands.command_options import Dataset, print_error, several_models
from poslens.commands.command_output import TextFormat, cli_command, quiet, watched
from poslens.commands.result_files import FigureFile, FigureOption
from poslens.compute.compute import service
from poslens.compute.runs import Job
from poslens.failures import (
    FAILURE_TABLE,
    FAILURES,
    FailureRow,
    failure_provenance,
)
from poslens.names import data_name, resolve, specs_of, with_rejections
from poslens.paired import DIFFERENCES, difference_sentences
from poslens.parameters import (
    Choice,
    Integer,
    ModelName,
    Numbers,
    Parameter,
    Settings,
    Several,
    Switch,
)
from poslens.study import Study, Summary
from poslens.study_plan import complete, plan

MAX_METAVAR = 40
"""Number of characters up to which --help lists an option's choices instead of its type."""


def study_app(study: Study[Any, Any, Any]) -> typer.Typer:
    """A Typer app with the study's command only."""
    tables = StrEnum("Table", {name: name for name in study.listed_tables})  # type: ignore[misc]
    shapes = {
        f"--table {name}": table_answer(table.row) for name, table in study.listed_tables.items()
    }

    def command(**given: Any) -> None:
        _run(study, given)

    command.__doc__ = f"{study.question} {study.reads} Stop with Ctrl-C; run again to resume."
    command.__signature__ = _signature(study, tables)  # type: ignore[attr-defined]
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command(study.name)(cli_command(shapes)(command))
    return app


def _signature(study: Study[Any, Any, Any], tables: type[StrEnum]) -> inspect.Signature:
    def parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(name, kind, default=default, annotation=annotation)

    models = several_models(f"{', '.join(study.models)} by default.")
    names = "; ".join(
        f"{name} ({uncapitalized(table.title)})" if table.title.lower() not in ("", name) else name
        for name, table in study.listed_tables.items()
    )
    options = [
        parameter("model", Annotated[list[str] | None, models], None),
        parameter("dataset", Dataset, study.dataset),
        *(
            parameter(name, _option(name, declared), _default(declared))
            for name, declared in study.parameters.items()
        ),
        parameter("table", Annotated[tables, typer.Option(help=f"{names}.")], next(iter(tables))),
    ]
    if study.figures:
        drawn = FigureOption(_drawn(study))
        options.append(parameter("figure", Annotated[FigureFile | None, drawn], None))
    if study.product:
        help = (
            f"Write {study.product}, to this new folder; or the result to a file (.json, .csv, "
            ".parquet, .tex) instead of stdout."
        )
        folder = typer.Option("--out", help=help)
        options.append(parameter("out", Annotated[Path | None, folder], None))
    if study.retries:
        retry = typer.Option(help=f"Retry each {study.unit} that failed.")
        options.append(parameter("retry_failed", Annotated[bool, retry], False))
    written = typer.Option(help="json or csv.")
    options.append(parameter("format", Annotated[TextFormat, written], "json"))
    return inspect.Signature(options)


def _drawn(study: Study[Any, Any, Any]) -> str:
    """What --figure draws."""
    first, *others = study.figures
    of_tables = (
        f"with --table {' or '.join(tables)}: {uncapitalized(figure.title)}"
        for figure in others
        if (tables := [name for name in figure.tables if name not in first.tables])
    )
    return "; ".join((uncapitalized(first.title), *of_tables))


def _option(name: str, parameter: Parameter[Any]) -> Any:
    offered: tuple[str, ...] = ()
    if isinstance(parameter, Choice) or (isinstance(parameter, Several) and parameter.closed):
        offered = parameter.options
    choices = f"[{'|'.join(offered)}]"
    option = typer.Option(
        parameter.option or f"--{name.replace('_', '-')}",
        help=parameter.help + " Repeatable." * isinstance(parameter, Several),
        metavar=choices if offered and len(choices) <= MAX_METAVAR else None,
    )
    if isinstance(parameter, Several):
        return Annotated[list[str] | None, option]
    if isinstance(parameter, Switch):
        return Annotated[bool, option]
    if isinstance(parameter, Integer):
        return Annotated[int | None, option]
    return Annotated[str, option]


def _default(parameter: Parameter[Any]) -> Any:
    if isinstance(parameter, Numbers):
        return parameter.text()
    return None if isinstance(parameter, Several) else parameter.default


def _run(study: Study[Any, Any, Any], given: dict[str, Any]) -> None:
    figure: FigureFile | None = given.get("figure")
    folder: Path | None = given.get("out")
    if folder is not None:  # checked before a computation that may take hours
        study.require_product(folder, len(given["model"] or study.models))
    table = str(given["table"])
    settings = study.parameters.settings(
        {
            # A model may also be a folder, which gets a name.
            name: resolve(given[name]).name if isinstance(declared, ModelName) else given[name]
            for name, declared in study.parameters.items()
        },
        table,
    )
    data = with_rejections(study.read(data_name(given["dataset"])))
    specs = specs_of(given["model"] or (), data.name)
    corpus = study.corpus(data, settings)
    if not specs and not study.without_models(corpus):
        specs = specs_of(study.models, data.name)
    quiet()
    corpus = study.narrowed(service(), specs, corpus, settings)
    for sentence in study.notes(data, corpus):
        print(sentence, file=sys.stderr)
    results = _computed(
        study, specs, corpus, settings, given.get("retry_failed", False), table, data.name
    )
    summaries, sentences = results.summaries, list[str]()
    if summaries:
        sentences = [] if study.streams else [study.verdict(summary) for summary in summaries]
        sentences += difference_sentences(study.differences(summaries))
        sentences += study.remarks(summaries)
    for sentence in (*sentences, *results.notes):
        print(sentence, file=sys.stderr)
    unwritten = list[str]()
    if folder is not None:
        if not summaries:
            raise UserError(results.without_result[0])
        if reason := study.write_product(service(), summaries, folder):
            unwritten.append(reason)
        else:
            print(folder, file=sys.stderr)
    unwritten += _print(study, results, table, figure, given["format"])
    for error in dict.fromkeys((*results.without_result, *unwritten)):
        print_error(error)
    # A list of failures is complete even if a model has no result.
    if unwritten or (results.without_result and table != FAILURES):
        raise typer.Exit(2)


@dataclass(frozen=True)
class _Results(Generic[Summary]):
    """Results, the reasons why models have none, notes on models with failed items, these items,
    and the table's provenance."""

    summaries: list[Summary]
    without_result: list[str]
    notes: list[str]
    failures: list[FailureRow]
    provenance: list[Provenance]


def _computed(
    study: Study[Any, Any, Summary],
    specs: Sequence[RetrieverSpec],
    corpus: Any,
    settings: Settings,
    retry_failed: bool,
    table: str,
    dataset: str,
) -> _Results[Summary]:
    """The results. Missing ones are computed, with progress on stderr.

    Raises:
        UserError: `table` would be empty because there is no result, or only one to compare.
    """
    planned = plan(study, service(), specs, corpus, settings, load=True)
    others = study.without_models(corpus)
    for reason in planned.misfits:  # before a run that can take hours
        print(reason, file=sys.stderr, flush=True)
    if table == DIFFERENCES and len(planned.subjects) + len(others) < 2:
        raise UserError("Differences are between models: add another --model.")
    notes = list[str]()

    def on_result(job: Job, summaries: Sequence[Summary]) -> None:
        if failed := job.failures():
            n, first = counted(len(failed), "item"), next(iter(failed.values()))
            more = " `--table failures` lists all." if len(failed) > 1 else ""
            notes.append(f"{job.label}: {n} failed. The first reason: {first}{more}")
        if study.streams:
            latest = study.together(summaries)[-1]
            print(study.verdict(latest), file=sys.stderr, flush=True)

    completed = complete(
        study,
        service(),
        planned,
        lambda subject, job: _compute(study, subject, job, retry_failed),
        without_models=others,
        on_result=on_result,
    )
    summaries, failures = completed.summaries, completed.failures
    reasons = [*completed.reasons, *planned.misfits, *notes]
    if not summaries and not (table == FAILURES and failures):
        raise UserError(reasons[0])
    provenance = study.provenances(summaries, table)
    if table == FAILURES:
        described = {each.model for each in provenance}
        for spec in specs:
            if spec.name not in described:
                methods = _methods(planned.jobs, spec) or [study.title]
                for method in dict.fromkeys(methods):
                    provenance += failure_provenance(service(), [spec], method, dataset)
        if not provenance:  # no model could be identified
            raise UserError(reasons[0])
    return _Results(summaries, list(completed.reasons), notes, failures, provenance)


def _methods(jobs: Iterable[Job], spec: RetrieverSpec) -> list[str]:
    """The methods that jobs compute for a model."""
    return [
        part.key[2] for job in jobs if job.key[0] == spec.name for part in (job.parts or (job,))
    ]


def _print(
    study: Study[Any, Any, Summary],
    results: _Results[Summary],
    table: str,
    figure: FigureFile | None,
    format: TextFormat,
) -> list[str]:
    """Print a table of the results, and draw them if `figure` is a file. If there is nothing to
    draw, the table is printed nevertheless, and the reason is returned."""
    summaries = results.summaries
    provenance = results.provenance
    nothing_to_draw: list[str] = []
    if figure is not None:
        try:
            if not summaries:
                raise UserError(results.without_result[0])
            figure.draw(study.draw(summaries, figure.style, table))
        except UserError as reason:
            nothing_to_draw.append(str(reason))
    frame = (
        FAILURE_TABLE.frame(results.failures)
        if table == FAILURES
        else study.frame(summaries, table)
    )
    if frame.empty:
        print(
            "No item failed."
            if table == FAILURES
            else f"The table {table} is empty: these results have nothing to list in it.",
            file=sys.stderr,
        )
    print_table(frame, format, provenance)
    return nothing_to_draw


def _compute(study: Study[Any, Any, Any], subject: Any, job: Job, retry_failed: bool) -> None:
    """Compute a subject's missing results, after printing an estimate of how long that takes."""
    if job.has_left(retry_failed):
        if words := study.estimate(service(), subject, load=True, retry_failed=retry_failed):
            print(f"{job.label}: {words}", file=sys.stderr, flush=True)
    elif not retry_failed:
        return
    # What progress counts depends on the stage, which the bar states: tqdm's neutral unit.
    watched(job.label, job, unit="it", retry_failed=retry_failed)

"""The command about a corpus's index: audit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poslens.attribution.errors import UserError
from poslens.commands.answers import TableAnswer, answers, print_table
from poslens.commands.command_options import Dataset, Endpoints, data_name, specs_of
from poslens.commands.command_output import (
    TextFormat,
    cli_command,
    quiet,
    suffix_of,
    watched,
    write_beside,
)
from poslens.commands.completion import model_names
from poslens.studies.audit.answers import (
    AuditDocumentRow,
    AuditGroupRow,
    AuditPositionRow,
    AuditRow,
    TruncationRow,
)

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer()


class AuditTableName(StrEnum):
    """What `audit` prints."""

    summary = "summary"
    positions = "positions"
    groups = "groups"
    worst = "worst"
    truncation = "truncation"


class SearchedFor(StrEnum):
    """What is searched for."""

    sentence = "sentence"
    question = "question"


@app.command()
@cli_command
@answers(
    {
        "--table summary": TableAnswer[AuditRow],
        "--table positions": TableAnswer[AuditPositionRow],
        "--table groups": TableAnswer[AuditGroupRow],
        "--table worst": TableAnswer[AuditDocumentRow],
        "--table truncation": TableAnswer[TruncationRow],
    }
)
def audit(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            autocompletion=model_names,
            help="Repeat for several, MiniLM@calibrated among them; MiniLM by default.",
        ),
    ] = None,
    endpoint: Endpoints = None,
    dataset: Dataset = "sample",
    top: Annotated[
        int, typer.Option(help="A sentence is dark when its document is not among so many.")
    ] = 10,
    chunks: Annotated[
        list[str] | None,
        typer.Option(
            "--chunks",
            help="How documents stand in the index: whole, windows:128:32 (tokens and overlap) or "
            "late:128; repeat for several. Each is compared with the first of its model.",
        ),
    ] = None,
    documents: Annotated[
        int,
        typer.Option(min=0, help="Audit a sample of so many documents, drawn at random; 0 is all."),
    ] = 0,
    seed: Annotated[int, typer.Option(help="What the sample is drawn with.")] = 0,
    search_for: Annotated[
        SearchedFor, typer.Option(help="sentence, or question (made from it by a rule).")
    ] = SearchedFor.sentence,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure", help="Also draw dark sentences by place: .png .svg .pdf .html .json"
        ),
    ] = None,
    table: Annotated[
        AuditTableName,
        typer.Option(help="summary, positions, groups, worst (documents) or truncation."),
    ] = AuditTableName.summary,
    retry_failed: Annotated[
        bool, typer.Option(help="Try documents again that failed before.")
    ] = False,
    format: Annotated[TextFormat, typer.Option(help="json or csv.")] = TextFormat.json,
) -> None:
    """Search a corpus for its own sentences and print which do not find their document, by place;
    stop with Ctrl-C, resume by running again."""
    from poslens.attribution import datasets
    from poslens.attribution.evaluation.audit import require_top
    from poslens.attribution.evaluation.chunks import chunks_of
    from poslens.export.files import FIGURE_FORMATS, figure_bytes
    from poslens.studies.audit import service as audits
    from poslens.studies.audit import tables

    fmt = suffix_of(figure, FIGURE_FORMATS) if figure else ""
    ways = [chunks_of(one) for one in dict.fromkeys(chunks or ["whole"])]
    require_top(top, sys.maxsize)
    whole = datasets.corpus_of(data_name(dataset))
    setup = audits.Setup(audits.sample(whole, documents, seed), top, search_for.value)
    if setup.collection.drawn:
        print(f"Sample: {setup.collection.drawn}.", file=sys.stderr)
    if rejected := whole.survey.rejected:
        first = rejected[0]
        print(
            f"{len(rejected):,} rows are no documents, the first: {first.file} row {first.row}: "
            f"{first.reason}",
            file=sys.stderr,
        )
    quiet()
    from poslens.compute.compute import service

    found: list[audits.Audit] = []
    unfit: list[str] = []
    for spec in specs_of(model or ["MiniLM"], setup.collection.name):
        for way in ways:
            index = audits.Index(spec, way)
            try:
                job = audits.job(service(), index, setup)
                base = audits.base_of(found, index)
                one = audits.audit(service(), index, setup, base)
                if one is None:
                    estimate = audits.estimate_words(service(), index, setup, load=True)
                    if estimate:
                        print(f"{index.name}: {estimate}", file=sys.stderr, flush=True)
                if one is None or retry_failed:
                    watched(index.name, job, unit="document", retry_failed=retry_failed)
                    one = audits.audit(service(), index, setup, base)
            except UserError as error:
                unfit.append(str(error))
                continue
            if one is None:
                raise UserError(f"{index.name} is not audited yet: run the command again.")
            found.append(one)
            print(audits.sentence(one), file=sys.stderr, flush=True)
            if (said := audits.limit_sentence(one)) and way == ways[0]:
                print(said, file=sys.stderr)
    if not found:
        raise UserError(unfit[0])
    for reason in dict.fromkeys(unfit):
        print(reason, file=sys.stderr)
    known = [one.provenance() for one in found]
    if figure is not None:
        from poslens.figures.palettes import PRESETS
        from poslens.studies.audit.figures import dark_curves

        style = PRESETS["double column"]
        drawn = dark_curves(found, style, provenance=known)
        write_beside(figure, figure_bytes(drawn, fmt, style, known))  # type: ignore[arg-type]
    makers: dict[AuditTableName, Callable[[Sequence[audits.Audit]], pd.DataFrame]] = {
        AuditTableName.summary: tables.summary_frame,
        AuditTableName.positions: tables.positions_frame,
        AuditTableName.groups: tables.groups_frame,
        AuditTableName.worst: partial(tables.worst_frame, limit=None),
        AuditTableName.truncation: tables.truncation_frame,
    }
    print_table(makers[table](found), format.value, known)

"""The command `calibrate`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from poslens.attribution.errors import UserError
from poslens.commands.answers import answers, print_json, print_table, source
from poslens.commands.command_options import Dataset, Model, for_data, pairs_of, resolve
from poslens.commands.command_output import TextFormat, cli_command, quiet, watched
from poslens.commands.result_files import FigureFile, FigureOption
from poslens.studies.debias.answers import CalibrationAnswer, CalibrationTable

app = typer.Typer()


class CalibrationTableName(StrEnum):
    """Tables of `calibrate`."""

    points = "points"
    queries = "queries"


@app.command()
@cli_command
@answers(CalibrationAnswer)
def calibrate(
    model: Model = "MiniLM",
    dataset: Dataset = "sample",
    strength: Annotated[
        list[float] | None,
        typer.Option("--strength", help="0 to 1; repeatable. 0.5 and 1 by default."),
    ] = None,
    block: Annotated[
        list[int] | None,
        typer.Option("--block", help="Tokens of a block; repeatable. 64 and 128 by default."),
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            "--layers", help="half, all or the last so many; repeatable. half by default."
        ),
    ] = None,
    own_corpus: Annotated[
        bool, typer.Option("--own-corpus", help="Search only the corpus that a query belongs to.")
    ] = False,
    curves: Annotated[
        int,
        typer.Option(
            "--curves",
            min=0,
            help="Pairs whose relocation and saliency are compared before and after; 0 is none. "
            "In JSON alone.",
        ),
    ] = 0,
    figure: Annotated[
        FigureFile | None, FigureOption("nDCG@10 against PSI, a point for each setting")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            help="Also write the recommended model to this new folder, as sentence-transformers "
            "saves one; an error where no change is recommended.",
        ),
    ] = None,
    table: Annotated[
        CalibrationTableName,
        typer.Option(help="points, or queries (under the setting that was tested)."),
    ] = CalibrationTableName.points,
    format: Annotated[
        TextFormat, typer.Option(help="json or csv (the table alone).")
    ] = TextFormat.json,
) -> None:
    """Calibrate a model's attention over a grid of settings, and print how rankings and their
    dependence on evidence position change; stop with Ctrl-C, resume by running again."""
    from poslens.export.files import table_rows
    from poslens.studies.debias import curves as debias_curves
    from poslens.studies.debias import service as debiasing
    from poslens.studies.debias import tables
    from poslens.studies.ranking import service as ranking_service

    if export is not None:  # checked before the grid, which may take hours
        debiasing.require_new(export)
    data, _ = pairs_of(dataset, False)
    spec = for_data(resolve(model), data.name)
    points = debiasing.grid(
        spec, strength or debiasing.STRENGTHS, block or debiasing.BLOCKS, layers or debiasing.LAYERS
    )
    setup = ranking_service.RankingSetup(ranking_service.collection_of(data), own_corpus)
    quiet()
    from poslens.compute.compute import service

    compute = service()
    result = debiasing.debias_result(compute, spec, points, setup)
    if result is None or result.missing:
        watched(spec.name, debiasing.job(compute, spec, points, setup), unit="model")
        result = debiasing.debias_result(compute, spec, points, setup)
    if result is None or result.missing or result.judgement is None:
        raise UserError(
            f"Not every setting of {spec.name} could be ranked: run the command again, or "
            "`python -m dashboard rank` with one of them to see why."
        )
    origin = result.provenance()
    print(debiasing.verdict(result), file=sys.stderr)
    if figure is not None:
        from poslens.studies.debias.figures import front

        figure.draw(front(result, "harmonic", figure.style, provenance=origin), origin)
    frame = (
        tables.POINTS.frame([result])
        if table is CalibrationTableName.points
        else tables.queries_frame(result, result.judgement.point)
    )
    if format is TextFormat.csv:
        print_table(frame, "csv", origin)
    else:
        rows: Any = table_rows(frame)  # a frame's columns have no static types
        of_table: CalibrationTable = (
            {"points": rows} if table is CalibrationTableName.points else {"queries": rows}
        )
        printed: CalibrationAnswer = {
            "model": spec.name,
            **debiasing.summary(result, result.judgement),
            # mypy allows for further keys in the recommendation, but there are none.
            **of_table,  # type: ignore[typeddict-item]
            "provenance": [source(provenance) for provenance in origin],
        }
        if curves:
            choice = debias_curves.curve_choice(
                compute, result, result.judgement.point, data, curves
            )
            for job in choice.jobs():
                watched(job.label, job)
            printed["curves"] = debias_curves.curves_entry(choice)
        print_json(printed)
    if export is not None:  # last, so that everything is printed even if the export fails
        debiasing.export_point(compute, result.recommended or result.plain, export)
        print(export, file=sys.stderr)

"""The command of continuous integration: check."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from poslens.commands.answers import answers, print_json
from poslens.commands.command_options import (
    Dataset,
    Model,
    for_data,
    pairs_of,
    resolve,
)
from poslens.commands.command_output import LineFormat, cli_command, quiet, watched
from poslens.studies.check.answers import CheckAnswer

app = typer.Typer()

NOT_CHECKED = 3
"""Exit code where no check failed and one could not be made."""


class Name(StrEnum):
    """What is checked."""

    relocation = "relocation"
    curve = "curve"
    psi = "psi"
    truncation = "truncation"
    drift = "drift"


@app.command()
@cli_command
@answers(CheckAnswer)
def check(
    baseline: Annotated[
        Path, typer.Option("--baseline", help="JSON file that `passport --out` wrote.")
    ],
    model: Model = "MiniLM",
    dataset: Dataset = "sample",
    only: Annotated[
        list[Name] | None, typer.Option("--only", help="Make only this check; repeatable.")
    ] = None,
    relocation: Annotated[
        float,
        typer.Option(
            help="Maximum increase of the last-minus-first difference by relocation beyond the "
            "baseline's, away from 0 or across it, in standard deviations of the scores."
        ),
    ] = 0.05,
    curve: Annotated[
        float,
        typer.Option(
            help=(
                "Maximum increase of the attribution curve's primacy-recency index beyond the "
                "baseline's, away from 0 or across it."
            )
        ),
    ] = 0.05,
    psi: Annotated[
        float, typer.Option(help="Maximum increase of PSI minus its mean under permutation.")
    ] = 0.05,
    truncation: Annotated[
        int,
        typer.Option(
            help=("Maximum number of tokens of a long text that the model may read less.")
        ),
    ] = 0,
    drift: Annotated[
        float,
        typer.Option(
            help=(
                "Maximum mean change of the scores of the same pairs, in standard deviations of "
                "the baseline's scores."
            )
        ),
    ] = 0.05,
    pairs: Annotated[
        int, typer.Option(min=2, help="Maximum number of pairs to attribute, as in `passport`.")
    ] = 500,
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Also write a JUnit file for the CI server.")
    ] = None,
    format: Annotated[
        LineFormat, typer.Option(help="text (one line per check) or json.")
    ] = LineFormat.text,
) -> None:
    """Check a model against a stored passport. Exit code 0: every check passed. 1: one failed. 3:
    none failed, but one could not be made. Stop with Ctrl-C, resume by running again."""
    from poslens.cache.exchange.atomic_file import replacing
    from poslens.studies.check import service as checking
    from poslens.studies.check.baseline import read_baseline
    from poslens.studies.check.junit import junit_bytes

    quiet()
    tolerances = checking.Tolerances(relocation, curve, psi, truncation, drift)
    names = [one.value for one in dict.fromkeys(only or Name)]
    spec = resolve(model)
    known = read_baseline(baseline, spec.name)
    data, _ = pairs_of(dataset, False)
    spec = for_data(spec, data.name)
    from poslens.compute.compute import service

    compute = service()
    found = checking.passport(compute, spec, data, names, pairs)
    if found.missing:
        watched(spec.name, checking.job(compute, found), unit="computation")
        found = checking.passport(compute, spec, data, names, pairs)
    made = checking.checks(found, known, tolerances, names)
    print(f"Baseline: {known.heading}", file=sys.stderr)
    if junit is not None:
        with replacing(junit) as file:
            file.write(junit_bytes(made, f"PosLens: {spec.name} on {data.name}"))
    if format is LineFormat.json:
        print_json(checking.entry(found, known, made))
    else:
        for one in made:
            print(f"{one.outcome}: {one.name}: {one.line}")
    if not checking.passed(made):
        raise typer.Exit(1 if checking.failed(made) else NOT_CHECKED)

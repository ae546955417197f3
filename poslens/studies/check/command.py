"""The command `check`, for continuous integration."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from poslens.commands.answers import print_json
from poslens.commands.command_options import Dataset, Model, pairs_of
from poslens.commands.command_output import LineFormat, cli_command, quiet, watched
from poslens.names import for_data, resolve
from poslens.studies.check.answers import CheckAnswer

app = typer.Typer()


Name = StrEnum("Name", "relocation position_effect ranking audit misses truncation drift")
"""Names of checks."""


@app.command()
@cli_command(CheckAnswer)
def check(
    baseline: Annotated[
        Path, typer.Option("--baseline", help="JSON file that `passport --out` wrote.")
    ],
    model: Model = "MiniLM",
    dataset: Dataset = "sample",
    only: Annotated[
        list[Name] | None,
        typer.Option(
            "--only",
            help="Make only this check; repeatable. By default, all checks for which the baseline "
            "has a part, except drift.",
        ),
    ] = None,
    relocation: Annotated[
        float,
        typer.Option(
            help="Maximum increase of the size (absolute value) of the last-minus-first difference "
            "by relocation, in standard deviations of the scores."
        ),
    ] = 0.05,
    position_effect: Annotated[
        float,
        typer.Option(
            help="Maximum increase of the size (absolute value) of nDCG@10 with the evidence first "
            "minus last."
        ),
    ] = 0.02,
    ranking: Annotated[float, typer.Option(help="Maximum loss of nDCG@10.")] = 0.02,
    audit: Annotated[
        float, typer.Option(help="Maximum increase of the share of unretrieved sentences.")
    ] = 0.02,
    misses: Annotated[
        float,
        typer.Option(
            help="Maximum increase of the share of pairs whose document is not in the top 10."
        ),
    ] = 0.02,
    truncation: Annotated[
        int,
        typer.Option(help="How many fewer tokens of a long text the model may read."),
    ] = 0,
    drift: Annotated[
        float,
        typer.Option(
            help="Maximum mean change in the scores of the same pairs, in standard deviations of "
            "the baseline's scores."
        ),
    ] = 0.05,
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Also write a JUnit file for the CI server.")
    ] = None,
    format: Annotated[LineFormat, typer.Option(help="text (one line per check) or json.")] = "text",
) -> None:
    """Check a model against a stored passport, over the baseline's pairs, queries and documents.
    Exit code 0: every check passed. 1: one failed. 2: invalid input. 3: none failed, but one could
    not be made because a number is missing. 4: none failed, but one has too few documents to
    decide. Stop with Ctrl-C; run again to resume."""
    from poslens.cache.exchange.atomic_file import replacing, require_writable
    from poslens.studies.check import service as checking
    from poslens.studies.check.baseline import read_baseline
    from poslens.studies.passport import service as passports

    quiet()
    if junit is not None:
        require_writable(junit)
    tolerances = checking.Tolerances(
        relocation, position_effect, ranking, audit, misses, truncation, drift
    )
    spec = resolve(model)
    saved = read_baseline(baseline, spec.name)
    names = checking.chosen(saved, [name.value for name in dict.fromkeys(only or ())])
    data, _ = pairs_of(dataset, False)
    spec = for_data(spec, data.name)
    from poslens.compute.compute import service

    compute = service()
    passport = checking.passport(compute, spec, data, saved, names)
    if passport.missing:
        watched(spec.name, passports.job(compute, passport), unit="computation")
        passport = checking.passport(compute, spec, data, saved, names)
    checks = checking.checks(passport, saved, tolerances, names)
    lines = checking.baseline_lines(saved, names) + ([] if only else checking.left_out(saved))
    for line in ("Baseline:", *lines):
        print(line, file=sys.stderr)
    if junit is not None:
        with replacing(junit) as file:
            file.write(checking.junit_bytes(checks, f"PosLens: {spec.name} on {data.name}"))
    if format == "json":
        print_json(checking.entry(passport, saved, checks))
    else:
        for check in checks:
            print(f"{check.outcome}: {check.name}: {check.line}")
    if code := checking.exit_code(checks):
        raise typer.Exit(code)

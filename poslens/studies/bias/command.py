"""The command about bias tests."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from poslens.attribution.errors import UserError
from poslens.commands.answers import TableAnswer, answers, print_table
from poslens.commands.command_options import (
    Dataset,
    Endpoints,
    Readable,
    pairs_of,
    readable_of,
    specs_of,
)
from poslens.commands.command_output import TextFormat, cli_command, quiet, watched
from poslens.commands.completion import model_names
from poslens.studies.bias.answers import BiasRow

app = typer.Typer()


@app.command()
@cli_command
@answers(TableAnswer[BiasRow])
def bias(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model", autocompletion=model_names, help="Repeat for several; MiniLM by default."
        ),
    ] = None,
    endpoint: Endpoints = None,
    dataset: Dataset = "sample-bias",
    test: Annotated[
        list[str] | None,
        typer.Option("--test", help="Repeat for several; all that the data set has by default."),
    ] = None,
    place: Annotated[
        str,
        typer.Option(
            help="Where the position test moves the evidence to, if it is built from evidence "
            "spans: end, middle or own."
        ),
    ] = "end",
    pairs: Annotated[
        int, typer.Option(min=2, help="Pairs a test at most, spread evenly over the data set.")
    ] = 250,
    readable: Readable = False,
    retry_failed: Annotated[bool, typer.Option(help="Try pairs again that failed before.")] = False,
    format: Annotated[TextFormat, typer.Option(help="json or csv.")] = TextFormat.json,
) -> None:
    """Run the bias tests of one or several models and print the table; stop with Ctrl-C, resume by
    running again."""
    from poslens.attribution.evaluation.bias_pairs import available, pairs_for

    data, _ = pairs_of(dataset, posir=False)
    specs = specs_of(model or ["MiniLM"], data.name)
    names = list(test or available(data))
    if not names:
        raise UserError(
            f"{data.name} has neither ColDeR's files nor evidence spans, so there is no bias test "
            "for it: choose another data set."
        )
    tests = [pairs_for(data, name, place, pairs) for name in dict.fromkeys(names)]
    quiet()
    from poslens.compute.compute import service
    from poslens.studies.bias import service as bias_service

    scope = data.name
    if readable:
        kept, words = readable_of(specs, bias_service.documents(tests), readable)
        tests = [one for one in bias_service.narrowed(tests, kept, words) if one.pairs]
        if not tests:
            raise UserError(
                "No pair of documents is left: of each, a model cannot read one. Choose another "
                "model or data set."
            )
        scope = f"{scope}: {words}"
    results = []
    for spec in specs:
        job = bias_service.job(service(), spec, tests, scope)
        watched(spec.name, job, retry_failed=retry_failed)
        results += bias_service.tested(service(), spec, tests)
    results = bias_service.with_adjusted_p(results)
    made = [
        bias_service.provenance_of([one for one in results if one.model.spec == spec])
        for spec in specs
    ]
    for sentence, labels in bias_service.remarks(results).items():
        print(f"{'; '.join(labels)}: {sentence}", file=sys.stderr)
    print_table(bias_service.test_frame(results), format.value, made)

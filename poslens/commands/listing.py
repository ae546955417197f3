"""Commands that list and fetch: models, datasets, methods."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from poslens.attribution.errors import UserError
from poslens.attribution.nouns import plural
from poslens.attribution.paths import is_folder
from poslens.commands.answers import Model, answer_from, print_json
from poslens.commands.command_options import DATA_HELP, print_error, several_models
from poslens.commands.command_output import LineFormat, cli_command
from poslens.names import distinct, register_data, sources
from poslens.names import resolve as by_name

if TYPE_CHECKING:
    from poslens.attribution.datasets import DataSet

app = typer.Typer()
models_app = typer.Typer(no_args_is_help=False, help="List and download retrievers.")
app.add_typer(models_app, name="models", invoke_without_command=True)


Format = Annotated[
    LineFormat, typer.Option(help="text (one line each) or json (a list of objects).")
]


class ModelEntry(TypedDict):
    """A model known by name."""

    name: Model
    title: Annotated[str, "Title of the model."]
    installed: Annotated[bool, "Whether its weights are on this machine."]
    family: Annotated[str, "Family of the model, such as dense."]
    hub_id: Annotated[str | None, "Hugging Face id; null if it has none."]
    pooling: Annotated[
        str | None, "Pooling of tokens into a vector; null for families without pooling."
    ]
    max_length: Annotated[
        int | None,
        "Context limit in tokens (of an endpoint, in words); null if unlimited or unknown.",
    ]
    configured_max_length: Annotated[
        int | None,
        "Tokens at which the model's own configuration truncates, if different from max_length.",
    ]
    size_mb: Annotated[int | None, "Size of its weights in float32, in MB; null if unknown."]
    license: Annotated[str | None, "License; null if unknown."]
    dequantized_bits: Annotated[
        int | None,
        "Bits per weight that the float32 weights were converted from; null if as published.",
    ]


class FetchedModel(TypedDict):
    """A model whose weights are on this machine now."""

    model: Model
    folder: Annotated[str, "Path of the model's folder."]


class RejectedRow(TypedDict):
    """A row of a file that is not a valid pair."""

    file: Annotated[str, "Name of the file."]
    row: Annotated[int, "Number of the row, from 1."]
    reason: Annotated[str, "Why it was rejected."]


class DataSetEntry(TypedDict):
    """A data set known by name."""

    name: Annotated[str, "Name of the data set."]
    title: Annotated[str, "Title of the data set."]
    pairs: Annotated[int, "Number of valid pairs, or of documents if there are no queries."]
    rejected: Annotated[int, "Number of rejected rows."]
    rejected_rows: Annotated[list[RejectedRow], "All rejected rows, in order."]


class ListedMethod(TypedDict):
    """An attribution method."""

    name: Annotated[str, "Name of the method."]
    title: Annotated[str, "Title of the method."]
    help: Annotated[str, "What the method computes for a token, in one sentence."]
    caveat: Annotated[str, "What the method's curve doesn't show; empty if nothing."]
    families: Annotated[list[str], "Families of models that the method works with."]
    parameters: Annotated[dict[str, list[str]], "Values of each parameter, the default first."]


@models_app.callback()
@cli_command(list[ModelEntry])
def models(
    context: typer.Context,
    model: Annotated[
        list[str] | None, several_models("All models known by name by default.")
    ] = None,
    format: Format = "text",
) -> None:
    """List the retrievers known by name."""
    if context.invoked_subcommand is not None:
        return
    from poslens.attribution.retrievers import limits, resolve

    listed = distinct(map(by_name, model)) if model else resolve.known().values()

    if format == "json":
        rows = [
            answer_from(
                ModelEntry,
                spec,
                installed=resolve.installed(spec),
                hub_id=spec.hub_id or None,
                configured_max_length=limits.configured_apart(spec),
                license=spec.license or None,
            )
            for spec in listed
        ]
        print_json(rows)
        return
    _print_aligned(
        (
            spec.name,
            "installed" if resolve.installed(spec) else "to fetch",
            spec.family,
            spec.pooling or "",
            f"{spec.size_mb:>5} MB" if spec.size_mb else "",
            spec.terms,
            f"{spec.title}: reads {limits.reads(spec)}",
        )
        for spec in listed
    )


def _print_aligned(rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows of equally many cells, each column as wide as its longest cell."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


@models_app.command("fetch")
@cli_command(FetchedModel)
def fetch_model(
    name: Annotated[str, typer.Argument(help="A preset (see `models`) or a Hugging Face id.")],
    format: Annotated[
        LineFormat, typer.Option(help="text (the path of the model's folder) or json.")
    ] = "text",
) -> None:
    """Download a model's weights to this machine."""
    from tqdm import tqdm

    from poslens.attribution.retrievers.fetch import fetch

    if "/" in name and is_folder(name):
        raise UserError(f"{name} is a folder, so there is nothing to fetch: give it as --model.")
    bars: dict[str, tqdm] = {}  # by step, opened when it begins

    def show(step: str, done: int, total: int | None) -> None:
        if step not in bars:
            bars[step] = tqdm(unit="B", unit_scale=True, desc=step, total=total, file=sys.stderr)
        bars[step].total = total
        bars[step].n = done
        bars[step].refresh()

    try:
        folder = fetch(name, show)
    finally:
        for bar in bars.values():
            bar.close()
    if format == "json":
        answer: FetchedModel = {"model": name, "folder": str(folder)}
        print_json(answer)
    else:
        print(folder)


@app.command()
@cli_command(list[DataSetEntry])
def datasets(
    data: Annotated[list[str] | None, typer.Option("--data", help=DATA_HELP)] = None,
    format: Format = "text",
) -> None:
    """List the data sets by name, and what can be read of those given with --data. Exit code 2: one
    can't be read; the others are listed."""
    from poslens.attribution import datasets as known

    every, unread = dict[str, known.DataSet](), list[str]()
    for name, source in sources(data).items():
        try:
            register_data({name: source})
        except UserError as error:
            unread.append(f"{name}: {error}")
    for name in known.names():
        try:
            every[name] = known.read(name)
        except UserError as error:
            unread.append(f"{name}: {error}")
    _print_datasets(every, format)
    for sentence in unread:
        print_error(sentence)
    if unread:
        raise typer.Exit(2)


def _print_datasets(every: Mapping[str, DataSet], format: LineFormat) -> None:
    if format == "json":
        rows: list[DataSetEntry] = [
            {
                "name": name,
                "title": data_set.title,
                "pairs": len(data_set.pairs),
                "rejected": len(data_set.rejected),
                "rejected_rows": [
                    {"file": row.file, "row": row.row, "reason": row.reason}
                    for row in data_set.rejected
                ],
            }
            for name, data_set in every.items()
        ]
        print_json(rows)
        return
    _print_aligned(
        (
            name,
            f"{len(each.pairs):8} {_unit(each):9} {len(each.rejected):6} rejected",
            each.title,
        )
        for name, each in every.items()
    )


def _unit(data: DataSet) -> str:
    unit = "pair" if data.pairs.has_queries else "document"
    return unit if len(data.pairs) == 1 else plural(unit)


@app.command()
@cli_command(list[ListedMethod])
def methods(format: Format = "text") -> None:
    """List the attribution methods and their parameters."""
    from poslens.attribution.methods import CURVE_PARAMETERS, METHODS
    from poslens.attribution.retrievers.detect import families_with

    if format == "json":
        rows = [
            answer_from(
                ListedMethod,
                entry,
                families=[family.name for family in families_with(entry.needs)],
                parameters={
                    parameter.name: parameter.choices
                    for parameter in (*entry.parameters, *CURVE_PARAMETERS)
                },
            )
            for entry in METHODS.values()
        ]
        print_json(rows)
        return
    for entry in METHODS.values():
        fitting = ", ".join(family.name for family in families_with(entry.needs))
        sentences = (f"{entry.name}: {entry.help}", entry.caveat, f"Families: {fitting}.")
        print(" ".join(filter(None, sentences)))
        for parameter in (*entry.parameters, *CURVE_PARAMETERS):
            print(f"    {parameter.name} = {' | '.join(parameter.choices)}: {parameter.help}")

"""The command `compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from poslens.attribution.errors import UserError
from poslens.commands.answers import TableAnswer, answers, print_table
from poslens.commands.command_options import (
    MethodName,
    Normalization,
    Options,
    Resampling,
    distinct,
    method_of,
    several_models,
)
from poslens.commands.command_output import TextFormat, cli_command, quiet, say_preference
from poslens.studies.compare.answers import ComparisonRow
from poslens.studies.explain.command_texts import (
    Document,
    DocumentFile,
    Heatmap,
    PairDataset,
    PairId,
    Query,
    explained,
    pair_of,
    spec_of,
    write_heatmap,
)

app = typer.Typer()


@app.command()
@cli_command
@answers(TableAnswer[ComparisonRow])
def compare(
    model: Annotated[
        list[str] | None,
        several_models(
            "MiniLM-primacy and MiniLM-recency by default. Every model is compared with the first."
        ),
    ] = None,
    method: MethodName = "saliency",
    option: Options = None,
    query: Query = None,
    document: Document = None,
    document_file: DocumentFile = None,
    pair: PairId = None,
    dataset: PairDataset = "sample",
    normalization: Normalization = "p99",
    resampling: Resampling = "bin_mean",
    figure: Heatmap = None,
    format: Annotated[
        TextFormat, typer.Option(help="json, or csv with one row per model.")
    ] = TextFormat.json,
) -> None:
    """Compare models on one query-document pair: scores, primacy-recency index, and rank
    correlation of words."""
    names = model or ["MiniLM-primacy", "MiniLM-recency"]
    specs = distinct(spec_of(name, dataset) for name in names)
    if len(specs) < 2:
        raise UserError("Comparing needs two models: give --model at least twice.")
    chosen = method_of(method, normalization, resampling, False, option)
    subject = pair_of(query, document, document_file, dataset, pair)
    quiet()
    results = explained(subject, specs, chosen)
    if figure is not None:
        write_heatmap(figure, results)
    from poslens.studies.compare.tables import comparison_frame

    say_preference(chosen)
    provenance = [result.provenance() for result in results]
    print_table(comparison_frame(results), format.value, provenance)

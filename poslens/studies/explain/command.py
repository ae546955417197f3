"""The commands `explain` and `compare`: the attribution of one pair for one model or several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from poslens.attribution.errors import UserError
from poslens.attribution.types import TokenizedText
from poslens.commands.answers import (
    answer_from,
    answers,
    print_json,
    print_table,
    source,
    table_answer,
)
from poslens.commands.command_options import (
    MethodName,
    Model,
    Normalization,
    Options,
    Resampling,
    distinct,
    method_of,
    several_models,
)
from poslens.commands.command_output import TextFormat, cli_command
from poslens.rows import frame_of
from poslens.studies.compare.answers import ComparisonRow
from poslens.studies.explain.answers import DocumentEntry, ExplanationAnswer, TokenEntry
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
)

if TYPE_CHECKING:
    from poslens.compute.compute import Explained

app = typer.Typer()


@app.command()
@cli_command
@answers(ExplanationAnswer)
def explain(
    model: Model = "MiniLM",
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
        TextFormat, typer.Option(help="json, or csv with one row per token.")
    ] = TextFormat.json,
) -> None:
    """Attribute one query-document pair."""
    chosen = method_of(method, normalization, resampling, False, option)
    subject = pair_of(query, document, document_file, dataset, pair)
    (result,) = explained(subject, [spec_of(model, dataset)], chosen, figure)
    if format is TextFormat.csv:
        from poslens.export.files import attribution_frame

        frame = attribution_frame(result.attribution, subject)
        print_table(frame, "csv", [result.provenance()])
        return
    print_json(_as_json(result))


@app.command()
@cli_command
@answers(table_answer(ComparisonRow))
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
    specs = distinct(
        spec_of(name, dataset) for name in model or ["MiniLM-primacy", "MiniLM-recency"]
    )
    if len(specs) < 2:
        raise UserError("Comparing needs two models: give --model at least twice.")
    chosen = method_of(method, normalization, resampling, False, option)
    subject = pair_of(query, document, document_file, dataset, pair)
    results = explained(subject, specs, chosen, figure)
    from poslens.studies.compare.tables import comparison_rows

    provenance = [result.provenance() for result in results]
    print_table(frame_of(ComparisonRow, comparison_rows(results)), format.value, provenance)


def _as_json(result: Explained) -> ExplanationAnswer:
    from poslens.attribution.curves.positions import document_curve, document_magnitudes, positions

    attribution = result.attribution

    def tokens(text: TokenizedText) -> list[TokenEntry]:
        return [answer_from(TokenEntry, token, special=token.is_special) for token in text.tokens]

    return answer_from(
        ExplanationAnswer,
        attribution,
        method=repr(attribution.method),
        query={"tokens": tokens(attribution.query)},
        document=answer_from(
            DocumentEntry, attribution.document, tokens=tokens(attribution.document)
        ),
        positions=positions(attribution.method.curve_params["resampling"]),
        curve=document_curve(attribution),
        magnitudes=document_magnitudes(attribution),
        provenance=source(result.provenance()),
    )

"""The command `explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from poslens.attribution.types import TokenizedText
from poslens.commands.answers import answers, print_json, print_table, source
from poslens.commands.command_options import (
    MethodName,
    Model,
    Normalization,
    Options,
    Resampling,
    method_of,
)
from poslens.commands.command_output import TextFormat, cli_command, quiet, say_preference
from poslens.studies.explain.answers import ExplanationAnswer, TokenEntry
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
    spec = spec_of(model, dataset)
    quiet()
    (result,) = explained(subject, [spec], chosen)
    say_preference(chosen)
    if figure is not None:
        write_heatmap(figure, [result])
    if format is TextFormat.csv:
        from poslens.export.files import attribution_frame

        frame = attribution_frame(result.attribution, subject)
        print_table(frame, "csv", [result.provenance()])
        return
    print_json(_as_json(result))


def _as_json(result: Explained) -> ExplanationAnswer:
    from poslens.attribution.curves.positions import document_curve, document_magnitudes, positions

    attribution = result.attribution

    def tokens(text: TokenizedText) -> list[TokenEntry]:
        return [
            {"text": t.text, "start": t.start, "end": t.end, "special": t.is_special}
            for t in text.tokens
        ]

    return {
        "model": attribution.model,
        "method": repr(attribution.method),
        "score": attribution.score,
        "query": {"tokens": tokens(attribution.query)},
        "document": {
            "tokens": tokens(attribution.document),
            "n_tokens_full": attribution.document.n_tokens_full,
            "truncated": attribution.document.truncated,
        },
        "query_scores": attribution.query_scores.tolist(),
        "document_scores": attribution.document_scores.tolist(),
        "matrix": None if attribution.matrix is None else attribution.matrix.tolist(),
        "bias_share": attribution.bias_share,
        "completeness_error": attribution.completeness_error,
        "standard_error": attribution.standard_error,
        "positions": positions(attribution.method.curve_params["resampling"]).tolist(),
        "curve": document_curve(attribution).tolist(),
        "magnitudes": document_magnitudes(attribution).tolist(),
        "provenance": source(result.provenance()),
    }

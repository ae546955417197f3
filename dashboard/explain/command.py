"""Commands about pairs and data sets: explain, curve, export."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attribution.errors import UserError
from attribution.types import Method, TokenizedText
from dashboard.core.answers import File, TableAnswer, answers, print_json, print_table, source
from dashboard.core.command_options import (
    Dataset,
    Endpoints,
    MethodName,
    Model,
    Normalization,
    Options,
    Posir,
    Readable,
    Resampling,
    for_data,
    method_of,
    pairs_of,
    readable_of,
    resolve,
)
from dashboard.core.command_output import (
    FileFormat,
    LineFormat,
    TextFormat,
    quiet,
    spoken,
    suffix_of,
    write,
)
from dashboard.core.completion import model_names
from dashboard.explain.answers import CurveRow, Explanation, TokenEntry
from dashboard.explain.command_texts import (
    Document,
    DocumentFile,
    Out,
    PairDataset,
    PairId,
    Query,
    explained,
    pair_of,
    picture_format,
    spec_of,
    write_heatmap,
)

if TYPE_CHECKING:
    from dashboard.core.compute import DataSetCurve, Explained

app = typer.Typer()


@app.command()
@spoken
@answers(Explanation)
def explain(
    model: Model = "MiniLM",
    endpoint: Endpoints = None,
    method: MethodName = "saliency",
    option: Options = None,
    query: Query = None,
    document: Document = None,
    document_file: DocumentFile = None,
    pair: PairId = None,
    dataset: PairDataset = "sample",
    normalization: Normalization = "p99",
    resampling: Resampling = "bin_mean",
    out: Out = None,
    format: Annotated[
        TextFormat, typer.Option(help="json or csv (a row per token).")
    ] = TextFormat.json,
) -> None:
    """Attribute one query-document pair."""
    fmt = picture_format(out)
    chosen = method_of(method, normalization, resampling, False, option)
    subject = pair_of(query, document, document_file, dataset, pair)
    spec = spec_of(model, dataset)
    quiet()
    (result,) = explained(subject, [spec], chosen)
    if out is not None:
        write_heatmap(out, fmt, [result])
        return
    if format is TextFormat.csv:
        from dashboard.export.files import attribution_frame

        frame = attribution_frame(result.attribution, subject)
        print_table(frame, "csv", [result.provenance()])
        return
    print_json(_as_json(result))


def _as_json(result: Explained) -> Explanation:
    from attribution.curves.positions import document_curve, document_magnitudes, positions

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


class CurveAxis(StrEnum):
    """Where a curve's positions are counted."""

    read = "read"
    text = "text"


Axis = Annotated[
    CurveAxis,
    typer.Option(
        help="read: positions in the tokens that the model read. text: in hundredths of the whole "
        "text's characters, each over the pairs that were read there.",
    ),
]


def _on(axis: CurveAxis, method: Method, posir: bool) -> Method:
    from attribution.curves.text_axis import over_text

    if axis is CurveAxis.read:
        return method
    if posir:
        raise UserError("PosIR's curves are over what was read: leave --axis text out.")
    return over_text(method)


def _curve(model: str, chosen: Method, dataset: str, posir: bool, readable: bool) -> DataSetCurve:
    from dashboard.core.compute import service

    spec = resolve(model, posir)
    data, pairs = pairs_of(dataset, posir)
    spec = for_data(spec, data.name)
    pairs, left_out = readable_of([spec], pairs, readable)
    words = ", ".join(filter(None, ("PosIR protocol" if posir else "", left_out)))
    return service().curve(spec, chosen, pairs, data.name, words)


@app.command()
@spoken
@answers(TableAnswer[CurveRow])
def curve(
    model: Model = "MiniLM",
    endpoint: Endpoints = None,
    method: MethodName = "saliency",
    option: Options = None,
    dataset: Dataset = "sample",
    normalization: Normalization = "p99",
    resampling: Resampling = "bin_mean",
    axis: Axis = CurveAxis.read,
    posir: Posir = False,
    readable: Readable = False,
    format: Annotated[TextFormat, typer.Option(help="csv or json.")] = TextFormat.csv,
) -> None:
    """Print a data set's aggregated curve from what `precompute` stored."""
    from dashboard.export.files import curve_frame

    chosen = _on(axis, method_of(method, normalization, resampling, posir, option), posir)
    found = _curve(model, chosen, dataset, posir, readable)
    frame = curve_frame([found.summary.curve])
    print_table(frame, format.value, [found.provenance()])


@app.command()
@spoken
@answers(File)
def export(
    output: Annotated[
        Path, typer.Argument(help="File to write: .png .svg .pdf .html .json .csv .parquet")
    ],
    model: Annotated[
        list[str] | None,
        typer.Option("--model", autocompletion=model_names, help="Repeat for several."),
    ] = None,
    method: MethodName = "saliency",
    option: Options = None,
    endpoint: Endpoints = None,
    dataset: Dataset = "sample",
    normalization: Normalization = "p99",
    resampling: Resampling = "bin_mean",
    axis: Axis = CurveAxis.read,
    posir: Posir = False,
    readable: Readable = False,
    size: Annotated[
        str, typer.Option(help="screen, single column or double column.")
    ] = "single column",
    palette: Annotated[str, typer.Option(help="okabe-ito, tol-bright or grey.")] = "okabe-ito",
    table: Annotated[bool, typer.Option(help="With .json: numbers instead of the figure.")] = False,
    format: FileFormat = LineFormat.text,
) -> None:
    """Write the aggregated curves of one or several models as a figure or a table."""
    from dataclasses import replace

    from dashboard.curves.words import counted
    from dashboard.drawing.curves import PRESETS, mean_curves
    from dashboard.export.files import (
        FIGURE_FORMATS,
        TABLE_FORMATS,
        curve_frame,
        figure_bytes,
        table_bytes,
    )

    fmt = suffix_of(output, [*dict.fromkeys((*FIGURE_FORMATS, *TABLE_FORMATS))])
    if size not in PRESETS:
        raise UserError(f"There is no size {size!r}: choose one of {', '.join(PRESETS)}.")
    chosen = _on(axis, method_of(method, normalization, resampling, posir, option), posir)
    found = [
        _curve(name, chosen, dataset, posir, readable)
        for name in model or ["MiniLM-primacy", "MiniLM", "MiniLM-recency"]
    ]
    provenance = [one.provenance() for one in found]
    curves = [one.summary.curve for one in found]
    if fmt in ("csv", "parquet") or table:
        data = table_bytes(curve_frame(curves), fmt, provenance)  # type: ignore[arg-type]
    else:
        style = replace(PRESETS[size], palette=palette)
        notes = {curve.model: counted(curve) for curve in curves}
        figure = mean_curves(curves, style, notes=notes, provenance=provenance)
        data = figure_bytes(figure, fmt, style, provenance)  # type: ignore[arg-type]
    write(output, data, format)

"""`python -m dashboard`: the dashboard, and everything it does without a browser.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 2 bad input,
130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from attribution.errors import UserError
from attribution.types import Method

P = ParamSpec("P")
R = TypeVar("R")

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="PosLens: where a text retriever looks in a document.",
)  # fmt: skip
models_app = typer.Typer(no_args_is_help=False, help="List and fetch retrievers.")
app.add_typer(models_app, name="models", invoke_without_command=True)


class TextFormat(StrEnum):
    """Formats of results on stdout."""

    json = "json"
    csv = "csv"


def _spoken(command: Callable[P, R]) -> Callable[P, R]:
    """Bad input ends in one sentence on stderr and exit code 2."""

    @wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except UserError as error:
            print(error, file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print("Interrupted; what was computed is kept.", file=sys.stderr)
            raise typer.Exit(130) from None

    return guarded


Model = Annotated[
    str,
    typer.Option(
        "--model",
        help="Preset, Hugging Face id, or folder; @cls, @mean, @weightedmean, @last or @max "
        "behind it pools otherwise.",
    ),
]
MethodName = Annotated[str, typer.Option("--method", help="See `methods`.")]
Normalization = Annotated[str, typer.Option(help="p99, max or none.")]
Resampling = Annotated[str, typer.Option(help="bin_mean or point.")]
Posir = Annotated[bool, typer.Option("--posir", help="The PosIR paper's protocol, bit for bit.")]
Dataset = Annotated[str, typer.Option("--dataset", help="Name, or a data set's path.")]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        help="NAME=PATH of a data set (a folder or file of any format that README.md lists), or "
        "NAME=hf:ORGANISATION/NAME; repeatable.",
    ),
]


Options = Annotated[
    list[str] | None, typer.Option("--option", help="NAME=VALUE of the method; see `methods`.")
]


def _quiet() -> None:
    """Keep libraries from writing progress of their own."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _resolve(name: str, posir: bool = False):
    from attribution.retrievers import registry
    from dashboard.protocols import posir_spec

    folder, at, pooling = name, "", ""
    if not Path(folder).is_dir():
        folder, at, pooling = name.rpartition("@")
    if name not in registry.known() and folder and Path(folder).is_dir():
        if folder not in registry.known():
            registry.register_folder(Path(folder).resolve().name, Path(folder))
        name = Path(folder).resolve().name + at + pooling
    spec = registry.resolve(name)
    return posir_spec(spec) if posir else spec


def _for_data(spec: Any, dataset: str):
    from attribution.retrievers.lexical import with_corpus

    return with_corpus(spec, dataset)


def _method(name: str, normalization: str, resampling: str, posir: bool, options: list[str] | None):
    from attribution.methods import POSIR_CURVE, make_method

    given = {}
    for option in options or []:
        key, separator, value = option.partition("=")
        if not separator:
            raise UserError(f"--option takes NAME=VALUE, not {option!r}.")
        given[key] = value
    curve = {"normalization": normalization, "resampling": resampling}
    return make_method(name, {**given, **(POSIR_CURVE if posir else curve)})


def _pairs(dataset: str, posir: bool):
    from attribution import datasets

    if dataset not in datasets.names() and (name := _name_of(dataset)):
        datasets.register(name, dataset)
        dataset = name
    data = datasets.read(dataset)
    pairs = [pair for pair in data.pairs if not posir or datasets.posir_selection(pair)]
    if data.rejected:
        print(f"{len(data.rejected)} rows are not pairs, the first: {data.rejected[0].file} row "
              f"{data.rejected[0].row}: {data.rejected[0].reason}", file=sys.stderr)  # fmt: skip
    if not pairs:
        raise UserError(
            f"No pair of {dataset} is left: the PosIR protocol keeps documents of 1,024 tokens or "
            "more with evidence in the middle."
        )
    return data, pairs


def _name_of(source: str) -> str:
    """The name that a data set's path gives it; nothing where there is none at that path."""
    from attribution.datasets import formats, hub

    path, variant = formats.split_variant(source)
    if not path.startswith(hub.PREFIX) and not Path(path).exists():
        return ""
    name = path.removeprefix(hub.PREFIX).split("/")[-1] or path
    name = Path(path).resolve().name if Path(path).exists() else name
    return f"{name}@{variant}" if variant else name


def _named(value: str, what: str) -> tuple[str, Path]:
    name, folder = _parted(value, f"{what} takes NAME=FOLDER, not {value!r}.")
    return name, Path(folder).expanduser()


def _sources(values: list[str] | None) -> dict[str, str]:
    """`--data` options: names and where their data sets are, `~` resolved."""
    parted = (
        _parted(value, "--data takes NAME=FOLDER, NAME=FILE or NAME=hf:ORGANISATION/NAME, "
                f"not {value!r}.")
        for value in values or []
    )  # fmt: skip
    return {name: str(Path(source).expanduser()) for name, source in parted}


def _parted(value: str, message: str) -> tuple[str, str]:
    name, separator, source = value.partition("=")
    if not separator or not name or not source:
        raise UserError(message)
    return name, source


@app.command()
@_spoken
def run(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 8501,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="NAME=FOLDER of a local model; repeatable.")
    ] = None,
    data: Data = None,
    allow_code: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-code",
            help="NAME of a model that may run the code of its repository on this machine; read "
            "that code first; repeatable.",
        ),
    ] = None,
) -> None:
    """Open the dashboard on this machine's loopback address."""
    from dashboard.serve import serve

    serve(
        port,
        dict(_named(value, "--model") for value in model or []),
        _sources(data),
        allow_code or [],
    )


@app.command()
@_spoken
def explain(
    query: Annotated[str, typer.Option(help="The query.")],
    model: Model = "MiniLM",
    method: MethodName = "saliency",
    option: Options = None,
    document: Annotated[str | None, typer.Option(help="The document's text.")] = None,
    document_file: Annotated[
        Path | None, typer.Option(help="File with the document; - for stdin.")
    ] = None,
    normalization: Normalization = "p99",
    resampling: Resampling = "bin_mean",
    format: Annotated[
        TextFormat, typer.Option(help="json or csv (a row per token).")
    ] = TextFormat.json,
) -> None:
    """Attribute one query-document pair."""
    from attribution.text import clean
    from attribution.types import TextPair

    if (document is None) == (document_file is None):
        raise UserError("Give the document either as --document or as --document-file.")
    text = document if document is not None else _read_text(document_file)
    pair = TextPair("typed", clean(query, "query").text, clean(text, "document").text)
    spec, chosen = _resolve(model), _method(method, normalization, resampling, False, option)
    _quiet()
    from dashboard.compute import service

    result = service().explain(pair, spec, chosen)
    if result.notice:
        print(result.notice, file=sys.stderr)
    if format is TextFormat.csv:
        from dashboard.export import attribution_frame, table_bytes

        frame = attribution_frame(result.attribution, pair)
        sys.stdout.buffer.write(table_bytes(frame, "csv", [result.provenance()]))
        return
    print(json.dumps(_as_json(result), ensure_ascii=False))


def _read_text(path: Path | None) -> str:
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else Path(str(path)).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): give a text file.") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: convert it first.") from error


def _as_json(result: Any) -> dict[str, Any]:
    from attribution.position import document_curve

    attribution = result.attribution

    def tokens(text: Any) -> list[dict[str, Any]]:
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
        "curve": document_curve(attribution).tolist(),
        "provenance": dict(result.provenance().items()),
    }


@app.command()
@_spoken
def precompute(
    model: Model = "MiniLM",
    method: MethodName = "saliency",
    option: Options = None,
    dataset: Dataset = "sample",
    posir: Posir = False,
    retry_failed: Annotated[bool, typer.Option(help="Try pairs again that failed before.")] = False,
) -> None:
    """Compute what the cache lacks of a data set; stop with Ctrl-C, resume by running again."""
    from dashboard.compute import service

    spec, chosen = _resolve(model, posir), _method(method, "p99", "bin_mean", posir, option)
    data, pairs = _pairs(dataset, posir)
    spec = _for_data(spec, data.name)
    _quiet()
    from tqdm import tqdm

    with tqdm(total=len(pairs), unit="pair", desc=spec.name, file=sys.stderr) as bar:

        def show(progress: Any) -> None:
            if not bar.n:
                bar.initial = progress.done - progress.computed
            bar.n = progress.done
            bar.refresh()

        running = service().start_run(
            spec, chosen, pairs, data.name, show, retry_failed=retry_failed
        )
        try:
            running.wait()
        except KeyboardInterrupt:
            running.stop()
            running.wait()
            raise
    if running.error:
        raise UserError(running.error)
    progress = running.progress
    print(json.dumps({"model": spec.name, "method": repr(chosen), "dataset": data.name,
                      "total": progress.total, "done": progress.done,
                      "computed": progress.computed, "failed": progress.failed,
                      "seconds": round(progress.seconds, 3)}))  # fmt: skip


def _curve(model: str, chosen: Method, dataset: str, posir: bool):
    from dashboard.compute import service

    spec = _resolve(model, posir)
    data, pairs = _pairs(dataset, posir)
    spec = _for_data(spec, data.name)
    return service().curve(spec, chosen, pairs, data.name, "PosIR protocol" if posir else "")


@app.command()
@_spoken
def curve(
    model: Model = "MiniLM",
    method: MethodName = "saliency",
    option: Options = None,
    dataset: Dataset = "sample",
    normalization: Normalization = "p99",
    resampling: Resampling = "bin_mean",
    posir: Posir = False,
    format: Annotated[TextFormat, typer.Option(help="csv or json.")] = TextFormat.csv,
) -> None:
    """Print a data set's aggregated curve from what `precompute` stored."""
    from dashboard.export import curve_frame, table_bytes

    chosen = _method(method, normalization, resampling, posir, option)
    found = _curve(model, chosen, dataset, posir)
    frame = curve_frame([found.summary.curve])
    sys.stdout.buffer.write(table_bytes(frame, format.value, [found.provenance()]))


@app.command()
@_spoken
def export(
    output: Annotated[
        Path, typer.Argument(help="File to write: .png .svg .pdf .html .json .csv .parquet")
    ],
    model: Annotated[list[str] | None, typer.Option("--model", help="Repeat for several.")] = None,
    method: MethodName = "saliency",
    option: Options = None,
    dataset: Dataset = "sample",
    normalization: Normalization = "p99",
    resampling: Resampling = "bin_mean",
    posir: Posir = False,
    size: Annotated[
        str, typer.Option(help="screen, single column or double column.")
    ] = "single column",
    palette: Annotated[str, typer.Option(help="okabe-ito, tol-bright or grey.")] = "okabe-ito",
    table: Annotated[bool, typer.Option(help="With .json: numbers instead of the figure.")] = False,
) -> None:
    """Write the aggregated curves of one or several models as a figure or a table."""
    from dataclasses import replace

    from dashboard.export import (
        FIGURE_FORMATS,
        TABLE_FORMATS,
        curve_frame,
        figure_bytes,
        table_bytes,
    )
    from dashboard.figures import PRESETS, mean_curves

    fmt = output.suffix.lstrip(".").lower()
    if fmt not in (*FIGURE_FORMATS, *TABLE_FORMATS):
        raise UserError(
            f"{output.name} has no suffix that can be written: use .png, .svg, .pdf, .html, .json, "
            ".csv or .parquet."
        )
    if size not in PRESETS:
        raise UserError(f"There is no size {size!r}: choose one of {', '.join(PRESETS)}.")
    chosen = _method(method, normalization, resampling, posir, option)
    found = [
        _curve(name, chosen, dataset, posir)
        for name in model or ["MiniLM-primacy", "MiniLM", "MiniLM-recency"]
    ]
    provenance = [one.provenance() for one in found]
    curves = [one.summary.curve for one in found]
    if fmt in ("csv", "parquet") or table:
        data = table_bytes(curve_frame(curves), fmt, provenance)  # type: ignore[arg-type]
    else:
        style = replace(PRESETS[size], palette=palette)
        notes = {one.summary.curve.model: f"n={one.summary.curve.n}" for one in found}
        figure = mean_curves(curves, style, notes=notes, provenance=provenance)
        data = figure_bytes(figure, fmt, style, provenance)  # type: ignore[arg-type]
    try:
        output.write_bytes(data)
    except OSError as error:
        raise UserError(f"{output} cannot be written ({error.strerror}).") from error
    print(output)


@models_app.callback()
@_spoken
def models(context: typer.Context) -> None:
    """List the retrievers known by name."""
    if context.invoked_subcommand is not None:
        return
    from attribution.retrievers import registry

    for spec in registry.known().values():
        where = "installed" if registry.installed(spec) else "to fetch"
        print(
            f"{spec.name:16} {where:10} {spec.family:16} {spec.pooling or '':10} "
            f"{spec.max_length or '':>6} tokens  {spec.size_mb or '':>6} MB  {spec.license:12} "
            f"{spec.title}"
        )


@models_app.command("fetch")
@_spoken
def fetch_model(name: Annotated[str, typer.Argument(help="A preset; see `models`.")]) -> None:
    """Fetch a preset's weights into the data folder."""
    from tqdm import tqdm

    from attribution.retrievers.fetch import fetch

    bars: list[tqdm] = []  # one for each step, opened when it begins

    def show(step: str, done: int, total: int | None) -> None:
        if not bars or bars[-1].desc != f"{step}: ":
            bars.append(tqdm(unit="B", unit_scale=True, desc=step, total=total, file=sys.stderr))
        bars[-1].total = total
        bars[-1].n = done
        bars[-1].refresh()

    try:
        folder = fetch(name, show)
    finally:
        for bar in bars:
            bar.close()
    print(folder)


@app.command()
@_spoken
def datasets(data: Data = None) -> None:
    """List the data sets known by name, and what of those given with --data can be read."""
    from attribution import datasets as known

    for name, source in _sources(data).items():
        known.register(name, source)
    for name in known.names():
        found = known.read(name)
        print(
            f"{name:16} {len(found.pairs):8} pairs  {len(found.rejected):6} rejected  {found.title}"
        )


@app.command()
@_spoken
def methods() -> None:
    """List the attribution methods and their parameters."""
    from attribution.methods import CURVE_PARAMETERS, METHODS

    for entry in METHODS.values():
        print(f"{entry.name}: {entry.help} Families: {', '.join(entry.families)}.")
        for parameter in (*entry.parameters, *CURVE_PARAMETERS):
            print(f"    {parameter.name} = {' | '.join(parameter.choices)}: {parameter.help}")


if __name__ == "__main__":
    app()

"""The commands `precompute` and `curve`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted
from poslens.commands.answers import (
    TableAnswer,
    answer_from,
    print_answer,
    print_table,
    table_answer,
)
from poslens.commands.command_options import (
    Dataset,
    MethodName,
    Model,
    Models,
    Normalization,
    Options,
    Posir,
    Readable,
    Resampling,
    method_of,
    pairs_of,
    print_error,
    readable_of,
)
from poslens.commands.command_output import (
    LineFormat,
    TextFormat,
    cli_command,
    quiet,
    say_caveat,
    watched,
)
from poslens.commands.result_files import FigureFile, FigureOption
from poslens.failures import FailureRow, failure_provenance
from poslens.names import for_data, named, resolve, specs_of
from poslens.paired import DifferenceRow, ItemRow
from poslens.studies.curves.answers import (
    CurveRow,
    CurveSummaryRow,
    Precomputed,
    PublishedCurveRow,
)
from poslens.version import __version__

if TYPE_CHECKING:
    from poslens.attribution.retrievers.specs import RetrieverSpec
    from poslens.attribution.types import Method, TextPair
    from poslens.cache.exchange.part_files import PartWriter
    from poslens.compute.runs import Job

app = typer.Typer()


def _published(folder: str) -> PartWriter:
    from poslens.cache.exchange import part_files
    from poslens.compute.compute import service

    return part_files.PartWriter(part_files.PartFolder(folder), service().root, __version__)


def _shard_of(pairs: Sequence[TextPair], text: str) -> list[TextPair]:
    from poslens.cache.jobs import attributions

    if not re.fullmatch(r"[1-9]\d{0,5}/[1-9]\d{0,5}", text):
        raise UserError(f"--shard must be I/N, such as 2/8, not {text[:40]!r}.")
    number, of = map(int, text.split("/"))
    if not (chosen_pairs := attributions.shard(pairs, number, of)):
        raise UserError(
            f"Shard {text} is empty: {len(pairs)} pairs fill fewer shards. Use a smaller N."
        )
    return chosen_pairs


@app.command()
@cli_command(Precomputed)
def precompute(
    model: Model = "MiniLM",
    method: MethodName = "saliency",
    option: Options = None,
    dataset: Dataset = "sample",
    posir: Posir = False,
    readable: Readable = False,
    retry_failed: Annotated[bool, typer.Option(help="Retry the pairs that failed.")] = False,
    executor: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="local: this process computes. ray: one actor per GPU of a cluster computes, or "
            "one per core without GPUs (`pip install -r requirements-ray.txt`)."
        ),
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of actors of --executor ray; all by default."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Address of a running Ray cluster, auto or host:port. By default, PosLens starts "
            "Ray on this machine only."
        ),
    ] = None,
    parts: Annotated[
        str,
        typer.Option(
            help="Publish results as Parquet parts to this folder or s3:// address instead of "
            "writing to the cache; `cache ingest` imports them."
        ),
    ] = "",
    shard: Annotated[
        str,
        typer.Option(
            metavar="I/N",
            help="Compute only shard I of N. A shard has the same pairs on every host, so N hosts "
            "without a common cache can divide a data set.",
        ),
    ] = "",
    format: Annotated[LineFormat, typer.Option(help="json, or text (one line).")] = "json",
) -> None:
    """Compute the results of a data set that are not stored yet. Stop with Ctrl-C; run again to
    resume. Several processes with the same pairs share the work."""
    from poslens.compute.compute import service

    if executor == "local" and (workers or address):
        raise UserError("--workers and --address need --executor ray: add it.")
    spec, chosen = resolve(model, posir), method_of(method, "p99", "bin_mean", posir, option)
    if spec.remote and executor == "ray":
        raise UserError(
            f"{spec.name} is an endpoint, which a cluster doesn't speed up: remove --executor ray."
        )
    data, all_pairs = pairs_of(dataset, posir)
    spec = for_data(spec, data.name)
    quiet()
    pairs, _ = readable_of([spec], all_pairs, readable)
    if shard:
        pairs = _shard_of(pairs, shard)

    def on_ray(identity: Any) -> Any:
        from poslens.cache.jobs.ray_executor import RayExecutor
        from poslens.compute.settings import DEVICE, PRECISION

        return RayExecutor(
            identity.spec,
            chosen,
            identity.key.fingerprint,
            device=DEVICE.get(),
            precision=PRECISION.get(),
            workers=workers,
            address=address,
        )

    job = service().attribution_job(
        spec,
        chosen,
        pairs,
        data.name,
        executor=on_ray if executor == "ray" else None,
        store=_published(parts) if parts else None,
    )
    progress = watched(spec.name, job, retry_failed=retry_failed).progress
    if progress.failed and not parts:
        first = next(iter(job.failures().values()), "")
        failed = counted(progress.failed, "pair")
        more = " `curve --table failures` lists all." if progress.failed > 1 else ""
        print(f"{failed} failed. The first reason: {first}{more}", file=sys.stderr)
    answer = answer_from(
        Precomputed,
        progress,
        model=spec.name,
        method=repr(chosen),
        dataset=data.name,
        seconds=round(progress.seconds, 3),
    )
    print_answer(answer, format)


def _on(axis: Literal["read", "text"], method: Method, posir: bool) -> Method:
    from poslens.attribution.curves.text_axis import over_text

    if axis == "read":
        return method
    if posir:
        raise UserError("PosIR's curves are relative to the tokens read: remove --axis text.")
    return over_text(method)


@app.command()
@cli_command(
    {
        "--table curves": TableAnswer[CurveRow],
        "--table summary": table_answer(CurveSummaryRow),
        "--table differences": table_answer(DifferenceRow),
        "--table items": table_answer(ItemRow),
        "--table published": TableAnswer[PublishedCurveRow],
        "--table failures": table_answer(FailureRow),
    }
)
def curve(
    model: Models = None,
    method: MethodName = "saliency",
    option: Options = None,
    dataset: Dataset = "sample",
    normalization: Normalization = "p99",
    resampling: Resampling = "bin_mean",
    axis: Annotated[
        Literal["read", "text"],
        typer.Option(
            help="read: positions relative to the tokens that the model reads. text: positions in "
            "percent of the whole text's characters; each averages the pairs that were read there."
        ),
    ] = "read",
    posir: Posir = False,
    readable: Readable = False,
    pairs: Annotated[
        int,
        typer.Option(
            min=0, help="Maximum number of pairs, spread evenly over the data set; 0 uses all."
        ),
    ] = 0,
    table: Annotated[
        Literal["curves", "summary", "differences", "items", "published", "failures"],
        typer.Option(
            help="curves (100 positions per model), summary (one row per model: center of mass and "
            "primacy-recency index with intervals), differences (the index of each pair of models, "
            "paired), items (the index of each pair), published (the curves of --published; no "
            "model by default) or failures."
        ),
    ] = "curves",
    published: Annotated[
        list[str] | None,
        typer.Option(
            "--published",
            help="NAME=FILE of a model's published saliency curves, .npz or .pkl, which are added "
            "to the chart; repeatable.",
        ),
    ] = None,
    figure: Annotated[FigureFile | None, FigureOption("the mean curves")] = None,
    format: Annotated[TextFormat, typer.Option(help="csv or json.")] = "csv",
) -> None:
    """Print the mean curves of models over a data set. Missing results are computed first; stop
    with Ctrl-C and run again to resume."""
    from poslens.arguments import chosen_pairs
    from poslens.attribution.curves.published import read_bytes, read_curves
    from poslens.compute.compute import service
    from poslens.studies.curves.result import Curves, averaged

    chosen = _on(axis, method_of(method, normalization, resampling, posir, option), posir)
    files = [named(value, "--published", "FILE") for value in published or []]
    published_curves = [read_curves(name, path.name, read_bytes(path)) for name, path in files]
    if table == "published" and not published_curves:
        raise UserError("--table published prints published curves: give --published NAME=FILE.")
    if table == "differences" and len(model or ()) < 2:
        raise UserError("Differences are between models: add another --model.")
    if table in ("summary", "differences", "items") and axis == "text":
        raise UserError(f"--table {table} is relative to the tokens read: remove --axis text.")
    models = model or ([] if table == "published" else ["MiniLM"])

    data, all_pairs = pairs_of(dataset, posir)
    selected, spread = chosen_pairs(all_pairs, pairs)
    specs = specs_of(models, data.name, lambda name: resolve(name, posir))

    def read_by(spec: RetrieverSpec) -> tuple[Sequence[TextPair], str]:
        read, left_out = readable_of([spec], selected, readable)
        return read, ", ".join(filter(None, ("PosIR protocol" if posir else "", spread, left_out)))

    def run(job: Job) -> None:
        if job.has_left():
            watched(job.label, job)

    averages, failures, errors = averaged(service(), specs, chosen, data.name, read_by, run)
    if errors and not averages and table != "failures":
        raise UserError(errors[0])
    curves = Curves(averages, selected, failures, published_curves)
    if curves:
        say_caveat(chosen, specs)
    for sentence in curves.verdicts:
        print(sentence, file=sys.stderr)
    if figure is not None:
        figure.draw(curves.figure(style=figure.style), curves.provenance)
    sources = curves.sources(table)
    if table == "failures":
        sources = failure_provenance(service(), specs, chosen, data.name)
        if not sources:  # no model could be identified
            raise UserError(errors[0])
    print_table(curves.to_frame(table), format, sources)
    for error in errors:
        print_error(error)
    if errors and table != "failures":  # that table is complete even if a model has no curve
        raise typer.Exit(2)

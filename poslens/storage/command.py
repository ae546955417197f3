"""The commands `cache list`, `export`, `import`, `merge`, `ingest`, `verify`, `compact` and
`delete`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poslens.attribution.errors import UserError
from poslens.commands.answers import Lines, answer_from, print_answer
from poslens.commands.command_options import is_quiet, print_error
from poslens.commands.command_output import LineFormat, cli_command
from poslens.commands.result_files import suffix_of
from poslens.storage.answers import (
    Compacted,
    Deleted,
    ExportAnswer,
    Imported,
    IngestAnswer,
    Merged,
    StoredAnswer,
    VerifiedFile,
    VerifiedParts,
)
from poslens.version import __version__

if TYPE_CHECKING:
    from poslens.cache.exchange.transfer import Report
    from poslens.cache.storage.maintenance import StoredFile
    from poslens.cache.storage.store import Store

app = typer.Typer()
cache = typer.Typer(
    no_args_is_help=True, help="List, export, import, verify and delete stored results."
)
app.add_typer(cache, name="cache")

Of = Annotated[
    list[str] | None,
    typer.Option(
        "--model", help="Name or fingerprint, see `cache list`; repeatable. All by default."
    ),
]
Under = Annotated[str, typer.Option("--method", help="Name of a method. All by default.")]
OfDataset = Annotated[str, typer.Option("--dataset", help="Name of a data set. All by default.")]
Format = Annotated[LineFormat, typer.Option(help="json (one object per line) or text.")]


def _store() -> Store:
    from poslens.attribution.retrievers.specs import data_folder
    from poslens.cache.storage.store import Store

    return Store(data_folder() / "cache")


def _require_parts(folder: str, n: int) -> None:
    if not n:
        raise UserError(
            f"{folder} contains no parts: use the folder or address of `precompute --parts`."
        )


def _files(models: list[str] | None, method: str) -> list[StoredFile]:
    """The stored files of these models and this method; empty arguments select all."""
    from poslens.cache.storage.maintenance import listing

    files = listing(_store())
    selected: list[StoredFile] = []
    for name in models or [""]:
        matching = [
            file
            for file in files
            if (name in ("", file.model.name) or _is_prefix(name, file.model.fingerprint))
            and method in ("", file.method.name, file.method.core)
        ]
        if not matching:
            what = " ".join(filter(None, (name, method)))
            raise UserError(
                f"The cache has no results of {what}: `python -m poslens cache list` lists them."
                if what
                else "The cache is empty: compute or import results first."
            )
        selected += [file for file in matching if file not in selected]
    return selected


def _is_prefix(name: str, fingerprint: str) -> bool:
    return len(name) >= 6 and fingerprint.startswith(name)


@contextmanager
def _progress(what: str, unit: str = "row") -> Iterator[Report]:
    """A function that shows progress as a bar on stderr."""
    from tqdm import tqdm

    with tqdm(unit=unit, desc=what, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.total, bar.n = total, done
            bar.refresh()

        yield show


@cache.command("list")
@cli_command(Lines[StoredAnswer])
def list_files(format: Format = "json") -> None:
    """List the stored results, one line for each model and method."""
    from poslens.cache.storage.maintenance import listing

    for file in listing(_store()):
        stored = answer_from(
            StoredAnswer,
            file,
            model=file.model.name,
            fingerprint=file.model.fingerprint,
            method=file.method.core,
            last_used=f"{datetime.fromtimestamp(file.last_used, UTC):%Y-%m-%dT%H:%M:%SZ}",
        )
        if not file.problem:
            del stored["problem"]
        print_answer(stored, format)


@cache.command()
@cli_command(ExportAnswer)
def export(
    output: Annotated[Path, typer.Argument(help="Parquet file to write.")],
    model: Of = None,
    method: Under = "",
    dataset: OfDataset = "",
    format: Format = "json",
) -> None:
    """Export results with their provenance to a Parquet file."""
    from poslens.cache.exchange.transfer import export

    suffix_of(output, ["parquet"])
    files = _files(model, method)
    for file in files:
        if file.problem:
            print(f"Skipped {file.model.name}: {file.problem}", file=sys.stderr)
    whole = [file for file in files if not file.problem]
    with _progress("Exporting") as report:
        rows = export(
            _store(),
            whole,
            output,
            poslens=__version__,
            datasets=[dataset] if dataset else [],
            report=report,
        )
    answer: ExportAnswer = {"file": str(output), "rows": rows, "bytes": output.stat().st_size}
    print_answer(answer, format)


@cache.command("import")
@cli_command(Lines[Imported])
def import_(
    files: Annotated[list[Path], typer.Argument(help="Exported Parquet files.")],
    format: Format = "json",
) -> None:
    """Import the results of exported files that the cache lacks."""
    from poslens.cache.exchange.transfer import import_file

    for path in files:
        with _progress("Importing") as report:
            taken = import_file(_store(), path, report=report)
        print(taken.sentence(), file=sys.stderr)
        print_answer(answer_from(Imported, taken, file=str(path)), format)


@cache.command()
@cli_command(Merged)
def merge(
    folder: Annotated[Path, typer.Argument(help="The folder `cache` of another POSLENS_HOME.")],
    format: Format = "json",
) -> None:
    """Add results of another cache on this machine that this cache lacks. The other cache does
    not change."""
    from poslens.cache.exchange.transfer import merge
    from poslens.cache.storage.store import Store

    with _progress("Merging") as report:
        taken, problems = merge(_store(), Store(folder), report=report)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(taken.sentence(), file=sys.stderr)
    print_answer(answer_from(Merged, taken, folder=str(folder)), format)


@cache.command()
@cli_command(IngestAnswer)
def ingest(
    folder: Annotated[str, typer.Argument(help="Folder of parts, or its s3:// or gs:// address.")],
    format: Format = "json",
) -> None:
    """Import a folder's new parts and write the manifest."""
    from poslens.cache.exchange.part_files import PartFolder, ingest

    with _progress("Ingesting", "part") as report:
        ingested = ingest(_store(), PartFolder(folder), report=report)
    _require_parts(folder, ingested.parts)
    for problem in ingested.problems:
        print_error(problem)
    if ingested.taken.rejected:
        print(ingested.taken.sentence(), file=sys.stderr)
    answer = answer_from(
        IngestAnswer,
        ingested.taken,
        folder=folder,
        parts=ingested.parts,
        new=ingested.new,
        damaged=len(ingested.problems),
    )
    print_answer(answer, format)
    if ingested.problems:
        raise typer.Exit(2)


@cache.command()
@cli_command({"": Lines[VerifiedFile], "--parts": VerifiedParts})
def verify(
    model: Of = None,
    method: Under = "",
    parts: Annotated[str, typer.Option(help="Check a folder of parts instead.")] = "",
    format: Format = "json",
) -> None:
    """Verify all checksums; damaged results are removed from the cache."""
    if parts:
        from poslens.cache.exchange.part_files import PartFolder
        from poslens.cache.exchange.part_files import verify as verify_parts

        with _progress("Verifying", "part") as report:
            n, problems = verify_parts(PartFolder(parts), report)
        _require_parts(parts, n or len(problems))
        for problem in problems:
            print_error(problem)
        checked: VerifiedParts = {"folder": parts, "parts": n, "damaged": len(problems)}
        print_answer(checked, format)
        if problems:
            raise typer.Exit(2)
        return
    from poslens.cache.storage.maintenance import verify

    sound = True
    for file in _files(model, method):
        with _progress(file.model.name) as report:
            verified = (
                verify(_store(), file.model, file.method, report) if not file.problem else None
            )
        answer: VerifiedFile = {"model": file.model.name, "method": file.method.core}
        if verified:
            answer["checked"], answer["damaged"] = verified.checked, list(verified.damaged)
        else:
            answer["problem"] = file.problem
        sound = sound and bool(verified) and not answer.get("damaged")
        print_answer(answer, format)
    if not sound:
        raise typer.Exit(2)


@cache.command()
@cli_command(Lines[Compacted])
def compact(model: Of = None, method: Under = "", format: Format = "json") -> None:
    """Free the disk space of replaced and removed results."""
    from poslens.cache.storage.maintenance import compact

    for file in _files(model, method):
        freed = 0 if file.problem else compact(_store(), file.model, file.method)
        answer: Compacted = {
            "model": file.model.name,
            "method": file.method.core,
            "freed": freed,
        }
        print_answer(answer, format)


@cache.command()
@cli_command(Deleted)
def delete(
    model: Of = None,
    method: Under = "",
    dataset: OfDataset = "",
    yes: Annotated[bool, typer.Option("--yes", help="Delete without confirmation.")] = False,
    format: Format = "json",
) -> None:
    """Delete stored results by model, method and data set, after a confirmation."""
    from poslens.cache.storage.maintenance import drop_results
    from poslens.storage.service import require_idle, summary

    files = _files(model, method)
    if dataset:
        files = [file for file in files if dataset in file.datasets]
        if not files:
            raise UserError(
                f"The cache has no results of the data set {dataset[:80]}: `python -m poslens "
                "cache list` lists them."
            )
    if is_quiet() and not yes:
        raise UserError("--quiet can't ask for confirmation: add --yes, or remove --quiet.")
    if not yes and not typer.confirm(f"Delete {summary(files, dataset)}?", err=True):
        print("Nothing was deleted.", file=sys.stderr)
        raise typer.Exit(1)
    require_idle(_store(), files)
    freed = sum(drop_results(_store(), file, dataset) for file in files)
    answer: Deleted = {"files": len(files), "freed": freed}
    print_answer(answer, format)

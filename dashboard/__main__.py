"""`python -m dashboard`: the dashboard, and everything it does without a browser."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

if __name__ == "__main__":
    # Until `main` is reached, Ctrl-C ends the process without a traceback of half-done imports.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import typer

from poslens.commands import listing as listing_command
from poslens.commands.study_group import StudyGroup, add_studies
from poslens.dashboard.server import command as server_command
from poslens.storage import command as cache
from poslens.studies.benchmark import command as benchmark
from poslens.studies.cause import command as interventions
from poslens.studies.check import command as check
from poslens.studies.compare import command as compare
from poslens.studies.curves import command as curves
from poslens.studies.debias import calibrate_command as calibrate
from poslens.studies.explain import command as explain
from poslens.studies.passport import command as passport
from poslens.studies.ranking import command as ranking

app = typer.Typer(
    cls=StudyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="PosLens: where a text retriever looks in a document.",
)
for group in (
    server_command,
    explain,
    compare,
    curves,
    interventions,
    ranking,
    calibrate,
    passport,
    check,
    benchmark,
    listing_command,
    cache,
):
    app.add_typer(group.app)
add_studies(app)


def _print_version(asked: bool) -> None:
    if asked:
        from poslens.compute.provenance import poslens_version

        print(poslens_version())
        raise typer.Exit


@app.callback()
def with_version(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print PosLens' version."
        ),
    ] = False,
) -> None:
    """What every command has in front of it."""


def main() -> None:
    """Run the command line as a program: results are UTF-8 whatever the terminal says, SIGTERM ends
    a command as Ctrl-C does, and a result that could not be written whole is an error."""
    _open_streams()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    code: object = 0
    try:
        app()
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        code = 130
    raise SystemExit(_written() or code)


def _open_streams() -> None:
    """Where the caller closed a stream, an empty one; what cannot be encoded is written as its
    escape instead of failing."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # Open for as long as the program runs.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _written() -> int:
    """0 where all of stdout is written, else the exit code."""
    try:
        sys.stdout.flush()
        return 0
    except BrokenPipeError:
        code = 1  # whoever read it has had enough
    except OSError as error:
        print(
            f"The result could not be written ({error.strerror}): free some space.", file=sys.stderr
        )
        code = 2
    # What is left in the buffer would be tried again, and complained about, at the very end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


if __name__ == "__main__":
    main()

"""The command line. `poslens.dashboard` adds the command that starts the dashboard. Studies are
imported only when they are called, because that takes seconds."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from poslens.commands import listing as listing_command
from poslens.storage import command as cache
from poslens.studies import declared
from poslens.studies.check import command as check
from poslens.studies.curves import command as curves
from poslens.studies.explain import command as explain
from poslens.studies.passport import command as passport
from poslens.version import __version__

_GROUPS = (
    explain.app,
    curves.app,
    passport.app,
    check.app,
    listing_command.app,
    cache.app,
)


def command_line(*groups: typer.Typer) -> typer.Typer:
    """A command line with the commands of `groups`, followed by those of the library and its
    studies."""
    app = typer.Typer(
        cls=StudyGroup,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="PosLens: does a text retriever overlook evidence because of its position?",
    )
    app.callback()(_with_version)
    for group in (*groups, *_GROUPS):
        app.add_typer(group)
    add_studies(app)
    return app


def _print_version(requested: bool) -> None:
    if requested:
        print(__version__)
        raise typer.Exit


def _with_version(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print PosLens' version."
        ),
    ] = False,
) -> None:
    """Parse the options that precede the command's name."""


def main(app: typer.Typer) -> None:
    """Run a command line as a program and exit with its code. Output is UTF-8 regardless of the
    terminal's encoding, SIGTERM ends a command as Ctrl-C does, and incomplete output is an
    error."""
    _open_streams()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    code: object = 0
    as_module = Path(sys.argv[0]).name == "__main__.py"
    try:
        app(prog_name="python -m poslens" if as_module else "poslens")
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        code = _INTERRUPTED
    raise SystemExit(_written() or code)


_INTERRUPTED = 130
"""The exit code after Ctrl-C or SIGTERM."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            # A library that is interrupted during its import may catch the interrupt and fail
            # later, and one in C++ aborts. What was computed is stored.
            os._exit(_INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _open_streams() -> None:
    """Replace streams that the caller closed by null devices, and set the others to UTF-8 with
    escapes for lone surrogates."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # Open for the lifetime of the program.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _written() -> int:
    """Flush stdout; returns 0 if everything was written, otherwise the exit code."""
    try:
        sys.stdout.flush()
        return 0
    except BrokenPipeError:
        code = 1  # the reading end of the pipe was closed
    except OSError as error:
        print(
            f"The result could not be written ({error.strerror}): free some space.", file=sys.stderr
        )
        code = 2
    # Otherwise Python would flush the buffer again at exit, and print a second error.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


# -- commands of studies ---------------------------------------------------------------------------


class StudyGroup(TyperGroup):
    """A group that lists studies with their questions, and imports a study when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names."""
        if args and args[0] in declared():
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """The result of the command; a rejected choice is reported without pydantic's prefix."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def load_all(self) -> StudyGroup:
        """The same group after importing every study's command."""
        for name in declared():
            self.load(name)
        return self

    def load(self, name: str) -> None:
        """Replace the placeholder by the study's command."""
        from poslens.commands.study_command import study_app

        self.commands[name] = typer.main.get_command(study_app(declared()[name].load()))


def add_studies(app: typer.Typer) -> None:
    """Add a placeholder command for every study, with its name and question as help."""
    for study in declared().values():
        app.command(study.name, help=study.question)(_not_loaded)


def _not_loaded() -> None:
    raise RuntimeError("StudyGroup loads a study's command before it is called")

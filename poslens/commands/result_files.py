"""The options `--out` and `--figure`, which write a command's result and its chart to files."""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar, get_args

import typer

from poslens.attribution.errors import UserError
from poslens.attribution.paths import expanded
from poslens.cache.exchange.atomic_file import replacing, require_writable
from poslens.figures.palettes import FIGURE_FORMATS, PALETTES, PRESETS, Style, styled

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from poslens.figures.captions import Provenances

P = ParamSpec("P")
R = TypeVar("R")

# -- --out: the result ----------------------------------------------------------------------------


@dataclass
class ResultFile:
    """The file to which a command writes its result instead of stdout. `files` are the contents of
    a table's files by name, because a CSV has its provenance in a second file."""

    path: Path
    format: str
    files: dict[str, bytes] = field(default_factory=dict)


_result: ContextVar[ResultFile | None] = ContextVar("_result", default=None)


def result_file() -> ResultFile | None:
    """The file of --out, if the running command was given one."""
    return _result.get()


def with_out(command: Callable[P, R]) -> Callable[P, R]:
    """Add --out FILE to a command that has --format: the output is written to that file in the
    format of its suffix, and the file's path is printed on stdout. If the command has a parameter
    `out` itself, it receives a path without such a suffix, which is a folder for other files."""
    signature = inspect.signature(command, eval_str=True)
    if "format" not in signature.parameters:
        return command
    formats = _formats(signature.parameters["format"].annotation)
    takes_folder = "out" in signature.parameters

    @wraps(command)
    def writing(*args: P.args, **kwargs: P.kwargs) -> R:
        path = kwargs.pop("out", None)
        if takes_folder:
            suffix = "" if path is None else Path(str(path)).suffix.lstrip(".").lower()
            kwargs["out"] = None if suffix in formats else path
        if path is None or kwargs.get("out") is not None:
            return command(*args, **kwargs)
        file = ResultFile(Path(str(path)), suffix_of(Path(str(path)), list(formats)))
        chosen = formats[file.format]
        if kwargs["format"] not in (chosen, signature.parameters["format"].default):
            raise UserError(
                f"--out {file.path.name} and --format {kwargs['format']} request different "
                "formats: remove --format."
            )
        kwargs["format"] = chosen
        _require_writable(file.path, kwargs)
        with _written_to(file):
            return command(*args, **kwargs)

    help = f"Write the result to this file ({_listed(formats)}) instead of stdout."
    option = inspect.Parameter(
        "out",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, typer.Option("--out", help=help)],
    )
    parameters = [*signature.parameters.values(), *([] if takes_folder else [option])]
    writing.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return writing


def _formats(annotation: Any) -> dict[str, str]:
    """The formats of --format by file suffix."""
    choices = get_args(get_args(annotation)[0])
    suffixes = {"txt" if name == "text" else name: name for name in choices}
    # Tables that can be printed as CSV can also be written as Parquet and LaTeX.
    files = {name: "csv" for name in ("parquet", "tex") if "csv" in choices}
    return suffixes | files


def _listed(formats: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(f".{name}" for name in formats)


@contextmanager
def _written_to(file: ResultFile) -> Iterator[None]:
    """Collect what is printed to stdout, and write it to `file` once it is complete."""
    raw = io.BytesIO()
    printed = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    before = _result.set(file)
    ended: typer.Exit | None = None
    try:
        with redirect_stdout(printed):
            try:
                yield
            except typer.Exit as exit:  # a verdict, such as that of `check`, is a result as well
                ended = exit
    finally:
        _result.reset(before)
    for name, data in file.files.items():
        if name != file.path.name:
            print(written(file.path.with_name(name), data), file=sys.stderr)
    print(written(file.path, file.files.get(file.path.name, raw.getvalue())))
    if ended is not None:
        raise ended


# -- --figure: the chart ---------------------------------------------------------------------------


@dataclass(frozen=True)
class FigureOption:
    """What --figure draws, and in which formats; a `styled` chart has --size and --palette."""

    drawn: str
    formats: tuple[str, ...] = FIGURE_FORMATS
    styled: bool = True

    @property
    def help(self) -> str:
        """The help of --figure."""
        return f"Also write a chart to this file ({_listed(self.formats)}): {self.drawn}."


@dataclass(frozen=True)
class FigureFile:
    """The file of --figure. Commands declare it as
    `Annotated[FigureFile | None, FigureOption()]`."""

    path: Path
    format: str
    style: Style

    def draw(self, figure: go.Figure, provenance: Provenances | None = None) -> None:
        """Write a chart, which must be drawn in `style`, with its own provenance or another, and
        print its path on stderr."""
        from poslens.export.files import figure_bytes

        self.write(figure_bytes(figure, self.format, self.style, provenance))  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        """Write a picture and print its path on stderr."""
        print(written(self.path, data), file=sys.stderr)


Size = StrEnum("Size", {name.replace(" ", "_"): name for name in PRESETS})  # type: ignore[misc]
Palette = StrEnum("Palette", {name.replace("-", "_"): name for name in PALETTES})  # type: ignore[misc]
SIZE = "double column"


def with_figure(command: Callable[P, R]) -> Callable[P, R]:
    """Add --figure FILE, --size and --palette to a command, which receives a `FigureFile`."""
    signature = inspect.signature(command, eval_str=True)
    declared = signature.parameters.get("figure")
    option = next(
        (
            metadata
            for metadata in get_args(declared and declared.annotation)
            if type(metadata) is FigureOption
        ),
        None,
    )
    if declared is None or option is None:
        return command

    @wraps(command)
    def drawing(*args: P.args, **kwargs: P.kwargs) -> R:
        path, size, palette = (kwargs.pop(name, None) for name in ("figure", "size", "palette"))
        kwargs["figure"] = file = _figure_file(option, path, size, palette)
        if file is not None:
            _require_writable(file.path, kwargs)
        return command(*args, **kwargs)

    added = [_replaced(declared, "figure", Path, option.help)]
    if option.styled:
        default = next(iter(PALETTES))
        added += [
            _replaced(
                declared,
                "size",
                Size,
                "Size of the figure: a single column is 3.5 inches wide, a double column 7; "
                f"{SIZE} by default.",
            ),
            _replaced(declared, "palette", Palette, f"Colors of the figure; {default} by default."),
        ]
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += added if parameter is declared else [parameter]
    drawing.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return drawing


def _replaced(parameter: inspect.Parameter, name: str, kind: Any, help: str) -> inspect.Parameter:
    annotation = Annotated[kind | None, typer.Option(f"--{name}", help=help)]
    return parameter.replace(name=name, default=None, annotation=annotation)


def _figure_file(option: FigureOption, path: Any, size: Any, palette: Any) -> FigureFile | None:
    """The file and style that --figure, --size and --palette give; None without --figure."""
    if path is None:
        if size is not None or palette is not None:
            raise UserError("--size and --palette change the figure: add --figure FILE.")
        return None
    style = styled(str(size or SIZE), str(palette or ""))
    return FigureFile(path, suffix_of(path, option.formats), style)


# -- files -----------------------------------------------------------------------------------------


def suffix_of(output: Path, formats: Sequence[str]) -> str:
    """The format given by a file name's suffix.

    Raises:
        UserError: the suffix is not one of `formats`.
    """
    suffix = output.suffix.lstrip(".").lower()
    if suffix not in formats:
        *most, last = (f".{name}" for name in formats)
        choices = f"{', '.join(most)} or {last}" if most else last
        raise UserError(f"{output.name} doesn't have a supported suffix: use {choices}.")
    return suffix


def written(path: str | Path, data: bytes) -> Path:
    """Write a file and return its path. An existing file is replaced only once the new one is
    complete.

    Raises:
        UserError: it cannot be written.
    """
    with replacing(Path(path)) as file:
        file.write(data)
    return Path(path)


def _require_writable(output: Path, arguments: Mapping[str, object]) -> None:
    """Check before the computation, which may take hours, that its result can be written, and that
    it replaces no other file that the command's `arguments` name, such as its data set.

    Raises:
        UserError: the file can't be written, or `arguments` name it.
    """
    for value in arguments.values():
        for given in value if isinstance(value, list | tuple) else [value]:
            if not isinstance(given, str | Path):
                continue
            named = Path(str(given).rpartition("=")[2])  # also NAME=PATH
            # Resolved only if the file names are equal, because most arguments are not paths.
            if named.name == output.name and expanded(named).resolve() == output.resolve():
                raise UserError(
                    f"{output.name} is also an input or another output of this command: write to "
                    "another file."
                )
    require_writable(output)

"""The command line of a benchmark, derived from the parameters of its function, and tables that it
writes into a page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints


def run(main: Callable[..., object], arguments: Sequence[str] | None = None) -> None:
    """Call `main` with the options of the command line.

    Each parameter is the option of its name: a value (`int`, `Path | None`), several values
    (`tuple[int, ...]`), or a flag (`bool`). `*names: str` are arguments without an option. Further
    settings of argparse, such as `help` and `choices`, are annotated as a dictionary.
    """
    # Parameters whose option is not given keep their defaults.
    parser = argparse.ArgumentParser(
        description=(main.__globals__["__doc__"] or "").splitlines()[0],
        argument_default=argparse.SUPPRESS,
    )
    hints = get_type_hints(main, include_extras=True)
    positional = ""
    for name, parameter in signature(main).parameters.items():
        hint, settings = hints[name], dict[str, Any]()
        if get_origin(hint) is Annotated:
            hint, settings = get_args(hint)
        kind = next((each for each in get_args(hint) if each not in (NoneType, ...)), hint)
        if get_origin(kind) is Literal:
            kind, settings = str, {"choices": get_args(kind), **settings}
        if parameter.kind is Parameter.VAR_POSITIONAL:
            positional = name
            parser.add_argument(name, nargs="*", type=kind, default=None, **settings)
            continue
        if kind is bool:
            settings = {"action": "store_true", **settings}
        elif get_origin(hint) is tuple:
            settings = {"type": kind, "nargs": "*", "action": "extend", **settings}
        else:
            settings = {"type": kind, **settings}
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    options = vars(parser.parse_args(arguments))
    main(*options.pop(positional, ()), **options)


def write_table(path: Path, name: str, lines: Sequence[str]) -> None:
    """Replace the lines of a page between `<!-- NAME: begin -->` and `<!-- NAME: end -->`."""
    begin, end = (f"<!-- {name}: {edge} -->" for edge in ("begin", "end"))
    head, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, marked, tail = rest.partition(end)
    if not marked:
        raise SystemExit(f"{path} has no lines {begin} and {end}.")
    path.write_text("\n".join([head + begin, *lines, end + tail]), encoding="utf-8")

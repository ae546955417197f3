"""Write docs/cli.md from the commands themselves; a test holds the two equal.

python -m tools.cli_docs            # writes docs/cli.md
python -m tools.cli_docs --check    # says whether it is as it should be
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from dashboard.__main__ import app

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HEAD = """\
# Commands

Made by `python -m tools.cli_docs` from the commands themselves, which say the same with `--help`:
`python -m dashboard COMMAND --help`. Results go to stdout, progress and messages to stderr. Exit
codes: 0 done, 2 bad input, 130 interrupted.
"""


def commands(
    group: TyperCommand | TyperGroup, name: str = ""
) -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """Every command below `group` with its full name, in the order of help."""
    if isinstance(group, TyperGroup):
        if name and group.invoke_without_command:
            yield name, group
        for child, command in group.commands.items():
            yield from commands(command, f"{name} {child}".strip())
    else:
        yield name, group


def default_of(option: TyperOption) -> str:
    """What holds where the option is left out, as it would be typed."""
    value = option.default
    if option.required:
        return "needed"
    if value is None or callable(value) or option.is_flag or value in ((), []):
        return ""
    return str(getattr(value, "value", value))


def kind_of(option: TyperOption) -> str:
    """What is typed behind an option: its choices, or the kind of value."""
    annotation = option.type_descriptor.annotation
    inner = (get_args(annotation) or (annotation,))[0]
    if option.is_flag or inner is bool:
        return ""
    if isinstance(inner, type) and issubclass(inner, Enum):
        return " \\| ".join(str(choice.value) for choice in inner)
    return {int: "whole number", float: "number", Path: "path"}.get(inner, "text")


def row(option: TyperOption) -> str:
    """One option as a row of a table."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    words = " ".join((option.help or "").split()).replace("|", "\\|")
    many = ", several times" if option.multiple else ""
    return f"| {names} | {kind_of(option)}{many} | {default_of(option)} | {words} |"


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for name, command in commands(typer.main.get_command(app)):
        arguments = [p for p in command.params if isinstance(p, TyperArgument)]
        options = [p for p in command.params if isinstance(p, TyperOption) and not p.hidden]
        usage = " ".join([name, *((a.name or "").upper() for a in arguments)])
        lines += [f"## `{usage}`", "", " ".join((command.help or "").split("\f")[0].split()), ""]
        if options:
            lines += ["| option | value | default | |", "|---|---|---|---|"]
            lines += [*map(row, options), ""]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if stale")
    options = parser.parse_args(arguments)
    wanted = page()
    if options.check:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted
        print(f"{PAGE.name} is {'stale: run python -m tools.cli_docs' if stale else 'up to date'}.")
        return int(stale)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write what the docs repeat of the code from the code itself; a test holds the two equal.

python -m tools.docs            # writes cli.md, json.md and its schema whole, and tables in pages
python -m tools.docs --check    # says which pages are not as they should be

A table stands in its page between `<!-- NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from poslens.attribution.methods import CURVE_PARAMETERS, METHODS, MethodParameter
from poslens.attribution.retrievers.detect import families_with, family_of
from poslens.attribution.retrievers.specs import RetrieverSpec, presets
from poslens.commands.answers import ResultSource
from poslens.commands.study_group import StudyGroup
from poslens.compute.settings import SETTINGS
from poslens.dashboard.__main__ import app
from tools.json_shapes import DRAFT, Field, Schema, fields_of, flat, line_of, words

DOCS = Path(__file__).parents[1] / "docs"
HEAD = """\
# Commands

Made by `python -m tools.docs` from the commands themselves, which say the same with `--help`:
`python -m dashboard COMMAND --help`. In a checkout after `make run` it is
`.venv/bin/python -m dashboard COMMAND`, after `pip install .` also `poslens COMMAND`. `--version`
instead of a command prints the version, and `poslens --install-completion` lets the shell complete
names. Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 a check failed,
2 bad input, 3 a [check](check.md) could not be made, 130 interrupted. What `--format json` prints
is in [JSON of the commands](json.md), field by field.
"""
JSON_HEAD = """\
# JSON of the commands

Made by `python -m tools.docs` from the types of the commands. Every [command](cli.md) takes
`--format json`, but for `run`, which opens the dashboard and answers nothing; nor do `--version`
and `--install-completion`. The answer is one line of JSON in UTF-8 on stdout, or several lines
where it says so below. Progress, notes and errors are on stderr, and exit codes are the same in
every format. With `--out` the answer is in that file, and stdout has its path as text. What
`--figure` and `--export` write comes beside the answer; its path is on stderr.

A number that is not defined is null: NaN and infinity are in no answer. Fields keep their order. A
table's rows are those of its CSV.

**What is stable.** Within a major version of PosLens a field is not renamed, not removed, and not
given another type or unit. Fields may be added: pass over those that you do not know. A field that
is not always there is marked so.

[json-schema.json](json-schema.json) says the same as a JSON Schema (draft 2020-12). Its `commands`
has the schema of each answer, by the headings below.

`rows[].model` is the field `model` of each object in the list `rows`, and `parts.*.title` the field
`title` of each object in `parts`, whose keys are names.
"""


def every_command() -> StudyGroup:
    """The whole program, with each study's own command."""
    found = typer.main.get_command(app)
    assert isinstance(found, StudyGroup)
    return found.load_all()


def commands(
    group: TyperCommand | TyperGroup, name: str = ""
) -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """Every command below `group` with its full name, in the order of help."""
    if isinstance(group, TyperGroup):
        if name and group.invoke_without_command:
            yield name, group
        for child, command in group.commands.items():
            assert isinstance(command, TyperCommand | TyperGroup)
            yield from commands(command, f"{name} {child}".strip())
    else:
        yield name, group


def default_of(option: TyperOption | TyperArgument) -> str:
    """What holds where the option is left out, as it would be typed."""
    value = option.default
    if option.required:
        return "needed"
    if value is None or callable(value) or _is_flag(option) or value in ((), []):
        return ""
    return str(getattr(value, "value", value))


def _is_flag(option: TyperOption | TyperArgument) -> bool:
    return isinstance(option, TyperOption) and option.is_flag


def kind_of(option: TyperOption | TyperArgument) -> str:
    """What is typed behind an option: its choices, or the kind of value."""
    annotation = option.type_descriptor.annotation
    inner = (get_args(annotation) or (annotation,))[0]
    if _is_flag(option) or inner is bool:
        return ""
    if isinstance(inner, type) and issubclass(inner, Enum):
        return " | ".join(str(choice.value) for choice in inner)
    return {int: "whole number", float: "number", Path: "path"}.get(inner, "text")


def cell(text: str) -> str:
    """Text that stays inside one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)


def commands_page() -> str:
    """The page of commands."""
    parts = [HEAD.rstrip()]
    whole = every_command()
    assert isinstance(whole, TyperGroup)
    for name, command in commands(whole):
        arguments = [p for p in command.params if isinstance(p, TyperArgument)]
        options = [p for p in command.params if isinstance(p, TyperOption) and not p.hidden]
        usage = " ".join([name, *((a.name or "").upper() for a in arguments)])
        parts += [f"## `{usage}`", " ".join((command.help or "").split("\f")[0].split())]
        rows = [*map(argument_row, arguments), *map(option_row, options)]
        if rows:
            parts.append(table(["option", "value", "default", ""], rows))
    return "\n\n".join(parts) + "\n"


def answers_of() -> dict[str, Any]:
    """The shapes of all answers by command and, where there are several, by what asks for each.

    Raises:
        ValueError: a command says no shape.
    """
    whole, found = every_command(), dict[str, Any]()
    assert isinstance(whole, TyperGroup)
    for name, command in commands(whole):
        shapes = getattr(command.callback, "answers", None)
        if shapes is None and name != "run":
            raise ValueError(
                f"{name} does not say what it answers: see poslens/commands/answers.py"
            )
        for asked, shape in (shapes or {}).items():
            found[f"{name} {asked}".strip()] = shape
    return found


def json_page() -> str:
    """The page of answers."""
    parts = [JSON_HEAD.rstrip()]
    for name, shape in answers_of().items():
        parts.append(f"## `{name}`")
        if line_of(shape) is not None:
            parts.append("An object on each line, printed when it is done.")
        parts.append(fields_table(flat(shape)))
    parts += ["## Provenance", "What numbers need to be computed again; what is unknown is absent."]
    return "\n\n".join([*parts, fields_table(fields_of(ResultSource))]) + "\n"


def fields_table(fields: Iterable[Field]) -> str:
    """Fields with their types and meanings."""
    return table(
        ["field", "type", ""],
        (
            (
                f"`{one.name}`",
                words(one.kind) + ("" if one.required else ", may be absent"),
                one.meaning,
            )
            for one in fields
        ),
    )


def json_schema() -> str:
    """The same as a JSON Schema."""
    schema = Schema()
    answers = {name: schema.of(shape) for name, shape in answers_of().items()}
    said = {
        "$schema": DRAFT,
        "title": "JSON of the commands of PosLens",
        "description": "Made by python -m tools.docs; docs/json.md says what is stable.",
        "commands": answers,
        "$defs": dict(sorted(schema.definitions.items())),
    }
    return json.dumps(said, ensure_ascii=False, indent=1) + "\n"


def argument_row(argument: TyperArgument) -> Sequence[str]:
    """One argument of a command."""
    many = ", several" if argument.nargs != 1 else ""
    name = f"`{(argument.name or '').upper()}`"
    return name, kind_of(argument) + many, default_of(argument), argument.help or ""


def option_row(option: TyperOption) -> Sequence[str]:
    """One option of a command."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    many = ", several times" if option.multiple else ""
    return names, kind_of(option) + many, default_of(option), option.help or ""


def methods_table() -> str:
    """What each method says of itself."""
    return table(
        ["`--method`", "what a token gets", "unit", "sign", "adds up", "families", "source"],
        (
            (
                f"`{entry.name}`",
                entry.help,
                entry.unit,
                "yes" if entry.signed else "no",
                "yes" if entry.additive else "no",
                ", ".join(family.title for family in families_with(entry.needs)),
                entry.citation,
            )
            for entry in METHODS.values()
        ),
    )


def parameters_table() -> str:
    """The parameters of each method, and those of curves."""

    def row(owner: str, parameter: MethodParameter) -> Sequence[str]:
        default, *others = parameter.choices
        values = ", ".join([f"**{default}**", *others])
        return owner, f"`{parameter.name}`", values, parameter.help

    return table(
        ["method", "parameter", "values, the default first", ""],
        (
            *(
                row(f"`{e.name}`", parameter)
                for e in METHODS.values()
                for parameter in e.parameters
            ),
            *(row("every curve", parameter) for parameter in CURVE_PARAMETERS),
        ),
    )


def presets_table() -> str:
    """The retrievers known by name."""

    def row(spec: RetrieverSpec) -> Sequence[str]:
        size = "" if spec.size_mb is None else f"{spec.size_mb:,}"
        length = "" if spec.max_length is None else f"{spec.max_length:,}"
        family = family_of(spec).title
        note = (
            f"Runs code: only with `--allow-code`. {spec.note}" if spec.remote_code else spec.note
        )
        return f"`{spec.name}`", family, spec.pooling or "", length, size, spec.license, note

    return table(
        ["name", "family", "pooling", "tokens", "MB in float32", "licence", ""],
        map(row, presets().values()),
    )


def settings_table() -> str:
    """The environment variables."""

    def default(value: object) -> str:
        return f"`{value:g}`" if isinstance(value, float) else f"`{value}`" if value != "" else ""

    return table(
        ["environment variable", "default", ""],
        ((f"`{s.name}`", default(s.default), s.help) for s in SETTINGS),
    )


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "methods.md": {"methods": methods_table, "parameters": parameters_table},
    "models.md": {"presets": presets_table},
    "settings.md": {"settings": settings_table},
}
"""Which tables stand in which page."""


def with_tables(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """A page's text with its tables made anew.

    Raises:
        ValueError: a table has no place in the page.
    """
    for name, make in tables.items():
        parts = re.split(rf"(<!-- {name} -->\n).*?(<!-- end -->)", text, flags=re.DOTALL)
        if len(parts) != 4:
            raise ValueError(f"the page has not one place for the table of {name}")
        before, begins, ends, after = parts
        text = f"{before}{begins}{make()}\n{ends}{after}"
    return text


WHOLE: dict[str, Callable[[], str]] = {
    "cli.md": commands_page,
    "json.md": json_page,
    "json-schema.json": json_schema,
}
"""The files of docs/ that are made here whole."""


def page(name: str) -> str:
    """A file of docs/ as it should be, made here whole or in part."""
    if name in WHOLE:
        return WHOLE[name]()
    return with_tables((DOCS / name).read_text(encoding="utf-8"), TABLES[name])


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if stale")
    check = parser.parse_args(arguments).check
    wanted = {DOCS / name: page(name) for name in (*WHOLE, *TABLES)}
    stale = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        print(f"{path.name} {'is stale: run python -m tools.docs' if check else 'written'}.")
        if not check:
            path.write_text(wanted[path], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())

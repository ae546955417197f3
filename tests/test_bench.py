"""Shared code of benchmarks: options derived from parameters, new processes, tables in pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from bench.options import run, write_table
from bench.processes import apart, output_of

given: list[dict[str, Any]] = []


def main(
    *names: str,
    rounds: Annotated[int, {"choices": (3, 5)}] = 3,
    tokens: tuple[int, ...] = (256, 512),
    part: tuple[Literal["x", "y"], ...] = (),
    home: Path | None = None,
    per_document: bool = False,
) -> None:
    """Record the arguments."""
    given.append(locals())


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ("", {}),
        ("b a --rounds 5", {"names": ("b", "a"), "rounds": 5}),
        ("--tokens 1 2 --tokens 3", {"tokens": [1, 2, 3]}),
        ("--tokens", {"tokens": []}),
        ("--part y --home /x --per-document", {"part": ["y"], "home": Path("/x")}),
    ],
)
def test_options_are_derived_from_parameters(arguments: str, changed: dict[str, Any]) -> None:
    usual = {"names": (), "rounds": 3, "tokens": (256, 512), "part": (), "home": None}
    run(main, arguments.split())
    options = given.pop()
    assert options.pop("per_document") is ("--per-document" in arguments)
    assert options == usual | changed


@pytest.mark.parametrize("wrong", ["--part z", "--rounds 4", "--rounds many", "--unknown"])
def test_an_invalid_option_ends_the_program(wrong: str) -> None:
    with pytest.raises(SystemExit):
        run(main, wrong.split())
    assert not given


def test_a_function_runs_in_a_new_process() -> None:
    from bench.corpus import measure

    with pytest.raises(SystemExit, match="no folder"):
        apart(measure, "no folder")
    assert output_of("-c", "print(1)") == "1\n"


def test_a_table_is_written_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- x: begin -->\nold\n<!-- x: end -->\nafter\n")
    write_table(page, "x", ["| new |"])
    assert page.read_text() == "before\n<!-- x: begin -->\n| new |\n<!-- x: end -->\nafter\n"
    with pytest.raises(SystemExit, match="no lines"):
        write_table(page, "y", [])

"""The docs agree with the code."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from poslens.attribution.interventions.segments import SHARES, STEP
from poslens.dashboard.__main__ import app
from poslens.version import __version__
from tools import docs as generated

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", [*generated.WHOLE, *generated.TABLES])
def test_generated_docs_are_up_to_date(name: str) -> None:
    path = generated.DOCS / name
    assert path.read_text(encoding="utf-8") == generated.page(name), "run python -m tools.docs"


def test_a_page_without_markers_for_its_table_is_refused() -> None:
    with pytest.raises(ValueError, match="settings"):
        generated.with_tables("# Settings\n", generated.TABLES["settings.md"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_file_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    shown = [(target, "") for target in re.findall(r'src(?:set)?="([^"]+)"', text)]
    for target, heading in [*re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text), *shown]:
        if target.startswith(("http", "mailto:")):
            continue
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if heading:
            assert heading in headings(linked), f"{linked.name}#{heading}"
    for named in re.findall(
        r"`((?:attribution|cache|dashboard|bench|tools|tests)/[\w/.-]+)`", text
    ):
        assert (ROOT / named).exists(), named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_pages_name_existing_modules(page: Path) -> None:
    for module in re.findall(r"python -m ([\w.]+)", page.read_text(encoding="utf-8")):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_every_command_on_the_scale_page_accepts_its_options() -> None:
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (job,) = [yaml.safe_load(block) for kind, block in blocks if kind == "yaml"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    lines = [line for kind, block in blocks if kind != "yaml" for line in block.splitlines()]
    lines += [*container["args"], *re.findall(r"`((?:\w+=\S+ )*poslens [^`]*)`", text)]
    found = 0
    for line in lines:
        words = shlex.split(re.sub(r"\$\(\([^)]*\)\)|\$\w+", "1", line).replace("...", "x"))
        starts = [words.index("poslens") + 1] if "poslens" in words else []
        for start in starts:
            command: Any = typer.main.get_command(app)
            context = command.make_context("poslens", ["--help"], resilient_parsing=True)
            rest = words[start:]
            while hasattr(command, "commands"):
                command = command.get_command(context, rest.pop(0))
                assert command is not None, line
            if rest or not command.params:
                command.make_context(command.name, rest)
            found += 1
    assert found >= 10


def command_lines(text: str) -> Iterator[str]:
    """The commands of a page: lines in its examples that call the program."""
    for line in re.sub(r"\\\n *", " ", text).splitlines():
        found = re.match(r" *(?:\$ )?(?:\S+/)?(?:python -m )?poslens (?=[a-z])(.*)", line)
        if found and "..." not in line and "…" not in line:
            yield found[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_an_example_accepts_its_options(page: Path) -> None:
    text = re.sub(r"`[^`\n]+`", "", page.read_text(encoding="utf-8"))
    for line in command_lines(text):
        words = shlex.split(line, comments=True)
        command: Any = typer.main.get_command(app)
        context = command.make_context("poslens", ["--help"], resilient_parsing=True)
        while hasattr(command, "commands") and words:
            command = command.get_command(context, words.pop(0))
            assert command is not None, line
        if command.params and words:
            # Options are checked before their values are read, so files of an example need not
            # exist.
            with suppress(typer.Exit):
                command.make_context(command.name, words)


def test_an_unknown_option_is_detected() -> None:
    (line,) = command_lines("    .venv/bin/python -m poslens audit --nowhere 3  # no such option")
    command: Any = typer.main.get_command(app).get_command(None, "audit")
    with pytest.raises(Exception, match="--nowhere"):
        command.make_context("audit", shlex.split(line, comments=True)[1:])


def headings(page: Path) -> list[str]:
    """The headings of a page as they appear in links."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found]


def test_modules_named_on_the_methods_page_exist() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)`", text)
    assert len(named) > 20
    assert [name for name in named if not list((ROOT / "attribution").glob(f"**/{name}"))] == []


def test_the_methods_page_states_the_amounts_of_edits() -> None:
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    for shares in SHARES.values():
        *most, last = (f"{100 * share:g}" for share in shares)
        assert f"{', '.join(most)} or {last}% of the text" in text
    assert f"nearest to {STEP:.0%} of its characters" in text


def test_the_version_is_the_same_everywhere() -> None:
    (said,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = CliRunner().invoke(app, ["--version"])
    assert asked.exit_code == 0, asked.output
    assert said == project["version"] == __version__ == asked.stdout.strip()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120

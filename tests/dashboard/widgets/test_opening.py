"""Pages open with the models and the data set that `run` was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.dashboard.__main__ import app
from poslens.dashboard.server import opening
from poslens.dashboard.server.opening import Opening
from tests.support.pages import open_page


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_folders", dict(datasets._folders))
    monkeypatch.setattr(datasets, "_variants", dict(datasets._variants))
    monkeypatch.setattr(opening, "_current", Opening())


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.csv"
    file.write_text("query,document\nwhat melts,Ice melts. Snow melts too.\n")
    return file


def opened(*options: str) -> Opening:
    """What `run` opens with: it ends where it would listen."""
    done = CliRunner().invoke(app, ["run", *options, "--port", "0"])
    assert done.exit_code == 2 and "0 isn't a valid port" in done.stderr, done.stderr
    return opening.current()


def test_run_opens_what_it_names(mine: Path) -> None:
    assert opened() == Opening()
    both = opened("--model", "BM25", "--model", "MiniLM-recency", "--data", f"docs={mine}")
    assert both == Opening(("BM25", "MiniLM-recency"), "docs")
    several = ("--data", f"docs={mine}", "--data", f"more={mine}")
    assert opened(*several).dataset == "docs"
    assert opened(*several, "--dataset", "more").dataset == "more"
    refused = CliRunner().invoke(app, ["run", "--model", "no such model"])
    assert refused.exit_code == 2 and "There is no retriever" in refused.stderr


def shown(page: Any) -> tuple[list[str], str]:
    assert not page.exception and not page.error
    return page.multiselect(key="models").value, page.selectbox(key="dataset").value


def test_pages_open_it_and_an_address_still_wins(mine: Path) -> None:
    datasets.register("docs", mine)
    opening.use(Opening(("BM25",), "docs"))
    assert shown(open_page("explain").run()) == (["BM25"], "docs")
    asked = open_page("explain", models=["MiniLM"], dataset="sample").run()
    assert shown(asked) == (["MiniLM"], "sample")


def test_a_page_of_two_models_takes_them_in_order() -> None:
    given = Opening(("BM25", "MiniLM"))
    assert [given.model_or("a", 0), given.model_or("b", 1)] == ["BM25", "MiniLM"]
    assert given.model_or("first", None) == "first" and Opening(("BM25",)).model_or("b", 1) == "b"
    assert given.models_or(["x"], 1) == ["BM25"] and Opening().models_or(["x"], 4) == ["x"]

"""Several names of one model."""

from __future__ import annotations

from typer.testing import CliRunner

from dashboard.__main__ import app
from dashboard.widgets import choices
from tests.support.pages import open_page, shown_scores

OTHER = "sentence-transformers/all-MiniLM-L6-v2"


def test_of_two_names_of_one_model_the_first_is_taken() -> None:
    names = ["BM25", OTHER, "MiniLM", "MiniLM-recency", "no such model"]
    assert choices.distinct(names) == ["BM25", OTHER, "MiniLM-recency", "no such model"]


def test_a_model_under_two_names_is_shown_once() -> None:
    page = open_page("explain", models=["MiniLM", "MiniLM@mean"]).run()
    assert not page.exception and not page.error
    assert len(shown_scores(page)) == 1
    assert any("MiniLM@mean" in one.value.replace("\\", "") for one in page.caption)
    page = open_page("compare", a="MiniLM", b=OTHER).run()
    assert not page.exception and not page.error
    assert [one.value for one in page.info] == ["Choose two different models to compare."]
    arguments = ["compare", "--model", "MiniLM", "--model", OTHER, "--pair", "any"]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2 and "needs two models" in refused.stderr

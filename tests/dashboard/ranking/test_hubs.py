"""The Ranking page's tab about hubs, without a browser."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from poslens.attribution import datasets
from poslens.compute.compute import service
from tests.support.nouns import NOUNS
from tests.support.pages import open_page


@pytest.fixture(autouse=True)
def apart(own_service: None) -> None:
    """A separate store for this test."""


def registered(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.register("mine", path)
    return "mine"


@pytest.fixture
def mine(tmp_path: Path) -> str:
    texts = [f"The {noun} is old and red. Nobody saw it." for noun in NOUNS]
    rows = [
        {"pair_id": noun, "query": f"which old {noun}", "document": text}
        for noun, text in zip(NOUNS, texts, strict=True)
    ]
    hub = {"pair_id": "hub", "query": "what else", "document": "Which old old old thing?"}
    return registered(tmp_path / "mine.jsonl", [*rows, hub])


def settled(**query: object) -> AppTest:
    page = open_page("ranking", **query).run()
    assert not page.exception
    page.button(key="hubs.start").click().run()
    for run in service().runs.active({service().root}, upkeep=True):
        run.wait()
    page = open_page("ranking", **query).run()
    assert not page.exception and not page.error
    return page


def words(page: AppTest) -> str:
    shown = "\n".join(one.value for one in (*page.markdown, *page.caption))
    return unescape(shown.replace("\\", ""))


def test_hubs_are_computed_and_shown(mine: str) -> None:
    page = settled(dataset=mine, models=["BM25"], tab="Hubs", top="2")
    assert "The top hub, hub, is in the top 2 of 12 of the 12 queries" in words(page)
    assert "Equivalent: the 90% interval is within the margin of 0.5" in words(page)
    hubs = next(one.value for one in page.dataframe if "answers" in one.value)
    assert hubs["document"].iloc[0] == "hub" and hubs["in-degree"].iloc[0] == 12
    charts = [chart.proto.spec for chart in page.get("plotly_chart")]
    assert len(charts) == 1 and '"figure":"hubs"' in charts[0].replace(" ", "")


def test_the_other_tab_shows_only_rankings(mine: str) -> None:
    page = open_page("ranking", dataset=mine, models=["BM25"]).run()
    assert not page.exception
    assert not any(one.key == "hubs.start" for one in page.button)
    assert any(one.key == "rank.start" for one in page.button)


def test_a_corpus_without_judgments_has_only_hubs(tmp_path: Path) -> None:
    rows = [{"_id": noun, "text": f"The {noun} is old and red."} for noun in NOUNS]
    data = registered(tmp_path / "texts.jsonl", rows)
    page = settled(dataset=data, models=["BM25"], top="2")
    assert "Queries: 12 sentences as queries." in words(page)
    assert "over 12 queries and 12 documents" in words(page)
    assert not page.tabs


def test_a_corpus_that_is_too_small_is_reported_in_one_sentence(tmp_path: Path) -> None:
    rows = [{"pair_id": "a", "query": "q", "document": "One text."}]
    data = registered(tmp_path / "few.jsonl", rows)
    page = open_page("ranking", dataset=data, models=["BM25"], tab="Hubs").run()
    assert not page.exception
    assert any("choose a smaller top k or add documents" in one.value for one in page.error)

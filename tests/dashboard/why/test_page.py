"""The Why page without a browser: a ranking, one document, all misses."""

from __future__ import annotations

import json
import sqlite3
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from streamlit.testing.v1 import AppTest

import poslens
from poslens.attribution import datasets
from poslens.attribution.retrievers.resolve import resolve
from poslens.cache.storage.rows import EMBEDDING
from poslens.compute.compute import service
from poslens.dashboard.why import one
from tests.support.pages import open_page, shown_scores

GULLS = "Gulls rest on the old pier today. "
ROWS = [
    ("long", "heron", GULLS * 2 + "The heron nests here. " + GULLS * 2),
    ("short", "pier walk", "heron pier walk now then and again"),
    ("blind", "egret", "A white bird stands there. Nobody saw it."),
    ("other", "sandbank", "A sandbank lies before the river."),
]


@pytest.fixture
def mine(tmp_path: Path, own_service: None) -> str:
    """A data set without stored results, since those of another test would count as partly
    computed."""
    rows = [dict(zip(("pair_id", "query", "document"), row, strict=True)) for row in ROWS]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.register("mine", tmp_path / "mine.jsonl")
    return "mine"


def settled(**query: object) -> AppTest:
    """The page once the runs that it started are done. It is opened again each time, because the
    test client can't restore a typed value of a select box."""
    session = None
    for _ in range(4):
        page = open_page("why", **query)
        if session is not None:
            page.session_state["own texts"] = session
        page.run()
        owners = {service().root}
        if "own texts" in page.session_state:
            session = page.session_state["own texts"]
            owners.add(session.compute.root)
        for run in service().runs.active(owners, upkeep=True):
            run.wait()
    assert not page.exception and not page.error
    return page


def words(page: AppTest) -> str:
    """Its text, without the characters that escape markup."""
    shown = "\n".join(one.value for one in (*page.markdown, *page.caption))
    return unescape(shown.replace("\\", ""))


def test_a_query_is_shown_with_its_ranking_and_the_wanted_document(mine: str) -> None:
    page = settled(dataset=mine, models=["BM25"], top="1")
    frames = [one.value for one in page.dataframe]
    ranked = next(frame for frame in frames if "wanted" in frame)
    assert ranked["id"].tolist() == ["short", "long"]
    assert ranked["wanted"].tolist() == [False, True]
    assert "1 of 1 relevant documents missing from the top 1" in words(page)
    assert "BM25: long is at rank 2 of 4. Rank 2 → 1 as the evidence alone" in words(page)
    assert "Cause: dilution. Smaller chunks would separate the evidence" in words(page)
    planner = next(one.proto for one in page.get("page_link") if "chunk" in one.proto.label)
    asked = parse_qs(planner.query_string)
    assert planner.page == "audit" and asked["to.models"] == ["BM25"]
    assert asked["to.tab"] == ["Chunk planner"]
    steps = next(frame for frame in frames if "change" in frame)
    assert steps["change"].tolist()[0] == "unchanged" and steps["rank"].tolist()[0] == 2
    assert not any("share" in frame for frame in frames)  # the verdict names the only cause
    above = next(frame for frame in frames if "near-duplicate" in frame)
    assert above["document"].tolist() == ["short"]
    charts = [chart.proto.spec for chart in page.get("plotly_chart")]
    assert any("why_ladder" in spec for spec in charts)
    assert "in-degree" not in above  # until the data set is ranked
    # The contrast is computed only after a document is selected.
    assert "d1: short." not in words(page)


def test_documents_above_show_their_in_degree_once_the_data_set_is_ranked(mine: str) -> None:
    poslens.rank("BM25", mine)
    page = settled(dataset=mine, models=["BM25"], top="1")
    above = next(one.value for one in page.dataframe if "near-duplicate" in one.value)
    # `short` answers one query, and is in the top 1 of another one, which is selected.
    assert above["in-degree"].tolist() == [1]


def test_a_found_document_below_others_is_not_said_to_be_first(mine: str) -> None:
    page = settled(dataset=mine, models=["BM25"], top="3", query="heron", document="long")
    assert "Only a document that is not in the top 3 is compared with" in words(page)


def test_a_typed_query_and_any_document_are_explained(mine: str) -> None:
    page = settled(dataset=mine, models=["BM25"], top="1", query="river", document="blind")
    assert "the data set has no judgments for this query" in words(page)
    assert "BM25: blind is not found." in words(page)
    assert "Cause: no match." in words(page)
    # Not a pair of the data set, so links contain its texts with the assumed evidence.
    explain, cause = (one.proto.url for one in page.get("link_button"))
    assert urlsplit(explain).path == "/" and urlsplit(cause).path == "/cause"
    texts = parse_qs(urlsplit(cause).query)
    assert texts["q"] == ["river"] and texts["d"] == [ROWS[2][2]] and texts["models"] == ["BM25"]
    assert texts["e"][0] and texts["e"][0] in ROWS[2][2]
    assert f"Evidence: “{texts['e'][0]}”, proposed by PosLens, because it scores" in words(page)
    assert "The evidence was proposed by PosLens" in words(page)
    opened = open_page("cause", **texts).run()
    assert not opened.exception and not opened.error
    assert opened.text_area(key="typed.document").value == ROWS[2][2]


def test_linked_texts_have_the_score_of_the_ranking(mine: str) -> None:
    page = settled(dataset=mine, models=["BM25"], top="1", query="pier walk on", document="short")
    (ranked,) = [one.value for one in page.dataframe if "wanted" in one.value]
    score = dict(zip(ranked["id"], ranked["score"], strict=True))["short"]
    explain, _ = (urlsplit(one.proto.url) for one in page.get("link_button"))
    opened = open_page("explain", **parse_qs(explain.query)).run()
    assert shown_scores(opened) == [pytest.approx(score, abs=1e-4)]


def test_the_selected_document_is_listed_below_the_first_ones(
    mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one, "SHOWN", 1)
    page = settled(dataset=mine, models=["BM25"], top="1", query="heron pier", document="long")
    ranked = next(frame.value for frame in page.dataframe if "wanted" in frame.value)
    assert ranked["id"].tolist() == ["short", "long"] and ranked["rank"].tolist() == [1, 2]
    assert not ranked["wanted"].any() and "2 of 4 documents shown" in words(page)


def test_queries_of_the_same_text_stay_apart(tmp_path: Path, own_service: None) -> None:
    """Each has its own relevant document; the address contains what the list shows."""
    rows = [
        {"query_id": query_id, "query": "heron", "document": document, "document_id": document[:5]}
        for query_id, document in (("first", "heron nests"), ("again", "Gulls and a heron rest"))
    ]
    (tmp_path / "twice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.register("twice", tmp_path / "twice.jsonl")
    for number, (query_id, document) in enumerate((("first", "heron"), ("again", "Gulls"))):
        page = settled(dataset="twice", models=["BM25"], query=f"heron ({query_id})", top="1")
        box = page.selectbox(key="query")
        assert list(box.options)[number] == f"heron ({query_id})" and box.value == query_id
        assert f"BM25: {document} is at rank {number + 1} of 2" in words(page)


def test_another_data_set_begins_with_its_own_query(mine: str, tmp_path: Path) -> None:
    birds = ("gull", "tern")
    rows = [{"query": f"{bird} rest", "document": f"The {bird} rests."} for bird in birds]
    (tmp_path / "birds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.register("birds", tmp_path / "birds.jsonl")
    page = settled(dataset=mine, models=["BM25"], top="1", query="egret", document="long")
    page.selectbox(key="dataset").set_value("birds").run()
    assert page.selectbox(key="query").value == "row-1"
    assert "query" not in page.query_params and "document" not in page.query_params
    page.selectbox(key="query").select_index(1).run()
    assert page.query_params["query"] == "tern rest"
    page.selectbox(key="dataset").set_value(mine).run()
    assert page.selectbox(key="query").value == "long" and "query" not in page.query_params


def test_results_of_a_typed_query_belong_to_the_session(mine: str) -> None:
    poslens.rank("MiniLM", mine)  # stores the vectors of the documents, which everyone shares

    def shared() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in service().root.rglob("*.db")}

    before = shared()
    asked = {"query": "pier walk now", "document": "long"}
    page = settled(dataset=mine, models=["MiniLM"], top="1", **asked)
    assert "MiniLM: long is at rank" in words(page)
    assert shared() == before
    (vectors,) = page.session_state["own texts"].compute.root.rglob("embedding-*.db")
    with sqlite3.connect(vectors) as db:
        assert db.execute("SELECT kind, count(*) FROM result GROUP BY kind").fetchall() == [
            (f"{EMBEDDING}query", 1)
        ]


def test_typed_evidence_is_in_the_address_and_belongs_to_its_document(mine: str) -> None:
    passage = "The heron nests here."
    page = settled(dataset=mine, models=["BM25"], top="1", query="heron", document="long")
    page.text_area(key="why.evidence").input(f" {passage}\n").run()
    assert page.query_params["evidence"] == passage
    address = {name: page.query_params[name] for name in page.query_params}
    page = settled(**address)
    assert page.text_area(key="why.evidence").value == passage
    assert f"Evidence: “{passage}”, marked" in words(page)
    page.selectbox(key="query").select_index(1).run()
    for run in service().runs.active({service().root}, upkeep=True):
        run.wait()
    page.run()
    assert not page.text_area(key="why.evidence").value
    assert "evidence" not in page.query_params and not page.error


def test_all_misses_are_computed_and_one_is_opened(mine: str) -> None:
    page = open_page("why", dataset=mine, models=["BM25"], top="1", tab="All misses").run()
    assert any("No results have been computed" in one.value for one in page.info)
    page.button(key="why.start").click().run()
    page = settled(dataset=mine, models=["BM25"], top="1", tab="All misses")
    assert "BM25 misses 2 of 4 query-document pairs (50%)" in words(page)
    causes = next(one.value for one in page.dataframe if "share" in one.value)
    assert dict(zip(causes["cause"], causes["misses"], strict=True))["no match"] == 1
    listed = next(one.value for one in page.dataframe if "rank, evidence alone" in one.value)
    assert sorted(listed["query"]) == ["egret", "heron"]
    page.session_state["why.cause"] = "dilution"
    page.run()
    listed = next(one.value for one in page.dataframe if "rank, evidence alone" in one.value)
    assert listed["query"].tolist() == ["heron"]


def test_links_name_only_the_models_that_their_pages_accept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        one.links,
        "page_link",
        lambda page, label, icon, asked: offered.append((label, asked["models"])),
    )

    def links(*names: str) -> list[tuple[str, list[str]]]:
        offered.clear()
        summaries = [SimpleNamespace(asked=SimpleNamespace(spec=resolve(name))) for name in names]
        opened: Any = SimpleNamespace(summaries=summaries, data=SimpleNamespace(name="sample"))
        one.remedy_links({"position", "no match"}, opened)
        return list(offered)

    every = ("MiniLM", "BM25", "splade-tiny", "colbertv2.0")
    assert links(*every) == [
        ("Compare chunk sizes", ["MiniLM", "BM25"]),
        ("Debias the model", ["MiniLM"]),
        ("Compare models", list(every)),
    ]
    assert links("splade-tiny") == [("Compare models", ["splade-tiny"])]


def test_the_page_opens_with_the_worst_miss_if_all_are_stored(mine: str) -> None:
    page = settled(dataset=mine, models=["BM25"], top="2")
    assert page.selectbox(key="query").value == "long"  # the first of the data set
    page = open_page("why", dataset=mine, models=["BM25"], top="2", tab="All misses").run()
    page.button(key="why.start").click().run()
    page = settled(dataset=mine, models=["BM25"], top="2")
    assert page.selectbox(key="query").value == "blind"  # not found at all
    assert "BM25: blind is not found." in words(page)


def test_unknown_names_in_the_address_are_reported_in_one_sentence(mine: str) -> None:
    page = open_page("why", dataset=mine, models=["BM25"], document="nope").run()
    for run in service().runs.active({service().root}, upkeep=True):
        run.wait()
    page.run()
    assert not page.exception
    assert any("has no document" in one.value for one in page.error)

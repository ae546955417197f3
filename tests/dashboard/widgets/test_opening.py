"""Pages open with the models and the data set that `run` was given, and it begins with the page
that fits the data set."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.compute.compute import service
from poslens.dashboard.__main__ import app
from poslens.dashboard.server import opening
from poslens.dashboard.server.opening import Opening
from tests.support.pages import open_page


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.csv"
    file.write_text("query,document\nwhat melts,Ice melts. Snow melts too.\n")
    return file


def opened(*options: str) -> Opening:
    """The settings that `run` opens with; it is ended instead of listening."""
    done = CliRunner().invoke(app, ["run", *options, "--port", "0"])
    assert done.exit_code == 2 and "0 isn't a valid port" in done.stderr, done.stderr
    return opening.current


def test_run_opens_the_named_models_and_data(mine: Path) -> None:
    assert opened() == Opening()
    both = opened("--model", "BM25", "--model", "MiniLM-recency", "--data", f"docs={mine}")
    assert both == Opening(("BM25", "MiniLM-recency"), "docs")
    several = ("--data", f"docs={mine}", "--data", f"more={mine}")
    assert opened(*several).dataset == "docs"
    assert opened(*several, "--dataset", "more").dataset == "more"
    refused = CliRunner().invoke(app, ["run", "--model", "no such model"])
    assert refused.exit_code == 2 and "There is no model" in refused.stderr


def test_run_refuses_invalid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSLENS_UPKEEP", "maybe")
    refused = CliRunner().invoke(app, ["run", "--port", "0"])
    assert refused.exit_code == 2 and "POSLENS_UPKEEP='maybe' is invalid: " in refused.stderr


def shown(page: Any) -> tuple[list[str], str]:
    assert not page.exception and not page.error
    return page.multiselect(key="models").value, page.selectbox(key="dataset").value


def test_pages_open_them_unless_the_address_names_others(mine: Path) -> None:
    datasets.register("docs", mine)
    opening.current = Opening(("BM25",), "docs")
    assert shown(open_page("explain").run()) == (["BM25"], "docs")
    asked = open_page("explain", models=["MiniLM"], dataset="sample").run()
    assert shown(asked) == (["MiniLM"], "sample")


def test_a_page_of_two_models_uses_them_in_order(mine: Path) -> None:
    datasets.register("docs", mine)
    opening.current = Opening(("BM25", "MiniLM"), "docs")
    page = open_page("compare").run()
    assert [page.selectbox(key=key).value for key in "ab"] == ["BM25", "MiniLM"]
    opening.current = Opening(("BM25",), "docs")
    page = open_page("compare").run()
    assert [page.selectbox(key=key).value for key in "ab"] == ["BM25", "MiniLM-recency"]


WORDS = ("tide", "moon", "fog", "stone", "river", "cloud", "seed", "wind", "salt", "ash", "ice")
TEXTS = {word: f"It rained on {word}. Nobody saw {word}." for word in (*WORDS, "oak")}


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def own_pairs(folder: Path, **more: str) -> Path:
    lines(
        folder / "own.jsonl",
        [
            {"query": f"what of {word}", "document": text}
            | {name: value.format(word) for name, value in more.items()}
            for word, text in TEXTS.items()
        ],
    )
    return folder / "own.jsonl"


def evidence(folder: Path) -> Path:
    return own_pairs(folder, evidence="Nobody saw {}.")


def documents(folder: Path) -> Path:
    lines(folder / "own.jsonl", [{"_id": word, "text": text} for word, text in TEXTS.items()])
    return folder / "own.jsonl"


def beir(folder: Path) -> Path:
    rows = [{"_id": word, "text": text} for word, text in TEXTS.items()]
    lines(folder / "beir" / "corpus.jsonl", rows)
    rows = [{"_id": f"q-{word}", "text": f"what of {word}"} for word in TEXTS]
    lines(folder / "beir" / "queries.jsonl", rows)
    return folder / "beir"


def judged(folder: Path) -> Path:
    table = "".join(f"q-{word}\t{word}\t1\n" for word in TEXTS)
    qrels = beir(folder) / "qrels" / "test.tsv"
    qrels.parent.mkdir()
    qrels.write_text(f"query-id\tcorpus-id\tscore\n{table}")
    return folder / "beir"


def traces(folder: Path) -> Path:
    rows = [
        {
            "context.span_id": word,
            "attributes.openinference.span.kind": "RETRIEVER",
            "attributes.input.value": f"what of {word}",
            "attributes.retrieval.documents.0.document.content": text,
        }
        for word, text in TEXTS.items()
    ]
    lines(folder / "traces.jsonl", rows)
    return folder / "traces.jsonl"


def colder(folder: Path) -> Path:
    row = {"query": "what of fog", "document_1": TEXTS["fog"], "document_2": TEXTS["ice"]}
    lines(folder / "colder" / "test" / "answer_importance.jsonl", [row])
    return folder / "colder"


@pytest.mark.parametrize(
    ("kind", "page", "message"),
    [
        (evidence, "why", "docs has 12 pairs of a query and a document, 12 with evidence."),
        (own_pairs, "why", "but no evidence. Why uses the sentence that scores highest on its own"),
        (judged, "why", "docs has 12 pairs of a query and a document, but no evidence."),
        (beir, "why", "docs has 12 queries and 12 documents, but no judgments. Why ranks"),
        (traces, "why", "docs has 12 queries and 12 documents, but no judgments. Why ranks"),
        (documents, "audit", "docs has 12 documents and no queries. Audit searches"),
        (colder, "explain", "docs has 2 pairs of a query and a document, but no corpus to search."),
    ],
)
def test_run_opens_the_page_that_fits_the_data(
    own_service: None, tmp_path: Path, kind: Any, page: str, message: str
) -> None:
    path = kind(tmp_path)
    done = CliRunner().invoke(app, ["run", "--model", "BM25", "--data", f"docs={path}", "--port=0"])
    reason, error = done.stderr.strip().splitlines()
    assert message in reason and "0 isn't a valid port" in error
    assert opening.first_page("docs") == (page, reason)
    shown = open_page(page).run()
    for run in service().runs.active({service().root}, upkeep=True):
        run.wait()
    shown = open_page(page).run()
    assert not shown.exception and not shown.error
    assert shown.selectbox(key="dataset").value == "docs"
    if page == "why":
        assert len(shown.selectbox(key="query").options) == 12


def test_a_query_without_judgments_is_explained(own_service: None, tmp_path: Path) -> None:
    opened("--model", "BM25", "--data", f"docs={beir(tmp_path)}")
    for _ in range(3):
        page = open_page("why", query="q-tide", document="tide").run()
        for run in service().runs.active({service().root}, upkeep=True):
            run.wait()
    assert not page.exception and not page.error
    shown = "\n".join(one.value for one in (*page.markdown, *page.caption))
    words = unescape(shown.replace("\\", ""))
    assert "the data set has no judgments for this query" in words
    assert "BM25: tide is at rank 1 of 12, in the top 10." in words
    told = CliRunner().invoke(app, ["why", "--model", "BM25", "--dataset", str(tmp_path / "beir")])
    assert told.exit_code == 2 and "has no relevance judgments" in told.stderr


def test_bundled_data_and_no_data_open_the_usual_page() -> None:
    for options in ((), ("--dataset", "sample")):
        done = CliRunner().invoke(app, ["run", *options, "--port", "0"])
        assert len(done.stderr.strip().splitlines()) == 1


def test_queries_without_documents_are_refused_in_one_sentence(tmp_path: Path) -> None:
    lines(tmp_path / "q.jsonl", [{"query": "what of fog"}])
    done = CliRunner().invoke(app, ["run", "--data", f"docs={tmp_path / 'q.jsonl'}", "--port", "0"])
    assert done.exit_code == 2 and "the row lacks document" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1

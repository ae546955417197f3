"""Every family of retrievers and every format of data, once each, in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.attribution.datasets.test_beir import write as write_beir
from tests.attribution.datasets.test_beir import write_hub
from tests.attribution.datasets.test_formats import FOIL, write_colder, write_multiclaim
from tests.e2e.conftest import App, idle, press, unfold
from tests.e2e.waiting import expect
from tests.support import tiny_families

ROWS = [
    {
        "query": "what melts",
        "document": "Stone stays. Ice melts in spring.",
        "evidence": "Ice melts in spring.",
        "query_type": "question",
    },
    {"query": "what stays", "document": "Stone stays. Ice melts in spring."},
]


@pytest.fixture(scope="module")
def wide_app(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_folder: Callable[..., Path],
    start_app: Callable[..., App],
) -> App:
    """A dashboard with a model of each family and a data set of each format."""
    raw, root = tiny_folder("bert").parent / "raw", tmp_path_factory.mktemp("wide")
    models = {
        "colbert": tiny_families.late_interaction(raw, root / "late"),
        "splade": tiny_families.sparse(raw, root / "sparse"),
        "cross": tiny_families.cross_encoder(raw, root / "cross"),
        "judge": tiny_families.generative(
            tiny_folder("qwen3-left").parent / "raw", root / "generative"
        ),
        "answerer": tiny_families.seq2seq(root / "seq2seq"),
    }
    rows = root / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    data = {
        "beir": write_beir(root / "beir"),
        "hub": write_hub(root / "hub"),
        "colder": write_colder(root / "colder", foil=[FOIL]),
        "claims": write_multiclaim(root / "claims"),
        "rows": rows,
    }
    return start_app(
        *(f"--model={name}={folder}" for name, folder in models.items()),
        *(f"--data={name}={folder}" for name, folder in data.items()),
    )


def drawn(page: Page) -> None:
    """The heatmap and the curve are there and nothing has failed."""
    idle(page)
    expect(page.locator(".hm-pane[data-side=document] .hm-text").first).to_be_visible()
    expect(page.get_by_test_id("stPlotlyChart").first).to_be_visible()
    expect(page.get_by_test_id("stException")).to_have_count(0)
    expect(page.get_by_test_id("stAlertContentError")).to_have_count(0)
    assert "Traceback" not in page.inner_text("body")


def upload(page: Page, file: Path) -> None:
    """Upload a file in the dialog for the reader's texts."""
    box = page.get_by_test_id("stFileUploaderDropzoneInput")
    press(page.get_by_role("button", name="Own text"), lambda: box.count() > 0)
    box.set_input_files(file)


PAIR = "sample&pair=food-sourdough-q2"


@pytest.mark.parametrize(
    ("model", "method", "unfit", "data", "words"),
    [
        ("BM25", "terms", "Gradient saliency cannot be computed for", PAIR, "Sourdough rises"),
        ("colbert", "maxsim", "Token decomposition cannot be computed for", "beir", "It lifts"),
        ("splade", "terms", "MaxSim shares cannot be computed for", "hub", "It lifts at noon"),
        ("cross", "decomposition", "Term shares cannot be computed for", "colder", "Fog is long"),
        ("judge", "saliency", "Term shares cannot be computed for", "claims-english", "A claim"),
        (
            "answerer",
            "decomposition",
            "MaxSim shares cannot be computed for",
            PAIR,
            "Sourdough rises",
        ),
    ],
)
def test_each_family_and_each_format_is_explained(
    wide_app: App,
    go: Callable[..., Page],
    model: str,
    method: str,
    unfit: str,
    data: str,
    words: str,
) -> None:
    """Claims in two languages and uploaded rows are in the tests below."""
    page = go(f"{wide_app.url}/?dataset={data}&models={model}&method={method}")
    drawn(page)
    expect(page.get_by_text(re.compile(rf"method: {method}\(")).first).to_be_attached()
    expect(page.locator(".hm-pane[data-side=document] .hm-text")).to_contain_text(words)
    # Unavailable methods are listed with their reasons on request.
    page.get_by_text("unavailable for the selected models").click()
    expect(page.get_by_test_id("stSidebar").get_by_text(unfit).first).to_be_visible()


def test_both_versions_of_a_claim_are_compared(
    wide_app: App, go: Callable[..., Page], visit: Callable[..., Page]
) -> None:
    page = go(f"{wide_app.url}/?dataset=claims&models=MiniLM")
    drawn(page)
    expect(page.locator(".hm-pane[data-side=document] .hm-text")).to_contain_text("Tvrzení")
    unfold(page, "English version")
    expect(page.get_by_test_id("stExpander").get_by_text("A claim")).to_be_visible()
    beside = page.get_by_role("switch", name="Also attribute this text")
    press(page.get_by_text("Also attribute this text"), beside.is_checked)
    documents = page.locator(".hm-pane[data-side=document] .hm-text")
    expect(documents).to_have_count(2)
    expect(documents.nth(0)).to_contain_text("Tvrzení")
    expect(documents.nth(1)).to_contain_text("A claim")
    expect(page.get_by_text("MiniLM · claims-english").first).to_be_visible()
    expect(page).to_have_url(re.compile("versions=true"))
    drawn(visit(page.url))


def test_pairs_are_filtered_by_query_type(wide_app: App, go: Callable[..., Page]) -> None:
    page = go(f"{wide_app.url}/?dataset=rows&models=MiniLM&query_type=question")
    drawn(page)
    document = page.locator(".hm-pane[data-side=document] .hm-text")
    expect(document).to_contain_text("Ice melts in spring")
    expect(page.get_by_text("pair 1 of 1 (2 without filters)")).to_be_visible()
    page.get_by_role("button", name="Filters").click()
    expect(page.get_by_role("combobox", name="Query type")).to_have_value("question (1)")


def test_an_invalid_upload_is_refused_and_a_valid_one_is_private(
    wide_app: App, visit: Callable[..., Page], tmp_path: Path
) -> None:
    path = tmp_path / "own.csv"
    path.write_text(
        "query,document,evidence\nwhat melts,Stone stays. Ice melts.,Ice melts.\nx,,\n",
        encoding="utf-8",
    )
    bad = tmp_path / "bad.csv"
    bad.write_text("question,text\na,b\n", encoding="utf-8")
    page = visit(f"{wide_app.url}/?dataset=sample&models=MiniLM")
    drawn(page)
    upload(page, bad)
    expect(page.get_by_test_id("stAlertContentError")).to_contain_text("question")
    expect(page.locator(".hm-pane[data-side=document] .hm-text")).to_be_visible()
    page.get_by_test_id("stFileUploaderDropzoneInput").set_input_files(path)
    expect(page.get_by_text("1 row accepted, 1 rejected")).to_be_visible()
    expect(page.locator(".hm-pane[data-side=document] .hm-text")).to_contain_text("Ice melts.")
    drawn(page)
    other = visit(page.url)
    expect(other.get_by_text("belong to one browser session")).to_be_visible()
    drawn(other)

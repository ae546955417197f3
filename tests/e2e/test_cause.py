"""The Cause page in a browser: moving the evidence, choosing what is removed, curves of a data set,
and evidence that can't be moved."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.e2e.conftest import App, Visit, idle, pick_row, press
from tests.e2e.test_app import no_error
from tests.e2e.waiting import expect

SHORT = "geology-obsidian-q3"
ARABIC = "astronomy-astrolabe-ara-q1"


def settled(page: Page) -> Page:
    """Wait until everything about the pair is drawn."""
    expect(page.get_by_role("tab", name="Bias tests")).to_be_visible()
    expect(page.get_by_test_id("stSpinner")).to_have_count(0)
    return idle(page)


@pytest.fixture
def cause(run_app: App, visit: Visit) -> Page:
    return settled(visit(f"{run_app.url}/cause?models=BM25&pair={SHORT}&by=mask"))


def score(page: Page) -> float:
    """The score with the evidence at its current position."""
    return float(page.get_by_test_id("stMetricValue").first.inner_text())


def test_the_buttons_move_the_evidence_and_bm25s_score_stays(cause: Page) -> None:
    text = cause.locator(".st-key-cause\\.text, .st-key-cause-text").first
    first, at_first = text.inner_text(), score(cause)
    cause.locator("[class*=st-key-cause-forward] button").first.click()
    expect(text).not_to_have_text(first)
    for _ in range(8):
        cause.locator("[class*=st-key-cause-forward] button").first.click()
    settled(cause)
    assert score(cause) == at_first, "BM25 cannot see where words stand"
    cause.locator("[class*=st-key-cause-back] button").first.click()
    no_error(cause)


def test_a_moved_arabic_text_runs_from_right_to_left(run_app: App, visit: Visit) -> None:
    page = settled(visit(f"{run_app.url}/cause?models=BM25&pair={ARABIC}&by=mask"))
    text = page.locator(".st-key-cause\\.text p, .st-key-cause-text p").first
    expect(text).to_be_visible()
    assert text.evaluate(
        """node => { const range = document.createRange();
           const last = node.lastChild, end = last.data.trimEnd().length;
           const left = (i) => {
             range.setStart(last, i); range.setEnd(last, i + 1);
             return range.getBoundingClientRect().left; };
           return left(end - 1) < left(end - 3); }"""
    ), "the mark at the end is to the left of the last word"
    no_error(page)


def test_rank_displacement_and_another_way_of_removal_are_shown(cause: Page) -> None:
    cause.get_by_text("Rank among the data set's other documents").click()
    expect(cause.get_by_text("1 of 56").first).to_be_visible()
    settled(cause).get_by_text("Move the whole text, to separate position from content").click()
    expect(cause.get_by_text("BM25, neutral prefix").first).to_be_visible()
    expect(cause.get_by_text("adds no position embeddings")).to_be_visible()
    settled(cause).get_by_text("Ablation settings").click()
    settled(cause).get_by_role("radio", name="filler", exact=True).click()
    expect(cause.get_by_text("ablation(by=filler").first).to_be_attached()
    expect(cause).to_have_url(re.compile("rank=true"))
    expect(cause).to_have_url(re.compile("by=filler"))
    no_error(cause)


def test_a_data_set_is_computed_with_the_methods_agreement(
    run_app: App, visit: Visit, tmp_path: Path
) -> None:
    address = f"{run_app.url}/cause?models=BM25&by=mask&tab=Data+set"
    cause = settled(visit(address))
    pairs = cause.get_by_label("Pairs", exact=True)
    pairs.fill("2")
    pairs.press("Enter")
    expect(cause.get_by_text("0 of 4 results")).to_be_visible()
    settled(cause).get_by_role("button", name="Compute", exact=True).click()
    expect(cause.get_by_text("4 of 4 results")).to_be_visible()
    # A run's last update reruns the page, and would close sections opened earlier.
    expect(cause.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    settled(cause).locator("[class*=st-key-export-cause-results] button").first.click()
    body = cause.get_by_test_id("stPopoverBody")
    body.get_by_role("radio", name="json", exact=True).click()
    body.get_by_role("button", name="Prepare").click()
    with cause.expect_download() as download:
        body.get_by_role("button", name="Download JSON").click()
    path = tmp_path / "figure.json"
    download.value.save_as(path)
    entries = json.loads(path.read_text())["layout"]["meta"]["provenance"]
    assert entries[0]["method"].startswith("relocation(") and entries[0]["n_pairs"] == 2
    no_error(cause)
    address = "methods?models=BM25&methods=terms&tab=Agreement+with+interventions"
    page = visit(f"{run_app.url}/{address}")
    expect(page.get_by_role("tab", name="Agreement")).to_be_visible()
    methods = idle(page)
    pairs = methods.get_by_label("Pairs", exact=True)
    pairs.fill("2")
    pairs.press("Enter")
    # Relocation is stored, but ablation by deletion and the method's curves are not.
    expect(methods.get_by_text("2 of 6 result")).to_be_visible()
    idle(methods).get_by_role("button", name="Compute remaining", exact=True).click()
    expect(methods.get_by_text("6 of 6 result")).to_be_visible()
    expect(methods.get_by_test_id("stDataFrame").first).to_be_visible()
    no_error(methods)


def test_curves_of_documents_alone_are_shown(run_app: App, visit: Visit) -> None:
    page = settled(visit(f"{run_app.url}/cause?models=MiniLM&documents=true"))
    settled(page).get_by_role("radio", name="segments", exact=True).click()
    documents = page.get_by_label("Documents", exact=True)
    documents.fill("1")
    documents.press("Enter")
    expect(page.get_by_text("0 of 2 results")).to_be_visible()
    settled(page).locator("[class*=st-key-segments-start] button").click()
    expect(page.get_by_text("2 of 2 results")).to_be_visible()
    expect(page.get_by_text("segments(segments=10, order=shuffled").first).to_be_attached()
    settled(page).get_by_role("radio", name="removal", exact=True).click()
    expect(page.get_by_text("0 of 1 document")).to_be_visible()
    settled(page).locator("[class*=st-key-edits-start] button").click()
    expect(page.get_by_text("removal(version=4)").first).to_be_attached()
    expect(page).to_have_url(re.compile("tab=Data\\+set"))
    expect(page).to_have_url(re.compile("corpus=removal"))
    no_error(page)


def test_evidence_that_cannot_be_moved_is_reported_in_one_sentence(
    run_app: App, visit: Visit
) -> None:
    page = visit(f"{run_app.url}/cause?models=BM25&text=Own+text&q=tide&d=The+tide+rises.")
    expect(page.get_by_text("has no evidence span")).to_be_visible()
    evidence = page.get_by_role("textbox", name="Evidence (optional)")
    press(page.get_by_role("button", name="Own text"), evidence.is_visible)
    evidence.fill("tide")
    page.get_by_role("button", name="Show these texts").click()
    expect(page.get_by_text("The document is one sentence")).to_be_visible()
    no_error(page)


def test_curves_minus_control_are_drawn(run_app: App, visit: Visit) -> None:
    page = visit(
        f"{run_app.url}/curves?models=BM25&dataset=sample&language=tha&control=filler+text"
    )
    idle(page).get_by_role("button", name="Compute", exact=True).first.click()
    expect(page.get_by_text(re.compile(r"^(\d+) of \1( \w+)?$"))).to_be_visible()
    idle(page).get_by_role("button", name="Compute", exact=True).first.click()
    expect(
        page.get_by_text("index minus control's").or_(page.get_by_text("BM25: ")).first
    ).to_be_visible()
    no_error(page)


def test_a_pair_of_a_bin_opens_in_explain(run_app: App, visit: Visit) -> None:
    page = visit(f"{run_app.url}/curves?models=BM25&language=tha&resampling=point")
    curve = page.get_by_role("figure", name="Mean attribution by relative position")
    compute = page.get_by_role("button", name="Compute", exact=True)
    expect(curve.or_(compute)).to_be_visible()
    idle(page)
    if compute.count():
        compute.click()
        expect(page.get_by_text(re.compile(r"^(\d+) of \1( \w+)?$"))).to_be_visible()
    grid = page.locator("[class*=st-key-curves-behind] .dvn-scroller")
    press(page.get_by_text("Pairs with the most weight at a position"), grid.is_visible)
    link = page.get_by_role("link", name="Explain this pair")
    pick_row(grid, 2, link.is_visible)
    there = re.compile(r"/(explain)?\?.*pair=[^&]+-tha-")
    press(link, lambda: there.search(page.url) is not None)
    expect(page.locator(".hm-text").first).to_be_visible()
    for fact in ("model: BM25 ·", "resampling=point", "-tha-"):
        expect(page.get_by_text(re.compile(re.escape(fact))).last).to_be_attached()
    no_error(page)

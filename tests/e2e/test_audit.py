"""Audit a corpus and open its least retrievable document, in a browser."""

from __future__ import annotations

import json
import re

from tests.e2e.conftest import App, Visit, idle, pick_row, press, start_run
from tests.e2e.test_app import choose, no_error, select
from tests.e2e.waiting import expect


def test_audit_a_corpus_and_open_the_sentences_of_a_document(run_app: App, visit: Visit) -> None:
    page = visit(f"{run_app.url}/audit?dataset=mine&models=BM25&top=1")
    expect(page.get_by_text("No results have been computed")).to_be_visible()
    figure = page.get_by_role("figure", name="Unretrieved sentences by position")
    start_run(page.get_by_role("button", name="Compute"), figure)
    said = page.get_by_text(re.compile(r"BM25: .*\b\d+ sentences of \d+ documents"))
    expect(said).to_be_visible()
    no_error(page)
    # A run's last update reruns the page, and could undo an earlier click.
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    # Ranks are stored, so questions are counted without another run.
    idle(page)
    asked = page.get_by_text(re.compile(r"BM25: .*\b\d+ questions of"))
    press(page.get_by_role("radio", name="question"), asked.is_visible)
    expect(page.get_by_role("button", name="Compute")).to_have_count(0)
    idle(page)
    press(page.get_by_role("radio", name="sentence"), said.is_visible)
    # All documents start with the same sentence, which retrieves only the first one.
    grid = page.locator("[class*=st-key-audit-documents] .dvn-scroller").first
    link = page.get_by_role("link", name="Explain a pair of this document")
    pick_row(grid, 1, link.is_visible)
    no_error(page)
    press(link, lambda: "pair=row-" in page.url)
    expect(page.locator(".hm-pane[data-side=document]")).to_be_visible()
    no_error(page)


def test_plan_chunks_and_download_the_setting(run_app: App, visit: Visit) -> None:
    page = visit(f"{run_app.url}/audit?dataset=small&models=BM25&top=1&windows=8")
    idle(page)
    tab = page.get_by_role("tab", name="Chunk planner")
    press(tab, lambda: "tab=Chunk" in page.url)
    expect(page.get_by_text("No results have been computed")).to_be_visible()
    expect(page.get_by_text("No document has a title")).to_be_visible()
    figure = page.get_by_role("figure", name="Unretrieved sentences by size of the index")
    start_run(page.get_by_role("button", name="Compute"), figure)
    expect(page.get_by_text(re.compile("BM25: .* whole documents"))).to_be_visible()
    expect(page.get_by_text("Left out late:8: BM25 does not support late chunks")).to_be_visible()
    expect(page.get_by_text("Setting for text splitters", exact=True)).to_be_visible()
    no_error(page)
    # A run's last update reruns the page, and would close sections opened earlier.
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    idle(page)
    body = page.get_by_test_id("stPopoverBody")
    press(page.get_by_role("button", name="Export").first, body.is_visible)
    select(page, "Figure or table", "Setting for text splitters")
    choose(body, "json")
    button = page.get_by_role("button", name="Download JSON")
    press(page.get_by_role("button", name="Prepare"), button.is_visible)
    with page.expect_download() as download:
        button.click()
    (row,) = json.loads(download.value.path().read_text())["rows"]
    assert (row["setting"], row["chunk_size"], row["unit"]) == ("whole", None, "words")
    no_error(page)
    # The address alone restores the tab with its results.
    again = visit(page.url)
    expect(
        again.get_by_role("figure", name="Unretrieved sentences by size of the index")
    ).to_be_visible()
    no_error(again)

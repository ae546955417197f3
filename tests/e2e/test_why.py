"""Find out why a document is missed, in a browser: a query, its document, and all misses."""

from __future__ import annotations

import re

from tests.e2e.conftest import App, Visit, idle, pick_row, press
from tests.e2e.test_app import no_error
from tests.e2e.waiting import expect


def test_find_all_misses_then_the_cause_of_one_and_its_pair(run_app: App, visit: Visit) -> None:
    # All documents of `mine` have the same first and last sentences, so each is found.
    page = visit(f"{run_app.url}/why?dataset=mine&models=BM25&top=1&query=filler+here")
    expect(page.get_by_text("the data set has no judgments for this query")).to_be_visible()
    grid = page.locator("[class*=st-key-why-ranking] .dvn-scroller").first
    said = page.get_by_text(re.compile(r"BM25: \S+ is at rank 2 of 4\. .*Cause: "))
    pick_row(grid, 2, said.is_visible)
    expect(page.get_by_role("figure", name="Causes of misses")).to_be_visible()
    expect(page.get_by_text("Documents ranked above the target", exact=True)).to_be_visible()
    above = page.locator("[class*=st-key-why-above] .dvn-scroller").first
    heatmap = page.locator(".hm-pane[data-side=document]").first
    pick_row(above, 1, heatmap.is_visible)
    no_error(page)
    idle(page)
    page.get_by_role("tab", name="All misses").click()
    expect(page.get_by_text("No results have been computed")).to_be_visible()
    idle(page)
    page.get_by_role("button", name="Compute").click()
    expect(
        page.get_by_text(re.compile(r"BM25 misses \d of 4 query-document pairs"))
    ).to_be_visible()
    no_error(page)
    page = visit(f"{run_app.url}/why?dataset=mine&models=BM25&top=1")
    link = page.get_by_test_id("stMain").get_by_role("link", name="Explain", exact=True)
    press(link, lambda: "pair=row-" in page.url)
    expect(page.locator(".hm-pane[data-side=document]")).to_be_visible()
    no_error(page)


def test_a_miss_opens_on_the_other_tab(shipped_app: App, visit: Visit) -> None:
    page = visit(f"{shipped_app.url}/why?models=MiniLM-primacy&tab=All+misses")
    misses = page.locator("[class*=st-key-why-misses] .dvn-scroller").first
    link = page.get_by_role("link", name="is missed")
    pick_row(misses, 2, lambda: link.count() == 1)
    press(link, lambda: "document=" in page.url)
    expect(page.get_by_role("tab", name="One document")).to_have_attribute("aria-selected", "true")
    verdict = page.get_by_text(re.compile(r"MiniLM-primacy: \S+ is at rank \d+ of 68\. .*Cause: "))
    expect(verdict).to_be_visible()
    no_error(page)
    assert "models=MiniLM-primacy" in page.url and "query=" in page.url

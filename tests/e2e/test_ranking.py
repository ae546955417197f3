"""Rank a data set, follow a query to its pair, add published curves: in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page

from tests.e2e.conftest import App, Visit, idle, pick_row, press, start_run
from tests.e2e.test_app import no_error, select
from tests.e2e.waiting import expect

START = ".st-key-rank-start button"


def compute_rankings(page: Page) -> None:
    """Press the button of the board of rankings, and wait for the results."""
    start_run(page.locator(START), page.get_by_text("Query by query"))


def test_rank_and_open_the_pair_of_a_query(run_app: App, visit: Visit) -> None:
    page = visit(f"{run_app.url}/ranking?tab=Rankings&dataset=mine&models=MiniLM&models=BM25")
    expect(page.get_by_text("4 queries and 4 documents")).to_be_visible()
    compute_rankings(page)
    expect(page.get_by_role("figure", name="nDCG@10 by evidence position")).to_be_visible()
    expect(page.get_by_text("Query by query")).to_be_visible()
    expect(page.get_by_text("Compute it on the Curves page")).to_be_visible()
    expect(page.get_by_text("4 of 4 queries; select")).to_be_visible()
    no_error(page)
    again = visit(page.url)  # stored, so nothing to compute
    expect(again.get_by_role("figure", name="nDCG@10 by evidence position")).to_be_visible()
    grid = again.locator("[class*=st-key-ranking-queries] .dvn-scroller").first
    link = again.get_by_role("link", name="Explain row-3")
    pick_row(grid, 2, link.is_visible)
    expect(again.get_by_text("1 relevant, first at rank 1")).to_be_visible()
    press(link, lambda: "pair=row-3" in again.url)
    expect(again.locator(".hm-pane[data-side=document] .hm-text").first).to_contain_text("stone")
    no_error(again)


def test_a_run_is_compared_with_a_model(run_app: App, visit: Visit) -> None:
    page = visit(f"{run_app.url}/ranking?tab=Rankings&dataset=raced&models=BM25")
    expect(page.get_by_text("run other.run, digest").first).to_be_attached()
    expect(page.get_by_text("4 of 4 queries; select")).to_be_visible()
    idle(page)
    compute_rankings(page)
    expect(page.get_by_text("bm25, statistics of raced")).to_be_attached()
    idle(page)
    select(page, "Ranking of", "BM25")
    idle(page)
    select(page, "Compare with", "other engine")
    expect(
        page.get_by_text(
            "other engine compared with BM25 over 4 queries: nDCG@10 differs by -0.750"
        )
    ).to_be_visible()
    # The sentence was already there: the table of queries is redrawn with another column.
    page.wait_for_timeout(1000)
    idle(page)
    grid = page.locator("[class*=st-key-ranking-queries] .dvn-scroller").first
    link = page.get_by_role("link", name="Explain ice")
    pick_row(grid, 1, link.is_visible)  # a query missing from the run
    expect(page.get_by_text("1 relevant, first at rank 1")).to_be_visible()
    press(link, lambda: "pair=ice" in page.url)
    no_error(page)


def test_the_old_address_of_published_curves_opens_figure_5_on_curves(
    run_app: App, visit: Visit, tmp_path: Path
) -> None:
    page = visit(f"{run_app.url}/published")
    expect(page).to_have_url(re.compile("/curves.*published=NV-Embed-v2"))
    figure = page.get_by_role("figure", name="Mean attribution by relative position")
    for name in ("Qwen3-Embedding-8B", "NV-Embed-v2"):
        expect(figure.get_by_text(f"{name}, published").first).to_be_visible()
    bad = tmp_path / "bad.pkl"
    bad.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    files = page.get_by_test_id("stSidebar").get_by_test_id("stFileUploaderDropzoneInput")
    files.last.set_input_files(bad)
    expect(page.get_by_test_id("stAlertContentError")).to_contain_text("bad.pkl contains no curves")
    expect(figure).to_be_visible()
    no_error(page)

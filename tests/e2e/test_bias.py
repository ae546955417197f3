"""Bias tests in a real browser: run them, click a bar, open a pair."""

from __future__ import annotations

import re

from tests.e2e.conftest import App, Visit, idle, pick_row, press
from tests.e2e.test_app import choose, no_error, select
from tests.e2e.waiting import expect


def test_run_the_tests_then_click_a_bar_and_open_a_pair(run_app: App, visit: Visit) -> None:
    page = visit(
        f"{run_app.url}/cause?tab=Bias+tests&dataset=sample-bias&models=MiniLM-recency&models=BM25"
        "&tests=position&tests=literal"
    )
    button = page.get_by_role("button", name="Compute", exact=True)
    expect(button).to_be_visible()
    idle(page)
    button.click()
    expect(button).to_have_count(0)
    expect(page.get_by_text(re.compile("48 of 48 results"))).to_be_visible()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    expect(page.get_by_text("the model ignores the difference")).to_be_visible()
    figure = page.get_by_role("figure", name="Bias tests by test and model")
    bars = figure.locator(".bars .point path")
    expect(bars).to_have_count(4)
    # MiniLM-recency, literal; another element over the bars receives clicks.
    press(bars.nth(1), lambda: "test=literal" in page.url, force=True)
    expect(page.get_by_text("the document gives it another name")).to_be_visible()
    select(page, "Test", "Position")
    expect(page.get_by_text("d2: evidence further down")).to_be_visible()
    grid = page.get_by_test_id("stDataFrame").last.locator(".dvn-scroller").first
    pick_row(grid, 2, lambda: "item=position_bias" in page.url)
    expect(page.get_by_text("in one color range")).to_be_visible()
    columns = page.locator(".hm-pane[data-side=document]")
    expect(columns).to_have_count(2)
    select(page, "Method", "Gradient saliency")
    expect(page.get_by_text("don't sum to the score")).to_be_visible()
    no_error(page)
    # The address alone restores the same pair.
    again = visit(page.url)
    expect(again.locator(".hm-pane[data-side=document]")).to_have_count(2)
    choose(again.get_by_test_id("stSidebar"), "mean difference")
    again.wait_for_url(re.compile("measure=mean"))
    no_error(again)

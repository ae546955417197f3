"""Rank a grid of calibrations and follow a query to its pair under both models, in a browser."""

from __future__ import annotations

import re

from tests.e2e.conftest import App, Visit, idle, pick_row, press
from tests.e2e.test_app import no_error
from tests.e2e.waiting import expect


def test_rank_the_grid_and_open_a_pair_under_both_models(run_app: App, visit: Visit) -> None:
    page = visit(
        f"{run_app.url}/debias?dataset=mine&models=MiniLM&steps=0&pairs=0&strengths=0.5&blocks=16"
    )
    # Another test may already have ranked with the plain model.
    idle(page).get_by_role("button", name=re.compile("^Compute( remaining)?$")).click()
    expect(
        page.get_by_text(re.compile("No change recommended|Recommended: ")).first
    ).to_be_visible()
    expect(page.get_by_text(re.compile("Which queries MiniLM@calibrated.* helps"))).to_be_visible()
    # These few documents have no PSI, so there is no chart against it.
    expect(page.get_by_role("figure", name="Mean nDCG@10 against PSI")).to_have_count(0)
    no_error(page)
    grid = page.locator("[class*=st-key-debias-queries] .dvn-scroller").first
    link = page.get_by_role("link", name="Explain the pair under both models")
    pick_row(grid, 1, link.is_visible)
    press(link, lambda: "pair=row-" in page.url)
    expect(page.locator(".hm-pane[data-side=document]")).to_have_count(2)
    expect(page.get_by_text("MiniLM@calibrated(block=16)").first).to_be_visible()
    no_error(page)

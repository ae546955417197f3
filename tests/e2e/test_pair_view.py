"""Actions in the view of one pair besides the heatmap: the data set's curve, null controls, and
comparing two models."""

from __future__ import annotations

import math
import re

from tests.e2e.conftest import App, Visit, idle, pick_row, press, until
from tests.e2e.test_app import no_error, ready
from tests.e2e.waiting import expect


def test_the_mean_is_shown_next_to_the_text_once_it_is_computed(run_app: App, visit: Visit) -> None:
    page = ready(visit(f"{run_app.url}/?dataset=small&models=BM25&method=terms"))
    expect(page.get_by_text("The mean curve appears once 10 pairs have results.")).to_be_visible()
    page.get_by_role("button", name="Compute remaining").click()
    expect(page.get_by_text("mean of 12 pairs, 12 documents").first).to_be_visible()
    expect(page.get_by_role("button", name="Compute remaining")).to_have_count(0)
    idle(page).get_by_role("radio", name="data set").click()
    page.wait_for_url(re.compile("curves_of=data"))
    idle(page).get_by_role("radio", name="unrelated query").click()
    expect(page.get_by_role("button", name=re.compile("^Compute"))).to_be_visible()
    idle(page).get_by_role("button", name=re.compile("^Compute")).click()
    expect(page.get_by_text("minus that of the control (unrelated query)").first).to_be_visible()
    no_error(page)


def test_two_models_and_the_pairs_in_which_they_differ_most(run_app: App, visit: Visit) -> None:
    page = ready(visit(f"{run_app.url}/compare?dataset=small"))
    page.get_by_role("button", name="Compute remaining").click()
    expect(page.get_by_role("figure", name="Mean curve of A minus")).to_be_visible()
    panes = page.locator(".hm-pane[data-side=document]")
    press(page.get_by_role("radio", name="A − B"), lambda: panes.count() == 1)
    grid = page.get_by_test_id("stDataFrame").last.locator(".dvn-scroller").first
    press(page.get_by_text("Pairs with the largest differences between models"), grid.is_visible)
    shown = page.url
    text = panes.locator(".hm-text").text_content() or ""
    pick_row(grid, 4, lambda: page.url != shown)
    expect(panes.locator(".hm-text")).not_to_have_text(text)
    no_error(page)


def test_the_text_starts_near_the_top_and_has_charts_beside_it_if_there_is_room(
    app: App, visit: Visit
) -> None:
    page = ready(visit(app.url))
    first = page.locator(".hm-pane[data-side=document] [data-u]").first
    until(page, lambda: (first.bounding_box() or {"y": math.inf})["y"] <= 300)
    text, chart = (
        page.locator(".hm-pane[data-side=document]"),
        page.locator(".js-plotly-plot").first,
    )
    expect(chart).to_be_visible()
    for width, beside in ((2560, True), (390, False)):
        page.set_viewport_size({"width": width, "height": 1000})

        def is_beside() -> bool:
            left, right = text.bounding_box(), chart.bounding_box()
            assert left is not None and right is not None
            return (
                right["x"] >= left["x"] + left["width"] and right["y"] < left["y"] + left["height"]
            )

        until(page, lambda beside=beside: is_beside() == beside)

"""Typical actions in the dashboard, once each, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Locator, Page

from tests.e2e.conftest import App, Visit, idle, pick_row, press, select
from tests.e2e.waiting import expect


def heatmap(page: Page):
    """The heatmap's document panes."""
    return page.locator(".hm-pane[data-side=document]")


def ready(page: Page) -> Page:
    """Wait until Explain or Compare has drawn."""
    expect(page.get_by_test_id("stPlotlyChart").first).to_be_visible()
    return idle(page)


def choose(body: Locator, fmt: str) -> None:
    """Click a format and wait until it is selected."""
    button = body.get_by_role("radio", name=fmt, exact=True)
    # Selecting a figure or table redraws its formats, and a click before that is lost.
    press(button, lambda: button.get_attribute("aria-checked") == "true")


def no_error(page: Page) -> None:
    """Assert that the drawn page shows no error box and no traceback."""
    idle(page)
    expect(page.get_by_test_id("stException")).to_have_count(0)
    assert "Traceback" not in page.inner_text("body")


def test_search_a_pair_while_typing_and_select_it_with_the_keyboard(app: App, visit: Visit) -> None:
    page = ready(visit(app.url))
    box = page.get_by_role("combobox", name="Pair (type to search)")
    box.click()
    box.press_sequentially("rye bread gummy")
    expect(page.get_by_role("option", name=re.compile("rye bread gummy"))).not_to_have_count(0)
    box.press("ArrowDown")
    box.press("ArrowUp")
    box.press("Enter")
    page.wait_for_url(re.compile("pair=food-sourdough"))
    ready(page)
    expect(page.get_by_text(re.compile(r"food · eng · \d+ words · evidence at"))).to_be_visible()
    known = page.url
    page.get_by_role("button", name="Random").click()
    page.wait_for_url(lambda url: url != known)
    ready(page)
    jumped = page.url
    page.locator("body").press("n")
    page.wait_for_url(lambda url: url != jumped)
    no_error(page)


def test_select_a_pair_in_the_table(app: App, visit: Visit) -> None:
    page = ready(visit(app.url))
    first = re.search(r"pair=([^&]+)", page.url)
    grid = page.get_by_test_id("stPopoverBody").locator(".dvn-scroller").first
    press(page.get_by_role("button", name="Filters"), grid.is_visible)
    pick_row(
        grid,
        3,
        lambda: "pair=" in page.url and (first is None or first.group(0) not in page.url),
    )
    ready(page)
    third = page.url
    page.locator(".st-key-next button").first.click()
    page.wait_for_url(lambda url: url != third)
    ready(page)
    no_error(page)


def test_switching_the_resampling_changes_curve_and_caption(app: App, visit: Visit) -> None:
    page = ready(visit(app.url))
    expect(page.get_by_text("resampling=bin_mean").first).to_be_attached()
    page.get_by_test_id("stSidebar").get_by_text("Method settings").click()
    select(page, "Resampling", "interpolation")
    expect(page.get_by_text("resampling=point").first).to_be_attached()
    expect(page).to_have_url(re.compile("resampling=point"))
    no_error(page)


def test_switching_the_method_keeps_the_pair(app: App, visit: Visit) -> None:
    page = ready(visit(f"{app.url}/?pair=food-sourdough-q2"))
    select(page, "Method", "Token decomposition")
    expect(page.get_by_text("completeness error")).to_be_visible()
    expect(page).to_have_url(re.compile("method=decomposition"))
    expect(page).to_have_url(re.compile("pair=food-sourdough-q2"))
    page.get_by_text("Method settings").click()
    select(page, "Matrix", "yes")
    expect(page.get_by_role("figure", name="each query word over the position")).to_be_visible()
    page.get_by_text("Largest shares").click()
    page.locator(".hm-largest button").first.click()
    expect(page.locator(".hm-pinned")).to_have_count(2)
    page.get_by_text("Full interaction matrix").click()
    expect(
        page.get_by_role("figure", name="each query unit with each document unit")
    ).to_be_visible()
    no_error(page)


def test_compare_the_faithfulness_of_two_methods(run_app: App, visit: Visit) -> None:
    address = "methods?dataset=small&pair=row-1&methods=saliency&methods=decomposition"
    page = visit(f"{run_app.url}/{address}")
    expect(page.get_by_text("0 of 4 tests of this pair are stored.")).to_be_visible()
    idle(page).get_by_role("button", name="Test this pair").click()
    expect(page.get_by_role("figure", name="deletion curves")).to_be_visible()
    expect(page.get_by_role("figure", name="insertion curves")).to_be_visible()
    idle(page).get_by_role("tab", name="Data set").click()
    expect(page.get_by_text("4 of 48 results")).to_be_visible()
    expect(page).to_have_url(re.compile("tab=Data\\+set"))
    no_error(page)


def test_compare_two_models(app: App, visit: Visit) -> None:
    page = visit(f"{app.url}/compare?pair=music-staff-notation-q1")
    expect(page.get_by_text("Spearman correlation of word attributions")).to_be_visible()
    for name in ("MiniLM-primacy", "MiniLM-recency"):
        expect(page.locator(".hm-model", has_text=name).first).to_be_visible()
    expect(page.get_by_role("figure", name="Attribution by relative position")).to_be_visible()
    expect(page.get_by_role("figure", name="by A minus by B")).to_be_visible()
    press(page.get_by_role("radio", name="A − B"), lambda: "paint=" in page.url)
    joined = "MiniLM-primacy − MiniLM-recency"
    expect(page.locator(".hm-model", has_text=joined).first).to_be_visible()
    expect(page.locator(".hm-legend .hm-key").first).to_have_text("MiniLM-primacy higher")
    expect(page.locator(".hm-pane[data-side=document]")).to_have_count(1)
    no_error(page)


def test_sort_pairs_in_another_order(app: App, visit: Visit) -> None:
    page = ready(visit(f"{app.url}/?pair=food-sourdough-q2"))  # one pair is stored
    page.get_by_role("button", name="Filters").click()
    select(page, "Order", "score")
    page.wait_for_url(re.compile("order=score"))
    expect(page.get_by_text("pairs have no score yet").first).to_be_visible()
    select(page, "Domain", "botany (21)")
    page.wait_for_url(re.compile("domain=botany"))
    expect(page.get_by_text("pair – of 21 (304 without filters)")).to_be_visible()
    page.get_by_role("textbox", name="Search").press_sequentially("orchid")
    page.wait_for_url(re.compile("search=orchid"))  # while typing, without Enter
    expect(page.get_by_text(re.compile(r"pair – of \d \(304 without filters\)"))).to_be_visible()
    page.get_by_role("textbox", name="Search").fill("")
    expect(page.get_by_text("pair – of 21 (304 without filters)")).to_be_visible()
    page.keyboard.press("Escape")
    page.locator(".st-key-next button").first.click()
    page.wait_for_url(re.compile("pair=botany"))
    no_error(page)


def test_draw_a_map_and_open_the_pairs_of_its_points(run_app: App, visit: Visit) -> None:
    page = visit(f"{run_app.url}/map?of=queries&language=pol")
    expect(page.get_by_role("button", name="Compute")).to_be_visible()
    idle(page).get_by_role("button", name="Compute").click()
    figure = page.get_by_role("figure", name="Map of queries")
    expect(figure).to_be_visible()  # numba compiles
    expect(page.get_by_text("umap(metric=cosine").first).to_contain_text(" queries")
    # Another element over the points receives clicks.
    point = figure.locator(".points path").first
    press(point, page.get_by_test_id("stDataFrame").is_visible, force=True)
    no_error(page)
    again = visit(page.url)  # stored, so nothing to compute
    expect(again.get_by_role("figure", name="Map of queries")).to_be_visible()
    expect(again.get_by_role("button", name="Compute")).to_have_count(0)


def test_a_copied_link_opens_the_same_view(app: App, visit: Visit) -> None:
    page = ready(visit(f"{app.url}/?pair=food-sourdough-q2&models=MiniLM&models=MiniLM-recency"))
    page.get_by_role("radio", name="Sentence").or_(
        page.get_by_text("Sentence", exact=True)
    ).first.click()
    page.wait_for_url(re.compile("level=sentence"))
    ready(page)
    link = page.url
    shares = page.get_by_text(re.compile("falls on the evidence"))
    expect(shares).to_have_count(2)
    texts = shares.all_inner_texts()
    other = ready(visit(link))
    expect(other.get_by_text(re.compile("falls on the evidence"))).to_have_text(texts)
    expect(other).to_have_url(re.compile("level=sentence"))
    expect(other).to_have_url(re.compile("pair=food-sourdough-q2"))


def test_typed_text_is_explained_and_linked(app: App, visit: Visit) -> None:
    page = visit(f"{app.url}/?text=Own+text")
    query = page.get_by_role("textbox", name="Query", exact=True)
    query.fill("what melts")
    query.press("Enter")
    document = "Stone stays. Ice melts in spring."
    page.get_by_role("textbox", name="Document", exact=True).fill(document)
    idle(page)
    expect(page.get_by_text("Enter both a query and a document")).to_have_count(0)
    page.get_by_role("button", name="Show these texts").click()
    ready(page)
    expect(page.get_by_text("reads all 9 tokens")).to_be_visible()
    assert "melts" not in page.url
    # The form closed, because it would cover the result.
    link = page.get_by_text("Include the texts in the link")
    expect(link).to_have_count(0)
    idle(page).get_by_role("button", name="Own text").click()
    link.click()
    # The query and the document reach the address one after the other.
    page.wait_for_url(re.compile(r"[?&]d=[^&]*melts"))
    other = ready(visit(page.url))
    other.get_by_role("button", name="Own text").click()
    expect(other.get_by_role("textbox", name="Document", exact=True)).to_have_value(document)


def test_run_a_data_set_stop_and_resume(run_app: App, visit: Visit) -> None:
    page = visit(f"{run_app.url}/curves?dataset=many&models=MiniLM")
    expect(page.get_by_role("button", name=re.compile("^Compute"))).to_be_visible()
    idle(page).get_by_role("button", name=re.compile("^Compute")).click()
    stop = page.get_by_role("button", name="Stop", exact=True)
    expect(stop).to_be_visible()
    expect(page.get_by_text(re.compile(r"pairs/s"))).to_be_visible()
    # With at least ten pairs, their mean is drawn as that of the data set.
    expect(page.get_by_text(re.compile(r"^[1-9][\d,]+ of 4,000"))).to_be_visible()
    stop.click()
    resume = page.get_by_role("button", name="Compute remaining")
    expect(resume).to_be_visible()

    def done() -> int:
        text = page.get_by_text(re.compile(r"^[\d,]+ of 4,000")).first.inner_text()
        return int(text.split(" ")[0].replace(",", ""))

    stopped_at = done()
    assert 0 < stopped_at < 4000
    expect(page.get_by_text(re.compile("center of mass"))).not_to_have_count(0)
    press(resume, stop.is_visible)
    page.wait_for_function(
        "n => [...document.querySelectorAll('*')].some(e => !e.children.length && "
        "/^[\\d,]+ of 4,000/.test(e.textContent) && parseInt(e.textContent.replace(',', '')) > n)",
        arg=stopped_at,
    )
    stop.click()
    expect(resume).to_be_visible()
    no_error(page)


def test_export_figures_and_the_heatmap(app: App, visit: Visit, tmp_path: Path) -> None:
    page = ready(visit(f"{app.url}/?pair=food-sourdough-q2"))
    page.get_by_role("button", name="Export").click()
    body = page.get_by_test_id("stPopoverBody")

    def prepared(fmt: str) -> str:
        choose(body, fmt)
        body.get_by_role("button", name="Prepare").click()
        button = body.get_by_role("button", name=f"Download {fmt.upper()}")
        expect(button).to_be_visible()
        with page.expect_download() as download:
            button.click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        assert path.suffix == f".{fmt}" and "food-sourdough-q2" in path.name
        text = path.read_text(encoding="utf-8")
        # A figure states its provenance: model, weights, method and pair.
        for fact in ("MiniLM", "c006c9485a9bef2b", "saliency(", "food-sourdough-q2"):
            assert fact in text
        return text

    assert ElementTree.fromstring(prepared("svg")).tag.endswith("svg")
    assert "<html" in prepared("html")
    body.get_by_label("Figure or table").click()
    page.get_by_role("option", name="Heatmap").click()
    expect(body.get_by_text("json", exact=True)).to_have_count(0)
    words = "".join(ElementTree.fromstring(prepared("svg")).itertext())
    assert "sourdough" in words.lower()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/passport?dataset=nope", "There is no data set 'nope'"),
        ("/curves?method=nope", "There is no method 'nope'"),
    ],
)
def test_a_phone_shows_what_the_address_names_in_vain(
    app: App, visit: Visit, address: str, sentence: str
) -> None:
    page = visit(f"{app.url}{address}", width=390)
    expect(page.get_by_test_id("stMain").get_by_text(sentence)).to_be_in_viewport()


def test_a_text_many_times_too_long_is_truncated_and_reported(app: App, visit: Visit) -> None:
    page = visit(f"{app.url}/?text=Own+text&q=ice")
    page.get_by_role("textbox", name="Document", exact=True).fill("ice melts in spring " * 1700)
    page.get_by_role("button", name="Show these texts").click()
    expect(page.get_by_text("reads 510 of 8,500 tokens")).to_be_visible()
    idle(page).get_by_role("button", name="Own text").click()
    expect(page.get_by_text("too long for a link")).to_be_visible()
    no_error(page)

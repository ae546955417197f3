"""A fresh machine: every page shows real results at once, and computes nothing unasked."""

from __future__ import annotations

import re

from playwright.sync_api import Browser

from tests.e2e.conftest import TIMEOUT_MS, App, Visit, idle
from tests.e2e.test_accessibility import FIRST_WORD, nothing_was_computed
from tests.e2e.waiting import expect


def test_a_pair_is_shown_and_its_files_state_which_mean_they_contain(
    shipped_app: App, go: Visit
) -> None:
    """Files that contain the data set's mean state its pairs."""
    page = go(shipped_app.url)
    expect(page.get_by_text(FIRST_WORD, exact=True).filter(visible=True).first).to_be_visible()
    nothing_was_computed(shipped_app, page)
    idle(page).get_by_role("button", name="Export").filter(visible=True).first.click()
    body = page.get_by_test_id("stPopoverBody").filter(visible=True)
    for what, form in (("Mean numbers", "json"), ("Heatmap", "html")):
        body.get_by_role("combobox", name="Figure or table").click()
        page.get_by_role("option", name=what, exact=True).click()
        # Wait for the formats of the current choice, since figures also have both of these.
        parquet = body.get_by_role("radio", name="parquet", exact=True)
        expect(parquet).to_have_count(int(what == "Mean numbers"))
        body.get_by_role("radio", name=form, exact=True).click()
        idle(page)
        body.get_by_role("button", name="Prepare").click()
        with page.expect_download() as started:
            body.get_by_role("button", name=f"Download {form.upper()}").click()
        said = started.value.path().read_text(encoding="utf-8")
        assert re.search(r'"n_pairs": 304\b', said) and "bootstrap over 68 documents" in said, what
        pair = re.search(r'"selection": "pair [\w-]+"', said)
        assert (pair is not None) == (what == "Heatmap"), "the pair's own"
        assert '"selection": "all pairs"' in said, "the mean's pairs"


def test_a_tab_reports_only_its_first_heatmap(shipped_app: App, browser: Browser) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        with page.expect_response("**/drawn/*", timeout=TIMEOUT_MS) as reported:
            page.goto(shipped_app.url)
        assert reported.value.status == 204
        expect(page.locator(".js-plotly-plot").first).to_be_visible(timeout=TIMEOUT_MS)
        requests = list[str]()
        page.on("request", lambda request: requests.append(request.url))
        idle(page).get_by_role("button", name="Next").first.click()
        idle(page).get_by_role("link", name="Compare", exact=True).click()
        expect(page.locator(".hm-pane[data-side=document]")).to_have_count(2)
        assert not [url for url in requests if "/drawn/" in url]


def test_a_touch_screen_shows_charts_without_a_toolbar(shipped_app: App, browser: Browser) -> None:
    with browser.new_context(has_touch=True, is_mobile=True) as context:
        page = context.new_page()
        page.goto(f"{shipped_app.url}/curves")
        expect(page.locator(".js-plotly-plot .legend").first).to_be_visible(timeout=TIMEOUT_MS)
        expect(page.locator(".modebar").first).to_be_attached()
        expect(page.locator(".modebar").filter(visible=True)).to_have_count(0)
        expect(page.get_by_test_id("stDataFrame").first).to_be_visible()
        tables = page.get_by_test_id("stElementToolbar")
        expect(tables.first).to_be_attached()
        expect(tables.filter(visible=True)).to_have_count(0)


def test_the_storage_page_lists_shipped_results_without_counting_them(
    shipped_app: App, go: Visit
) -> None:
    page = go(f"{shipped_app.url}/storage")
    expect(page.get_by_text("Nothing is stored yet")).to_be_visible()
    expect(page.get_by_test_id("stMarkdown").first).to_contain_text("which results are stored?")
    expect(page.get_by_text("Included results")).to_be_visible()
    expect(page.get_by_text(re.compile(r"\d results of the bundled data sets"))).to_be_visible()

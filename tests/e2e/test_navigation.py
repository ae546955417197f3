"""Moving between pages: navigation and addresses."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.e2e.conftest import App, Visit, idle, select
from tests.e2e.test_app import no_error
from tests.e2e.waiting import expect

Start = Callable[..., App]

PAGES = {
    "Explain": "explain",
    "Compare": "compare",
    "Why": "why",
    "Cause": "cause",
    "Curves": "curves",
    "Ranking": "ranking",
    "Debias": "debias",
    "Audit": "audit",
    "Passport": "passport",
    "Map": "map",
    "Methods": "methods",
    "Storage": "storage",
}


def test_the_last_page_can_be_reached_in_a_small_window(app: App, visit: Visit) -> None:
    page = visit(f"{app.url}/curves?models=MiniLM", width=800)
    navigation = page.get_by_role("navigation", name="App pages")
    expect(navigation.get_by_role("link").first).to_have_text("Explain")
    idle(page)
    # Pages that don't fit the line are in a menu at its end.
    more = navigation.get_by_text(re.compile(r"^\d+ more$"))
    if more.is_visible():
        more.click()
    last = navigation.get_by_role("link", name="Storage")
    last.or_(page.get_by_role("menuitem", name="Storage")).filter(visible=True).click()
    page.wait_for_url(re.compile("/storage"))


def test_a_small_screen_has_a_menu_button_for_pages(app: App, visit: Visit) -> None:
    page = visit(f"{app.url}/map", width=390)
    idle(page).get_by_test_id("stExpandSidebarButton").click()
    page.get_by_test_id("stSidebar").get_by_role("link", name="Storage").click()
    page.wait_for_url(re.compile("/storage"))


def test_the_address_of_another_page_has_the_parameters_of_the_method(
    app: App, visit: Visit
) -> None:
    page = visit(f"{app.url}/curves?models=MiniLM&method=integrated_gradients&steps=64")
    idle(page)
    page.get_by_role("navigation", name="App pages").get_by_role("link", name="Compare").click()
    expect(page).to_have_url(re.compile(r"/compare\?.*steps=64"))


@pytest.mark.parametrize("path", ["", "explain"])
def test_explain_opens_at_the_root_and_at_its_name(app: App, visit: Visit, path: str) -> None:
    page = visit("about:blank")
    failed = list[str]()
    page.on("response", lambda one: failed.append(one.url) if one.status >= 400 else None)
    page.goto(f"{app.url}/{path}?pair=food-sourdough-q2&models=BM25")
    expect(page.locator(".hm-pane[data-side=document]")).to_be_visible()
    expect(page.get_by_text("Page not found")).to_have_count(0)
    link = page.get_by_role("navigation", name="App pages").get_by_role("link", name="Explain")
    expect(link).to_have_attribute("aria-current", "page")
    expect(page).to_have_url(re.compile("pair=food-sourdough-q2"))
    assert failed == []


@pytest.mark.parametrize("name", ["Curves", "Ranking", "Map"])
def test_an_unknown_model_leaves_the_heading(app: App, go: Visit, name: str) -> None:
    page = go("about:blank")
    page.set_viewport_size({"width": 390, "height": 1000})
    page.goto(f"{app.url}/{PAGES[name]}?models=none")
    heading = page.get_by_test_id("stMain").get_by_role("heading", level=1)
    expect(heading).to_contain_text(f"{name}: ")
    expect(heading).to_be_in_viewport()


def test_back_returns_to_the_previous_page(app: App, visit: Visit) -> None:
    """However often scripts have written the page's state to its address."""
    page = visit(f"{app.url}/explain?pair=food-sourdough-q2&models=BM25")
    navigation = page.get_by_role("navigation", name="App pages")
    heading = page.get_by_test_id("stMain").get_by_role("heading", level=1)
    for name in ("Compare", "Ranking", "Audit"):
        expect(page.locator(".hm-pane[data-side=document]")).to_be_visible()
        idle(page)
        navigation.get_by_role("link", name=name).click()
        expect(heading).to_contain_text(f"{name}: ")
        idle(page).go_back()
        expect(heading).to_contain_text("Explain: ")
        expect(page).to_have_url(re.compile("/explain.*pair=food-sourdough-q2"))


def test_back_and_forward_restore_the_models_of_each_page(app: App, visit: Visit) -> None:
    page = visit(f"{app.url}/curves?models=BM25")
    navigation = page.get_by_role("navigation", name="App pages")
    chosen = page.get_by_test_id("stSidebar").get_by_test_id("stMultiSelect").first
    expect(chosen).to_contain_text("BM25")
    # What a link has chosen also holds on the next page, and in its address.
    idle(page)
    navigation.get_by_role("link", name="Audit").click()
    expect(page).to_have_url(re.compile("/audit.*models=BM25"))
    idle(page)
    chosen.locator("input").fill("MiniLM-recency")
    page.get_by_role("option", name="MiniLM-recency", exact=True).click()
    both = re.compile("/audit.*models=BM25&models=MiniLM-recency")
    expect(page).to_have_url(both)
    # The address changes first. The script that the choice starts must not add to the history.
    page.go_back()
    expect(page).to_have_url(re.compile("/curves.*models=BM25"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("Curves: ")
    expect(chosen).not_to_contain_text("MiniLM-recency")
    idle(page).go_forward()
    expect(page).to_have_url(both)
    expect(chosen).to_contain_text("MiniLM-recency")


def test_back_restores_the_method_of_each_page(app: App, visit: Visit) -> None:
    """Also if the address of the page omits its method, the default."""
    page = visit(f"{app.url}/curves?models=BM25")
    main = page.get_by_test_id("stMain")
    expect(main).to_contain_text("Term shares by position")
    idle(page)
    page.get_by_role("navigation", name="App pages").get_by_role("link", name="Cause").click()
    expect(main.get_by_role("heading", level=1)).to_contain_text("Cause: ")
    select(page, "Method", "Occlusion")
    expect(page).to_have_url(re.compile("method=occlusion"))
    idle(page).go_back()
    expect(main).to_contain_text("Term shares by position")
    assert "method=" not in idle(page).url


def test_settings_of_one_study_are_not_those_of_another(app: App, visit: Visit) -> None:
    """Parameters of the same name, such as the seed; and the control of curves, which isn't that of
    the position effect."""
    page = visit(f"{app.url}/audit?models=BM25&seed=3")
    navigation = page.get_by_role("navigation", name="App pages")
    heading = page.get_by_test_id("stMain").get_by_role("heading", level=1)
    expect(heading).to_contain_text("Audit: ")
    idle(page)
    navigation.get_by_role("link", name="Debias").click()
    expect(heading).to_contain_text("Debias: ")
    idle(page)
    assert "seed" not in page.url
    page.goto(f"{app.url}/explain?models=MiniLM&control=shuffled+sentences")
    expect(page.locator(".hm-pane[data-side=document]")).to_be_visible()
    idle(page)
    navigation.get_by_role("link", name="Ranking").click()
    expect(heading).to_contain_text("Ranking: ")
    no_error(idle(page))
    page.get_by_text("Position effect settings").click()
    expect(page.get_by_text("Control: move another sentence").first).to_be_visible()


def test_a_run_is_shown_and_can_be_stopped_on_every_page(start_app: Start, visit: Visit) -> None:
    app = start_app()
    page = visit(f"{app.url}/curves?models=MiniLM")
    expect(page.get_by_role("button", name="Compute")).to_be_visible()
    idle(page).get_by_role("button", name="Compute").click()
    own = page.get_by_role("button", name="Stop", exact=True)
    expect(own).to_be_visible()
    strip = page.get_by_role("button", name="Stop MiniLM: Gradient saliency")
    expect(strip).to_have_count(0)  # the page's board shows it
    for name in ("Map", "Storage"):
        page.get_by_role("navigation", name="App pages").get_by_role("link", name=name).click()
        expect(strip).to_be_visible()
    other = visit(f"{app.url}/storage")
    expect(other.get_by_role("button", name="Stop MiniLM: Gradient saliency")).to_be_visible()
    expect(page.get_by_role("progressbar").filter(visible=True)).to_be_visible()
    strip.click()
    expect(strip).to_have_count(0)
    expect(other.get_by_role("button", name="Stop MiniLM: Gradient saliency")).to_have_count(0)
    page.get_by_role("navigation", name="App pages").get_by_role("link", name="Curves").click()
    expect(page.get_by_role("button", name=re.compile("^Compute"))).to_be_visible()


def test_links_keep_the_pair_the_models_and_the_method(app: App, visit: Visit) -> None:
    page = visit(f"{app.url}/explain?pair=food-sourdough-q2&models=BM25")
    expect(page.locator(".hm-pane[data-side=document]").first).to_be_visible()
    for here, there in (("explain", "Methods"), ("methods", "Explain")):
        views = page.locator(f"[class*='st-key-{here}'][class*='other_views']")
        views.get_by_role("link", name=there, exact=True).click()
        page.wait_for_url(f"**/{there.lower()}?*")
        expect(page).to_have_url(re.compile("pair=food-sourdough-q2"))
        models = page.get_by_test_id("stSidebar").locator("[data-tag]")
        expect(models.first).to_have_text("BM25")
        # Here, too, the address contains the state: a copy of it opens the same model.
        page.wait_for_url("**models=BM25*")
    expect(page.locator(".hm-pane[data-side=document]").first).to_be_visible()

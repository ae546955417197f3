"""Every page on a first visit: it shows results at once without computing any, also on its other
tabs, below its heading and the navigation; axe-core finds nothing serious in either theme, also in
popovers, and headings are in order; every chart has a description; no page is wider than a narrow
window."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Literal

import axe_playwright_python
import pytest
from playwright.sync_api import Page

from poslens.cache.storage.files import LAYOUT
from tests.e2e.conftest import App, Visit, idle, press
from tests.e2e.test_navigation import PAGES
from tests.e2e.waiting import expect

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
GRAVE = ("serious", "critical")
HEADINGS, CONTRAST = "heading-order", "color-contrast"
POPOVER = "stPopoverBody"
FULL = ".hm-pane[data-side=document], .js-plotly-plot, [data-testid=stDataFrame]"
NAMELESS = "[data-testid=stPlotlyChart]:not([role=figure][aria-label*=' '])"
# Words of a heatmap after its first paragraph; test_heatmap_page.py tests the contrast of all
# colors.
REPEATED = {"fromShadowDom": ["[data-testid=stBidiComponentIsolated]", ".hm-paragraph ~ *"]}
ADDRESSES = [
    *PAGES.values(),
    "curves?models=MiniLM&method=occlusion",  # with a button in the primary color
]

SHOWN = {
    "curves": "Mean attribution by relative position",
    "cause": "Score against the position of the evidence",
    "ranking": "nDCG@10 by position of the evidence",
    "audit": "Unretrieved sentences by position",
    "why": "Causes of misses",
    "map": "Map of documents",
    "methods": "deletion curves of each method",
}
SHOWN_ON_TABS = {
    "cause": {"Bias tests": "Bias tests by test and model", "Data set": "Relocation"},
    "ranking": {"Rankings": "nDCG@10 by evidence position"},
    "why": {"All misses": "Causes of misses"},
    "methods": {"Data set": "Deletion gain over random orders"},
}
FIRST_WORD = "triglyphs"  # in the pair that Explain and Compare show on a first visit
RUNNING = re.compile("^(Compute|Rank|Test)( all)?$")


def nothing_was_computed(shipped_app: App, page: Page) -> None:
    idle(page)
    expect(page.get_by_test_id("stSpinner")).to_have_count(0)
    assert not list((shipped_app.home / "cache").glob(f"{LAYOUT}/*/*.db")), (
        "nothing is stored but what ships"
    )


def violations(page: Page, popover: bool = False, contrast: bool = False) -> list[str]:
    """Serious and critical findings of axe-core and headings out of order, or only faint text if
    `contrast`, on the page or only in its open popover: one line per element. In popovers also text
    whose contrast axe-core leaves to a person: it reports faint text there as incomplete, not as a
    violation, and text with enough contrast not at all."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    types = ["violations", *(["incomplete"] if popover else [])]
    found = page.evaluate(
        "([context, options]) => axe.run(context, options)",
        [
            {"include": [[f"[data-testid={POPOVER}]"]]} if popover else {"exclude": [REPEATED]},
            {
                "resultTypes": types,
                "rules": {"region": {"enabled": False}},  # slow, and only moderate
                **({"runOnly": [CONTRAST]} if contrast else {}),
            },
        ],
    )
    return [
        f"{rule['id']}: {node['target']} {node['html'][:200]}"
        for kind in types
        for rule in found[kind]
        if rule["id"] == CONTRAST
        or (kind == "violations" and (rule["impact"] in GRAVE or rule["id"] == HEADINGS))
        for node in rule["nodes"]
    ]


def paint(page: Page, theme: Literal["light", "dark"]) -> None:
    """Draw the page in a theme, as if set by the system."""
    page.emulate_media(color_scheme=theme)
    page.wait_for_function(
        """(dark) => {
             const app = document.querySelector("[data-testid=stApp]");
             const [red] = (app ? getComputedStyle(app).backgroundColor : "").match(/\\d+/) ?? [];
             return red !== undefined && (red < 128) === dark;
           }""",
        arg=theme == "dark",
    )
    idle(page)


def lasting_violations(
    page: Page, popover: bool = False, contrast: bool = False, seconds: float = 20
) -> list[str]:
    """Violations that persist this long: text that fades in or changes its color has too little
    contrast for a moment."""
    end = time.monotonic() + seconds
    while (remaining := violations(page, popover, contrast)) and time.monotonic() < end:
        page.wait_for_timeout(500)
    return remaining


LINKS = "[aria-label='App pages'] a"
PARAGRAPHS = "[...document.querySelectorAll('[data-testid=stMain] p')].map((p) => p.offsetWidth)"

CUT_OFF = """[...document.querySelectorAll(".js-plotly-plot")].flatMap((chart) => {
  if (!chart.checkVisibility()) return [];  // resized once its expander is opened
  const { left, right } = chart.getBoundingClientRect();
  return [...chart.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.left < left - 1 || box.right > right + 1;
  });
})"""
"""Text of charts outside of their chart."""


def check_popovers(page: Page) -> None:
    """Popovers are outside of the page's root, so its styles don't apply to them by themselves. The
    page is dark."""
    body = page.get_by_test_id(POPOVER)
    themes: list[Literal["light", "dark"]] = ["dark", "light"]
    for button in page.get_by_test_id("stPopover").get_by_role("button").all():
        press(button, lambda: body.count() == 1)
        for theme in themes:
            paint(page, theme)
            expect(body.locator("button, input").first).to_be_visible()
            # The other rules don't depend on the theme.
            assert lasting_violations(page, popover=True, contrast=theme is themes[1]) == []
        themes.reverse()  # the page is drawn anew in each theme, which takes longest
        page.keyboard.press("Escape")
        expect(body).to_have_count(0)


@pytest.mark.parametrize("path", ADDRESSES)
def test_each_page_is_accessible(shipped_app: App, go: Visit, path: str) -> None:
    page = go("about:blank")
    page.set_viewport_size({"width": 2560, "height": 1000})
    page.emulate_media(color_scheme="light")
    failed = list[str]()
    note = lambda answer: failed.append(answer.url) if answer.status >= 400 else None  # noqa: E731
    page.on("response", note)
    page.goto(f"{shipped_app.url}/{path}")
    name = next(name for name, address in PAGES.items() if path.startswith(address))
    heading = page.get_by_test_id("stMain").get_by_role("heading", level=1)
    expect(heading).to_have_count(1)
    expect(heading).to_contain_text(f"{name}: ")
    if path in SHOWN:
        expect(page.get_by_role("figure", name=SHOWN[path]).first).to_be_visible()
        # Wait until everything is drawn: missing results are offered below the first figure.
        expect(idle(page).get_by_role("button", name=RUNNING)).to_have_count(0)
    if path in ("explain", "compare"):
        expect(page.get_by_text(FIRST_WORD, exact=True).filter(visible=True).first).to_be_visible()
    if path == "audit":  # each selected model, including BM25 with the data set's statistics
        expect(page.get_by_text(re.compile("^BM25: "))).to_be_visible()
    nothing_was_computed(shipped_app, page)
    shown = page.locator(FULL).or_(page.get_by_role("button", name="Compute"))
    for theme, width in (("light", 2560), ("dark", 1440)):
        page.set_viewport_size({"width": width, "height": 1000})
        paint(page, theme)
        expect(shown.filter(visible=True).first).to_be_visible()
        idle(page)
        # The browser counts only the items that fit; the rest would be hidden in "2 more".
        expect(page.locator(LINKS)).to_have_text(list(PAGES))
        page.wait_for_function(  # once its fonts are loaded
            f"""() => new Set([...document.querySelectorAll("{LINKS}")].map(
                  (link) => link.getBoundingClientRect().top)).size === 1
                && document.querySelector("[data-testid=stMain] h1").getBoundingClientRect().top
                  < 70"""
        )
        expect(page.locator(f"{LINKS}[aria-current=page]")).to_have_text(name)
        assert max(page.evaluate(PARAGRAPHS), default=0) < 900
        # The other rules don't depend on the theme.
        assert lasting_violations(page, contrast=theme == "dark") == []
        expect(page.locator(NAMELESS).filter(visible=True)).to_have_count(0)
    for width in (800, 390):
        page.set_viewport_size({"width": width, "height": 1000})
        expect(shown.filter(visible=True).first).to_be_visible()
        # The main part scrolls, not the document. A table adopts the window's new width some frames
        # after the rest.
        page.wait_for_function(
            """() => [document.scrollingElement, document.querySelector("[data-testid=stMain]")]
                 .every((node) => node.scrollWidth <= Math.min(node.clientWidth, innerWidth))"""
        )
        page.wait_for_function(CUT_OFF + ".length === 0")
    if path == "storage":
        press(page.get_by_text("Import", exact=True), page.locator("pre").first.is_visible)
        assert violations(page) == []
        expect(page.get_by_text("Nothing is stored yet")).to_be_visible()
    elif path in PAGES.values():
        expect(page.get_by_test_id("stPopover").first).to_be_visible()
    if path == "explain":  # all kinds of popovers: the export is the same on every page
        check_popovers(page)
    for tab, figure in SHOWN_ON_TABS.get(path, {}).items():
        idle(page).get_by_role("tab", name=tab, exact=True).click()
        expect(page.get_by_role("figure", name=figure).filter(visible=True).first).to_be_visible()
        expect(idle(page).get_by_role("button", name=RUNNING)).to_have_count(0)
        nothing_was_computed(shipped_app, page)
    page.remove_listener("response", note)
    assert failed == []


def test_a_form_in_a_popover_is_accessible(shipped_app: App, go: Visit) -> None:
    page = go(f"{shipped_app.url}/explain?text=Own+text")
    for theme in ("light", "dark"):
        paint(page, theme)
        expect(page.get_by_role("button", name="Show these texts")).to_be_visible()
        assert lasting_violations(page, popover=True, contrast=theme == "dark") == []

"""The heatmap as a widget, in a real browser without a notebook: a page that implements anywidget's
front-end protocol, with a model that records what the widget writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page
from traitlets import TraitError

from poslens.heatmap.data import Pane, View, payload
from poslens.widget import Heatmap
from tests.e2e.conftest import TIMEOUT_MS
from tests.e2e.test_heatmap_links import DOCUMENT, QUERY, column, planted, unit
from tests.e2e.waiting import expect

Draw = Callable[..., Page]

# `attached`: whether the element is inserted into the page before `render` or, as in JupyterLab,
# after it.
FRONT_END = """
async ({ esm, css, data, attached }) => {
  document.head.appendChild(document.createElement("style")).textContent = css;
  const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
  const { default: module } = await import(url);
  const [values, listeners] = [{ data, pinned: [] }, new Map()];
  window.saves = [];
  const model = {
    get: (name) => values[name],
    set: (name, value) => { values[name] = value; },
    save_changes: () => window.saves.push(JSON.parse(JSON.stringify(values.pinned))),
    on: (name, call) => listeners.set(name, call),
    off: (name) => listeners.delete(name),
  };
  window.change = (value) => { values.data = value; listeners.get("change:data")(); };
  window.listeners = listeners;
  const el = document.createElement("div");
  if (attached) document.body.append(el);
  const gone = await module.render({ model, el });
  window.leave = () => gone();
  if (!attached) document.body.append(el);
}
"""


def add(page: Page, panes: list[Pane], *, attached: bool = False) -> None:
    """Draw a widget below those of the page, as in a notebook."""
    made = Heatmap(payload(panes, View()), lambda: "")
    given = {"esm": made._esm, "css": made._css, "data": made.data, "attached": attached}
    widgets = page.locator(".hm")
    widget = widgets.nth(widgets.count())
    page.evaluate(FRONT_END, given)
    expect(widget.locator(".hm-text").last).to_be_visible()


@pytest.fixture
def draw(browser: Browser) -> Iterator[Draw]:
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    page.set_default_timeout(TIMEOUT_MS)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))

    def drawn(panes: list[Pane], *, attached: bool = False, style: str = "") -> Page:
        page.set_content(f"<!doctype html><html><head><style>{style}</style></head><body></body>")
        add(page, panes, attached=attached)
        return page

    yield drawn
    assert wrong == []
    assert [url for url in asked if not url.startswith("blob:")] == [], "it works without network"
    page.close()


@pytest.mark.parametrize("attached", [True, False], ids=["at once", "put in later"])
def test_pins_are_written_to_the_model(draw: Draw, attached: bool) -> None:
    page = draw(planted(1, 2), attached=attached)
    unit(page, QUERY, 1).click()
    (saved,) = page.evaluate("saves")
    assert saved == [{"model": "m", "side": "query", "start": 4, "end": 9, "text": "green"}]
    unit(page, DOCUMENT, 2).hover()
    assert len(page.evaluate("saves")) == 1, "pointing pins nothing"
    unit(page, DOCUMENT, 3).click()
    assert page.evaluate("saves.at(-1)[0].text") == "four"
    page.keyboard.press("Escape")
    assert page.evaluate("saves.at(-1)") == []


def test_an_entry_of_the_list_is_pinned_with_its_word(draw: Draw) -> None:
    page = draw(planted(1, 2))
    page.get_by_text("Largest shares").click()
    page.locator(".hm-largest button").first.click()
    assert [pin["text"] for pin in page.evaluate("saves.at(-1)")] == ["green", "three"]


def test_offsets_equal_pythons_and_markup_is_shown_as_text(draw: Draw) -> None:
    document = "🌊🌊 <img src=x onerror=alert(1)> tide"
    page = draw(column("a b", document, np.ones((2, 5))))
    words = document.split()
    assert page.locator(".hm-text").nth(DOCUMENT).inner_text().split() == words
    page.locator(".hm-text").nth(DOCUMENT).get_by_text("tide", exact=True).click()
    (pin,) = page.evaluate("saves.at(-1)")
    assert document[pin["start"] : pin["end"]] == pin["text"] == "tide"
    assert page.locator("img").count() == 0


def test_new_data_is_redrawn_and_pins_are_cleared(draw: Draw) -> None:
    page = draw(planted(1, 2))
    unit(page, QUERY, 1).click()
    page.evaluate("data => change(data)", payload(column("x", "y z", np.ones((1, 2))), View()))
    expect(page.locator(".hm-text").nth(DOCUMENT)).to_have_text("y z")
    assert page.evaluate("saves.at(-1)") == []
    page.evaluate("leave()")
    assert page.locator(".hm").count() == 0 and page.evaluate("listeners.size") == 0


def test_widgets_of_a_notebook_have_separate_toggles(draw: Draw) -> None:
    page = draw(planted(1, 2))
    add(page, planted(1, 2))
    widgets = page.locator(".hm").all()
    initial = [choices(widget) for widget in widgets]
    assert len(initial) == 2 and initial[0] == initial[1] and "level=word" in initial[0]
    widgets[0].get_by_role("radio", name="Token").check()
    assert [choices(widget) for widget in widgets] == [
        [choice.replace("word", "token") for choice in initial[0]],
        initial[1],
    ]


def choices(widget: Locator) -> list[str]:
    """The selected options of a widget's toggles."""
    chosen: list[str] = widget.evaluate(
        "node => [...node.querySelectorAll('[type=radio]:checked')]"
        ".map(input => `${input.name}=${input.value}`)"
    )
    return chosen


def test_notebooks_without_widgets_show_html_and_only_the_browser_pins() -> None:
    made = Heatmap(payload(planted(1, 2), View()), lambda: "<p>heatmap</p>")
    formats, _ = made._repr_mimebundle_()
    assert formats["text/html"] == "<p>heatmap</p>"
    assert "application/vnd.jupyter.widget-view+json" in formats
    with pytest.raises(TraitError, match="read-only"):
        made.pinned = [{}]
    made.set_state({"pinned": [{"text": "tide"}]})
    assert made.pinned == [{"text": "tide"}]


def test_it_follows_the_notebooks_theme(draw: Draw) -> None:
    dark = "body[data-jp-theme-light=false] { --jp-layout-color0: #111; "
    page = draw(planted(1, 2), style=f"{dark} --jp-content-font-color0: #eee; }}")
    root = page.locator(".hm")
    expect(root).to_have_attribute("data-theme", "light")
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    expect(root).to_have_attribute("data-theme", "dark")
    assert root.evaluate("node => getComputedStyle(node).backgroundColor") == "rgb(17, 17, 17)"

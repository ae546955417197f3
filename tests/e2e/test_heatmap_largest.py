"""The list of a matrix's largest shares, which leads into the text."""

from __future__ import annotations

import numpy as np
from playwright.sync_api import Page

from poslens.figures.palettes import Style
from poslens.heatmap.data import View
from poslens.heatmap.standalone import to_image
from tests.e2e.conftest import Show, until
from tests.e2e.test_heatmap_links import (
    DOCUMENT,
    QUERY,
    body,
    cells,
    column,
    planted,
    unit,
    wait_for_cells,
)
from tests.e2e.waiting import expect


def listed(page: Page) -> list[str]:
    return page.locator(".hm-largest button").all_inner_texts()


def opened(page: Page) -> Page:
    page.get_by_text("Largest shares").click()
    expect(page.locator(".hm-largest li").first).to_be_visible()
    return page


def in_sight(page: Page, u: int) -> bool:
    """Whether a document unit is visible in its box and in the window."""
    return unit(page, DOCUMENT, u).evaluate(
        """run => { const [unit, box] = [run, run.closest(".hm-text")].map((node) =>
             node.getBoundingClientRect());
           return unit.top >= Math.max(0, box.top)
             && unit.bottom <= Math.min(innerHeight, box.bottom); }"""
    )


def test_the_list_is_the_sorted_matrix(show: Show) -> None:
    matrix = np.random.default_rng(3).normal(size=(6, 9)).astype(np.float32)
    matrix[2] = 0
    page = opened(show(column("a b c d e f", "r s t u v w x y z", matrix)))
    order = np.argsort(-np.abs(matrix), axis=None)[:20]
    wanted = [("abcdef"[i // 9], "rstuvwxyz"[i % 9], matrix.flat[i]) for i in order]
    found = [text.split() for text in listed(page)]
    assert [(row[0], row[2]) for row in found] == [(q, d) for q, d, _ in wanted]
    for row, (_, _, value) in zip(found, wanted, strict=True):
        assert float(row[3].replace("−", "-")) == float(f"{value:.3g}")


def test_a_click_scrolls_to_the_word_and_recolors_by_the_query_word(show: Show) -> None:
    matrix = np.zeros((3, 2000))
    matrix[1, 1500], matrix[2, 30] = 0.5, -0.25
    page = opened(show(column("red green blue", " ".join(f"w{i}" for i in range(2000)), matrix)))
    assert listed(page) == ["green × w1500 +0.500 at 75%", "blue × w30 −0.250 at 2%"]
    assert not in_sight(page, 1500)
    first, second = page.locator(".hm-largest button").all()
    first.click()
    expect(page.locator(".hm-pinned")).to_have_text(["green", "w1500"])
    assert in_sight(page, 1500)
    assert cells(page, DOCUMENT)[1500] == 128
    page.mouse.move(2, 2)
    # invisible text is colored later, in slices
    wait_for_cells(page, DOCUMENT, lambda found: np.nonzero(found)[0].tolist() == [1500])
    assert first.get_attribute("aria-current") == "true"
    second.press("Enter")
    expect(page.locator(".hm-pinned")).to_have_text(["blue", "w30"])
    assert in_sight(page, 30)
    assert cells(page, DOCUMENT)[30] == -64
    assert "w30, " in page.locator("[aria-live]").inner_text()
    assert "share with «blue» −0.250" in page.locator("[aria-live]").inner_text()
    assert first.get_attribute("aria-current") is None
    # pinning anything else, or Escape, deselects the entry
    unit(page, QUERY, 0).click()
    assert page.locator(".hm-pinned").all_inner_texts() == ["red"]
    page.keyboard.press("Escape")
    assert page.locator(".hm-pinned, [aria-current]").count() == 0


def test_the_list_follows_units_and_aggregation(show: Show) -> None:
    # tokens of two characters: "ab" "cd" | "ef" by "uv" "wx" | "yz"
    matrix = [[0.5, -0.75, 0.125], [0.25, 0.125, 0.0], [1.0, 0.0, -2.0]]
    page = opened(show(column("abcd ef", "uvwx yz", matrix, pattern=r"\S\S")))
    assert [text.split(" at")[0] for text in listed(page)] == [
        "ef × yz −2.00",
        "ef × uvwx +1.00",
        "abcd × uvwx +0.125",
        "abcd × yz +0.125",
    ]
    page.get_by_role("radio", name="Max").check()
    assert "abcd × uvwx −0.750 at 0%" in listed(page)
    page.get_by_role("radio", name="Token").check()
    assert listed(page)[:2] == ["ef × yz −2.00 at 67%", "ef × uv +1.00 at 0%"]


def test_each_column_has_its_list_and_columns_scroll_together(show: Show) -> None:
    words = " ".join(f"w{i}" for i in range(2000))
    matrix = np.zeros((1, 2000))
    matrix[0, 1200] = 1
    page = show(column("q", words, matrix, "one") + column("q", words, -matrix, "two"))
    page.get_by_text("Largest shares").last.click()
    page.get_by_role("button", name="q × w1200 −1.00").click()
    expect(page.locator(".hm-pinned")).to_have_count(2)
    texts = page.locator("[data-side=document] .hm-text")

    def level() -> bool:
        first, second = texts.evaluate_all("nodes => nodes.map((node) => node.scrollTop)")
        return bool(first > 0 and abs(first - second) < 2)

    until(page, level)
    assert body(page, 3).locator(".hm-pinned").inner_text() == "w1200"


def test_hostile_words_stay_text_and_pictures_have_no_list(show: Show) -> None:
    hostile = "<img/src=x/onerror=alert(1)>"
    page = opened(show(column(hostile, "b", [[1]]), View(level="token")))
    assert listed(page) == [f"{hostile} × b +1.00 at 0%"]
    assert page.locator("img").count() == 0
    svg = to_image(planted(1, 2), View(), [], Style(width_px=700)).decode()
    assert "Largest" not in svg and "green" in svg

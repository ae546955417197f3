"""The heatmap's two panes linked by the matrix, in a real browser, through the standalone page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import CDPSession, Page

from poslens.attribution.types import Attribution, Method, Token, TokenizedText
from poslens.figures.palettes import Style
from poslens.heatmap.data import Pane, View, pane
from poslens.heatmap.standalone import to_image
from tests.e2e.conftest import Show, until
from tests.e2e.waiting import expect

QUERY, DOCUMENT = 0, 1  # panes of the first column
SWAP_QUERY, SWAP_DOCUMENT = "red green blue grey", "one two three four"


def tokenized(text: str, pattern: str) -> TokenizedText:
    """Tokens between a [CLS] and a [SEP]."""
    found = [Token(m.group(), m.start(), m.end()) for m in re.finditer(pattern, text)]
    special = [Token(name, 0, 0, True) for name in ("[CLS]", "[SEP]")]
    return TokenizedText.of((special[0], *found, special[1]), len(found), 8192)


def column(
    query: str, document: str, matrix: Any, model: str = "m", pattern: str = r"\S+"
) -> list[Pane]:
    """Both panes of a matrix between text tokens; every special token's share is a large 9."""
    of_query, of_document = tokenized(query, pattern), tokenized(document, pattern)
    full = np.full((len(of_query.tokens), len(of_document.tokens)), 9.0, dtype=np.float32)
    full[1:-1, 1:-1] = matrix
    attribution = Attribution(
        model,
        Method("decomposition"),
        "p",
        1.0,
        of_query,
        of_document,
        full.sum(1),
        full.sum(0),
        matrix=full,
    )
    return [
        pane(attribution, "query", query, signed=True),
        pane(attribution, "document", document, signed=True),
    ]


def planted(row: int, column_: int, value: float = 0.5, model: str = "m") -> list[Pane]:
    """Four by four words with one nonzero cell: a transposed matrix would have the same shape."""
    matrix = np.zeros((4, 4))
    matrix[row, column_] = value
    return column(SWAP_QUERY, SWAP_DOCUMENT, matrix, model)


def body(page: Page, pane_: int):
    return page.locator(".hm-text").nth(pane_)


def unit(page: Page, pane_: int, u: int):
    return body(page, pane_).locator(f"[data-u='{u}']").first


def cells(page: Page, pane_: int) -> list[int]:
    """Step of each run on the scale, -128 to 128."""
    return body(page, pane_).evaluate(
        """node => [...node.querySelectorAll("[data-u]")].map(
          (run) => Number(/hm-(\\d+)/.exec(run.className)[1]) - 128)"""
    )


def wait_for_cells(page: Page, pane_: int, right: Callable[[list[int]], bool]) -> None:
    """Wait until the colors are right: invisible text is colored later, in slices."""
    until(page, lambda: right(cells(page, pane_)))


def legend(page: Page) -> str:
    return page.locator(".hm-link-bar .hm-scale-title").first.inner_text()


def leave(page: Page) -> None:
    """Move the pointer away from all words, and wait long enough that a pin would have
    disappeared."""
    page.mouse.move(2, 2)
    page.wait_for_timeout(200)
    if page.locator(".hm-pinned").count() == 0:
        expect(page.locator(".hm-link-bar.hm-active")).to_have_count(0)


def test_the_legend_fits_into_a_narrow_window(show: Show) -> None:
    page = show(planted(0, 3), width=390)
    box = page.locator(".hm-link-bar").bounding_box()
    assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390


def test_a_planted_cell_highlights_only_its_word(show: Show) -> None:
    page = show(planted(1, 2))
    unit(page, QUERY, 1).hover()
    assert cells(page, DOCUMENT) == [0, 0, 128, 0]
    unit(page, DOCUMENT, 2).hover()
    assert cells(page, QUERY) == [0, 128, 0, 0]
    # and not where swapped rows and columns would put it
    unit(page, QUERY, 2).hover()
    assert cells(page, DOCUMENT) == [0, 0, 0, 0]
    unit(page, DOCUMENT, 1).hover()
    assert cells(page, QUERY) == [0, 0, 0, 0]


def test_a_negative_share_is_blue_on_its_own_scale(show: Show) -> None:
    page = show(planted(0, 3, -0.25))
    unit(page, QUERY, 0).hover()
    assert cells(page, DOCUMENT) == [0, 0, 0, -128]
    ticks = page.locator(".hm-link-bar .hm-tick").all_inner_texts()
    assert ticks == ["−0.250", "+0.250"]


def test_leaving_restores_colors_and_legend(show: Show) -> None:
    page = show(planted(1, 2))
    usual = [cells(page, QUERY), cells(page, DOCUMENT), legend(page)]
    assert "hover over a word" in usual[2]
    unit(page, QUERY, 1).hover()
    assert cells(page, DOCUMENT) != usual[1]
    assert cells(page, QUERY) == usual[0]
    assert "share with «green»" in legend(page)
    assert "document colored by share with «green», largest: «three» +0.500" in (
        page.locator("[aria-live]").inner_text()
    )
    leave(page)
    assert [cells(page, QUERY), cells(page, DOCUMENT), legend(page)] == usual


def test_the_layout_does_not_change_with_colors(show: Show) -> None:
    page = show(planted(1, 2) + planted(3, 1, model="n"))
    boxes = """[...document.querySelectorAll('.hm-text, .hm-legend, .hm-own-legend, .hm-foot')].map(
      (node) => JSON.stringify(node.getBoundingClientRect()))"""
    for name in ("Shared", "Own"):
        page.get_by_role("radio", name=name).check()
        leave(page)
        before = page.evaluate(boxes)
        unit(page, QUERY, 1).click()
        unit(page, DOCUMENT, 2).hover()
        assert page.evaluate(boxes) == before
        page.keyboard.press("Escape")


def test_a_pinned_unit_stays_while_pointing_at_the_other_pane(show: Show) -> None:
    page = show(planted(1, 2))
    usual = cells(page, DOCUMENT)
    unit(page, QUERY, 1).click()
    leave(page)
    assert cells(page, DOCUMENT) == [0, 0, 128, 0]
    assert page.locator(".hm-pinned").all_inner_texts() == ["green"]
    tip = page.locator(".hm-tip")
    for u, value in ((2, "+0.500"), (0, "0")):
        unit(page, DOCUMENT, u).hover()
        assert f"share with «green»\n{value}\n" in tip.inner_text()
    # pointing at others, on either side, changes nothing
    unit(page, QUERY, 3).hover()
    assert "share with" not in tip.inner_text()
    assert cells(page, DOCUMENT) == [0, 0, 128, 0]
    # a second click unpins it, and leaving restores colors
    unit(page, QUERY, 1).click()
    assert page.locator(".hm-pinned").count() == 0
    leave(page)
    assert cells(page, DOCUMENT) == usual
    # the next click moves the pin, here to the other side
    unit(page, QUERY, 1).click()
    unit(page, DOCUMENT, 2).click()
    assert page.locator(".hm-pinned").all_inner_texts() == ["three"]
    assert (cells(page, QUERY), cells(page, DOCUMENT)) == ([0, 128, 0, 0], usual)
    # Escape unpins it, even if the focus is elsewhere
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Escape")
    assert page.locator(".hm-pinned").count() == 0
    assert cells(page, DOCUMENT) == usual


def test_selecting_text_pins_nothing(show: Show) -> None:
    page = show(planted(1, 2))
    box = unit(page, QUERY, 1).bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, middle, steps=4)
    page.mouse.up()
    assert page.locator(".hm-pinned").count() == 0


def test_links_pins_and_values_work_with_the_keyboard(show: Show) -> None:
    page = show(planted(1, 2))
    usual = cells(page, DOCUMENT)
    live = page.locator("[aria-live]")
    body(page, QUERY).focus()
    page.keyboard.press("Home")
    assert cells(page, DOCUMENT) == [0, 0, 0, 0]
    page.keyboard.press("ArrowRight")
    assert cells(page, DOCUMENT) == [0, 0, 128, 0]
    assert live.inner_text().endswith(
        "position 25%, document colored by share with «green», largest: «three» +0.500"
    )
    page.keyboard.press("Enter")
    assert "share with «green», pinned, largest:" in live.inner_text()
    page.keyboard.press("Tab")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert re.fullmatch(
        r"three, [\d.]+, rank 1 of 4, position 50%, share with «green» \+0\.500", live.inner_text()
    )
    assert "share with «green»\n+0.500" in page.locator(".hm-tip").inner_text()
    page.keyboard.press("Escape")
    assert cells(page, DOCUMENT) == usual
    # without a pin, colors follow the focus
    page.keyboard.press("ArrowRight")
    assert cells(page, QUERY) == [0, 0, 0, 0]
    page.keyboard.press("Shift+Tab")
    expect(page.locator(".hm-link-bar .hm-scale-title").first).to_contain_text("Query")


def test_units_take_the_sum_or_the_maximum_of_their_tokens(show: Show) -> None:
    # tokens of two characters: "ab" "cd" | "ef" by "uv" "wx" | "yz"
    matrix = [[0.5, -0.75, 0.125], [0.25, 0.125, 0.0], [1.0, 0.0, -2.0]]
    panes = column("abcd ef", "uvwx yz", matrix, pattern=r"\S\S")
    page = show(panes)
    tip = page.locator(".hm-tip")

    def values() -> list[str]:
        read = []
        for u in range(body(page, DOCUMENT).locator("[data-u]").count()):
            unit(page, DOCUMENT, u).hover()
            read.append(tip.inner_text().split("\n")[2])
        return read

    unit(page, QUERY, 0).click()
    # by hand: 0.5 - 0.75 + 0.25 + 0.125 = 0.125, 0.125 + 0
    assert values() == ["+0.125", "+0.125"]
    # the range is that of all word pairs: 1 and -2 with "ef"
    assert cells(page, DOCUMENT) == [8, 8]
    page.get_by_role("radio", name="Max").check()
    assert page.locator(".hm-pinned").all_inner_texts() == ["abcd"]
    assert values() == ["−0.750", "+0.125"]
    page.get_by_role("radio", name="Token").check()
    # another level has other units, so the pin is removed
    assert page.locator(".hm-pinned").count() == 0
    unit(page, QUERY, 1).click()
    assert values() == ["+0.250", "+0.125", "0"]
    page.get_by_role("radio", name="Sum").check()
    page.get_by_role("radio", name="Sentence").check()
    unit(page, QUERY, 0).click()
    assert values() == ["−0.750"]
    assert cells(page, DOCUMENT) == [-128]


def test_columns_are_linked_separately_and_share_ranges_by_setting(show: Show) -> None:
    page = show(planted(1, 2, 0.5, "one") + planted(1, 2, 1.0, "two"))
    usual = cells(page, 3)
    unit(page, 0, 1).click()
    assert cells(page, 1) == [0, 0, 64, 0]
    assert cells(page, 3) == usual
    unit(page, 2, 1).hover()
    assert cells(page, 1) == [0, 0, 64, 0]
    assert cells(page, 3) == [0, 0, 128, 0]
    unit(page, 2, 3).click()
    assert "share with «green», «grey»" in legend(page)
    page.get_by_role("radio", name="Own").check()
    assert cells(page, 1) == [0, 0, 128, 0]
    ticks = page.locator(".hm-link-bar .hm-tick").all_inner_texts()
    assert ticks[1::2] == ["+0.500", "+1.00"]
    page.keyboard.press("Escape")
    assert cells(page, 3) != [0, 0, 0, 0]


def test_keys_that_scroll_keep_the_link(show: Show) -> None:
    words = [f"w{i}" for i in range(2000)]
    page = show(column("q", " ".join(words), np.ones((1, 2000))))
    body(page, DOCUMENT).focus()
    page.keyboard.press("Home")
    page.keyboard.press("End")
    page.wait_for_timeout(300)
    assert "share with «w1999»" in legend(page)
    assert page.locator(".hm-tip").is_visible()
    # scrolling by the reader still removes both
    body(page, DOCUMENT).evaluate("node => { node.scrollTop = 0; }")
    expect(page.locator(".hm-tip")).to_be_hidden()
    expect(page.locator(".hm-link-bar.hm-active")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_labels_are_text_in_every_theme(show: Show, theme: str) -> None:
    hostile = "<img/src=x/onerror=alert(1)>"
    page = show(column(f"{hostile} b", "c d", [[1, 0], [0, 0.5]]), View(level="token"), theme=theme)
    unit(page, QUERY, 0).click()
    unit(page, DOCUMENT, 0).hover()
    assert f"share with «{hostile}»" in page.locator(".hm-tip").inner_text()
    assert f"share with «{hostile}»" in legend(page)
    assert page.locator("img").count() == 0


def test_without_a_matrix_nothing_is_linked(show: Show) -> None:
    panes = [Pane(f"m/{side}", "m", side, "a", ((0, 1, 1.0),)) for side in ("query", "document")]
    page = show(panes, View(level="token"))
    unit(page, QUERY, 0).click()
    assert page.locator(".hm-link-bar, .hm-pinned, .hm-link").count() == 0
    assert page.locator(".hm-link-note:visible").count() == 0
    assert page.locator("[aria-live]").inner_text() == ""
    # a document alone can't be linked
    page = show(planted(1, 2)[1:])
    unit(page, 0, 2).click()
    assert page.locator(".hm-link-bar, .hm-pinned, .hm-link").count() == 0


def test_a_picture_has_no_legend_for_interaction() -> None:
    svg = to_image(planted(1, 2), View(), [], Style(width_px=700)).decode()
    assert svg.count('class="scale"') == 2
    assert "point" not in svg


def test_a_long_document_responds_before_all_of_it_is_colored(show: Show) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(12, 8192))
    # one paragraph, so the browser can't skip any of it
    page = show(column(" ".join("abcdefghijkl"), "word " * 8192, matrix), View(level="token"))
    session = page.context.new_cdp_session(page)
    # CPU time of the main thread, independent of other load
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    want = np.abs(np.round(128 * matrix[11] / np.abs(matrix).max()))
    frame = "await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));"
    answers, wholes = [], []
    for _ in range(3):
        before = main_thread_ms(session)
        page.evaluate(
            f"""async () => {{ for (const run of document.querySelectorAll(".hm-text")[0]
              .querySelectorAll("[data-u]")) {{
            run.dispatchEvent(new PointerEvent("pointerover", {{ bubbles: true }}));
            {frame} }} }}"""
        )
        answers.append((main_thread_ms(session) - before) / 12)
        # invisible text follows
        wait_for_cells(page, DOCUMENT, lambda found: np.abs(np.abs(found) - want).max() <= 1)
        # reference: recoloring all cells and back, by this browser on this machine
        before = main_thread_ms(session)
        for swapped in ("-", ""):
            page.evaluate(
                f"""async (sign) => {{
                const runs = document.querySelectorAll(".hm-text")[1].querySelectorAll("[data-u]");
                for (const run of runs) {{
                  run.dataset.own ??= run.className;
                  run.className = sign
                    ? run.dataset.own.replace(/hm-(\\d+)/, (_, n) => `hm-${{256 - n}}`)
                    : run.dataset.own;
                }}
                {frame} }}""",
                swapped,
            )
        wholes.append((main_thread_ms(session) - before) / 2)
    print("main thread, ms:", np.round(answers, 1), "of", np.round(wholes, 1), "for all at once")
    assert min(answers) < 0.8 * min(wholes)


def main_thread_ms(session: CDPSession) -> float:
    metrics = session.send("Performance.getMetrics")["metrics"]
    return 1000 * next(m["value"] for m in metrics if m["name"] == "TaskDuration")


def test_text_is_colored_when_it_becomes_visible(show: Show) -> None:
    matrix = np.tile(np.linspace(-1, 1, 4000), (2, 1)) * [[1], [-1]]
    page = show(column("q r", "word " * 4000, matrix), View(level="token"))
    text = body(page, DOCUMENT)
    # Text that scrolls under the pointer removes the link one frame later.
    text.evaluate(
        """node => new Promise((done) => {
          node.addEventListener("scroll", () => setTimeout(done), { once: true });
          node.scrollTop = node.scrollHeight / 2; })"""
    )
    # two hovers at once: the second cancels the rest of the first, then all cells are colored for
    # it
    page.evaluate(
        """() => { for (const u of [0, 1])
          document.querySelector(`.hm-text [data-u="${u}"]`).dispatchEvent(
            new PointerEvent("pointerover", { bubbles: true })); }"""
    )
    wait_for_cells(
        page,
        DOCUMENT,
        lambda found: (found[0], found[-1]) == (128, -128) and found == sorted(found, reverse=True),
    )

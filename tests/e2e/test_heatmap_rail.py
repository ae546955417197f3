"""The rail next to a document, in a real browser, on the standalone page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page

from poslens.attribution.curves.positions import resample, token_range
from poslens.attribution.types import EvidenceSpan, Token, TokenizedText
from poslens.figures.palettes import Style
from poslens.heatmap.data import Fact, Head, Pane, Rail, View
from poslens.heatmap.standalone import to_image
from tests.e2e.conftest import Show, until
from tests.e2e.waiting import expect

WORDS = [f"w{i:03}" for i in range(400)]
LONG = "\n".join(" ".join(WORDS[i : i + 8]) for i in range(0, 400, 8))
MEAN = tuple(0.2 + 0.001 * b for b in range(100))


def document(
    text: str, pattern: str = r"\S+", model: str = "m", scores: Any = None, **options: Any
) -> Pane:
    """A pane with the tokens that a pattern finds, and bins computed from their scores."""
    spans = [match.span() for match in re.finditer(pattern, text)]
    values = np.ones(len(spans)) if scores is None else np.asarray(scores, dtype=float)
    bins = tuple(float(v) for v in resample(values, "bin_mean"))
    settings: dict[str, Any] = {"words": tuple(spans), "rail": Rail(bins), **options}
    tokens = tuple((*span, float(v)) for span, v in zip(spans, values, strict=True))
    return Pane(f"{model}/document", model, "document", text, tokens, **settings)


def rail(page: Page, column: int = 0) -> Locator:
    return page.locator(".hm-rail").nth(column)


def hover_bin(page: Page, bin_: int, column: int = 0) -> None:
    page.mouse.move(*inside(page.locator(".hm-rail-axis").nth(column), (bin_ + 0.5) / 100))


def place(page: Page, name: str, column: int = 0) -> tuple[float, float]:
    """The position of a mark of the rail, as shares [from, to] of the axis."""
    top, height = (
        page.locator(f".hm-rail-{name}")
        .nth(column)
        .evaluate("({ style }) => [style.top, style.height].map(parseFloat)")
    )
    return top / 100, (top + height) / 100


def bars(page: Page, column: int = 0) -> list[tuple[float, float]]:
    """[from, to] of each bar in percent of the rail's width."""
    found = rail(page, column).evaluate(
        """node => [...node.querySelectorAll("rect")].map((bar) =>
          ["x", "width"].map((name) => Number(bar.getAttribute(name))))"""
    )
    return [(x, x + width) for x, width in found]


def lit(page: Page, name: str) -> list[str]:
    return page.locator(f".hm-{name}").all_inner_texts()


def test_a_bin_highlights_its_words_and_shows_its_numbers(show: Show) -> None:
    planted = np.ones(400)
    planted[292:296] = 5
    band = (tuple(m - 0.1 for m in MEAN), tuple(m + 0.1 for m in MEAN))
    plain = document(LONG, scores=planted)
    assert plain.rail is not None
    note = Rail(plain.rail.bins, MEAN, *band, "mean of 304 pairs")
    page = show([document(LONG, scores=planted, rail=note)])
    hover_bin(page, 73)
    # four tokens a bin: the 74th holds tokens 292 to 295
    assert lit(page, "at") == WORDS[292:296]
    tip = page.locator(".hm-tip").inner_text()
    for said in ("bin 74: 73–74%", "this pair\n5.00", "mean\n0.273", "band\n0.173 to 0.373"):
        assert said in tip
    assert place(page, "mark") == pytest.approx((0.73, 0.74))
    assert "mean of 304 pairs" in page.locator(".hm-foot").inner_text()
    page.mouse.move(2, 2)
    assert lit(page, "at") == []
    expect(page.locator(".hm-tip")).to_be_hidden()
    expect(page.locator(".hm-rail-mark")).to_be_hidden()


def test_a_word_highlights_its_bin(show: Show) -> None:
    page = show([document(LONG)])
    page.locator("[data-u='42']").hover()
    # tokens 40 to 43 of 400 are the eleventh bin
    assert place(page, "mark") == pytest.approx((0.10, 0.11))
    expect(page.locator(".hm-rail-mark")).to_be_visible()


def test_few_tokens_cover_many_bins(show: Show) -> None:
    page = show([document("one two three four")])
    page.locator("[data-u='1']").hover()
    assert place(page, "mark") == pytest.approx((0.25, 0.5))
    hover_bin(page, 49)
    assert lit(page, "at") == ["two"]
    hover_bin(page, 50)
    assert lit(page, "at") == ["three"]


def seen(page: Page, column: int = 0) -> list[str]:
    """Words whose lines have their middle inside the text's box."""
    return (
        page.locator(".hm-text")
        .nth(column)
        .evaluate(
            """node => { const { top } = node.getBoundingClientRect();
          const middle = (run) => { const box = run.getClientRects()[0];
            return (box.top + box.bottom) / 2 - top; };
          return [...node.querySelectorAll("[data-u]")].filter((run) =>
            middle(run) >= 0 && middle(run) < node.clientHeight).map((run) => run.textContent); }"""
        )
    )


def wait_for_frame(page: Page, column: int = 0) -> None:
    """Wait until the frame covers exactly the visible words."""

    def holds() -> bool:
        words = seen(page, column)
        want = (WORDS.index(words[0]) / 400, (WORDS.index(words[-1]) + 1) / 400)
        return place(page, "frame", column) == pytest.approx(want, abs=1e-4)

    until(page, holds)


def test_the_frame_follows_the_visible_text(show: Show) -> None:
    page = show([document(LONG)])
    wait_for_frame(page)
    assert place(page, "frame")[0] == 0
    page.locator(".hm-text").evaluate("node => { node.scrollTop = 500; }")
    until(page, lambda: place(page, "frame")[0] > 0.05)
    wait_for_frame(page)
    # by tokens and not by units: a sentence over all lines has the same frame
    page.get_by_role("radio", name="Token").check()
    wait_for_frame(page)


def test_white_space_is_on_the_line_of_the_word_that_it_belongs_to(show: Show) -> None:
    words = tuple(match.span() for match in re.finditer(r"\S+", LONG))
    page = show([document(LONG, r"\S+|\s", words=words)])
    page.locator(".hm-text").evaluate("node => { node.scrollTop = 500; }")
    until(page, lambda: place(page, "frame")[0] > 0.05)
    # Every second token is white space: the frame has the same ends as that of the words alone.
    ends = place(page, "frame")
    alone = show([document(LONG)])
    alone.locator(".hm-text").evaluate("node => { node.scrollTop = 500; }")
    until(alone, lambda: place(alone, "frame")[0] > 0.05)
    assert place(alone, "frame") == pytest.approx(ends, abs=0.005)


def test_a_click_scrolls_to_the_bin_in_all_columns(show: Show) -> None:
    page = show([document(LONG, model="one"), document(LONG, model="two")])
    box = page.locator(".hm-rail-axis").first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 20, box["y"] + 0.605 * box["height"])
    for column in (0, 1):
        until(page, lambda column=column: place(page, "frame", column)[0] > 0)
        wait_for_frame(page, column)
        assert "w240" in seen(page, column)
    # the clicked words stay highlighted, here and in the other column
    expect(page.locator(".hm-at")).to_have_text(WORDS[240:244])
    expect(page.locator(".hm-same")).to_have_text(WORDS[240:244])
    assert place(page, "mark", 1) == pytest.approx((0.60, 0.61))


def test_a_click_scrolls_to_the_right_place_in_a_long_document(show: Show) -> None:
    words = [f"word{i:04}" for i in range(2048)]
    # paragraphs of very different lengths, which the browser lays out only when they become visible
    lines, at = [], 0
    while at < len(words):
        lines.append(words[at : at + (7 if len(lines) % 3 else 160)])
        at += len(lines[-1])
    page = show([document("\n\n".join(map(" ".join, lines)))])
    box = page.locator(".hm-rail-axis").bounding_box()
    assert box is not None
    for bin_ in (85, 99, 30):
        page.mouse.click(box["x"] + 20, box["y"] + (bin_ + 0.5) / 100 * box["height"])
        wanted = words[2048 * bin_ // 100]
        until(
            page,
            lambda wanted=wanted, bin_=bin_: (
                wanted in seen(page) and place(page, "frame")[0] <= bin_ / 100
            ),
        )
        first, last = place(page, "frame")
        assert first <= bin_ / 100 and (bin_ + 1) / 100 <= last + 0.01
        sight = [words.index(word) for word in seen(page)]
        assert first == pytest.approx(sight[0] / 2048, abs=0.005)


def test_the_same_share_of_the_axis_is_marked_if_tokens_differ(show: Show) -> None:
    # twice as many tokens in the second column, but the middle is the same
    panes = [document(LONG, model="one"), document(LONG, r"\S\S", model="two")]
    page = show(panes, View(level="token"))
    hover_bin(page, 50, 1)
    assert "".join(lit(page, "at")) == "".join(WORDS[200:204])
    assert lit(page, "same") == WORDS[200:204]
    assert place(page, "mark", 0) == place(page, "mark", 1) == pytest.approx((0.50, 0.51))


def test_keys_move_between_bins_and_scroll(show: Show) -> None:
    page = show([document(LONG)])
    page.locator(".hm-text").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "hm-rail"
    spoken = []
    for key in ["Home", "ArrowDown", "ArrowRight", "PageDown", "ArrowUp", "End", "ArrowDown"]:
        page.keyboard.press(key)
        spoken.append(rail(page).get_attribute("aria-valuenow"))
    assert spoken == ["1", "2", "3", "13", "12", "100", "100"]
    assert lit(page, "at") == WORDS[396:]
    text = rail(page).get_attribute("aria-valuetext") or ""
    assert text == "bin 100, this pair 1.00, text w396 w397 w398 w399"
    assert "w399" not in seen(page)
    page.keyboard.press("Enter")
    assert "w399" in seen(page)
    wait_for_frame(page)
    page.wait_for_timeout(200)  # scrolling by keys removes nothing
    expect(page.locator(".hm-at")).to_have_text(WORDS[396:])


def test_the_rail_states_where_most_of_the_attribution_is(show: Show) -> None:
    scores = np.ones(400)
    scores[100:104] = 3
    page = show([document(LONG, scores=scores)])
    assert "peak in bin 26 of 100, 3.00" in (rail(page).get_attribute("aria-label") or "")
    assert rail(page).get_attribute("role") == "slider"


SCRIPTS = {
    # a word of many characters and tokens, then many short words, so positions by character and
    # token differ
    "long word": ("Donaudampfschifffahrtsgesellschaftskapitän " + "a b " * 30, r"\S", (50, 70)),
    "thai": ("ธารน้ำแข็งกำลังละลาย น้ำท่วมเมือง", r"\S{1,3}", (21, 28)),
    "chinese": ("冰川正在融化。海平面上升，城市被淹没。", r"\S{1,2}", (7, 12)),
    "arabic": ("الجليد يذوب في القطب الشمالي كل صيف", r"\S+", (12, 20)),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_evidence_mark_is_at_its_tokens(show: Show, name: str) -> None:
    text, pattern, span = SCRIPTS[name]
    page = show([document(text, pattern, evidence=span)])
    tokens = [Token(m.group(), *m.span()) for m in re.finditer(pattern, text)]
    read = TokenizedText.of(tuple(tokens), len(tokens), 8192)
    wanted = token_range(read, EvidenceSpan(*span))
    assert wanted is not None
    assert place(page, "evidence") == pytest.approx(wanted, abs=1e-4)
    # the rail is at the right of a text of either direction
    text_box, rail_box = page.locator(".hm-text").bounding_box(), rail(page).bounding_box()
    assert text_box and rail_box and text_box["x"] < rail_box["x"]
    # the bin in its middle highlights words of the evidence
    hover_bin(page, round(100 * (wanted[0] + wanted[1]) / 2 - 0.5))
    assert "evidence" in page.locator(".hm-tip").inner_text()
    assert page.locator(".hm-at.hm-evidence").count() > 0


def half_read(text: str = LONG, **options: Any) -> Pane:
    """A document of which the model read the first 200 words."""
    start = text.index(WORDS[200])
    spans = [m.span() for m in re.finditer(r"\S+", text[:start])]
    settings: dict[str, Any] = {"rail": Rail((1.0,) * 100), "words": tuple(spans), **options}
    tokens = tuple((*span, 1.0) for span in spans)
    return Pane("m/document", "m", "document", text, tokens, truncated_at=spans[-1][1], **settings)


def test_the_count_of_units_states_what_it_counts(show: Show) -> None:
    page = show([half_read()], View())
    expect(page.locator(".hm-meta")).to_have_text("Document 200 words and punctuation marks read")
    page = show([half_read(sentences=((0, 40),))], View(level="token"))
    expect(page.locator(".hm-meta")).to_have_text("Document 200 tokens read")


def inside(element: Locator, share: float) -> tuple[float, float]:
    """The horizontal center of an element that no longer moves, at a share of its height."""
    element.scroll_into_view_if_needed()  # waits until it stays in one place
    box = element.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + share * box["height"]


def test_the_rail_ends_at_the_truncation(show: Show) -> None:
    evidence = (LONG.index(WORDS[190]), LONG.index(WORDS[300]))
    page = show([half_read(evidence=evidence)])
    # half of fifty lines, within the line's height
    assert place(page, "read") == pytest.approx((0, 0.5), abs=0.011)
    assert place(page, "unread") == pytest.approx((0.5, 1), abs=0.011)
    expect(page.locator(".hm-rail-unread")).to_have_text("not read")
    assert "not read" in page.locator(".hm-rail-legend").inner_text()
    # by the 200 tokens read; by characters of the whole text it would end at 0.75
    assert place(page, "evidence") == pytest.approx((0.95, 1.0))
    page.mouse.move(*inside(page.locator(".hm-rail-read").first, 0.95))
    assert lit(page, "at")[-1] in WORDS[185:200]
    bottoms = rail(page).evaluate(
        """node => [...node.querySelectorAll("rect")].map((bar) =>
          bar.getBoundingClientRect().bottom)"""
    )
    assert max(bottoms) <= inside(page.locator(".hm-rail-unread").first, 0)[1] + 1


def test_the_frame_and_clicks_reach_truncated_text(show: Show) -> None:
    page = show([half_read()])
    page.mouse.move(*inside(page.locator(".hm-rail-unread").first, 0.5))
    expect(page.locator(".hm-tip")).to_contain_text("not read by this model")
    assert lit(page, "at") == []
    page.mouse.click(*inside(page.locator(".hm-rail-unread").first, 0.5))
    until(page, lambda: sum(place(page, "frame")) / 2 == pytest.approx(0.75, abs=0.02))
    page.locator(".hm-text").evaluate("node => { node.scrollTop = node.scrollHeight; }")
    until(page, lambda: place(page, "frame")[1] == pytest.approx(1))
    assert place(page, "frame")[0] > 0.5
    page.locator(".hm-text").evaluate("node => { node.scrollTop = 0; }")
    until(page, lambda: place(page, "frame")[0] == 0)


def test_the_rail_of_a_long_text_ends_at_the_share_of_its_characters(show: Show) -> None:
    text = LONG + "\n" + "\n".join([WORDS[399]] * 2000)
    page = show([half_read(text)])
    expect(page.locator(".hm-long")).to_have_count(1)
    share = (text.index(WORDS[200]) - 1) / len(text)
    assert place(page, "read") == pytest.approx((0, share), abs=1e-3)
    page.locator(".hm-text").evaluate("node => { node.scrollTop = 3000; }")
    until(page, lambda: place(page, "frame")[0] > 0.01)
    assert place(page, "read") == pytest.approx((0, share), abs=1e-3), "scrolling leaves it alone"


def test_in_a_picture_of_a_long_text_the_rail_ends_at_the_truncation() -> None:
    text = LONG + "\n" + "\n".join([WORDS[399]] * 1500)
    svg = ElementTree.fromstring(to_image([half_read(text)], View(), [], Style(width_px=700)))
    of = {
        name: [node for node in svg.iter() if node.get("class") == name]
        for name in ("rail-bar", "rail-unread", "unread")
    }
    lowest = max(float(n.attrib["y"]) + float(n.attrib["height"]) for n in of["rail-bar"])
    first = min(float(n.attrib["y"]) for n in of["unread"])
    assert abs(lowest - first) < 30
    (shaded,) = of["rail-unread"]
    last = max(float(n.attrib["y"]) + float(n.attrib["height"]) for n in of["unread"])
    assert abs(float(shaded.attrib["y"]) + float(shaded.attrib["height"]) - last) < 60


def test_signed_curves_are_drawn_on_both_sides_of_zero(show: Show) -> None:
    scores = np.zeros(400)
    scores[:4], scores[-4:] = 1, -0.5
    page = show([document(LONG, scores=scores, signed=True)])
    assert bars(page)[0] == (50, 100)
    assert bars(page)[99] == (25, 50)
    assert bars(page)[50] == (50, 50)
    fills = rail(page).evaluate(
        "node => [...node.querySelectorAll('rect')].map((bar) => bar.getAttribute('fill'))"
    )
    red, _, blue = (int(fills[99][i : i + 2], 16) for i in (1, 3, 5))
    assert blue > red
    red, _, blue = (int(fills[0][i : i + 2], 16) for i in (1, 3, 5))
    assert red > blue


def test_bars_lines_and_columns_share_a_scale(show: Show) -> None:
    low = document(LONG, model="one", scores=np.full(400, 0.5))
    high = document(LONG, model="two", rail=Rail((0.5,) * 100, (2.0,) * 100))
    page = show([low, high])
    assert bars(page, 0)[0] == bars(page, 1)[0] == (0, 25)
    points = rail(page, 1).locator(".hm-rail-mean").get_attribute("points") or ""
    assert points.split()[0] == "100.00,0.5"
    page.get_by_role("radio", name="Own").check()
    assert [bars(page, column)[0] for column in (0, 1)] == [(0, 100), (0, 25)]


def test_without_a_curve_there_is_no_rail(show: Show) -> None:
    query = Pane("m/query", "m", "query", "q", ((0, 1, 1.0),))
    page = show([query, document("a b", rail=None)])
    assert page.locator(".hm-rail, .hm-key").count() == 0
    text = page.locator(".hm-text").nth(1).bounding_box()
    box = page.locator(".hm-box").nth(1).bounding_box()
    assert text and box and box["width"] - text["width"] < 4


def test_switching_units_does_not_redraw_the_rail(show: Show) -> None:
    page = show([document(LONG)])
    page.evaluate(
        """() => { window.changes = 0;
        new MutationObserver((all) => { window.changes += all.length; }).observe(
          document.querySelector(".hm-rail svg"), { childList: true, subtree: true }); }"""
    )
    for name in ("Token", "Max", "Sentence", "Sum"):
        page.get_by_role("radio", name=name).check()
    page.wait_for_timeout(200)
    assert page.evaluate("window.changes") == 0


@pytest.mark.parametrize(
    ("width", "least", "most"), [(1440, 90, 350), (900, 90, 110), (390, 48, 64)]
)
def test_the_rail_stays_in_place_on_narrow_pages(
    show: Show, width: int, least: int, most: int
) -> None:
    page = show([document(LONG)], width=width)
    box, text = rail(page).bounding_box(), page.locator(".hm-text").bounding_box()
    assert box and text
    assert least <= box["width"] <= most
    assert box["x"] >= text["x"] + text["width"] - 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("models", [("one",), ("one", "two")])
def test_lines_stay_readable_in_a_wide_window(show: Show, models: tuple[str, ...]) -> None:
    text = "Rivers rise in spring when the snow melts. " * 40
    page = show([document(text, model=model) for model in models], width=2560)
    lines = page.locator(".hm-paragraph").first.evaluate(
        """node => { const boxes = [...node.querySelectorAll("[data-u]")].map((run) =>
             run.getBoundingClientRect().top);
           return new Set(boxes).size; }"""
    )
    assert 80 <= len(text) / lines <= 110
    assert (
        200
        <= inside(page.locator(".hm-rail").first, 0)[0]
        - inside(page.locator(".hm-text").first, 0)[0]
        <= 700
    )


def test_the_head_is_one_line_and_warns_with_a_sign(show: Show) -> None:
    facts = (Fact("reads 200 of 400 tokens", "The rest was cut", warning=True), Fact("<b>x</b>"))
    page = show([document(LONG, head=Head("0.573", facts))])
    head = page.locator(".hm-head")
    assert re.sub(r"\s+", " ", head.inner_text()) == (
        "m score 0.573 ⚠︎ reads 200 of 400 tokens <b>x</b>"
    )
    assert page.locator(".hm-warning").get_attribute("title") == "The rest was cut"
    assert page.get_by_role("img", name="warning:").count() == 1
    box, tools = head.bounding_box(), page.locator(".hm-tools").bounding_box()
    assert box and tools and box["height"] < 30 and tools["height"] < 40
    text = page.locator(".hm-text").bounding_box()
    assert text and text["y"] - tools["y"] < 130


@pytest.mark.parametrize("signed", [False, True])
def test_pictures_show_the_rail_next_to_the_whole_document(signed: bool) -> None:
    pane = document(LONG, signed=signed, evidence=(0, 40))
    assert pane.rail is not None
    curves = Rail(pane.rail.bins, MEAN, MEAN, MEAN, "mean of 304 pairs")
    pane = document(LONG, signed=signed, evidence=(0, 40), rail=curves)
    svg = ElementTree.fromstring(to_image([pane], View(), [], Style(width_px=700)))
    space = "{http://www.w3.org/2000/svg}"
    drawn = [node for node in svg.iter() if "rail" in (node.get("class") or "")]
    bins = [node for node in drawn if node.get("class") == "rail-bar"]
    assert len(bins) == 100
    edges = [(float(n.attrib["y"]), float(n.attrib["height"])) for n in bins]
    gaps = [b[0] - sum(a) for a, b in pairwise(edges)]
    assert max(map(abs, gaps)) < 0.02, "bars touch"
    names = {node.get("class") for node in drawn}
    assert {"rail-mean", "rail-band", "rail-evidence", "rail-zero"} <= names
    # at full length: from the first line to the last
    cells = [float(n.attrib["y"]) for n in svg.iter(f"{space}rect") if n.get("class") == "cell"]
    tops = [float(node.attrib["y"]) for node in bins]
    assert max(cells) > 1200
    assert abs(min(tops) - min(cells)) < 30 and abs(max(tops) - max(cells)) < 60
    right = max(float(node.attrib["x"]) + float(node.attrib["width"]) for node in bins)
    assert right <= float(svg.attrib["width"])
    words = ["".join(text.itertext()) for text in svg.iter(f"{space}text")]
    assert "304" in words and "click" not in words

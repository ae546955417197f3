"""The heatmap in a real browser, through the standalone page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page

from poslens.heatmap.data import Pane, Special, View
from tests.e2e.conftest import Show, until


def document(text: str, tokens=(), model="m", side: Any = "document", **options: Any) -> Pane:
    words, at = [], 0
    for word in text.split():
        at = text.index(word, at)
        words.append((at, at + len(word)))
        at += len(word)
    settings: dict[str, Any] = {"words": tuple(words), "sentences": ((0, len(text)),), **options}
    return Pane(f"{model}/{side}", model, side, text, tuple(tokens), **settings)


def drawn_text(page: Page, index: int = 0) -> str:
    return page.locator(".hm-text").nth(index).evaluate("node => node.textContent")


def units(page: Page, index: int = 0) -> list[str]:
    """Text of each unit of a pane, its runs joined."""
    return (
        page.locator(".hm-text")
        .nth(index)
        .evaluate(
            """node => { const all = {};
        for (const run of node.querySelectorAll("[data-u]"))
          all[run.dataset.u] = (all[run.dataset.u] ?? "") + run.textContent;
        return Object.values(all); }"""
        )
    )


def colors(page: Page, index: int = 0) -> list[str]:
    return (
        page.locator(".hm-text")
        .nth(index)
        .evaluate(
            """node => [...node.querySelectorAll("[data-u]")]
          .map((run) => getComputedStyle(run).backgroundColor)"""
        )
    )


def tooltip(page: Page, unit: int, pane: int = 0) -> str:
    page.locator(".hm-text").nth(pane).locator(f"[data-u='{unit}']").first.hover()
    return page.locator(".hm-tip").inner_text()


TEXTS = {
    "arabic": "السلام عليكم\nHello عالم 123",
    "thai": "ธารน้ำแข็งกำลังละลาย น้ำ",
    "cjk": "冰川正在融化。日本語のテキスト",
    "emoji": "a 👩‍🔬 b 👨‍👩‍👧‍👦 🇨🇭 👍🏽 z",
    "marks": "e\u0301e\u0301 Z\u0351\u036b\u0343 नि क्षि",
    "breaks": "one\r\n\r\ntwo\n\n\tthree\rfour\u2028five  six \n",
    "controls": "a\u202eb\u0000c\u200bd\u200d\ufeffe",
}


@pytest.mark.parametrize("level", ["word", "token", "sentence"])
def test_the_displayed_text_equals_the_original(show: Show, level: Any) -> None:
    # one token per code point would split every cluster that can be split
    panes = [
        document(text, [(i, i + 1, i / len(text)) for i in range(len(text))], model=name)
        for name, text in TEXTS.items()
    ]
    page = show(panes, View(level=level))
    assert {name: drawn_text(page, index) for index, name in enumerate(TEXTS)} == TEXTS


def test_the_tooltip_stays_in_a_low_window(show: Show) -> None:
    """It fits neither above nor below the word."""
    page = show([document("one two three", [(0, 3, 1.0), (4, 7, 0.5), (8, 13, 0.2)])])
    tooltip(page, 1)
    box = page.locator(".hm-tip").bounding_box()
    assert box is not None
    height = round(box["height"]) + 20
    page.mouse.move(0, 0)
    page.set_viewport_size({"width": 900, "height": height})
    tooltip(page, 1)
    box = page.locator(".hm-tip").bounding_box()
    assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= height


def test_grapheme_clusters_are_never_split(show: Show) -> None:
    text = "e\u0301 👩‍🔬x"
    tokens = [(i, i + 1, 1.0) for i in range(len(text)) if text[i] != " "]
    page = show([document(text, tokens)], View(level="token"))
    assert units(page) == ["e\u0301", "👩‍🔬", "x"]
    assert "sum of 3 tokens" in tooltip(page, 1)
    # a token that starts inside a cluster, and an empty token
    page = show([document(text, [(1, 2, 1.0), (4, 4, 2.0)])], View(level="token"))
    assert units(page) == ["e\u0301", "👩‍🔬"]


def test_offsets_count_code_points(show: Show) -> None:
    page = show([document("🧊🧊 ice", [(0, 2, 1.0), (3, 6, 2.0)])], View(level="token"))
    assert units(page) == ["🧊🧊", "ice"]


def test_words_take_the_sum_or_the_maximum_of_their_tokens(show: Show) -> None:
    # by hand: "unhappy" 0.5 - 0.75 + 0.125 = -0.125, largest magnitude -0.75; "cat" 0.25
    tokens = [(0, 2, 0.5), (2, 5, -0.75), (5, 7, 0.125), (7, 11, 0.25)]
    page = show([document("unhappy cat", tokens, signed=True)])
    assert units(page) == ["unhappy", "cat"]
    assert "−0.125" in tooltip(page, 0)
    assert "2 of 2" in tooltip(page, 0)
    page.get_by_role("radio", name="Max").check()
    assert "−0.750" in tooltip(page, 0)
    assert "1 of 2" in tooltip(page, 0)
    # the leading space of a SentencePiece token does not move it out of its word
    assert "0.250" in tooltip(page, 1)
    page.get_by_role("radio", name="Sentence").check()
    page.get_by_role("radio", name="Sum").check()
    assert units(page) == ["unhappy cat"]
    assert "0.125" in tooltip(page, 0)
    # numbers close to 0, as in the header
    page = show([document("tiny", [(0, 4, -1.234e-5)], signed=True)])
    assert "−1.23·10⁻⁵" in tooltip(page, 0)


def test_a_planted_score_is_darkest_and_listed_first(show: Show) -> None:
    text = "a b c d e f"
    tokens = [(2 * i, 2 * i + 1, 9.0 if i == 3 else 0.1 * i) for i in range(6)]
    page = show([document(text, tokens)])
    channels = [sum(map(int, c[4:-1].split(", "))) for c in colors(page)]
    assert min(channels) == channels[3]
    assert channels[3] < 0.6 * min(channels[:3] + channels[4:])
    assert "1 of 6" in tooltip(page, 3)
    assert "position\n50%" in tooltip(page, 3)
    table = page.locator(".hm-pane table tr").nth(1).inner_text().split("\t")
    assert table[:3] == ["1", "d", "9.00"]


def test_color_ranges_are_shared_or_separate(show: Show) -> None:
    panes = [document("a b", [(0, 1, 1), (2, 3, top)], model=f"m{top}") for top in (2, 4)]
    page = show(panes)
    assert colors(page, 0)[1] != colors(page, 1)[1]
    assert page.locator(".hm-legend .hm-tick").all_inner_texts() == ["0", "4.00"]
    page.get_by_role("radio", name="Own").check()
    assert colors(page, 0)[1] == colors(page, 1)[1]
    ticks = page.locator(".hm-own-legend .hm-tick").all_inner_texts()
    assert ticks == ["0", "2.00", "0", "4.00"]
    assert page.evaluate("window.view.range") == "own"


def test_query_and_document_have_separate_ranges(show: Show) -> None:
    panes = [
        document("q", [(0, 1, 100)], side="query"),
        document("d", [(0, 1, 1)]),
    ]
    page = show(panes)
    assert colors(page, 0) == colors(page, 1)


def test_pointing_highlights_the_same_characters_in_other_panes(show: Show) -> None:
    text = "melting ice"
    one = document(text, [(0, 4, 1), (4, 7, 1), (8, 11, 1)], model="one")
    two = document(text, [(0, 2, 1), (2, 5, 1), (5, 7, 1), (8, 11, 1)], model="two")
    page = show([one, two], View(level="token"))
    tooltip(page, 0)  # "melt": characters 0 to 4
    assert page.locator(".hm-at").all_inner_texts() == ["melt"]
    assert page.locator(".hm-same").all_inner_texts() == ["me", "lti"]
    page.mouse.move(1, 1)
    assert page.locator(".hm-at, .hm-same").count() == 0
    other = document("another text", [(0, 7, 1)], model="two")
    page = show([one, other], View(level="token"))
    tooltip(page, 0)
    assert page.locator(".hm-same").count() == 0


def test_linked_documents_scroll_to_the_same_character(show: Show) -> None:
    text = "\n".join(f"line {i} of many" for i in range(200))
    spans = [(i, i + 4) for i in range(0, len(text) - 4, 5)]
    panes = [document(text, [(s, e, 1) for s, e in spans], model=m) for m in ("one", "two")]
    page = show(panes)
    tops = "[...document.querySelectorAll('.hm-text')].map((node) => Math.round(node.scrollTop))"
    scroll = "document.querySelectorAll('.hm-text')[%d].scrollTop = %d"
    page.evaluate(scroll % (0, 1500))

    def level() -> bool:
        first, second = page.evaluate(tops)
        return bool(first > 900 and first == second)

    until(page, level)
    page.get_by_role("checkbox", name="Scroll together").uncheck()
    page.evaluate(scroll % (1, 100))
    page.wait_for_timeout(200)
    assert page.evaluate(f"() => {{ const [a, b] = {tops}; return a > 900 && b === 100; }}")


def test_keys_move_between_units(show: Show) -> None:
    text = "alpha beta gamma\ndelta epsilon zeta\nשלום עולם"
    tokens = [(w.start(), w.end(), 1.0) for w in re.finditer(r"\S+", text)]
    page = show([document(text, tokens), document("q", [(0, 1, 1)], side="query")])
    live = page.locator("[aria-live]")
    page.locator(".hm-text").first.focus()
    reached = []
    keys = "Home ArrowRight ArrowRight ArrowLeft ArrowDown ArrowUp End ArrowRight ArrowRight"
    for key in keys.split():
        page.keyboard.press(key)
        reached.append(live.inner_text().split(",")[0])
    # in the right-to-left line, the right arrow moves backwards
    assert reached == ["alpha", "beta", "gamma", "beta", "epsilon", "beta", "עולם", "שלום", "zeta"]
    assert live.inner_text() == "zeta, 1.00, rank 1 of 8, position 63%"
    assert page.locator(".hm-tip").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator(".hm-tip").is_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.pane") == "m/query"


def test_truncated_text_is_gray_and_labeled(show: Show) -> None:
    page = show([document("read unread tail", [(0, 4, 1)], truncated_at=4)])
    assert "12 of 16 characters not read by this model" in page.locator(".hm-under").inner_text()
    page.locator(".hm-text .hm-unread").first.hover()
    assert "not read by this model" in page.locator(".hm-tip").inner_text()
    assert units(page) == ["read"]


def test_evidence_marks_do_not_change_layout_and_color(show: Show) -> None:
    text, tokens = "one two three", [(0, 3, 1), (4, 7, 2), (8, 13, 3)]
    size = "(() => { const b = document.querySelector('.hm-text').getBoundingClientRect();"
    size += " return [b.width, b.height]; })()"
    plain = show([document(text, tokens)])
    marked = show([document(text, tokens, evidence=(2, 7))])
    assert marked.evaluate(size) == plain.evaluate(size)
    assert set(colors(marked)) == set(colors(plain))
    assert marked.locator(".hm-text .hm-evidence").all_inner_texts() == ["e", " ", "two"]
    assert "evidence" in marked.locator(".hm-legend").inner_text()


def test_a_difference_has_the_colors_of_the_models_lines(show: Show) -> None:
    pane = document(
        "more less",
        [(0, 4, 1), (5, 9, -1)],
        signed=True,
        signs=("a higher", "b higher"),
        unit="Saliency (1 = document's 99th percentile)",
    )
    page = show([pane])
    legend = page.locator(".hm-legend")
    assert legend.locator(".hm-key").all_inner_texts() == ["a higher", "b higher"]
    swatches = legend.locator(".hm-swatch").evaluate_all(
        "nodes => nodes.map((node) => getComputedStyle(node).backgroundColor)"
    )
    for shown in (colors(page), swatches):
        (r, _, b), (r_of_b, _, b_of_b) = (map(int, c[4:-1].split(", ")) for c in shown)
        assert b > r and r_of_b > b_of_b
    unit = legend.locator(".hm-unit")
    assert unit.evaluate("node => node.scrollWidth <= node.clientWidth"), "it is cut"


def test_special_tokens_are_listed_without_color(show: Show) -> None:
    specials = (Special("[CLS]", 0.12), Special("[SEP]", 0.31))
    page = show([document("a", [(0, 1, 1)], specials=specials)])
    line = page.locator(".hm-special-line")
    assert not line.is_visible()
    page.get_by_text("Special tokens").click()
    assert line.inner_text().split() == ["Document", "[CLS]", "0.120", "[SEP]", "0.310"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("signed", [True, False])
def test_contrast_is_at_least_4_5_everywhere(show: Show, theme: str, signed: bool) -> None:
    n = 257
    text = "x " * n
    scores = [(i - n // 2) / (n // 2) if signed else i / n for i in range(n)]
    tokens = [(2 * i, 2 * i + 1, score) for i, score in enumerate(scores)]
    pane = document(text, tokens[:-1], signed=signed, truncated_at=2 * n - 2)
    page = show([pane], theme=theme)
    pairs = page.evaluate(
        """() => { const page = getComputedStyle(document.querySelector('.hm')).backgroundColor;
        const context = document.createElement("canvas").getContext("2d",
          { willReadFrequently: true });
        const paint = (...colors) => { for (const color of colors) {
            context.fillStyle = color; context.fillRect(0, 0, 1, 1); }
          return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)]; };
        return [...document.querySelectorAll('.hm-text span, .hm-meta, .hm-tick')].map(
          (run) => { const style = getComputedStyle(run);
            return [paint(page, style.backgroundColor), paint(page, style.color)]; }); }"""
    )

    def luminance(rgb: list[int]) -> float:
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (value / 255 for value in rgb)
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert len({tuple(cell) for cell, _ in pairs}) > 60
    for pair in pairs:
        low, high = sorted(map(luminance, pair))
        assert (high + 0.05) / (low + 0.05) >= 4.5, pair


HOSTILE = [
    form.format(code)
    for code in (
        "alert(1)",
        "document.body.remove()",
        "fetch('//x')",
        "location='//x'",
        "`${alert(1)}`",
    )
    for form in (
        "<img src=x onerror={}>",
        "</script><script>{}</script>",
        "<!--<script>{}",
        "<svg/onload={}>",
        '"><b onmouseover={}>',
        "]]><style>*{{display:none}}</style>{}",
        "<iframe srcdoc='<script>{}</script>'>",
        "\u202e<img src=x onerror={}>\u0000",
        "javascript:{}",
        "{{{{constructor.constructor('{}')()}}}}&lt;i&gt;",
    )
]


def test_hostile_strings_are_shown_as_text(show: Show) -> None:
    assert len(HOSTILE) == 50
    text = "\n".join(HOSTILE)
    special = (Special(HOSTILE[2], 1.0),)
    labels = {"model": HOSTILE[3], "unit": HOSTILE[0]}
    page = show([document(text, [(0, 9, 1)], specials=special, **labels)])
    page.wait_for_timeout(200)
    assert drawn_text(page) == text
    tooltip(page, 0)
    assert page.locator("img, svg, iframe, b:not(.hm-scale-title b), i").count() == 0
    assert page.locator("script").count() == 3


@pytest.mark.parametrize("width", [1440, 800, 420])
def test_nothing_overflows(show: Show, width: int) -> None:
    long = "Donaudampfschifffahrtsgesellschaft" * 8 + " " + "word " * 400
    panes = [
        document(long, [(0, 40, 1)], model=f"organisation/very-long-model-name-{i}", side=side)
        for i in range(2)
        for side in ("query", "document")
    ]
    page = show(panes, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    lefts = page.eval_on_selector_all(
        ".hm-column", "all => all.map((node) => Math.round(node.getBoundingClientRect().left))"
    )
    assert len(set(lefts)) == (1 if width < 640 else 2)

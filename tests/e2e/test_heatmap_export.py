"""The heatmap's files: they are complete, state their provenance, and fail with one sentence."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from choreographer.browsers import Chromium
from PIL import Image

from poslens.attribution.errors import UserError
from poslens.export import browser
from poslens.figures.palettes import Style
from poslens.heatmap.data import Pane, View
from poslens.heatmap.standalone import to_html, to_image

TEXT = "Ice <melts> & flows\nعام جديد \x00 冰川 " + "more words " * 200
TOKENS = tuple((match.start(), match.end(), 1.0) for match in re.finditer(r"\S+", TEXT))
PANE = Pane("m/document", "m", "document", TEXT, TOKENS, evidence=(0, 11))
PROVENANCE = [
    {"model": "m", "method": "saliency(norm=l2)", "selection": "a < b & c \U0001f9ca"},
    {"model": "other", "method": "saliency(norm=l2)", "n_pairs": 3},
]
VIEW = View(level="token")
SVG = "{http://www.w3.org/2000/svg}"


def test_html_escapes_embedded_data() -> None:
    hostile = "</script><!--<script>"
    page = to_html([Pane("i", hostile, "document", hostile, ())], VIEW, [{"x": hostile}], Style())
    assert hostile not in page
    assert page.count("<script") == page.count("</script>") == 3
    embedded = re.search(r'id="provenance">(.*?)</script>', page)
    assert embedded is not None
    assert json.loads(embedded[1]) == [{"x": hostile}]
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")


def test_svg_contains_the_whole_document() -> None:
    source = to_image([PANE], VIEW, PROVENANCE, Style(width_px=700))
    root = ElementTree.fromstring(source)
    assert root.attrib["width"] == "700"
    cells = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "cell"]
    # each on one line, including those scrolled out of view; NUL has no width
    assert len(cells) == len(TOKENS) - 1
    assert any(rect.get("class") == "evidence" for rect in root.iter(f"{SVG}rect"))
    height = float(root.attrib["height"])
    assert all(0 <= float(cell.attrib["y"]) <= height for cell in cells)
    words = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    for word in ("<melts>", "&", "عام", "冰川"):
        assert word in words
    metadata = root.find(f"{SVG}metadata")
    assert metadata is not None and json.loads(metadata.text or "") == PROVENANCE
    description = root.find(f"{SVG}desc")
    assert description is not None and "saliency(norm=l2)" in (description.text or "")


def test_words_that_bidirectional_order_divides_are_drawn_in_parts() -> None:
    text = "دمرتها الزلازل (GPS 31.21° N). كان U.S. army"
    source = to_image([Pane("m/document", "m", "document", text, ())], VIEW, PROVENANCE, Style())
    words = {
        "".join(node.itertext()): node for node in ElementTree.fromstring(source).iter(f"{SVG}text")
    }
    assert {"N", ").", "الزلازل", "كان"} <= words.keys() and "N)." not in words
    x = {
        word: float(node.attrib["x"]) for word, node in words.items() if word in ("N", ").", "كان")
    }
    assert "direction" not in words["U.S."].attrib, "its last full stop is at the right"
    assert words["كان"].get("direction") == words[")."].get("direction") == "rtl"
    # Texts from right to left begin at their right edge: the number is between the two parts.
    assert x["كان"] < x[")."] < x["N"] - 40


def test_png_has_the_colors_and_the_provenance() -> None:
    made = to_image([PANE], VIEW, PROVENANCE, Style(theme="dark", width_px=600, dpi=144), "png")
    with Image.open(io.BytesIO(made)) as image:
        assert image.width == 900
        image.load()  # checks every chunk's checksum
        assert json.loads(image.info["provenance"]) == PROVENANCE
        pixels = np.array(image.convert("RGB"))
    assert np.abs(pixels[-1].astype(int) - (14, 17, 23)).max() < 4  # covered in part
    shown = set(map(tuple, pixels.reshape(-1, 3).tolist()))
    assert (14, 17, 23) in shown  # the dark page
    assert (255, 213, 136) in shown  # the top of its scale
    # the evidence has several runs, but its line has no gaps
    is_line = (pixels == (201, 164, 255)).all(axis=2)[:, :450]
    rows, columns = np.nonzero(is_line[is_line.sum(axis=1) > 50])
    assert len(rows) and (np.diff(columns)[np.diff(rows) == 0] == 1).all()


def test_pdf_is_one_page_with_its_title() -> None:
    made = to_image([PANE], VIEW, PROVENANCE, Style(width_px=600), "pdf")
    assert made.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", made)) == 1
    keywords = re.findall(rb"/Keywords <FEFF([0-9A-F]*)>", made)[-1]
    assert json.loads(bytes.fromhex(keywords.decode()).decode("utf-16-be")) == PROVENANCE


def test_without_a_browser_one_sentence_states_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(browser, "_browser", browser._Browser())
    monkeypatch.setattr(Chromium, "find_browser", lambda *_, **__: None)
    with pytest.raises(UserError, match=r"install Chrome or Chromium .* or export HTML"):
        to_image([PANE], VIEW, PROVENANCE, Style())


def test_rendering_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "_browser", browser._Browser())
    monkeypatch.setattr(browser, "TIMEOUT_S", 0.2)
    with pytest.raises(UserError, match="choose fewer or shorter documents"):
        to_image([PANE], VIEW, PROVENANCE, Style())

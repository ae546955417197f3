"""Units in the browser equal those in Python: words and sentences have the same scores on both
sides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from poslens.attribution.curves.positions import Aggregate, unit_scores
from poslens.attribution.datasets import DataSet
from poslens.attribution.methods import attribute_batches, make_method
from poslens.figures.palettes import Style
from poslens.heatmap.assets import drawing_script
from poslens.heatmap.data import View, pane
from poslens.heatmap.standalone import to_html

UNITS = """([pane, level, how]) => unitsOf(segmentText(pane.text), pane, level, how)
    .map(({ start, score, tokens }) => [start, score, tokens.length])"""


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page()
    opened.add_script_tag(content=drawing_script())
    yield opened
    opened.close()


@pytest.mark.parametrize("language", ["eng", "pol", "ara"])
def test_units_are_equal_in_python_and_in_the_browser(
    page: Page, minilm, sample: DataSet, language: str
) -> None:
    pair = next(p for p in sample.pairs if p.language == language)
    (batch,) = attribute_batches(minilm, make_method("input_x_gradient"), [pair])
    attribution = batch[0].attribution
    assert attribution is not None
    shown = pane(attribution, "document", pair.document)
    for level in ("word", "sentence"):
        spans = shown.words if level == "word" else shown.sentences
        for how in get_args(Aggregate):
            found = page.evaluate(UNITS, [shown.to_dict(), level, how])
            python = unit_scores(attribution.document, attribution.document_scores, spans, how)
            # These scripts are in the basic multilingual plane, so code points are UTF-16 code
            # units.
            starts = {start: n for n, (start, _) in enumerate(spans)}
            both = [(python[starts[at]], score) for at, score, _ in found if at in starts]
            assert len(both) == np.isfinite(python).sum() > 5
            # The browser gets six digits of a score.
            limit = 1e-5 * float(np.abs(attribution.document_scores).max())
            np.testing.assert_allclose(*zip(*both, strict=True), rtol=1e-5, atol=limit)
            several = [n for at, _, n in found if at in starts and n > 1]
            assert several, "some units have several tokens, or every switch is the same"


@pytest.mark.parametrize(
    ("how", "wanted"), [("sum", [11.0, 4.0]), ("mean", [2.75, 2.0]), ("max", [6.0, 3.0])]
)
def test_cells_of_a_matrix_computed_by_hand(page: Page, how: str, wanted: list[float]) -> None:
    # Two query tokens in one word, three document tokens in two words.
    shares = [1, 2, 3, 2, 6, 1]
    found = page.evaluate(
        "([shares, how]) => Array.from(linkCells(shares, 3, [{ tokens: [0, 1] }], "
        "[{ tokens: [0, 1] }, { tokens: [2] }], how).values)",
        [shares, how],
    )
    assert found == wanted


def test_the_legend_states_how_words_are_aggregated(page: Page, minilm, sample: DataSet) -> None:
    (batch,) = attribute_batches(minilm, make_method("saliency"), [sample.pairs[0]])
    assert batch[0].attribution is not None
    shown = pane(batch[0].attribution, "document", sample.pairs[0].document)
    for view, said in (
        (View(aggregate="mean"), "mean of a word’s tokens"),
        (View(level="sentence", aggregate="max"), "max of a sentence’s tokens"),
        (View(level="token"), None),
    ):
        page.set_content(to_html([shown], view, [{"method": "m"}], Style(font_size=16)))
        legend = page.locator(".hm-legend .hm-scale").get_attribute("title") or ""
        assert ("tokens" in legend) == (said is not None) and (said or "") in legend

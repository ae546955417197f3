"""Units in the browser equal those in Python: words and sentences have the same scores on both
sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from poslens.attribution.curves.positions import Aggregate, unit_scores
from poslens.attribution.datasets import DataSet
from poslens.attribution.methods import attribute_batches, make_method
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import TextPair
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


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta", "qwen3-left"])
def test_white_space_belongs_to_the_next_unit_in_python_and_in_the_browser(
    page: Page, tiny: Callable[..., DenseRetriever], name: str
) -> None:
    document = "\n The tide.\n\nThe  Moon pulls 海洋. \n It rises  twice \n"
    pair = TextPair("p", "tide", document)
    (batch,) = attribute_batches(tiny(name), make_method("decomposition"), [pair])
    attribution = batch[0].attribution
    assert attribution is not None
    shown = pane(attribution, "document", document)
    for level, spans in (("word", shown.words), ("sentence", shown.sentences)):
        python = unit_scores(attribution.document, attribution.document_scores, spans, "sum")
        units = page.evaluate(UNITS, [shown.to_dict(), level, "sum"])
        assert [start for start, _, _ in units] == [start for start, _ in spans]
        np.testing.assert_allclose([score for _, score, _ in units], python, rtol=1e-4, atol=1e-5)
        assert sum(n for _, _, n in units) == len(shown.tokens)


def test_white_space_read_before_a_unit_that_was_not_is_drawn_where_it_is(page: Page) -> None:
    drawn = {"text": "a\nb", "tokens": [[0, 1, 1.0], [1, 2, 2.0]], "words": [[0, 1], [2, 3]]}
    found = page.evaluate(
        "(pane) => unitsOf(segmentText(pane.text), pane, 'word', 'sum')"
        ".map(({ start, end, score }) => [start, end, score])",
        drawn,
    )
    assert found == [[0, 1, 1], [1, 2, 2]]


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

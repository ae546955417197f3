"""The heatmap's data: which parts of an attribution reach the browser, and of a URL the view."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from poslens.attribution.methods import make_method
from poslens.attribution.types import (
    Attribution,
    EvidenceSpan,
    Method,
    TextPair,
    Token,
    TokenizedText,
)
from poslens.heatmap import data
from poslens.heatmap.data import (
    Fact,
    Head,
    Pane,
    Rail,
    Special,
    View,
    link_of,
    pane,
    payload,
)
from poslens.heatmap.results import panes
from poslens.studies.explain.minus import minus_panes

DOCUMENT = "Cold 🧊 ice melts"


def attribution(truncated: bool = False, scores: tuple[float, ...] = (0.5, 1, 2, 3, 0.25)):
    tokens = (
        Token("[CLS]", 0, 0, True),
        Token("cold", 0, 4),
        Token("🧊", 5, 6),
        Token("ice", 7, 10),
        Token("[SEP]", 0, 0, True),
    )
    full = 5 if truncated else 3
    return Attribution(
        model="m",
        method=Method("saliency"),
        pair_id="p",
        score=0.5,
        query=TokenizedText.of((Token("q", 0, 1),), 1, 8),
        document=TokenizedText.of(tokens, full, 8),
        query_scores=[-1.0],  # pyright: ignore[reportArgumentType]
        document_scores=scores,  # pyright: ignore[reportArgumentType]
    )


def document_pane(**options) -> Pane:
    return pane(attribution(options.pop("truncated", False)), "document", DOCUMENT, **options)


def test_each_text_is_split_by_the_rules_of_its_own_language() -> None:
    greek = "Πότε; Πού;"
    pair = TextPair("p", greek, DOCUMENT, language="eng", query_language="ell")
    result = replace(attribution(), method=make_method("saliency"))
    shown: Any = SimpleNamespace(attribution=result, pair=pair)
    for drawn in (panes([shown])[0], minus_panes(shown, shown, None, Head())[0]):
        assert [greek[a:b] for a, b in drawn.sentences] == ["Πότε;", "Πού;"]


def test_special_tokens_are_kept_apart_from_text() -> None:
    drawn = document_pane()
    assert drawn.tokens == ((0, 4, 1.0), (5, 6, 2.0), (7, 10, 3.0))
    assert drawn.specials == (Special("[CLS]", 0.5), Special("[SEP]", 0.25))


def test_truncation_is_where_the_last_token_ends() -> None:
    assert document_pane().truncated_at is None
    assert document_pane(truncated=True).truncated_at == 10


def test_signed_is_given_or_derived_from_the_scores() -> None:
    assert document_pane().signed is False
    assert document_pane(signed=True).signed is True
    assert pane(attribution(), "query", "q").signed is True


def test_words_and_sentences_are_split_as_in_python() -> None:
    drawn = document_pane()
    assert (0, 4) in drawn.words
    assert drawn.sentences


def test_a_pane_can_be_written_as_json() -> None:
    drawn = document_pane(evidence=EvidenceSpan(5, 10), unit="u", model="label")
    values = json.loads(json.dumps(drawn.to_dict(), allow_nan=False))
    assert values["evidence"] == [5, 10]
    assert values["id"] == "label/document"
    assert values["tokens"][1] == [5, 6, 2.0]


@pytest.mark.parametrize("span", [(-1, 2), (3, 2), (0, len(DOCUMENT) + 1)])
def test_a_span_outside_the_text_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="span"):
        replace(document_pane(), words=(span,))


@pytest.mark.parametrize("level", ["word", "token", "sentence"])
@pytest.mark.parametrize("linked", [True, False])
def test_a_view_round_trips_through_the_url(level: str, linked: bool) -> None:
    view = View(level=level, aggregate="max", range="own", linked=linked)  # pyright: ignore
    assert View.from_dict(view.to_dict()) == view
    assert View.from_dict({name: str(value) for name, value in view.to_dict().items()}) == view


@pytest.mark.parametrize(
    "values",
    [
        None,
        {},
        {"level": "paragraph", "linked": "perhaps", "x": 1},
        {"level": ["word"], "linked": 2},
        {"aggregate": None, "range": {}},
    ],
)
def test_an_invalid_view_is_the_default(values) -> None:
    assert View.from_dict(values) == View()


def test_each_model_has_a_column() -> None:
    panes = [document_pane(model=model) for model in "abcd"]
    assert payload(panes, View())["columns"] == 4


# rows: the query's one token; columns: [CLS] cold ice-cube ice [SEP]
MATRIX = [[9.0, 0.1, -0.2, 1 / 3, 9.0]]


def linked_panes() -> list[Pane]:
    found = replace(attribution(), matrix=MATRIX)
    return [
        pane(found, "query", "q"),
        pane(found, "document", DOCUMENT),
    ]


def test_the_matrix_is_sent_with_the_document_without_special_tokens() -> None:
    query, document = payload(linked_panes(), View())["panes"]
    assert query["link"] is None
    sent = json.loads(json.dumps(document["link"]))
    assert (sent["rows"], sent["columns"]) == (1, 3)
    values = np.frombuffer(base64.b64decode(sent["values"]), "<f4")
    np.testing.assert_array_equal(values, np.float32([0.1, -0.2, 1 / 3]))


def test_rows_are_query_tokens() -> None:
    found = attribution()
    query = TokenizedText.of((Token("q", 0, 1), Token("[S]", 0, 0, True), Token("r", 1, 2)), 2, 8)
    two = replace(found, query=query, query_scores=[0, 0, 0], matrix=np.arange(15).reshape(3, 5))
    packed = link_of(two)
    assert packed is not None and (packed.rows, packed.columns) == (2, 3)
    values = np.frombuffer(base64.b64decode(packed.values), "<f4")
    np.testing.assert_array_equal(values, [1, 2, 3, 11, 12, 13])


def test_panes_without_a_matrix_or_with_too_many_cells_are_not_linked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert document_pane().link is None
    assert linked_panes()[1].link is not None
    monkeypatch.setattr(data, "MAX_CELLS", 2)
    assert linked_panes()[1].link is None


FLAT = (0.5,) * 100


def test_the_rail_is_sent_with_its_document() -> None:
    drawn = document_pane(rail=Rail((1 / 3,) * 100, FLAT, FLAT, FLAT, "mean of 304 pairs"))
    sent = json.loads(json.dumps(drawn.to_dict()["rail"], allow_nan=False))
    assert sent["bins"] == [0.33333] * 100
    assert sent["low"] == sent["high"] == sent["mean"] == list(FLAT)
    assert sent["note"] == "mean of 304 pairs"
    assert document_pane(rail=Rail(FLAT)).to_dict()["rail"]["mean"] == []
    assert document_pane().to_dict()["rail"] is None


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ({"bins": FLAT[1:]}, "99 values of bins"),
        ({"bins": ()}, "0 values of bins"),
        ({"bins": FLAT, "mean": FLAT[1:]}, "99 values of mean"),
        ({"bins": (float("nan"), *FLAT[1:])}, "not finite"),
        ({"bins": FLAT, "mean": (float("inf"), *FLAT[1:])}, "not finite"),
    ],
)
def test_a_rail_that_cannot_be_drawn_is_refused(curves, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rail(**curves)


def test_numbers_of_the_head_have_minus_signs_and_powers_of_ten() -> None:
    head = Head("-0.573", (Fact("completeness error -4.5e-08"), Fact("reads [-1, +2] of e5-2")))
    texts = [head.score, *(fact.text for fact in head.facts)]
    assert texts == ["−0.573", "completeness error −4.5·10⁻⁸", "reads [−1, +2] of e5-2"]


def test_the_head_is_sent_with_its_document() -> None:
    head = Head("0.573", (Fact("reads 512 of 1,204 tokens", "The rest", warning=True),))
    sent = json.loads(json.dumps(document_pane(head=head).to_dict()["head"]))
    assert sent == {
        "score": "0.573",
        "facts": [{"text": "reads 512 of 1,204 tokens", "title": "The rest", "warning": True}],
    }

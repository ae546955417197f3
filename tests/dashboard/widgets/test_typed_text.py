"""Texts that a reader types: where they are shown, and whether the address contains them."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from poslens.dashboard.widgets.url_state import MAX_IN_LINK
from tests.support.pages import open_page, shown_scores

pytestmark = pytest.mark.usefixtures("own_service")

DOCUMENT = "Ice melts in spring. Stone stays."


def opened(**query: object) -> AppTest:
    page = open_page("explain", text="Own text", models=["BM25"], method=["terms"], **query).run()
    assert not page.exception and not page.error
    return page


def typed(page: AppTest, query: str = "", document: str = "") -> AppTest:
    page.text_input(key="typed.query").set_value(query)
    page.text_area(key="typed.document").set_value(document)
    return page


def shown(page: AppTest) -> AppTest:
    page.button(key="own.show").click().run()
    assert not page.exception and not page.error
    return page


def said(page: AppTest) -> list[str]:
    return [one.value for one in (*page.warning, *page.info)]


def address(page: AppTest) -> set[str]:
    return {name for name in ("q", "d") if page.query_params.get(name)}


def test_nothing_is_computed_or_reported_before_the_button_is_pressed() -> None:
    page = opened()
    (missing,) = said(page)
    assert "are lost when the page is reloaded" in missing
    typed(page, "what melts").run()
    assert said(page) == [missing] and shown_scores(page) == []
    shown(page)
    assert said(page) == ["Enter both a query and a document.", missing]
    assert shown_scores(page) == []
    shown(typed(page, "what melts", DOCUMENT))
    assert said(page) == [] and len(shown_scores(page)) == 1


def test_the_previous_text_is_shown_until_the_button_is_pressed() -> None:
    page = shown(typed(opened(), "what melts", DOCUMENT))
    before = shown_scores(page)
    typed(page, "ice melts in spring", DOCUMENT).run()
    assert shown_scores(page) == before
    assert shown_scores(shown(typed(page, "ice melts in spring", DOCUMENT))) != before


def test_typed_texts_enter_the_address_only_on_request() -> None:
    page = shown(typed(opened(), "what melts", DOCUMENT))
    captions = " ".join(one.value for one in page.caption)
    assert address(page) == set() and "The link doesn't include your texts" in captions
    page.toggle(key="own.in_link").set_value(True).run()
    captions = " ".join(one.value for one in page.caption)
    assert address(page) == {"q", "d"} and "The link includes your texts" in captions
    assert page.query_params["d"] in (DOCUMENT, [DOCUMENT])
    shown(typed(page, "what stays", DOCUMENT))
    assert page.query_params["q"] in ("what stays", ["what stays"])
    page.toggle(key="own.in_link").set_value(False).run()
    assert address(page) == set()
    assert len(shown_scores(page)) == 1, "they are shown all the same"


def test_the_address_of_typed_texts_names_no_pair_and_the_session_returns_to_it() -> None:
    first, following = (f"architecture-arches-vaults-domes-q{n}" for n in (2, 3))
    page = open_page("explain", models=["BM25"], method=["terms"], pair=first).run()
    for name, value in (("text", "Own text"), ("q", "what melts"), ("d", DOCUMENT)):
        page.query_params[name] = value
    page.run()
    assert not page.exception and len(shown_scores(page)) == 1
    assert "pair" not in page.query_params and address(page) == {"q", "d"}
    page.button(key="next").click().run()
    assert page.query_params["pair"] in (following, [following]) and address(page) == set()


def test_a_link_opens_its_texts_and_is_cleared_by_another_pair() -> None:
    page = opened(q="what melts", d=DOCUMENT)
    assert len(shown_scores(page)) == 1
    assert page.text_area(key="typed.document").value == DOCUMENT
    assert page.toggle(key="own.in_link").value is True
    page.button(key="next").click().run()
    assert not page.exception
    assert address(page) == set() and page.query_params["pair"]


def test_texts_too_long_for_a_link_are_shown_without_one() -> None:
    page = shown(typed(opened(), "ice", "ice " * (MAX_IN_LINK // 4)))
    page.toggle(key="own.in_link").set_value(True).run()
    assert address(page) == set() and len(shown_scores(page)) == 1
    assert any("too long for a link" in one.value for one in page.caption)

"""What an address names in vain, or with a parameter that no page has, is answered in one sentence
above the page."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from poslens.attribution.retrievers import resolve
from poslens.dashboard.widgets import address
from tests.support.pages import DASHBOARD, SECONDS, open_page


def page() -> None:
    from poslens.dashboard.widgets import address

    address.report_unknown()


def warnings(**query: str) -> list[str]:
    app = AppTest.from_function(page, default_timeout=SECONDS)
    for name, value in query.items():
        app.query_params[name] = value
    return [warning.value.replace("\\", "") for warning in app.run().main.warning]


def test_an_unknown_parameter_is_named_with_similar_ones() -> None:
    assert warnings(modle="MiniLM", models="MiniLM") == [
        "Unknown parameter 'modle' in the address; the page ignores it. Similar parameters: model, "
        "models."
    ]


def test_parameters_of_other_programs_and_empty_values_are_ignored() -> None:
    others = ("utm_source", "fbclid", "token", "code", "state", "x" * 90)
    assert warnings(**dict.fromkeys(others, "1"), method="", dataset="") == []
    assert len(warnings(method="sailency", methods="decompositon")) == 2


def test_parameters_of_pages_and_studies_are_not_unknown() -> None:
    of_studies = ("top", "search_for", "level", "aggregate", "q", "language")
    asked = dict.fromkeys((*names(), *of_studies), "saliency") | {"dataset": "sample"}
    assert warnings(**asked) == []


def names() -> Iterator[str]:
    """The parameters that pages name as texts."""
    positions = {
        "choices.one_of": 2,
        "choices.model": 1,
        "url_state.option": 1,
        "url_state.several": 1,
        "url_state.get": 0,
    }
    for path in DASHBOARD.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            keywords = {each.arg: each.value for each in node.keywords}
            name: ast.expr | None = None
            if "bind" in keywords:
                bound = ast.unparse(keywords["bind"]) == "'query-params'"
                name = keywords.get("key") if bound else None
            elif called in positions:
                name = node.args[positions[called]]
            if isinstance(name, ast.Constant):
                yield str(name.value)


def test_each_parameter_is_one_of_a_page() -> None:
    assert set(names()) >= address.NAMES


@pytest.mark.parametrize("name", ["explain", "curves"])
def test_the_app_reports_it(name: str) -> None:
    app = open_page(name, modle="MiniLM", models="BM25").run()
    assert not app.exception and "modle" in app.main.warning[0].value


OWN = {"text": "Own text", "models": "tiny"}


@pytest.mark.parametrize(
    ("name", "query", "sentence"),
    [
        ("explain", {"dataset": "nope", "models": "BM25"}, "There is no data set 'nope'"),
        (
            "explain",
            {"pair": "nope", "models": "BM25"},
            "The pair architecture-classical-orders-q1 is shown instead.",
        ),
        ("explain", {"models": "nope"}, "There is no model 'nope'"),
        ("explain", {"models": "mpnet"}, "models fetch mpnet"),
        ("explain", {**OWN, "q": "words", "d": "\u200b"}, "tiny reads no word of the"),
        ("explain", {**OWN, "q": "[SEP]", "d": "words"}, "tiny reads no word of the"),
        ("curves", {"models": "../../etc"}, "There is no model"),
        ("compare", {"a": "BM25", "b": "nope"}, "There is no model 'nope'"),
    ],
)
def test_what_an_address_names_in_vain_is_answered_in_one_sentence(
    own_service: None,
    tiny_folder: Callable[..., Path],
    name: str,
    query: dict[str, str],
    sentence: str,
) -> None:
    resolve.register_folder("tiny", tiny_folder("bert"))
    app = open_page(name, **query).run()
    assert not app.exception
    answers = [one.value for one in (*app.warning, *app.error, *app.info, *app.caption)]
    assert any(sentence in one.replace("\\", "") for one in answers), answers


def test_another_data_set_begins_with_its_own_pair_without_a_warning(own_service: None) -> None:
    app = open_page("explain", pair="food-sourdough-q2", models="BM25", method="terms").run()
    (data_set,) = (box for box in app.selectbox if box.label == "Data set")
    data_set.select("sample-bias").run()
    assert not app.exception and app.query_params["dataset"] in ("sample-bias", ["sample-bias"])
    assert not any("is shown instead" in warning.value for warning in app.warning)


def test_a_choice_ignores_only_the_refusal_of_a_bound_parameter() -> None:
    def page() -> None:
        import streamlit as st
        from streamlit.errors import StreamlitAPIException

        from poslens.dashboard.widgets import url_state

        if st.session_state.get("drawn"):
            url_state.choose("switch", True)
            try:
                url_state.choose("embed", "true")
            except StreamlitAPIException:
                st.text("refused")
        st.session_state["drawn"] = st.toggle("Switch", key="switch", bind="query-params") or True

    app = AppTest.from_function(page, default_timeout=SECONDS).run().run()
    assert not app.exception
    assert app.toggle[0].value is True and app.text[0].value == "refused"

"""Filters of a data set: facets with counts, words for captions, and state in the address."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from poslens.attribution import datasets
from poslens.attribution.types import TextPair
from poslens.cache.keys import text_fingerprint
from poslens.cache.storage.results import pair_key
from tests.support.pages import SECONDS

ROWS = (
    "query,document,query_type\n"
    "what lifts,Fog lifts at noon.,question\nwho melts,Ice melts.,question\nfog,Fog.,keywords\n"
    "ice,Ice.,\n"
)


def page() -> None:
    import streamlit as st

    from poslens.attribution import datasets
    from poslens.dashboard.widgets import choices

    with st.sidebar:
        name = st.text_input("name", "rows")
        found = choices.filters(datasets.read(name))
        st.text(f"{[p.query for p in found.pairs]} {found.words}")


@pytest.fixture
def app(tmp_path: Path) -> AppTest:
    (tmp_path / "rows.csv").write_text(ROWS)
    datasets.register("rows", tmp_path / "rows.csv")
    return AppTest.from_function(page, default_timeout=SECONDS).run()


def facet(app: AppTest) -> list:
    return [box for box in app.selectbox if box.label == "Query type"]


def test_query_type_is_a_facet_with_counts(app: AppTest) -> None:
    (box,) = facet(app)
    assert list(box.options) == ["any", "keywords (1)", "question (2)"]
    box.select("question").run()
    assert app.text[0].value == "['what lifts', 'who melts'] query type question"
    assert app.query_params["query_type"] in ("question", ["question"])


def test_a_data_set_without_query_types_has_no_such_facet(app: AppTest) -> None:
    facet(app)[0].select("keywords").run()
    app.text_input[0].set_value("sample").run()
    assert not facet(app) and not app.exception
    assert app.text[0].value.endswith("]") and len(app.text[0].value) > 1000


def test_the_query_type_does_not_change_keys() -> None:
    plain, typed = (TextPair("p", "q", "d", query_type=kind) for kind in (None, "question"))
    assert text_fingerprint(plain) == text_fingerprint(typed)
    assert pair_key(plain) == pair_key(typed)

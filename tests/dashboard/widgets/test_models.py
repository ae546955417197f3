"""Several names of one model."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from poslens.dashboard.__main__ import app
from poslens.dashboard.widgets import choices
from tests.support.pages import open_page, shown_scores

OTHER = "sentence-transformers/all-MiniLM-L6-v2"


def test_the_first_of_two_names_of_a_model_is_used() -> None:
    names = ["BM25", OTHER, "MiniLM", "MiniLM-recency", "no such model"]
    assert choices.distinct(names) == ["BM25", OTHER, "MiniLM-recency", "no such model"]


def test_a_model_under_two_names_is_shown_once() -> None:
    page = open_page("explain", models=["MiniLM", "MiniLM@mean"]).run()
    assert not page.exception and not page.error
    assert len(shown_scores(page)) == 1
    assert any("MiniLM@mean" in one.value.replace("\\", "") for one in page.caption)
    page = open_page("compare", a="MiniLM", b=OTHER).run()
    assert not page.exception and not page.error
    assert [one.value for one in page.info] == ["Select two different models to compare."]
    models = ["--model", "MiniLM", "--model", OTHER]
    refused = CliRunner().invoke(
        app, ["explain", "--table", "comparison", *models, "--pair", "any"]
    )
    assert refused.exit_code == 2 and "compares models" in refused.stderr


def test_a_model_that_reads_more_than_configured_states_it_and_offers_its_limit() -> None:
    page = open_page("explain", models=["MiniLM"]).run()
    (line,) = (one.value for one in page.caption if "truncates at" in one.value)
    assert (
        line.replace("\\", "")
        == "MiniLM reads 512 tokens here with special tokens, its context limit; its own "
        "configuration truncates at 256."
    )
    (button,) = (one for one in page.button if one.label == "Truncate at 256")
    button.click().run()
    assert not page.exception and not page.error
    assert page.multiselect(key="models").value == ["MiniLM@configured"]
    assert len(shown_scores(page)) == 1
    assert not any("truncates at" in one.value for one in page.caption)
    assert any("max length: 256" in one.value.replace("\\", "") for one in page.caption)


def test_models_that_read_more_than_configured_share_one_line() -> None:
    page = open_page("explain", models=["MiniLM-primacy", "MiniLM-recency"]).run()
    (line,) = (one.value for one in page.caption if "truncate at" in one.value)
    said = (
        "MiniLM-primacy and MiniLM-recency read 512 tokens here with special tokens, their context "
        "limit; their own configurations truncate at 256."
    )
    assert line.replace("\\", "") == said


def tabs() -> None:
    import streamlit as st

    from poslens.dashboard.widgets import choices

    if st.toggle("Bias tests", key="bias"):
        choices.data_set("sample-bias")
        choices.models(["MiniLM-primacy", "MiniLM", "MiniLM-recency"])
    else:
        choices.data_set("sample")
        choices.models(["MiniLM-primacy", "MiniLM-recency"])


def test_defaults_are_those_of_the_tab_because_the_address_omits_them() -> None:
    def selected(page: AppTest) -> tuple[str, list[str]]:
        assert not page.exception and not page.error
        return page.selectbox(key="dataset").value, page.multiselect(key="models").value

    page = AppTest.from_function(tabs, default_timeout=300).run()
    both, three = (
        ["MiniLM-primacy", "MiniLM-recency"],
        ["MiniLM-primacy", "MiniLM", "MiniLM-recency"],
    )
    assert selected(page) == ("sample", both)
    page.toggle(key="bias").set_value(True).run()
    assert selected(page) == ("sample-bias", three)
    page.toggle(key="bias").set_value(False).run()
    assert selected(page) == ("sample", both)
    page = AppTest.from_function(tabs, default_timeout=300)
    page.query_params["dataset"] = "sample-multilingual"
    page.run().toggle(key="bias").set_value(True).run()
    assert selected(page) == ("sample-multilingual", three)

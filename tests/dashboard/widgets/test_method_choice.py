"""The list of methods follows the reader's selection and links to the open page."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from tests.support.pages import SECONDS


def page() -> None:
    import streamlit as st

    from poslens.dashboard.widgets import address, choices

    address.report_unknown()
    with st.sidebar:
        method = choices.method(["MiniLM", *st.session_state.get("more", ())])
    st.text(method.name)
    st.text(method.curve_params)


def test_a_link_to_the_open_page_changes_the_method() -> None:
    app = AppTest.from_function(page, default_timeout=SECONDS).run()
    first = app.text[0].value
    app.query_params["method"] = "occlusion"
    app.run()
    assert app.text[0].value == "occlusion" != first
    app.selectbox(key="method").select("decomposition").run()
    assert app.text[0].value == "decomposition", "the reader's choice is newer"
    assert app.query_params["method"] in ("decomposition", ["decomposition"])
    app.query_params["method"] = "occlusion"
    app.run()
    assert app.text[0].value == "occlusion" and not app.warning
    app.query_params["method"] = "nothing of the kind"
    app.run()
    assert app.text[0].value == "occlusion"
    (warning,) = app.main.warning
    assert warning.value.startswith("There is no method 'nothing of the kind', so the page ")
    app.run()
    assert not app.warning, "the address names the method that is shown"


def test_curve_parameters_are_listed_in_words_and_named_in_the_address() -> None:
    app = AppTest.from_function(page, default_timeout=SECONDS).run()
    normalization, resampling = app.selectbox(key="normalization"), app.selectbox(key="resampling")
    assert list(normalization.options) == ["99th percentile", "maximum", "none"]
    assert list(resampling.options) == ["mean of the bin", "interpolation"]
    resampling.select("point").run()
    assert app.query_params["resampling"] in ("point", ["point"])
    assert "'resampling': 'point'" in app.text[1].value and not app.warning
    linked = AppTest.from_function(page, default_timeout=SECONDS)
    linked.query_params["normalization"] = "max"
    assert "'normalization': 'max'" in linked.run().text[1].value
    assert linked.selectbox(key="normalization").value == "max"


def test_the_default_method_returns_with_the_models_that_it_fits() -> None:
    app = AppTest.from_function(page, default_timeout=SECONDS).run()
    first = app.text[0].value

    def shown(*more: str) -> str:
        app.session_state["more"] = more
        return str(app.run().text[0].value)

    assert shown("BM25") == "occlusion" != first
    assert shown() == first and "method" not in app.query_params
    app.selectbox(key="method").select("integrated_gradients").run()
    assert shown("BM25") == "occlusion"
    app.query_params["method"] = "saliency"
    assert shown() == "saliency", "named by the address"

"""A file that was made for download stays as long as what was chosen for it."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest


def page() -> None:
    import pandas as pd
    import streamlit as st

    from attribution.types import Provenance
    from dashboard.widgets import panels

    unit = st.selectbox("Unit", ["word", "token"], key="the.unit")
    source = Provenance(poslens="1", model="m", method="saliency", dataset="d")
    frame = pd.DataFrame({unit: [1]})
    for key in ("one", "two"):
        panels.downloads(key, ["m", key], [source], frame=frame)


def offered(app: AppTest) -> list[str]:
    assert not app.exception and not app.error
    return [button.proto.id.rpartition("-")[2] for button in app.get("download_button")]


def test_a_page_drawn_anew_still_offers_the_file_until_something_else_is_chosen() -> None:
    app = AppTest.from_function(page, default_timeout=300).run()
    assert offered(app) == []
    app.button(key="one.prepare").click().run()
    assert offered(app) == ["one.download"]
    # As a run at work does it every second or two.
    app.run()
    assert offered(app.run()) == ["one.download"]
    app.button_group(key="one.format.Numbers").set_value("parquet").run()
    assert offered(app) == [], "another format"
    app.button_group(key="one.format.Numbers").set_value("csv").run()
    assert offered(app) == ["one.download"], "what it was made for again"
    app.selectbox(key="the.unit").select("token").run()
    assert offered(app) == [], "another table on the page"
    app.button(key="two.prepare").click().run()
    assert offered(app.run()) == ["two.download"]
    app.selectbox(key="the.unit").select("word").run()
    assert offered(app) == [], "one file a session"

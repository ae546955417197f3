"""Files for download: their contents, and how long they are offered."""

from __future__ import annotations

import io
import json
import zipfile

import pandas as pd
from streamlit.testing.v1 import AppTest

from poslens.dashboard.widgets.panels import _PREPARED


def page() -> None:
    import pandas as pd
    import streamlit as st

    from poslens.attribution.types import Provenance
    from poslens.dashboard.widgets import panels

    unit = st.selectbox("Unit", ["word", "token"], key="the.unit")
    source = Provenance(poslens="1", model="m", method="saliency", dataset="d")
    frame = pd.DataFrame({unit: [1]})
    for key in ("one", "two"):
        panels.downloads(key, ["m", key], [source], tables={"Numbers": lambda: frame})


def offered(app: AppTest) -> list[str]:
    assert not app.exception and not app.error
    return [button.proto.id.rpartition("-")[2] for button in app.get("download_button")]


def test_a_csv_table_is_offered_with_its_provenance() -> None:
    app = AppTest.from_function(page, default_timeout=300).run()
    app.button(key="one.prepare").click().run()
    (button,) = app.get("download_button")
    assert button.proto.label == "Download CSV \\(ZIP\\)"
    with zipfile.ZipFile(io.BytesIO(app.session_state[_PREPARED].data)) as archive:
        assert archive.namelist() == ["m_one_numbers.csv", "m_one_numbers.provenance.json"]
        table, known = map(archive.read, archive.namelist())
    assert pd.read_csv(io.BytesIO(table)).columns.tolist() == ["word"]
    assert json.loads(known)[0]["model"] == "m"


def test_a_rerun_page_offers_the_file_until_something_else_is_chosen() -> None:
    app = AppTest.from_function(page, default_timeout=300).run()
    assert offered(app) == []
    app.button(key="one.prepare").click().run()
    assert offered(app) == ["one.download"]
    # An active run causes this every second or two.
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


def one_title() -> None:
    import pandas as pd

    from poslens.attribution.types import Provenance
    from poslens.dashboard.widgets import panels
    from poslens.figures.figure_base import canvas

    source = Provenance(poslens="1", model="m", method="saliency", dataset="d")
    panels.downloads(
        "one",
        ["m"],
        [source],
        figures={
            "Index": lambda style: canvas("index", style, "x", "y", [source]),
            "Chart": lambda style: canvas("chart", style, "x", "y", [source]),
        },
        tables={"Index": lambda: pd.DataFrame({"index": [1]})},
    )


def test_a_figure_and_a_table_of_one_title_are_both_exported() -> None:
    app = AppTest.from_function(one_title, default_timeout=300).run()
    what = app.selectbox(key="one.what")
    assert what.options == ["Index (figure)", "Chart", "Index (table)"]
    exported = {}
    for name in ("Index (figure)", "Index (table)"):
        what.select(name).run()
        app.button_group(key=f"one.format.{name}").set_value("json").run()
        app.button(key="one.prepare").click().run()
        assert not app.exception and not app.error
        exported[name] = json.loads(app.session_state[_PREPARED].data)
    assert exported["Index (figure)"]["layout"]["meta"]["figure"] == "index"
    assert exported["Index (table)"]["rows"] == [{"index": 1}]

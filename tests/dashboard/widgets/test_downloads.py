"""What an export offers is made when its popover is open, and chosen once."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest


def page() -> None:
    import pandas as pd

    from dashboard.widgets.panels import downloads

    numbers = pd.DataFrame({"score": [0.5]})
    downloads("x", ["name"], [], tables={"First": lambda: numbers, "Second": lambda: numbers})


def test_an_export_is_made_when_it_is_open_and_keeps_what_was_chosen() -> None:
    app = AppTest.from_function(page, default_timeout=60).run()
    assert not app.selectbox and not app.button, "made though it is folded away"
    app.session_state["export.x"] = True
    app.run().selectbox(key="x.what").select("Second").run()
    assert not app.exception and [one.label for one in app.button] == ["Prepare"]
    app.session_state["export.x"] = False
    assert not app.run().selectbox
    app.session_state["export.x"] = True
    assert app.run().selectbox(key="x.what").value == "Second"

"""A click in a chart counts once, though the chart keeps its selection."""

from __future__ import annotations

import json

from streamlit.proto.WidgetStates_pb2 import WidgetState, WidgetStates
from streamlit.testing.v1 import AppTest

from tests.support.pages import SECONDS


def page() -> None:
    import plotly.graph_objects as go
    import streamlit as st

    from poslens.dashboard.widgets import panels

    figure = go.Figure(go.Scatter(x=[0, 1], y=[0, 1], customdata=[3, 4]))
    event = panels.show(figure, "chart", "alt", on_select="rerun", selection_mode="points")
    if (point := panels.clicked(event, "chart")) is not None:
        st.session_state["field"] = point
    st.number_input("Bin", 0, 99, key="field")


def test_a_value_set_by_hand_after_a_click_is_kept() -> None:
    app = AppTest.from_function(page, default_timeout=SECONDS).run()
    chart, field = app.get("plotly_chart")[0].proto.id, app.number_input[0].proto.id

    def sent(selected: int | None, number: int) -> int:
        points = [] if selected is None else [{"customdata": selected}]
        value = json.dumps({"selection": {"points": points, "box": [], "lasso": []}})
        states = [
            WidgetState(id=chart, string_value=value),
            WidgetState(id=field, double_value=number),
        ]
        app._run(widget_state=WidgetStates(widgets=states))
        assert not app.exception
        return app.number_input[0].value

    assert sent(3, 0) == 3, "the click"
    assert sent(3, 50) == 50, "the chart's selection is still sent"
    assert sent(4, 50) == 4, "another click"
    assert sent(None, 20) == 20
    assert sent(4, 20) == 4, "the same point once more"

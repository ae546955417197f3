"""The selected row of a table is a row of that table."""

from __future__ import annotations

import json

import pytest
from streamlit.proto.WidgetStates_pb2 import WidgetState, WidgetStates
from streamlit.testing.v1 import AppTest

from tests.support.pages import SECONDS


def page() -> None:
    import pandas as pd
    import streamlit as st

    from poslens.dashboard.widgets.tables import chosen_row

    ids = st.text_input("ids", "a b c").split()
    frame = pd.DataFrame({"pair": ids, "value": range(len(ids))})
    row = chosen_row(frame, "table", "pair")
    st.text("none" if row is None else ids[row])


def table(app: AppTest) -> str:
    return app.dataframe[0].proto.id


def send(app: AppTest, widget: str, rows: list[int]) -> AppTest:
    """The page after a browser has selected these rows of a table."""
    value = json.dumps({"selection": {"rows": rows, "columns": [], "cells": []}})
    state = WidgetState(id=widget, string_value=value)
    return app._run(widget_state=WidgetStates(widgets=[state]))


@pytest.fixture
def app() -> AppTest:
    return AppTest.from_function(page, default_timeout=SECONDS).run()


def test_the_clicked_row_is_selected(app: AppTest) -> None:
    assert app.text[0].value == "none"
    assert send(app, table(app), [2]).text[0].value == "c"


@pytest.mark.parametrize("row", [3, 99_999, -1])
def test_a_row_that_does_not_exist_selects_nothing(app: AppTest, row: int) -> None:
    after = send(app, table(app), [row])
    assert not after.exception and after.text[0].value == "none"


def test_a_selection_is_not_applied_to_other_rows(app: AppTest) -> None:
    old = table(app)
    send(app, old, [2])
    app.text_input[0].set_value("d e f").run()
    assert not app.exception and app.text[0].value == "none"
    assert table(app) != old
    assert send(app, old, [2]).text[0].value == "none"


def empty_cells() -> None:
    import pandas as pd

    from poslens.dashboard.widgets.tables import show_table

    columns = ["model", "documents", "value", "low", "note"]
    rows = [("a", 8, 0.5, None, ""), ("b", None, None, None, "–"), ("c", 9, None, None, "seen")]
    show_table(pd.DataFrame(rows, columns=columns))
    show_table(pd.DataFrame([("a", None)], columns=["model", "value"]))
    show_table(pd.DataFrame({"model": ["a"]}))


def test_a_table_shows_no_empty_column_and_no_empty_row_and_counts_last() -> None:
    app = AppTest.from_function(empty_cells, default_timeout=SECONDS).run()
    assert not app.exception
    first, last = app.dataframe
    assert list(first.value) == ["model", "value", "note", "documents"]
    assert first.value["model"].tolist() == ["a", "c"]
    assert first.proto.placeholder == "–"
    assert last.value.to_dict("list") == {"model": ["a"]}


def test_blank_texts_show_a_placeholder_and_numbers_stay_numbers() -> None:
    def blanks() -> None:
        import pandas as pd

        from poslens.dashboard.widgets.tables import show_table

        rows = {"name": ["a", "b"], "n": [1, 2], "read": [True, False], "control": ["", "moved"]}
        show_table(pd.DataFrame(rows))

    app = AppTest.from_function(blanks, default_timeout=SECONDS).run()
    shown = app.dataframe[0].value
    assert shown["control"].isna().tolist() == [True, False] and shown["control"][1] == "moved"
    assert [shown[name].dtype.kind for name in ("n", "read")] == ["i", "b"]


def small_numbers() -> None:
    import pandas as pd
    import streamlit as st

    from poslens.dashboard.widgets.tables import chosen_row, show_table

    frame = pd.DataFrame({"id": ["a", "b", "c"], "value": [-0.0004, -0.0005, None]})
    column = {"value": st.column_config.NumberColumn(format="%+.3f")}
    show_table(frame, column_config=column)
    chosen_row(frame, "table", "id", column_config=column)
    show_table(frame)


def test_a_number_that_rounds_to_0_has_no_minus_sign() -> None:
    app = AppTest.from_function(small_numbers, default_timeout=SECONDS).run()
    assert not app.exception
    for table in app.dataframe[:2]:
        assert table.value["value"].head(2).tolist() == [0, -0.0005]
    assert app.dataframe[2].value["value"].tolist()[0] == -0.0004, "the column has no format"

"""An uploaded file is a data set of its browser session: shown, counted, invisible to others."""

from __future__ import annotations

import gzip

import pytest
from streamlit.proto.WidgetStates_pb2 import WidgetStates
from streamlit.testing.v1 import AppTest

from tests.support.pages import SECONDS

CSV = b"query,document\nwhat lifts,Fog lifts at noon.\n,Nobody asks.\nwhat melts,Ice melts.\n"


def page() -> None:
    import streamlit as st

    from poslens.dashboard.widgets import address, choices, panels

    if st.session_state.get("without"):
        return
    address.report_unknown()
    st.session_state["times drawn"] = st.session_state.get("times drawn", 0) + 1
    with st.sidebar, panels.guarded():
        data = choices.data_set()
        st.text(f"{data.name} {len(data.pairs)}")


@pytest.fixture
def app() -> AppTest:
    return AppTest.from_function(page, default_timeout=SECONDS).run()


def upload(app: AppTest, name: str, data: bytes) -> AppTest:
    return app.file_uploader[0].upload(name, data).run()


def test_an_upload_becomes_the_selected_data_set_with_its_counts(app: AppTest) -> None:
    assert app.text[0].value == "sample 304"
    upload(app, "mine.csv.gz", gzip.compress(CSV))
    assert not app.exception
    name, n = app.text[0].value.split()
    assert name.startswith("upload-") and n == "2"
    assert app.selectbox[0].value == name
    assert any("2 rows accepted, 1 rejected" in caption.value for caption in app.caption)
    rejected = app.dataframe[0].value
    assert list(rejected["row"]) == [3] and "The query is empty" in rejected["reason"][0]
    # It stays available when the reader selects another data set and returns.
    app.selectbox[0].select("sample").run()
    assert app.text[0].value == "sample 304"
    app.selectbox[0].select(name).run()
    assert app.text[0].value == f"{name} 2"


def test_an_upload_is_selected_when_the_page_is_first_drawn_with_it(app: AppTest) -> None:
    """A second rerun would apply what the browser requested before it saw the selection."""
    before = app.session_state["times drawn"]
    upload(app, "mine.csv", CSV)
    assert app.session_state["times drawn"] == before + 1


def test_the_address_names_the_upload_by_its_unique_name(app: AppTest) -> None:
    upload(app, "mine.csv", CSV)
    first = app.text[0].value.split()[0]
    upload(app, "mine.csv", CSV.replace(b"noon", b"dawn"))
    second = app.text[0].value.split()[0]
    assert first != second
    titles = [caption.value.replace("\\", "").partition(":")[0] for caption in app.caption]
    assert f"mine.csv ({second.split('-')[1]})" in titles, "unlike that of the first file"
    assert app.query_params["dataset"] in (second, [second])
    app.selectbox[0].select(first).run()
    assert app.text[0].value == f"{first} 2" and not app.warning


def test_another_session_does_not_see_it(app: AppTest) -> None:
    upload(app, "mine.csv", CSV)
    name = app.text[0].value.split()[0]
    other = AppTest.from_function(page, default_timeout=SECONDS)
    other.query_params["dataset"] = name
    other.run()
    assert other.text[0].value == "sample 304"
    assert "upload the file again" in other.warning[0].value


def test_a_refused_file_is_reported_and_the_data_set_stays(app: AppTest) -> None:
    upload(app, "bad.csv", b"question,<b>text</b>\n1,2\n")
    assert not app.exception and app.text[0].value == "sample 304"
    assert "lacks the columns query, document" in app.error[0].value.replace("\\", "")
    assert "<b>" not in app.error[0].value
    upload(app, "mine.csv", CSV)
    assert not app.error


def test_only_the_latest_uploads_are_kept(app: AppTest) -> None:
    for n in range(5):
        upload(app, f"{n}.csv", CSV + f"again {n},x\n".encode())
    titles = app.selectbox[0].options
    assert titles[-3:] == ["2.csv", "3.csv", "4.csv"], "without ids of uploads"
    assert not any("csv" in title for title in titles[:-3])
    assert app.text[0].value.endswith(" 3")
    shown = " ".join(caption.value for caption in app.caption).replace("\\", "")
    assert "At most 3 uploads are available, so 1.csv was removed." in shown


def with_state(app: AppTest, identity: str, file: str) -> AppTest:
    """The page for a browser whose uploader `identity` has `file`."""
    states = WidgetStates()
    states.widgets.add(id=identity).file_uploader_state_value.uploaded_file_info.add(
        file_id=file, name="mine.csv", size=1
    )
    return app._run(states)


def test_a_file_missing_from_the_server_is_not_an_upload(app: AppTest) -> None:
    identity = app.file_uploader[0].id
    with_state(app, identity, "made up")
    assert not app.exception and app.text[0].value == "sample 304"


def test_an_uploader_that_the_page_no_longer_has_is_ignored(app: AppTest) -> None:
    identity = app.file_uploader[0].id
    app.session_state["without"] = True
    app.run()
    for _ in range(2):
        with_state(app, identity, "made up")
        assert not app.exception

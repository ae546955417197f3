"""An error on a page is shown as one sentence, once."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from tests.support.pages import SECONDS


def alike() -> None:
    from poslens.attribution.errors import UserError
    from poslens.dashboard.widgets.guard import guarded

    shown: set[str] = set()
    for reason in ("no query", "no query", "no weights", "no query"):
        with guarded(shown):
            raise UserError(reason)
    for _ in range(2):
        with guarded():
            raise UserError("on its own")


def test_sections_with_the_same_error_show_it_once() -> None:
    app = AppTest.from_function(alike, default_timeout=SECONDS).run()
    assert [one.value for one in app.error] == [
        "no query",
        "no weights",
        "on its own",
        "on its own",
    ]

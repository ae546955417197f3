"""The button of the login page."""

from __future__ import annotations

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from poslens.dashboard.server import oidc
from tests.support.pages import SECONDS
from tests.support.ports import free_port


def page() -> None:
    from poslens.dashboard.widgets import login

    login._ask()


def test_a_provider_that_does_not_answer_is_reported_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(st, "login", lambda: asked.append("login"))
    app = AppTest.from_function(page, default_timeout=SECONDS)
    app.secrets["auth"] = {"server_metadata_url": f"http://localhost:{free_port()}/metadata"}
    app.run().button[0].click().run()
    (error,) = app.error
    assert error.value.startswith("You can't log in now, because the identity provider doesn't")
    assert not app.exception and not asked
    monkeypatch.setattr(oidc, "trouble", lambda url: "")
    app.button[0].click().run()
    assert asked == ["login"] and not app.error

"""Settings: invalid values are refused, and all are documented."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit import config
from streamlit.web import bootstrap

from poslens.attribution.errors import UserError
from poslens.compute.settings import MODEL_MEMORY_GB, PRECISION, SETTINGS
from poslens.dashboard.server.access import Access
from poslens.dashboard.server.streamlit_app import options

ROOT = Path(__file__).parents[3]


def test_every_environment_variable_read_is_a_setting() -> None:
    import re

    read = set()
    for folder in ("attribution", "cache", "poslens", "dashboard"):
        for path in (ROOT / folder).rglob("*.py"):
            read |= set(re.findall(r"POSLENS_[A-Z_]+", path.read_text(encoding="utf-8")))
    # Keys of endpoints have individual names.
    keys = {name for name in read if name.startswith("POSLENS_KEY_")}
    assert read - keys == {s.name for s in SETTINGS}


@pytest.mark.parametrize(("setting", "value"), [(PRECISION, "int8"), (MODEL_MEMORY_GB, "-1")])
def test_a_value_out_of_range_is_refused(setting, value, monkeypatch) -> None:
    monkeypatch.setenv(setting.name, value)
    with pytest.raises(UserError, match=setting.name):
        setting.get()


def test_the_server_is_safe_by_default() -> None:
    given = options(Access(), 8501)
    assert given["server.address"] == "127.0.0.1"
    assert given["client.showErrorDetails"] == "none"
    assert given["browser.gatherUsageStats"] is False
    assert given["global.disableWidgetStateDuplicationWarning"] is True
    assert given["server.allowedHosts"] == ["127.0.0.1", "localhost"]


def test_only_the_address_of_poslens_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options(Access("127.0.0.2"), 8501)
    monkeypatch.setattr(config, "get_option", given.get)
    bootstrap._print_url(False)
    assert not capsys.readouterr().out

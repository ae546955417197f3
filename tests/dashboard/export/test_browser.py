"""The browser behind image exports: shared by threads, replaced when it dies, never waited for."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from attribution.errors import UserError
from dashboard.export import browser


def test_each_thread_gets_its_own_image() -> None:
    got: dict[int, bytes] = {}

    def draw(number: int) -> None:
        figure = {"data": [], "layout": {"title": {"text": f"figure {number} here"}}}
        got[number] = browser.render(figure, "svg", 300, 200, 1)

    threads = [threading.Thread(target=draw, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(f"figure {number} here".encode() in got[number] for number in range(6))


def test_a_browser_that_died_is_replaced() -> None:
    started = browser._Browser()
    figure = {"data": [], "layout": {}}
    try:
        started.render(figure, {"format": "svg"})
        with suppress(Exception):
            started._wait(started._kaleido.send_command("Browser.crash"))
        started._kaleido.subprocess.wait(10)
        assert b"<svg" in started.render(figure, {"format": "svg"})
    finally:
        started.close()


def test_without_a_browser_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER_PATH", "/nowhere")
    with pytest.raises(UserError, match="install Chrome or Chromium"):
        browser._Browser().render({"data": [], "layout": {}}, {"format": "svg"})


def test_a_browser_that_starts_nothing_is_named_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "chromium"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("BROWSER_PATH", str(fake))
    monkeypatch.setattr(browser, "TIMEOUT_S", 5)
    with pytest.raises(UserError, match="install Chrome or Chromium"):
        browser._Browser().render({"data": [], "layout": {}}, {"format": "svg"})

"""The browser for image exports: shared by threads, replaced when it dies, never waited for
endlessly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kaleido import Kaleido

from poslens.attribution.errors import UserError
from poslens.export import browser


def test_each_thread_gets_its_own_image() -> None:
    got: dict[int, bytes] = {}

    def draw(number: int) -> None:
        figure = {"data": [], "layout": {"title": {"text": f"figure {number} here"}}}
        got[number] = browser.render(figure, "svg", 300, 200, 1)

    threads = [threading.Thread(target=draw, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert all(f"figure {number} here".encode() in got[number] for number in range(6))


async def drawn(browser: Kaleido) -> bytes:
    image: bytes = await browser.calc_fig({"data": [], "layout": {}}, opts={"format": "svg"})
    return image


@pytest.fixture()
def shared() -> Iterator[browser._Browser]:
    started = browser._Browser()
    yield started
    started.close()


def test_pages_and_figures_are_drawn_by_one_browser_at_the_same_time() -> None:
    async def title(page: browser.Page) -> object:
        await page.show("<title>a page</title>", 300, 200)
        return await page.evaluate("document.title")

    with ThreadPoolExecutor(4) as threads:
        pages = [threads.submit(browser.in_page, title) for _ in range(3)]
        figure = threads.submit(browser.render, {"data": [], "layout": {}}, "svg", 300, 200, 1)
        assert [page.result(120) for page in pages] == ["a page"] * 3
        assert b"<svg" in figure.result(120)


def test_a_browser_that_died_is_replaced(shared: browser._Browser) -> None:
    shared.run(drawn)
    assert shared._process is not None
    first = shared._process.kaleido.subprocess
    os.killpg(first.pid, signal.SIGKILL)
    first.wait(60)
    assert b"<svg" in shared.run(drawn)


def test_a_browser_that_dies_while_it_draws_is_replaced_quietly(
    shared: browser._Browser, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[int] = []

    async def draw(browser: Kaleido) -> bytes:
        if not started:
            started.append(browser.subprocess.pid)
            os.killpg(browser.subprocess.pid, signal.SIGKILL)
        return await drawn(browser)

    assert b"<svg" in shared.run(draw)
    assert caplog.records == []


def test_a_page_that_never_ends_times_out_and_the_next_picture_is_drawn(
    shared: browser._Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spin(browser: Kaleido) -> None:
        tab = await browser.create_tab()
        await tab.send_command("Runtime.evaluate", {"expression": "for (;;);"})

    shared.run(drawn)
    assert shared._process is not None
    first = shared._process.kaleido.subprocess
    monkeypatch.setattr(browser, "TIMEOUT_S", 0.5)
    with pytest.raises(UserError, match=r"no image within 0\.5 seconds"):
        shared.run(spin)
    first.wait(60)  # it was ended, including its computation
    monkeypatch.undo()
    assert b"<svg" in shared.run(drawn)


def test_waiting_too_long_in_line_is_reported(
    shared: browser._Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser, "TIMEOUT_S", 0.01)
    with shared._lock, pytest.raises(UserError, match="busy with other exports"):
        shared.run(drawn)


def test_no_temporary_file_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = browser._Browser()
    monkeypatch.setattr(browser, "_browser", own)

    async def nothing(page: browser.Page) -> None:
        await page.show("<p>text", 300, 200)

    browser.in_page(nothing)
    assert list(tmp_path.iterdir()) != []
    own.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_browser_one_sentence_states_what_to_do(
    shared: browser._Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROWSER_PATH", "/nowhere")
    with pytest.raises(UserError, match=r"install Chrome or Chromium .* or export HTML"):
        shared.run(drawn)


@pytest.mark.parametrize(
    ("script", "seconds", "sentence"),
    [
        ("exit 1", 60, "install Chrome or Chromium"),
        ("exec sleep 600", 1, "no image within 1 seconds"),
    ],
)
def test_a_program_that_is_not_a_browser_is_named_and_does_not_block_python(
    tmp_path: Path, script: str, seconds: int, sentence: str
) -> None:
    fake = tmp_path / "chromium"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    program = (
        "from poslens.export import browser\n"
        f"browser.TIMEOUT_S = {seconds}\n"
        "browser.render({'data': [], 'layout': {}}, 'svg', 300, 200, 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "BROWSER_PATH": str(fake)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    # A thread of choreographer may report the lost browser later.
    errors = [line for line in done.stderr.splitlines() if "UserError: " in line]
    assert errors and sentence in errors[-1], done.stderr

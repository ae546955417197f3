"""The device's queue and runs of other processes, as shown on pages."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest

from tests.e2e.conftest import App, Visit
from tests.e2e.waiting import expect
from tests.support.forked import Forked

SLOW = "method=occlusion&level=token"
PAIR = "pair=food-sourdough-q2"


@pytest.fixture
def own(start_app: Callable[..., App]) -> App:
    """A dashboard that no other test uses."""
    return start_app()


def stored(app: App, method: str) -> int:
    """Files of results of a method."""
    return len(list((app.home / "cache").rglob(f"*{method}*")))


def test_a_closed_tab_frees_the_device_and_a_waiting_page_shows_its_place(
    own: App, visit: Visit
) -> None:
    slow = visit(f"{own.url}/?{PAIR}&{SLOW}&models=MiniLM&models=MiniLM-primacy")
    expect(slow.get_by_text("Computing MiniLM").first).to_be_visible()
    quick = visit(f"{own.url}/?{PAIR}&method=saliency&models=MiniLM")
    expect(quick.get_by_text("1 ahead in the queue.")).to_be_visible()
    slow.close()
    expect(quick.get_by_test_id("stPlotlyChart").first).to_be_visible()
    expect(quick.get_by_text("ahead in the queue")).to_have_count(0)
    # It was served after the slow one, which stored nothing because it was not completed.
    assert stored(own, "saliency") and not stored(own, "occlusion")


def test_progress_of_another_processs_run_is_shown(own: App, visit: Visit, forked: Forked) -> None:
    home = {"POSLENS_HOME": str(own.home)}
    page = visit(f"{own.url}/curves?models=MiniLM&method=saliency")
    expect(page.get_by_text(re.compile("No curve has been computed"))).to_be_visible()
    process = forked.start("precompute", "--model", "MiniLM", env=home)
    try:
        expect(page.get_by_text(re.compile("computed by another process"))).to_be_visible()
        expect(page.get_by_test_id("stPlotlyChart").first).to_be_visible()
        # Like a process manager: it ends, and keeps what is stored.
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 130
        assert "All computed results are stored" in process.err.read_text()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    expect(page.get_by_text(re.compile("computed by another process"))).to_have_count(0)
    done = page.get_by_text(re.compile(r"^\d+ of 304( \w+)?$")).first.inner_text()
    assert 0 < int(done.split()[0]) < 304

"""A short load test: four sessions that click while a run computes. The long one is a command."""

from __future__ import annotations

from tests.load.sessions import measure
from tests.support.forked import Forked


def test_sessions_click_without_errors_while_a_run_computes(forked: Forked) -> None:
    for seconds in (12, 30, 90, 240):
        seen = measure(sessions=4, seconds=seconds, every=2, forked=forked)
        assert seen.errors == []
        assert len(seen.openings) == 4 <= len(seen.clicks) and seen.at_the_end > 0
        if seen.computed:  # a slow machine has only just loaded the model by then
            break
    assert seen.computed > 0
    assert len(list(seen.lines())) == 6

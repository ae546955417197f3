"""A short load: four sessions that click while a run computes. The long one is a command."""

from __future__ import annotations

from tests.load.sessions import measure


def test_sessions_click_without_errors_while_a_run_computes() -> None:
    for seconds in (12, 30, 90, 240):
        seen = measure(sessions=4, seconds=seconds, every=2)
        assert seen.errors == []
        assert len(seen.openings) == 4 <= len(seen.clicks) and seen.at_the_end > 0
        if seen.computed:  # a slow machine has loaded the model by then, and no more
            break
    assert seen.computed > 0
    assert len(list(seen.lines())) == 6

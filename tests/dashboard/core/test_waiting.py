"""Waiting on a page for a slow pair, and stopping it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from streamlit.proto.WidgetStates_pb2 import WidgetState, WidgetStates
from streamlit.runtime.scriptrunner_utils.script_requests import RerunData, ScriptRequests

from poslens.attribution.errors import Stopped
from poslens.compute.queue import DeviceQueue, Place
from poslens.dashboard.server import waiting


def requested(pressed: str) -> ScriptRequests:
    """The requests of a running script after a click on a button of one of its fragments."""
    states = WidgetStates(widgets=[WidgetState(id=f"$$ID-0a1b-{pressed}", trigger_value=True)])
    requests = ScriptRequests()
    requests.request_rerun(RerunData(fragment_id="fragment", widget_states=states))
    assert requests.on_scriptrunner_yield() is None, "Streamlit lets the script continue"
    return requests


@pytest.mark.parametrize("pressed", ["stopped.M.button", "other.button"])
def test_a_click_on_stop_in_a_fragment_ends_the_wait(
    pressed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(script_requests=requested(pressed))
    monkeypatch.setattr(waiting, "get_script_run_ctx", lambda **_: context)
    place = Place[str](DeviceQueue(lambda: 1))
    polls = []

    def wait(seconds: float) -> bool:
        polls.append(seconds)
        if len(polls) == 3:
            place._result.set_result("done")
        return place._result.done()

    monkeypatch.setattr(Place, "wait", lambda self, seconds: wait(seconds))
    if pressed.startswith("stopped"):
        with pytest.raises(Stopped, match="Stopped before the result was ready"):
            waiting.wait(place, "stopped.M")
        assert len(polls) == 1
    else:
        assert waiting.wait(place, "stopped.M") == "done"

"""A model behind an address, from its name to its heatmap, in a browser; its key stays hidden."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import WORDS, App, Visit, contents, idle
from tests.e2e.test_app import no_error
from tests.e2e.waiting import expect
from tests.support.endpoint_server import running

KEY = "sk-very-secret"


def test_the_page_states_what_it_will_send_and_which_methods_do_not_fit(
    start_app: Callable[..., App], visit: Visit, tmp_path: Path
) -> None:
    # As many as a mean needs, which the page offers to compute.
    rows = [f"what is {word},The {word} is grey. Nobody saw it." for word in WORDS]
    (tmp_path / "mine.csv").write_text("\n".join(["query,document", *rows]) + "\n")
    with running(key=KEY) as server:
        app = start_app(
            f"--endpoint=E5={server.url}#model=m&price=2",
            "--endpoint=gone=http://127.0.0.1:9/v1",
            f"--data=mine={tmp_path / 'mine.csv'}",
            POSLENS_KEY_E5=KEY,
        )
        page = visit(f"{app.url}/explain?dataset=mine&models=E5")
        told = page.get_by_text(re.compile(r"PosLens would send it \d+ texts, \d+ tokens"))
        expect(told).to_be_visible()
        expect(told).to_contain_text("at 2 per million tokens")
        # The probe and the check on loading, but not the pair.
        assert not any("grey" in text for text in server.sent)
        idle(page).get_by_text("unavailable for the selected models").click()
        why = page.get_by_test_id("stSidebar").get_by_text(
            re.compile("Gradient saliency cannot be computed for E5")
        )
        expect(why).to_contain_text("so there are no gradients")
        shown = page.content()
        idle(page).get_by_role("button", name="Send to E5").click()
        expect(page.locator(".hm-pane[data-side=document]")).to_be_visible()
        expect(page.get_by_text(re.compile("E5 · Occlusion ·")).first).to_be_attached()
        expect(page.get_by_text(re.compile("PosLens will send E5")).first).to_be_visible()
        no_error(page)
        assert any("grey" in text for text in server.sent)
        shown += page.content()
    page.goto(f"{app.url}/explain?models=gone")
    expect(page.get_by_text(re.compile("gone can't be reached")).first).to_be_visible()
    no_error(page)
    # Other models are as they were.
    page.goto(f"{app.url}/explain?models=BM25")
    expect(page.locator(".hm-pane[data-side=document]").first).to_be_visible()
    assert KEY not in shown and KEY not in app.log.read_text()
    files = contents(app.home)
    assert files and not [path for path, held in files.items() if KEY.encode() in held]

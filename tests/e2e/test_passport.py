"""Compute a passport and download it, in a browser."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.conftest import App, Visit, idle
from tests.e2e.test_app import no_error
from tests.e2e.waiting import expect


def test_compute_a_passport_and_download_it(run_app: App, visit: Visit) -> None:
    page = visit(f"{run_app.url}/passport?dataset=mine&models=BM25")
    expect(page.get_by_role("button", name="Compute")).to_be_visible()
    idle(page).get_by_role("button", name="Compute").click()
    expect(page.get_by_text("Too few positions have queries to compute PSI.")).to_be_visible()
    expect(page.get_by_text("Not computed yet.")).to_have_count(0)
    expect(page.get_by_text("has no single dense vector per text")).to_be_visible()
    expect(page.get_by_role("figure", name="Ranking by position of the evidence")).to_be_visible()
    no_error(page)
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    idle(page).get_by_role("button", name="Export").click()
    page.get_by_role("button", name="Prepare").click()
    with page.expect_download() as found:
        page.get_by_role("button", name="Download HTML").click()
    text = Path(found.value.path()).read_text(encoding="utf-8")
    assert found.value.suggested_filename.endswith(".html")
    assert "<h1>BM25</h1>" in text and "default-src 'none'" in text

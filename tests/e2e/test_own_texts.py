"""Uploaded and typed texts in one session, while another session exports everything it can."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pyarrow.parquet as pq

from tests.e2e.conftest import App, Visit, contents, idle
from tests.e2e.test_app import no_error, ready
from tests.e2e.waiting import expect

UPLOADED = "The zephyrine ledger names every quixotic debtor."
TYPED = "A vellichor archive holds the sonorous minutes."
SECRETS = ["zephyrine", "quixotic", "vellichor", "sonorous", "ledger-7", "secret-domain", "upload-"]


def test_another_sessions_export_contains_none_of_the_texts(
    start_app: Callable[..., App], visit: Visit, tmp_path: Path
) -> None:
    app = start_app()
    mine = visit(f"{app.url}/?pair=food-sourdough-q2&models=MiniLM")
    ready(mine)
    mine.get_by_role("button", name="Own text").click()
    upload = tmp_path / "ledger.csv"
    upload.write_text(
        "query,document,pair_id,domain\n"
        f'"who owes the zephyrine","{UPLOADED} Another line of it.",ledger-7,secret-domain\n'
    )
    mine.get_by_test_id("stFileUploaderDropzoneInput").set_input_files(upload)
    expect(mine.get_by_text("1 row accepted")).to_be_visible()
    expect(mine.locator(".hm-pane[data-side=document] .hm-text")).to_contain_text("zephyrine")
    ready(mine)
    mine.keyboard.press("Escape")
    # Pages of data sets list the upload, and this reader types texts on another page.
    mine.get_by_test_id("stTopNav").get_by_role("link", name="Curves").click()
    expect(mine.get_by_text("1 of 3 results").first).to_be_visible()
    texts = urlencode({"text": "Own text", "q": "what is sonorous", "d": TYPED, "models": "MiniLM"})
    typed = visit(f"{app.url}/?{texts}")
    expect(typed.locator(".hm-pane[data-side=document] .hm-text")).to_contain_text("vellichor")
    ready(typed)
    typed.locator("[class*='other_views']").get_by_role("link", name="Cause").click()
    typed.wait_for_url("**/cause?*")
    expect(typed.get_by_text("Gradient saliency vs. intervention")).to_be_visible()
    expect(typed.get_by_text("document has 8 parts")).to_be_visible()
    no_error(typed)

    assert [name for name in SECRETS if holding(app.home, name)] == []

    other = visit(f"{app.url}/storage")
    expect(other.get_by_text("Models: 1 · results: 1")).to_be_visible()
    idle(other).get_by_role("button", name="Export").click()
    with other.expect_download() as waiting:
        other.get_by_role("button", name="Download MiniLM").click()
    exported = tmp_path / "results.parquet"
    waiting.value.save_as(exported)
    no_error(other)
    table = pq.read_table(exported)
    assert table["dataset"].to_pylist() == ["sample"]
    said = exported.read_bytes().decode("latin-1") + str(table.to_pydict())
    assert [word for word in SECRETS if word in said] == []
    assert [word for word in SECRETS if word in other.inner_text("body")] == []

    # Files prepared in one session are not offered to others.
    third = visit(f"{app.url}/storage")
    expect(third.get_by_text("Models: 1 · results: 1")).to_be_visible()
    expect(third.get_by_role("button", name="Export")).to_be_enabled()
    expect(third.get_by_text("Download")).to_have_count(0)


def holding(folder: Path, text: str) -> list[Path]:
    """Files below `folder` that hold `text`, the server's log among them."""
    return [path for path, held in contents(folder).items() if text.encode() in held]

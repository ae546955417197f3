"""The user's model and data in one command: the address that `run` prints opens them in a
browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import App, Visit
from tests.e2e.test_app import no_error
from tests.e2e.waiting import expect

WORDS = ("tide", "moon", "fog", "stone", "river", "cloud", "seed", "wind", "salt", "ash", "ice")


def printed_address(app: App) -> str:
    end = time.monotonic() + 120  # the line follows the imports
    while not (address := re.search(r"^PosLens: (\S+)$", app.log.read_text(), re.MULTILINE)):
        assert time.monotonic() < end, app.log.read_text()
        time.sleep(0.2)
    return address[1]


def lines(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"docs={path}"


def test_the_printed_address_opens_why_with_the_users_data(
    start_app: Callable[..., App], tiny_folder: Callable[..., Path], tmp_path: Path, visit: Visit
) -> None:
    data = lines(
        tmp_path / "file.jsonl",
        [
            {"query": f"what of {word}", "document": f"It rained on {word}. Nobody saw {word}."}
            for word in WORDS
        ],
    )
    app = start_app("--model", f"mine={tiny_folder('bert')}", "--data", data)
    address = printed_address(app)
    assert address == f"{app.url}/why"
    addresses = re.findall(r"http://\S+", app.log.read_text())
    assert addresses == [address], "Streamlit would print another host with --host 127.0.0.2"
    assert "docs has 11 pairs of a query and a document, but no evidence." in app.log.read_text()
    page = visit(address)
    expect(page.get_by_role("heading", level=1, name=re.compile("^Why: "))).to_be_visible()
    sidebar = page.get_by_test_id("stSidebar")
    expect(sidebar.get_by_text("mine", exact=True).first).to_be_visible()
    expect(sidebar.get_by_role("combobox", name="Data set")).to_have_value("docs")
    expect(page.get_by_text(re.compile(r"mine: .* is at rank \d+ of 11"))).to_be_visible()
    no_error(page)


def test_documents_without_queries_open_the_audit(
    start_app: Callable[..., App], tmp_path: Path, visit: Visit
) -> None:
    rows = [{"_id": word, "text": f"It rained on {word}. Nobody saw {word}."} for word in WORDS]
    app = start_app("--model", "BM25", "--data", lines(tmp_path / "file.jsonl", rows))
    address = printed_address(app)
    assert address == f"{app.url}/audit"
    page = visit(address)
    expect(page.get_by_role("heading", level=1, name=re.compile("^Audit: "))).to_be_visible()
    expect(page.get_by_role("button", name="Compute")).to_be_visible()
    no_error(page)

"""Find hubs, and explain why a query retrieves one, in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import App, Visit, idle, pick_row
from tests.e2e.test_app import no_error
from tests.e2e.waiting import expect
from tests.support.nouns import NOUNS


def test_find_the_top_hub_and_open_a_query_in_explain(
    start_app: Callable[..., App], visit: Visit, tmp_path: Path
) -> None:
    rows = [
        {"pair_id": noun, "query": f"which old {noun}", "document": f"The {noun} is old and red."}
        for noun in NOUNS
    ]
    rows.append({"pair_id": "hub", "query": "what else", "document": "Which old old old thing?"})
    path = tmp_path / "things.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    app = start_app("--data", f"things={path}")
    page = visit(f"{app.url}/ranking?dataset=things&models=BM25&top=2")
    expect(page.get_by_text("13 queries and 13 documents")).to_be_visible()
    idle(page)
    page.get_by_role("tab", name="Hubs").click()
    expect(page.get_by_text("No results have been computed")).to_be_visible()
    idle(page)
    page.get_by_role("button", name="Compute").click()
    expect(page.get_by_text(re.compile("The top hub, hub, is in the top 2 of 12"))).to_be_visible()
    expect(page.get_by_role("figure", name="Sorted in-degrees")).to_be_visible()
    idle(page)
    listed = page.locator("[class*=st-key-hubs-documents] .dvn-scroller").first
    words = page.get_by_text("Words of hub")
    pick_row(listed, 1, words.is_visible)
    link = page.get_by_role("link", name="Explain the chosen document")
    expect(link).to_be_visible()
    no_error(page)
    address = link.get_attribute("href") or ""
    assert "tab=Hubs" in page.url and "q=which" in address
    pair = visit(address if address.startswith("http") else f"{app.url}{address}")
    expect(pair.locator(".hm-pane[data-side=document] .hm-text").first).to_contain_text("old")
    no_error(pair)

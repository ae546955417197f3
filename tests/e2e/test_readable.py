"""Exclude pairs with truncated evidence, by one click, on the pages that take many pairs."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page

from tests.e2e.conftest import App, Visit, press
from tests.e2e.test_app import no_error, ready
from tests.e2e.waiting import expect


def exclude(page: Page, inside: Locator | None = None) -> None:
    """Turn the switch on; `inside` opens the part of the page that has it."""
    box = page.get_by_text("Exclude pairs with truncated evidence")
    if inside is not None:
        press(inside, box.is_visible)
    press(box, lambda: "readable=true" in page.url)


def test_exclude_truncated_pairs_from_a_ranking(app: App, visit: Visit) -> None:
    page = visit(f"{app.url}/ranking?models=MiniLM&tab=Rankings")
    expect(page.get_by_text(re.compile("304 queries and 68 documents"))).to_be_visible()
    exclude(page, page.get_by_text("Search settings"))
    over = page.get_by_text(
        re.compile(r"over 1\d\d queries: only pairs whose evidence no model truncates")
    )
    expect(over).to_be_visible()
    no_error(page)


def test_exclude_truncated_pairs_from_bias_tests(app: App, visit: Visit) -> None:
    page = visit(f"{app.url}/cause?tab=Bias+tests&dataset=sample&models=MiniLM&tests=position")
    exclude(page)
    expect(page.get_by_text("A model cannot read one of the two documents")).to_be_visible()
    no_error(page)


def test_exclude_truncated_pairs_from_the_list_of_pairs(app: App, visit: Visit) -> None:
    page = ready(visit(f"{app.url}/?dataset=sample&models=MiniLM"))
    exclude(page, page.get_by_role("button", name="Filters"))
    expect(page.get_by_text(re.compile(r"of 1\d\d \(304 without filters\)"))).to_be_visible()
    again = ready(visit(page.url))  # the address alone
    expect(again.get_by_text(re.compile(r"of 1\d\d \(304 without filters\)"))).to_be_visible()
    no_error(again)

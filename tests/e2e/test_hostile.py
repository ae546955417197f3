"""Texts, ids and model names that look like markup, code or commands are shown as text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page

from poslens.figures.plain import parted
from tests.e2e.conftest import App, idle
from tests.e2e.waiting import expect

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<iframe src=javascript:alert(1)>",
    "<body onload=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    "</script><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "--><script>alert(1)</script>",
    "<!-- comment",
    "<![CDATA[x]]>",
    "<math><mi xlink:href='data:x,<script>alert(1)</script>'>",
    "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    "<marquee onstart=alert(1)>",
    "<style>*{display:none}</style>",
    "<base href=//example.invalid>",
    "<meta http-equiv=refresh content=0>",
    "<form action=x><button>go</button></form>",
    '" onmouseover=alert(1) x="',
    "' onmouseover=alert(1) x='",
    "`onmouseover=alert(1)`",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "${alert(1)}",
    "{{constructor.constructor('alert(1)')()}}",
    "#{alert(1)}",
    "%{x}<extra>",
    "$$\\int_0^1$$",
    "$x$ and \\(y\\)",
    "**bold** _it_ ~~no~~",
    "[link](javascript:alert(1))",
    "![image](x)",
    ":material/delete: :smile: :red[red]",
    "# heading\n\n* list",
    "| a | b |\n|---|---|",
    "```\ncode\n```",
    "=1+1",
    "+1+1|cmd",
    "@SUM(A1)",
    "../../etc/passwd",
    "C:\\windows\\system32",
    "'; DROP TABLE result; -- -> <- <-> >= <= ~= :streamlit:",
    "%00%0a%0d",
    "\u202eright to left override\u202c",
    "zero\u200d\u200cwidth\u200bjoiners\ufeff",
    "&lt;b&gt; &amp; &#60;script&#62;",
]


# Five per pair, so that ten pairs contain all of them.
GROUPS = [" ".join(HOSTILE[first::10]) for first in range(10)]


@pytest.fixture(scope="module")
def hostile_app(tmp_path_factory: pytest.TempPathFactory, start_app: Callable[..., App]) -> App:
    """A dashboard with a data set in which every text and id is hostile."""
    root = tmp_path_factory.mktemp("hostile")
    folder = root / "eng" / "<b>domain"
    (folder / "qrels").mkdir(parents=True)
    queries, corpus, qrels = [], [], []
    for number, text in enumerate(GROUPS):
        document = f"Before it. {text} And after it."
        corpus.append({"_id": f"d{number}{text}", "text": document})
        queries.append(
            {
                "_id": f"{number:02}{text}",
                "text": f"{text} here",
                "pos_char_span": [0, 10],
                "pos_char_length": len(document),
                "pos_token_length": 20,
            }
        )
        qrels.append(
            {"query-id": f"{number:02}{text}", "corpus-id": f"d{number}{text}", "score": 1}
        )
    pq.write_table(pa.Table.from_pylist(queries), folder / "queries.parquet")
    pq.write_table(pa.Table.from_pylist(corpus), folder / "corpus.parquet")
    pq.write_table(pa.Table.from_pylist(qrels), folder / "qrels" / "test.parquet")
    return start_app("--data", f"hostile={root}")


def test_texts_and_ids_are_shown_as_text(
    hostile_app: App, visit: Callable[..., Page], tmp_path: Path
) -> None:
    page = visit(f"{hostile_app.url}/?dataset=hostile")
    elements = None
    for number, text in enumerate(GROUPS):
        document = page.locator(".hm-pane[data-side=document] .hm-text")
        expect(document).to_have_text(f"Before it. {text} And after it.", use_inner_text=False)
        expect(page.get_by_test_id("stCaptionContainer").last).to_contain_text(
            parted(f"{number:02}{text}")
        )
        counted = idle(page).evaluate(
            "() => ['script:not([src])', 'iframe', 'video', 'form', 'marquee', 'details', 'base',"
            " 'a[href^=javascript]', '[onerror]', '[onload]'].map("
            "s => document.querySelectorAll(s).length)"
        )
        elements = elements or counted
        assert counted == elements, text
        expect(page.get_by_test_id("stException")).to_have_count(0)
        page.locator(".st-key-next button").first.click()


@pytest.mark.parametrize("text", GROUPS[::5])
def test_names_in_the_address_are_shown_as_text(
    app: App, go: Callable[..., Page], text: str
) -> None:
    page = go(f"{app.url}/?models={quote(text)}&pair={quote(text)}&dataset={quote(text)}")
    expect(page.get_by_text("There is no model").first).to_be_visible()
    expect(page.get_by_text("There is no data set").first).to_be_visible()
    assert "Traceback" not in page.inner_text("body")

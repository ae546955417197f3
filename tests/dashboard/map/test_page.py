"""The Map page without a browser."""

from __future__ import annotations

import pytest

from tests.support.pages import open_page

pytestmark = pytest.mark.usefixtures("own_service")


@pytest.mark.parametrize(
    ("of", "color", "offered"),
    [
        ("documents", "domain", False),
        ("queries", "tokens", False),
        ("documents", "score", True),
        ("queries", "primacy-recency index", True),
        ("curves", "domain", True),
    ],
)
def test_a_method_is_offered_where_the_map_shows_its_results(
    of: str, color: str, offered: bool
) -> None:
    page = open_page("map", of=of, color=color).run()
    assert not page.exception and not page.error
    assert any(widget.label == "Method" for widget in page.selectbox) is offered

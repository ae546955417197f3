"""The Map page without a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from poslens.attribution import datasets
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


def test_too_few_points_are_named_before_anything_is_computed(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("query,document\nwhat lifts,Fog lifts at noon.\nwhat melts,Ice melts.\n")
    datasets.register("two", path)
    page = open_page("map", dataset="two").run()
    assert not page.exception and not page.error
    assert "map.start" not in [button.key for button in page.button]
    (info,) = page.info
    assert "needs at least 5 points, not 2" in info.value

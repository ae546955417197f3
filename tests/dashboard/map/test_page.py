"""The Map page without a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from poslens.attribution import datasets
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import Compute
from poslens.dashboard.widgets import panels
from poslens.studies import map as map_service
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


def test_a_model_without_vectors_is_named_before_anything_is_computed() -> None:
    page = open_page("map", model="BM25").run()
    assert not page.exception and "map.start" not in [button.key for button in page.button]
    assert "BM25 doesn't have a dense vector per text" in page.error[0].value
    curves = open_page("map", model="BM25", of="curves").run()
    assert not curves.exception and not curves.error
    assert "map.start" in [button.key for button in curves.button]


def test_numbers_have_units_and_the_caption_names_the_similarity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"what is {n},Fog {n} lifts.,Fog {n}" for n in range(5)]
    (tmp_path / "few.csv").write_text("\n".join(["query,document,evidence", *rows, "why,Ice,"]))
    datasets.register("few", tmp_path / "few.csv")
    texts = tuple(pair.document for pair in datasets.read("few").pairs)

    def stored(compute: Compute, spec: RetrieverSpec, *_: object) -> map_service.StoredMap:
        points = np.arange(2.0 * len(texts)).reshape(-1, 2)
        return map_service.StoredMap(compute.identify(spec), texts, points)

    tables: dict[str, Callable[[], pd.DataFrame]] = {}
    monkeypatch.setattr(map_service, "stored_map", stored)
    monkeypatch.setattr(panels, "downloads", lambda *_, **given: tables.update(given["tables"]))
    page = open_page("map", dataset="few", color="evidence position").run()
    assert not page.exception and not page.error
    captions = [caption.value for caption in page.caption]
    assert "Gray: 1 point of unknown evidence position." in captions
    assert any("high cosine similarity, even if the model" in text for text in captions)
    assert "evidence position (%)" in tables["Numbers"]()

"""The Cause page without a browser: the intervention curve above a method's curve."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from streamlit.proto.Metric_pb2 import Metric

from poslens.attribution import datasets
from poslens.attribution.curves.text_axis import curve_over_text
from poslens.attribution.methods import make_method
from poslens.compute.compute import service
from poslens.dashboard.widgets import choices
from tests.support.pages import open_page

pytestmark = pytest.mark.usefixtures("own_service")


def test_the_intervention_curve_is_drawn_by_characters_and_names_all_its_sources(
    tmp_path: Path,
) -> None:
    first = " ".join("abcdefghijklmnopqrst")
    second = "Longer words are longlasting. Yesterday somebody answered. Everything remained."
    row = {"query": "who answered", "document": f"{first}. {second}", "pair_id": "one"}
    row |= {"evidence": "Yesterday somebody answered."}
    (tmp_path / "uneven.jsonl").write_text(json.dumps(row), encoding="utf-8")
    datasets.register("uneven", tmp_path / "uneven.jsonl")
    page = open_page("cause", dataset="uneven", models=["BM25"], method="terms").run()
    assert not page.exception and not page.error
    drawn = [json.loads(each.proto.spec) for each in page.get("plotly_chart")]
    (over,) = [one for one in drawn if "largest magnitude" in str(one["layout"]["yaxis"])]
    methods = [one["method"] for one in over["layout"]["meta"]["provenance"]]
    assert [name.partition("(")[0] for name in methods] == ["terms", "ablation", "relocation"]
    assert any(all(name in one.value.replace("\\", "") for name in methods) for one in page.caption)
    (pair,) = datasets.read("uneven").pairs
    spec = choices.spec("BM25", "uneven")
    found = service().explain(pair, spec, make_method("terms")).attribution
    values = over["data"][0]["customdata"]
    drawn_curve = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
    np.testing.assert_allclose(drawn_curve, curve_over_text(found, len(pair.document)))
    # BM25's score stays where it is, which is neither better nor worse.
    (score,) = page.metric
    assert score.delta == "+0.0000" and score.proto.direction == Metric.MetricDirection.NONE
    assert score.proto.color == Metric.MetricColor.GRAY

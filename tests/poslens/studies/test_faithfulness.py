"""The study of faithfulness: planted truth, comparisons, options and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import poslens
from poslens.arguments import specs_of
from poslens.attribution import datasets
from poslens.attribution.errors import UserError
from poslens.compute.compute import service
from poslens.dashboard.__main__ import app
from poslens.names import data_name
from poslens.studies.faithfulness.study import FAITHFULNESS
from poslens.study_plan import plan, so_far, stored
from tests.support.nouns import NOUNS
from tests.support.pages import open_page

N = 12


@pytest.fixture(autouse=True)
def apart(own_service: None) -> None:
    """A separate store for this test."""


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """Documents of which only the last word answers the query; in the last pair, no word does."""
    rows = [
        {
            "pair_id": f"d{n}",
            "query": NOUNS[n],
            "document": f"People in house {n} often talk in the evening about their {NOUNS[n]}.",
        }
        for n in range(N)
    ]
    rows.append({"pair_id": "none", "query": "qqqq", "document": "The ice is white and cold."})
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_exact_shares_beat_random_orders_and_orders_by_position(pairs: str) -> None:
    result = poslens.faithfulness("BM25", pairs)
    terms, front, back = result.summaries
    assert [each.summary.method.name for each in (terms, front)] == ["terms", "position_order"]
    assert terms.summary.n == N and terms.summary.n_equal == 1, "the pair without a match"
    gains = {pair_id: float(gain) for (_, pair_id), (gain,) in terms.measure.rows.items()}
    assert set(gains) == {f"d{n}" for n in range(N)}
    # The word that determines the score is last, so only terms and back to front delete it early.
    assert terms.over_random.verdict == back.over_random.verdict == "higher"
    assert front.over_random.verdict == "lower"
    assert terms.over_random.difference.value == pytest.approx(np.mean(list(gains.values())))
    assert "BM25, Term shares: the score falls faster than in random order" in result.verdicts[0]
    rows = result.to_frame("differences").set_index(["model", "against"])
    verdicts = rows["difference_verdict"]
    assert verdicts["BM25, Term shares", "BM25, Front to back"] == "higher"
    assert verdicts["BM25, Term shares", "BM25, Back to front"] == "equivalent"
    assert (rows["n"] == N).all()


def test_orders_are_compared_on_the_same_model_only(pairs: str) -> None:
    result = poslens.faithfulness(["BM25", "MiniLM"], pairs, methods=["terms", "saliency"])
    rows = result.to_frame("differences")
    assert len(rows) == 6, "three for each model"
    models = rows[["model", "against"]].map(lambda name: name.split(",")[0])
    assert (models["model"] == models["against"]).all()
    # Tests that are shown together are adjusted together.
    assert {each.over_random.n_compared for each in result.summaries} == {6}


def test_the_command_equals_the_python_call_and_draws(pairs: str, tmp_path: Path) -> None:
    asked = ["--model", "BM25", "--dataset", pairs, "--unit", "sentence", "--random-orders", "2"]
    figure = tmp_path / "gains.svg"
    output = CliRunner().invoke(app, ["faithfulness", *asked, "--figure", str(figure)])
    assert output.exit_code == 0, output.output
    rows = json.loads(output.stdout)["rows"]
    assert [row["method"] for row in rows] == ["terms", "front to back", "back to front"]
    result = poslens.faithfulness("BM25", pairs, unit="sentence", random_orders=2)
    assert result.summaries[0].summary.parameters.n_random == 2
    assert rows[0]["deletion_gain"] == result.summaries[0].over_random.difference.value == 0, (
        "one sentence has one order"
    )
    assert "Front to back" in figure.read_text(encoding="utf-8")


def test_each_selection_of_the_same_pairs_has_its_own_provenance(pairs: str) -> None:
    results = [poslens.faithfulness("BM25", pairs, readable=only) for only in (False, True)]
    everything, readable = (result.provenance[0].selection for result in results)
    assert everything == "13 pairs, spread evenly over the data set"
    assert readable == f"{everything}, only pairs whose evidence no model truncates"


def test_pairs_are_spread_and_invalid_input_is_refused(pairs: str) -> None:
    (first, *_) = poslens.faithfulness("BM25", pairs, pairs=4).summaries
    assert first.summary.n + first.summary.n_equal == 4
    with pytest.raises(UserError, match="of these methods is available for BM25: this"):
        poslens.faithfulness("BM25", pairs, methods=["saliency"])
    with pytest.raises(UserError, match="Unit: choose from word, token"):
        poslens.faithfulness("BM25", pairs, unit="letter")
    with pytest.raises(UserError, match="BM25: no document scores higher than the empty document"):
        poslens.faithfulness("BM25", _alone(pairs))


def _alone(pairs: str) -> str:
    path = Path(pairs).with_name("alone.jsonl")
    path.write_text(Path(pairs).read_text().splitlines()[-1] + "\n")
    return str(path)


def test_incomplete_results_state_everywhere_that_they_are_not_final(pairs: str) -> None:
    poslens.faithfulness("BM25", pairs, pairs=5)
    data = datasets.read(data_name(pairs))
    settings = FAITHFULNESS.parameters.settings({"pairs": 0})
    specs = specs_of("BM25", data)
    corpus = FAITHFULNESS.corpus(data, settings)
    planned = plan(FAITHFULNESS, service(), specs, corpus, settings)
    assert not stored(FAITHFULNESS, service(), planned.subjects)
    results = so_far(FAITHFULNESS, service(), planned.subjects, planned.jobs)
    assert len(results.verdicts) == 3 and results.differences
    assert all(
        each.endswith(" Not final: compute the remaining 8 pairs.") for each in results.verdicts
    )
    assert all(sentence.endswith(" Not final.") for sentence in results.differences)
    for shown in ("", "tests"):
        for source in results.provenances(shown):
            assert source.n_pairs == 5 and source.selection.endswith(", 5 of 13 pairs so far")
    page = open_page("methods", dataset=data.name, models=["BM25"], pairs="0", tab="Data set").run()
    assert not page.exception and not page.error
    shown = " ".join(each.value for each in (*page.markdown, *page.caption)).replace("\\", "")
    assert shown.count("Not final: compute the remaining 8 pairs.") == 3
    assert "5 of 13 pairs so far" in shown
    # Verdicts are between the first chart and the others.
    parts = [
        "verdict" if "Not final" in str(getattr(each, "value", "")) else each.type
        for each in page.main
    ]
    parts = [part for part in parts if part in ("verdict", "plotly_chart", "arrow_data_frame")]
    assert parts[:8] == ["plotly_chart", *["verdict"] * 6, "plotly_chart"]

    poslens.faithfulness("BM25", pairs, pairs=0)
    results = so_far(FAITHFULNESS, service(), planned.subjects, planned.jobs)
    assert results.computed == (None, None, None) and "Not final" not in str(results.verdicts)
    assert not any("so far" in source.selection for source in results.provenances())

"""SQuAD-PosQ and FineWeb-PosQ: tables and figure of `rank`, and the page's groups."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import poslens
from poslens.attribution import datasets
from poslens.dashboard.__main__ import app
from tests.support.pages import open_page

WORDS = [
    "ice",
    "stone",
    "fog",
    "tide",
    "dune",
    "reef",
    "moss",
    "peat",
    "loam",
    "clay",
    "sand",
    "salt",
]


def squad(folder: Path) -> Path:
    """Passages of 600 characters, with questions about the facts at their start and end; another
    passage shares the words of the latter."""
    rows: list[dict[str, Any]] = []
    for n, word in enumerate(WORDS):
        late = WORDS[(n + 1) % len(WORDS)]
        start = f"The {word} is old. "
        context = start + "So it is. " * 55 + f"Its {late} melts at dawn."
        facts = ((f"how old is the {word}", 4), (f"when {late}", context.index(late)))
        for at, (question, place) in enumerate(facts):
            answer = {"text": [context[place : place + 3]], "answer_start": [place]}
            rows.append(
                {"id": f"{word}-{at}", "context": context, "question": question, "answers": answer}
            )
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "train-00000-of-00001.parquet")
    return folder


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def frame_of(found: Any) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(found.stdout))


def test_squad_posq_prints_groups_that_equal_a_count_of_ranks(tmp_path: Path) -> None:
    path = str(squad(tmp_path / "squad"))
    asked = ("--dataset", path, "--model", "BM25", "--format", "csv")
    groups = frame_of(run("rank", *asked, "--table", "groups"))
    positions = frame_of(run("rank", *asked, "--table", "positions")).iloc[0]
    ranks = frame_of(
        run("rank", "--dataset", path, "--model", "BM25", "--table", "queries", "--format", "csv")
    )
    means = []
    for name, ending in (("[0,100)", "-0"), ("[500,3120]", "-1")):
        row = groups[groups["group"] == name].iloc[0]
        own = ranks[ranks["id"].str.endswith(ending)]["rank"]
        assert row["queries"] == len(own) == row["documents"] == len(WORDS)
        gains = [1 / math.log2(r + 1) if r <= 10 else 0.0 for r in own]
        assert row["nDCG@10"] == pytest.approx(sum(gains) / len(own), abs=1e-6)
        assert row["Recall@5"] == pytest.approx((own <= 5).mean())
        assert row["nDCG@10 low"] <= row["nDCG@10"] <= row["nDCG@10 high"]
        assert positions[name] == pytest.approx(row["nDCG@10"]) and row["evidence read"] == 1
        means.append(row["nDCG@10"])
    assert groups["queries"].sum() == 2 * len(WORDS) and len(groups) == 6
    assert means[0] != means[1], "the later facts share their words with another passage"
    assert positions["PSI"] == pytest.approx(1 - min(means) / max(means))
    assert positions["harmonic mean"] == pytest.approx(2 / (1 / means[0] + 1 / means[1]))
    assert 0 < positions["PSI under permutation"] < 1 and 0 < positions["p"] <= 1


def test_figure_and_provenance_state_what_was_drawn_and_resampled(tmp_path: Path) -> None:
    path, file = squad(tmp_path / "squad"), tmp_path / "groups.json"
    asked = (
        "rank",
        "--table",
        "positions",
        "--dataset",
        str(path),
        "--model",
        "BM25",
        "--group-queries",
        "11",
    )
    found = json.loads(run(*asked).stdout)
    assert found["rows"][0]["queries"] == 22
    (provenance,) = found["provenance"]
    assert provenance["selection"] == "up to 11 queries of each group, drawn with seed 0"
    assert re.fullmatch("95%, bootstrap over 1[12] documents", provenance["interval"])
    beside = run(*asked, "--figure", str(file))
    assert json.loads(beside.stdout) == found and str(file) in beside.stderr
    drawn = json.loads(file.read_text())
    assert drawn["layout"]["meta"]["figure"] == "position_groups"
    (trace,) = drawn["data"]
    values = [found["rows"][0][name] for name in ("[0,100)", "[500,3120]")]
    assert [trace["y"][0], trace["y"][5]] == pytest.approx(values)
    ranked = poslens.rank("BM25", path)
    assert ranked.figure(table="positions").layout.meta["figure"] == "position_groups"
    ranked.save(file, table="groups")
    assert json.loads(file.read_text())["rows"][0]["group"]


def test_fineweb_posq_draws_queries_of_each_class(tmp_path: Path) -> None:
    rows = [
        {
            "content": f"The {word} is old and number {n} of all.",
            "question": f"which {word} is old" if n % 5 else "",
            "span_class": [("beginning", "middle", "end")[n % 3]],
        }
        for n, word in enumerate(WORDS)
    ]
    path = tmp_path / "posq.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ("rank", "--dataset", str(path), "--model", "BM25", "--table", "positions")
    (row,) = json.loads(run(*asked, "--group-queries", "2").stdout)["rows"]
    assert row["queries"] == 6 and [row[n] for n in ("beginning", "middle", "end")] == [1, 1, 1]
    assert row["PSI"] == 0 and row["harmonic mean"] == 1
    (row,) = json.loads(run(*asked).stdout)["rows"]
    assert row["queries"] == sum(bool(one["question"]) for one in rows)


@pytest.mark.parametrize("options", [("--table", "groups"), ("--group-queries", "2")])
def test_a_data_set_without_groups_is_refused_in_one_sentence(options: tuple[str, str]) -> None:
    refused = run("rank", "--dataset", "sample", "--model", "BM25", *options)
    assert refused.exit_code == 2 and "no groups of queries" in refused.stderr
    assert "\n" not in refused.stderr.strip()


def test_the_ranking_page_gives_the_same_groups(tmp_path: Path) -> None:
    datasets.register("squad", squad(tmp_path / "squad"))
    asked = (
        "rank",
        "--table",
        "positions",
        "--dataset",
        "squad",
        "--model",
        "BM25",
        "--format",
        "csv",
    )
    printed = frame_of(run(*asked)).iloc[0]
    page = open_page("ranking", dataset="squad", models=["BM25"], tab="Rankings")
    page.run()
    assert not page.exception and not page.error, [one.value for one in page.error]
    shown = next(one.value for one in page.dataframe if "[0,100)" in one.value.columns)
    assert shown["[0,100)"][0].startswith(f"{printed['[0,100)']:.3f}")
    assert shown["PSI"][0] == pytest.approx(printed["PSI"])
    assert any("first character" in caption.value for caption in page.caption)
    assert any("position_groups" in one.proto.spec for one in page.get("plotly_chart"))

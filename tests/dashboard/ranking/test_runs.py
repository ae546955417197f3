"""Runs and models on Ranking: the same measures, differences by query, on page and command."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.datasets.streams import File
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation import trec_runs
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.evaluation.trec_runs import read_run
from poslens.attribution.retrievers.resolve import resolve
from poslens.compute.compute import Compute
from poslens.dashboard.__main__ import app
from poslens.paired import difference_sentences
from poslens.studies.ranking import service as ranking_service
from poslens.studies.ranking import tables
from poslens.studies.ranking.runs import ranked_run
from poslens.studies.ranking.service import Ranked, RankingSetup
from poslens.studies.ranking.study import RANKING
from tests.support.pages import open_page

BY_QUERY = tables.TABLES["query_differences"]
WORDS = ("ice", "stone", "fog", "moss")
ROWS = "query,document,evidence\n" + "".join(
    f"what is {word},The {word} is {word}. Filler stands here.,The {word} is {word}.\n"
    for word in WORDS
)
BAD = "row-2 Q0 row-2 1 1 x\nrow-3 Q0 row-2 1 2 x\nrow-3 Q0 row-3 1 1 x\nbroken\n"
"""The first query finds its document, the second finds it below another one, and two find
nothing."""


@pytest.fixture(scope="module")
def setup() -> RankingSetup:
    data = datasets.read_upload("mine.csv", ROWS.encode())
    return RankingSetup(ranking_service.collection_of(data))


@pytest.fixture(scope="module")
def ranked(setup: RankingSetup, tmp_path_factory: pytest.TempPathFactory) -> Ranked:
    compute = Compute(tmp_path_factory.mktemp("runs"))
    ranking_service.job(compute, resolve("BM25"), setup).start().wait()
    found = ranking_service.ranked(compute, resolve("BM25"), setup)
    assert found is not None
    return found


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.csv").write_text(ROWS)
    (tmp_path / "bad.run").write_text(BAD)
    return tmp_path


def as_run(one: Ranked) -> str:
    return "".join(
        f"{ranking.query_id} Q0 {key} {rank} {score!r} x\n"
        for ranking in one.rankings
        for rank, (key, score) in enumerate(
            zip(ranking.document_ids, map(float, ranking.scores), strict=True), 1
        )
    )


def test_a_models_rankings_have_the_same_measures_as_a_run(
    ranked: Ranked, setup: RankingSetup
) -> None:
    found = ranked_run(read_run("again", File("again.run", as_run(ranked).encode())), setup)
    assert found.by_query.keys() == ranked.by_query.keys()
    actual, expected = (tables.TABLES["measures"].frame([one]) for one in (ranked, found))
    pd.testing.assert_frame_equal(expected.drop(columns="model"), actual.drop(columns="model"))
    entry = found.provenance().entry()
    assert entry["model"] == "again" and str(entry["model_source"]).startswith("run again.run, ")
    assert entry["n_queries"] == 4 and "weights" not in entry
    assert (BY_QUERY.frame([ranked, found])["difference"] == 0).all()


def test_queries_are_sorted_by_the_difference_of_two_rankings(
    ranked: Ranked, setup: RankingSetup
) -> None:
    run = ranked_run(read_run("bad", File("bad.run", BAD.encode())), setup)
    frame = BY_QUERY.frame([run, ranked])
    # First the two queries whose documents the run misses, then the one it ranks second.
    assert frame["id"].tolist() == ["row-4", "row-5", "row-3", "row-2"]
    assert frame["difference"].tolist() == pytest.approx([1, 1, 1 - 0.6309298, 0])
    assert (frame[NDCG] - frame["nDCG@10 against"]).tolist() == frame["difference"].tolist()
    assert frame["rank against"].isna().tolist() == [True, True, False, False]
    (compared,) = RANKING.differences([run, ranked])
    mean = compared.difference.difference
    assert compared.difference.verdict == "too few documents"
    assert mean.value == pytest.approx(frame["difference"].mean())
    # Four documents are too few for an interval.
    assert (mean.n, mean.n_resampled, mean.resampled, mean.interval) == (4, 4, "documents", None)
    assert difference_sentences([compared]) == [
        "BM25 compared with bad over 4 queries: nDCG@10 differs by +0.592, too few documents, "
        "about 10 needed."
    ]
    assert run.evaluation.n_missing == 2
    assert run.notes == (
        "Ignored: 1 invalid line of bad.run, the first in line 4: the line has 1 field, not query, "
        "Q0, document, rank, score and tag.",
    )
    with pytest.raises(UserError, match="rankings of the same queries"):
        BY_QUERY.frame([ranked, ranked_run(run.run, narrowed(setup))])


def narrowed(setup: RankingSetup) -> RankingSetup:
    return RankingSetup(setup.collection, left_out=frozenset({"row-2"}), selection="three")


def test_a_run_can_be_compared_only_over_all_documents(setup: RankingSetup) -> None:
    run = read_run("bad", File("bad.run", BAD.encode()))
    from dataclasses import replace

    with pytest.raises(UserError, match="Select all documents to compare it"):
        ranked_run(run, RankingSetup(replace(setup.collection, monolingual=True)))


def test_the_command_ranks_models_and_runs(mine: Path) -> None:
    asked = ["rank", "--dataset", str(mine / "mine.csv"), "--run", f"bad={mine / 'bad.run'}"]
    run = CliRunner()
    alone = run.invoke(app, asked)
    assert alone.exit_code == 0, alone.stderr
    assert [row["model"] for row in json.loads(alone.stdout)["rows"]] == ["bad"]
    assert "Ignored: 1 invalid line of bad.run" in alone.stderr
    more = run.invoke(
        app, [*asked, "--model", "BM25", "--table", "query_differences", "--format", "csv"]
    )
    assert more.exit_code == 0, more.stderr
    frame = pd.read_csv(io.StringIO(more.stdout))
    assert frame["id"].tolist() == ["row-4", "row-5", "row-3", "row-2"]
    assert "bad compared with BM25 over 4 queries: nDCG@10 differs by -0.592" in more.stderr
    assert frame["difference"].mean() == pytest.approx(-0.592, abs=5e-4), "as in the sentence"
    assert set(frame["model"]) == {"bad"} and set(frame["against"]) == {"BM25"}
    (mine / "bad.copy").write_text(BAD)
    for options, said in (
        (["--table", "query_differences"], "compares two"),
        (["--run", f"bad={mine / 'bad.copy'}"], "Two rankings are named bad"),
        (["--run", "bad"], "--run must be NAME=FILE"),
        (["--run", f"x={mine / 'mine.csv'}"], "is not a run in TREC's format"),
        (["--run", f"x={mine / 'gone'}"], "can't be read"),
    ):
        wrong = run.invoke(app, [*asked, *options])
        assert wrong.exit_code == 2 and said in wrong.stderr, options


def test_the_page_shows_runs_next_to_models(mine: Path) -> None:
    datasets.register("mine", mine / "mine.csv")
    (mine / "other.run").write_text("zzz Q0 row-2 1 1 x\n")
    trec_runs.register("<b>bad", mine / "bad.run")
    trec_runs.register("other", mine / "other.run")
    page = open_page("ranking", tab="Rankings", dataset="mine", models=["MiniLM-recency"]).run()
    assert not page.exception
    (choice,) = [one for one in page.multiselect if one.label == "Runs"]
    assert choice.value == ["<b>bad"], "a run of other queries is not offered"
    # A list shows its options literally, so they contain no Markdown backslashes.
    (of,) = [one for one in page.selectbox if one.label == "Ranking of"]
    assert choice.options == of.options == ["<b>bad"]
    frames = [one.value for one in page.dataframe]
    measures = next(frame for frame in frames if "nothing retrieved" in frame.columns)
    assert measures["model"].tolist() == ["<b>bad"]
    texts = (*page.caption, *page.markdown, *page.warning)
    said = " ".join(each.value for each in texts)
    assert "Ignored: 1 invalid line of bad.run" in said.replace("\\", "")
    assert "<b>bad" not in said
    without = open_page("ranking", dataset="sample", models=["BM25"]).run()
    assert not [one for one in without.multiselect if one.label == "Runs"]

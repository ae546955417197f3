"""PSI by language, domain and length over a small data set in PosIR's layout."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.dashboard.__main__ import app
from poslens.studies.ranking.benchmarks import OVERALL
from tests.support.nouns import NOUNS

FILLER = "Filler stands here without meaning. " * 40


def write(root: Path, language: str, domain: str, tokens: int, words: list[str]) -> None:
    """Documents with evidence first and last in turn; queries for evidence that is last share no
    word with any document if `language` is eng."""
    folder = root / language / domain
    (folder / "qrels").mkdir(parents=True)
    queries, corpus = [], []
    for number, word in enumerate(words):
        evidence, last = f"The {word} {domain}.", bool(number % 2)
        text = f"{FILLER}{evidence}" if last else f"{evidence} {FILLER}"
        start = text.index(evidence)
        corpus.append({"_id": f"d{number}", "text": text})
        queries.append(
            {
                "_id": f"q{number}",
                "text": "qqqq" if last and language == "eng" else f"{word} {domain}",
                "pos_char_span": [start, start + len(evidence)],
                "pos_char_length": len(text),
                "pos_token_length": tokens,
            }
        )
    pd.DataFrame(queries).to_parquet(folder / "queries.parquet")
    pd.DataFrame(corpus).to_parquet(folder / "corpus.parquet")
    pd.DataFrame(
        [{"query-id": f"q{n}", "corpus-id": f"d{n}", "score": 1} for n in range(len(words))]
    ).to_parquet(folder / "qrels" / "test.parquet")


@pytest.fixture
def posir(tmp_path: Path) -> Path:
    root = tmp_path / "posir"
    words = list(NOUNS)
    write(root, "eng", "rivers", 100, words[:4])
    write(root, "eng", "stars", 700, words[4:8])
    write(root, "pol", "rivers", 100, words[8:12])
    return root


def table(root: Path, name: str = "psi_strata") -> pd.DataFrame:
    """What `rank --table NAME` prints."""
    options = ["--dataset", str(root), "--model", "BM25", "--table", name, "--format", "csv"]
    run = CliRunner().invoke(app, ["rank", *options])
    assert run.exit_code == 0, run.stderr
    return pd.read_csv(io.StringIO(run.stdout))


def test_psi_by_language_and_length(posir: Path) -> None:
    frame = table(posir).query("by == 'language'").set_index(["stratum", "length"])
    assert list(frame.index) == [
        ("eng", OVERALL),
        ("eng", "Q1"),
        ("eng", "Q2"),
        ("pol", OVERALL),
        ("pol", "Q1"),
    ]
    assert frame["queries"].tolist() == [8, 4, 4, 4, 4]
    # English queries find evidence only at the beginning, Polish ones everywhere.
    assert frame["PSI"].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert frame[NDCG].tolist() == [0.5, 0.5, 0.5, 1.0, 1.0]


def test_psi_by_domain(posir: Path) -> None:
    frame = table(posir).query("by == 'domain'").set_index(["stratum", "length"])
    assert list(frame.index) == [
        ("rivers", OVERALL),
        ("rivers", "Q1"),
        ("stars", OVERALL),
        ("stars", "Q2"),
    ]
    assert frame["queries"].tolist() == [8, 8, 4, 4]
    # Of eight queries about rivers, the two English ones with evidence last fail: 1 - 0.5 / 1.
    assert frame["PSI"].tolist() == [0.5, 0.5, 1.0, 1.0]


def test_each_query_counts_once_over_all_lengths(posir: Path) -> None:
    whole = table(posir, "psi").set_index("length").loc[OVERALL, "queries"]
    overall = table(posir).query("length == @OVERALL").groupby("by")["queries"].sum()
    assert overall.to_dict() == {"language": 12, "domain": 12} and whole == 12


@pytest.fixture
def plain(tmp_path: Path) -> str:
    """The path of a data set without evidence and languages."""
    path = tmp_path / "plain.csv"
    path.write_text("query,document\nwhen does the tide turn,The tide turns at noon.\n")
    return str(path)


def test_a_table_without_rows_is_reported(plain: str) -> None:
    arguments = ["--dataset", plain, "--model", "BM25"]
    run = CliRunner().invoke(app, ["rank", *arguments, "--table", "languages"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["rows"] == []
    reason = "The table languages is empty: these results have nothing to list in it."
    assert run.stderr.splitlines()[-1] == reason


@pytest.mark.parametrize("command", ["rank", "curve"])
def test_differences_of_one_model_are_refused_before_anything_is_computed(
    plain: str, command: str
) -> None:
    arguments = ["--dataset", plain, "--model", "BM25", "--table", "differences"]
    run = CliRunner().invoke(app, [command, *arguments])
    assert run.exit_code == 2 and "BM25:" not in run.stderr
    assert run.stderr.splitlines()[-1].endswith("are between models: add another --model.")


def test_a_figure_that_cannot_be_drawn_leaves_the_table(plain: str, tmp_path: Path) -> None:
    figure, table = tmp_path / "figure.html", tmp_path / "table.csv"
    arguments = ["--dataset", plain, "--model", "BM25", "--figure", str(figure)]
    run = CliRunner().invoke(app, ["rank", *arguments, "--out", str(table)])
    assert run.exit_code == 2 and "There is nothing to draw" in run.stderr
    assert table.is_file() and not figure.exists()

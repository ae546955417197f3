"""Orders of models on two data sets, and the positions of a data set's evidence."""

from __future__ import annotations

import io
import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

from poslens.dashboard.__main__ import app
from poslens.studies.ranking.benchmarks import _spearman
from tests.dashboard.ranking.test_psi_tables import posir, write  # noqa: F401
from tests.support.nouns import NOUNS


def rank(*options: str) -> tuple[int, str, str]:
    run = CliRunner().invoke(app, ["rank", *options])
    return run.exit_code, run.stdout, run.stderr


def test_spearman_and_its_exact_p() -> None:
    x, y = [0.1, 0.5, 0.4, 0.9, 0.2], [0.2, 0.6, 0.3, 0.5, 0.1]
    rho, p = _spearman(x, y)
    assert rho == pytest.approx(stats.spearmanr(x, y).statistic)
    everything = [stats.spearmanr(order, y).statistic for order in permutations(x)]
    upper = np.mean([each >= rho - 1e-9 for each in everything])
    assert p == pytest.approx(2 * upper)
    assert _spearman([1, 1, 1], [1, 2, 3]) == (None, None)


def test_orders_of_models_on_two_data_sets(posir: Path, tmp_path: Path) -> None:  # noqa: F811
    write(tmp_path / "other", "pol", "rivers", 100, list(NOUNS)[:4])
    models = [part for name in ("BM25", "MiniLM", "MiniLM-recency") for part in ("--model", name)]
    options = ["--dataset", str(posir), "--table", "agreement", "--format", "csv"]
    status, out, error = rank(*options, *models, "--against", str(tmp_path / "other"))
    assert status == 0, error
    row = pd.read_csv(io.StringIO(out)).set_index("measure").loc["nDCG@10"]
    assert (row["dataset"], row["against"], row["models"]) == ("posir", "other", 3)
    assert sorted(row["order"].split(" > ")) == ["BM25", "MiniLM", "MiniLM-recency"]
    status, _, error = rank(*options, *models[:4], "--against", str(tmp_path / "other"))
    assert status == 2 and "2 models can't show an order" in error
    assert "queries and" not in error  # before anything is ranked
    status, _, error = rank(*options, *models[:4], "--against", str(posir))
    assert status == 2 and "posir is compared with itself" in error
    status, _, error = rank(*options, *models)
    assert status == 2 and "--against DATASET belong together" in error


def test_positions_of_the_evidence_by_length(posir: Path, tmp_path: Path) -> None:  # noqa: F811
    options = ["--dataset", str(posir), "--table", "evidence"]
    figure = tmp_path / "evidence.json"
    status, out, error = rank(*options, "--figure", str(figure))
    assert status == 0, error
    frame = pd.DataFrame(json.loads(out)["rows"])
    counts = {length: rows["queries"] for length, rows in frame.groupby("length")}
    assert {length: n.sum() for length, n in counts.items()} == {
        "all lengths": 12,
        "Q1": 8,
        "Q2": 4,
    }
    # Evidence is first and last in turn.
    assert list(counts["all lengths"]) == [6, *[0] * 18, 6]
    assert frame.groupby("length")["share"].sum().tolist() == pytest.approx([1, 1, 1])
    assert [bars["name"] for bars in json.loads(figure.read_text())["data"]] == ["Q1", "Q2"]
    assert json.loads(out)["provenance"][0]["n_queries"] == 12


def multiclaim(folder: Path) -> Path:
    """Claims about nouns, and posts that repeat them, of two platforms and years."""

    def cell(value: object) -> str:
        return '"' + repr(value).replace('"', '""') + '"'

    def text(words: str) -> tuple[object, ...]:
        return words, words, [("eng", 1.0)]

    words = list(NOUNS)[:8]
    instances: list[list[tuple[object, object]]] = [
        [(1577836800.0, "fb"), (1546300800.0, "tw")],  # 2020, and 2019
        [(1577836800.0, "fb")],
        [(None, "fb")],
        [],
    ]
    posts = "".join(
        f"{n},{cell(instances[n])},[],[],{cell(text(words[n] * (1 + 20 * n)))}\n" for n in range(4)
    )
    claims = "".join(f"{n},{cell(text(word))},[],\n" for n, word in enumerate(words))
    folder.mkdir()
    (folder / "posts.csv").write_text(f"post_id,instances,ocr,verdicts,text\n{posts}")
    (folder / "fact_checks.csv").write_text(f"fact_check_id,claim,instances,title\n{claims}")
    mapping = "".join(f"{n},{n}\n" for n in range(4))
    (folder / "fact_check_post_mapping.csv").write_text(f"fact_check_id,post_id\n{mapping}")
    return folder


def test_splits_by_time_platform_and_length(tmp_path: Path) -> None:
    root = multiclaim(tmp_path / "claims")
    status, out, error = rank(
        "--dataset", str(root), "--model", "BM25", "--table", "splits", "--format", "csv"
    )
    assert status == 0, error
    frame = pd.read_csv(io.StringIO(out)).set_index(["by", "split"])
    counts = frame["queries"].to_dict()
    assert counts[("year", "2019")] == counts[("year", "2020")] == 1
    assert counts[("platform", "tw")] == 1 and counts[("platform", "fb")] == 2
    assert sum(n for (by, _), n in counts.items() if by == "length") == 4
    # Only the first post contains its claim's word.
    assert frame.loc[("year", "2019"), "S@10 per query"] == 1
    assert frame.loc[("year", "2020"), "S@10 per query"] == 0
    (root / "posts.csv").write_text(
        (root / "posts.csv").read_text().replace("(1577836800.0, 'fb')", "1577836800.0")
    )
    status, out, error = rank(
        "--dataset", str(root), "--model", "BM25", "--table", "measures", "--format", "csv"
    )
    assert status == 0 and pd.read_csv(io.StringIO(out)).loc[0, "queries"] == 2, error


def test_growing_pools_are_nested_and_contain_the_relevant_documents(tmp_path: Path) -> None:
    from poslens.attribution.datasets import formats
    from poslens.studies.ranking.benchmarks import pools

    root = multiclaim(tmp_path / "claims")
    grown = [
        {document.key for document in pool.documents()}
        for pool in pools(formats.collection(root, "claims"))
    ]
    assert [len(keys) for keys in grown] == [4, 8]
    assert grown[0] == {"0", "1", "2", "3"} and grown[0] < grown[1]
    status, out, error = rank(
        "--dataset", str(root), "--model", "BM25", "--table", "pools", "--format", "csv"
    )
    assert status == 0, error
    frame = pd.read_csv(io.StringIO(out))
    assert frame["documents"].tolist() == [4, 8] and frame["queries"].tolist() == [4, 4]
    assert frame["S@10 per pair"].tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    ("options", "sources"),
    [
        (["--table", "pools"], ["the documents searched", "claims"]),
        (["--own-corpus"], ["the documents searched"]),
        ([], ["claims"]),
    ],
)
def test_captions_name_the_documents_whose_words_bm25_counts(
    tmp_path: Path, options: list[str], sources: list[str]
) -> None:
    root = multiclaim(tmp_path / "claims")
    status, out, error = rank(
        "--dataset", str(root), "--model", "BM25", *options, "--format", "json"
    )
    assert status == 0, error
    assert [each["model_source"] for each in json.loads(out)["provenance"]] == [
        f"bm25, statistics of {source}" for source in sources
    ]


def test_a_data_set_without_evidence_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("query,document\nwhat melts,Ice melts.\n")
    status, _, error = rank("--dataset", str(own), "--table", "evidence")
    assert status == 2 and "has no evidence positions" in error

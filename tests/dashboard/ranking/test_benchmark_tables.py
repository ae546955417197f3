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
    assert status == 2 and "An order of 2 models can't be compared" in error
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


def test_a_data_set_without_evidence_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("query,document\nwhat melts,Ice melts.\n")
    status, _, error = rank("--dataset", str(own), "--table", "evidence")
    assert status == 2 and "does not say where its evidence is" in error

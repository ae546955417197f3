"""Simulatability of stored attributions: planted words, shared results, invalid input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import poslens
from poslens.attribution.errors import UserError
from poslens.dashboard.__main__ import app
from tests.support.nouns import NOUNS

N = 24


@pytest.fixture(autouse=True)
def apart(own_service: None) -> None:
    """A separate store for this test."""


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """Each document has its query's noun once, in a sentence that others share."""
    path = tmp_path / "mine.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "pair_id": f"d{n}",
                    "query": f"{NOUNS[n % 12]} {n // 12}",
                    "document": "Old people speak about many things in the evening, and "
                    f"some of them like the {NOUNS[n % 12]} of house {n // 12} more than the rest, "
                    "although nobody knows why they would like any of it.",
                }
            )
            + "\n"
            for n in range(N)
        )
    )
    return str(path)


def test_bm25_is_predicted_from_its_terms(corpus: str) -> None:
    result = poslens.simulatability("BM25", corpus, words=3)
    (summary,) = result.summaries
    assert summary.asked.method.name == "terms"
    views = {view: estimate.value for view, estimate in summary.views.items()}
    # The second document shares only the number of the house, or only the noun.
    assert views["explanation"] == 1 and views["random"] < 0.8
    assert summary.gain.verdict == "higher" and "rises by" in result.verdicts[0]
    shown = result.study.tables["methods"].text_frame(result.summaries).iloc[0]
    # Agresti and Coull's interval for 24 of 24 documents.
    assert shown["method's words"] == "100.0% [83.7%, 100.0%]"
    bootstrap, share, *_ = result.provenance[0].interval.split("; ")
    assert bootstrap == "95%, bootstrap over 24 documents", "that of the gain"
    assert share == "method's words, similar and all words: 95%, Agresti-Coull for 24 documents"
    assert shown["gain"].endswith("] points, higher")
    assert "] percentage points with the method's 3 words" in result.verdicts[0]
    assert result.verdicts[0].startswith("BM25, Term shares: ")
    assert summary.gain.difference.value == pytest.approx(
        np.mean(summary.rows["explanation"] - summary.rows["random"])
    )
    queries = result.to_frame("queries")
    assert len(queries) == N and set(queries["correct"]) == {1.0}
    numbers = [int(pair.removeprefix("d")) for pair in queries["pair"]]
    assert list(queries["query"]) == [f"{NOUNS[n % 12]} {n // 12}" for n in numbers]
    assert all(word.split()[0] for word in queries["higher"])


def test_the_command_equals_the_python_call(corpus: str) -> None:
    output = CliRunner().invoke(
        app,
        [
            *("simulatability", "--model", "BM25", "--dataset", corpus),
            *("--words", "3", "--format", "json"),
        ],
    )
    assert output.exit_code == 0, output.output
    (row,) = json.loads(output.stdout)["rows"]
    (summary,) = poslens.simulatability("BM25", corpus, words=3).summaries
    assert row["explanation"] == summary.views["explanation"].value
    assert row["gain"] == summary.gain.difference.value and row["gain_verdict"] == "higher"


def test_unusable_methods_and_data_are_refused_in_one_sentence(corpus: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="None of these methods is available for BM25: ") as raised:
        poslens.simulatability("BM25", corpus, methods=["saliency"])
    assert str(raised.value).endswith("retrievers. Select terms or occlusion.")

    class Lengths:
        def encode(self, texts: list[str]) -> list[list[float]]:
            return [[1.0, float(len(text))] for text in texts]

    with pytest.raises(UserError, match=r"No fast method is available for .*Select occlusion\.$"):
        poslens.simulatability(Lengths(), corpus)
    apart = tmp_path / "apart.jsonl"
    apart.write_text(
        "".join(
            json.dumps({"pair_id": word, "query": word, "document": f"{word}."}) + "\n"
            for word in ("fog", "gulls")
        )
    )
    with pytest.raises(UserError, match="retrieve two documents with different scores"):
        poslens.simulatability("BM25", str(apart))
    alone = tmp_path / "one.jsonl"
    alone.write_text(json.dumps({"pair_id": "a", "query": "b", "document": "c d e."}) + "\n")
    with pytest.raises(UserError, match="needs queries and at least two documents"):
        poslens.simulatability("BM25", str(alone))

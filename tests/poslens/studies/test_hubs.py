"""Hubs: a planted hub, an independent count, what is computed once, words, invalid input."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from typer.testing import CliRunner

import poslens
from poslens.attribution import datasets
from poslens.attribution.datasets import Collection, DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.pairs import Pairs
from poslens.cache.kinds.rankings import RankingStore
from poslens.compute.compute import service
from poslens.dashboard.__main__ import app
from poslens.names import data_name
from poslens.studies.hubs.study import HUBS
from poslens.studies.hubs.words import explained_hubs
from tests.support import tiny_families
from tests.support.nouns import NOUNS

COLORS = ("red", "green", "blue", "grey", "white", "black", "brown", "pink")
N = 48


@pytest.fixture(autouse=True)
def apart(own_service: None) -> None:
    """A separate store for this test."""


def document_of(number: int) -> str:
    noun, color = NOUNS[number % 12], COLORS[number % 8]
    return f"The {noun} of {color} house {number} is old. Nobody ever saw it in the {color} rain."


def written(path: Path, rows: Sequence[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    rows = [
        {"pair_id": f"d{n}", "query": f"which {NOUNS[n % 12]} is {n}", "document": document_of(n)}
        for n in range(N)
    ]
    rows.append(
        {
            "pair_id": "hub",
            "query": "what of everything",
            "document": "Which which which is is is it. " + " ".join(NOUNS) + ".",
        }
    )
    return written(tmp_path / "mine.jsonl", rows)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["hubs", *arguments], catch_exceptions=False)


class Planted:
    """A model with queries around one direction, documents in random directions, and `hub` at the
    mean of all queries. Unknown texts (those of the control) also have random directions."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        queries = generator.normal(size=(N + 1, 32)) + 1
        documents = generator.normal(size=(N, 32))
        self._vectors = {f"query {n}": queries[n] for n in range(N + 1)}
        self._vectors |= {f"text {n} has some words": documents[n] for n in range(N)}
        self._vectors["the hub of them"] = queries.mean(0)

    def rows(self) -> list[dict[str, str]]:
        texts = [text for text in self._vectors if not text.startswith("query")]
        return [
            {
                "pair_id": "hub" if "hub" in text else f"d{n}",
                "query": f"query {n}",
                "document": text,
            }
            for n, text in enumerate(texts)
        ]

    def encode(self, texts: list[str]) -> np.ndarray:
        vectors = [self._vectors.get(text, self._other(text)) for text in texts]
        return np.array([one / np.linalg.norm(one) for one in vectors], dtype=np.float32)

    def _other(self, text: str) -> np.ndarray:
        seed = int.from_bytes(text.encode()[:200], "big") % (1 << 60)
        made: np.ndarray = np.random.default_rng(seed).normal(size=32)
        return made


def test_the_document_at_the_mean_of_all_queries_is_the_top_hub(tmp_path: Path) -> None:
    planted = Planted()
    found = poslens.hubs(
        planted, dataset=written(tmp_path / "planted.jsonl", planted.rows()), top=5
    )
    (summary,) = found.summaries
    hubs = found.to_frame("hubs")
    assert hubs["document"].iloc[0] == "hub"
    # The hub answers one query itself, which doesn't count.
    assert hubs["in_degree"].iloc[0] == N and hubs["answers"].iloc[0] == 1
    assert hubs["share"].iloc[0] == 1
    shown = found.study.tables["hubs"].text_frame(found.summaries)["share"]
    assert shown.iloc[0].startswith("100.0% ["), "pages show shares in percent"
    assert hubs["in_degree_random_order"].iloc[0] < N / 2
    (row,) = found.to_frame("hubness").to_dict("records")
    assert row["difference_verdict"] == "higher" and row["difference_low"] > 0
    assert row["skewness"] == pytest.approx(scipy.stats.skew(summary.original.counts))
    orders = [scipy.stats.skew(index.counts) for index in summary.control.indexes]
    assert len(orders) == 3 and row["skewness_random_order"] == pytest.approx(np.mean(orders))
    assert summary.original.counts.sum() == 5 * (N + 1)
    assert summary.control.counts.sum() == pytest.approx(5 * (N + 1))
    assert "The top hub, hub, is in the top 5 of 48 of the 48 queries" in found.verdicts[0]
    assert " Higher" in found.verdicts[0]
    assert len(found.to_frame("words")) == 0  # shares of the score need more than vectors


def test_in_degrees_equal_those_of_the_rankings(
    corpus: str, tiny_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tiny_folder("bert"))
    rankings = poslens.rank(folder, corpus).summaries[0].rankings
    queries = {one.query_id: one for one in datasets.collection(data_name(corpus)).queries}
    counts = Counter(
        key
        for one in rankings
        for key in [k for k in one.document_ids if k not in queries[one.query_id].relevant][:3]
    )
    found = poslens.hubs(folder, dataset=corpus, top=3)
    hubs = found.to_frame("hubs")
    assert dict(zip(hubs["document"], hubs["in_degree"], strict=True)) == counts
    assert hubs["in_degree"].is_monotonic_decreasing
    # Everything is stored, and another k needs no new ranking.
    monkeypatch.setattr(RankingStore, "search", lambda *_, **__: pytest.fail("ranked again"))
    again = poslens.hubs(folder, dataset=corpus, top=3)
    assert again.to_frame("words").equals(found.to_frame("words"))
    other = poslens.hubs(folder, dataset=corpus, top=4, explained=0)
    assert other.summaries[0].original.counts.sum() == 4 * (N + 1)
    assert other.to_frame("words").empty


def test_bm25_ignores_word_order_and_its_hub_is_explained_by_words(
    corpus: str, tmp_path: Path
) -> None:
    asked = ("--model", "BM25", "--dataset", corpus, "--top", "3")
    result = run(*asked)
    (row,) = json.loads(result.stdout)["rows"]
    assert row["skewness"] == row["skewness_random_order"] > 2
    assert row["difference"] == 0 and row["difference_verdict"] == "equivalent"
    assert "Equivalent: the 90% interval is within the margin of 0.5" in result.stderr
    assert "The top hub, hub, is in the top 3 of 48 of the 48 queries" in result.stderr
    (provenance,) = json.loads(result.stdout)["provenance"]
    assert provenance["control"] == "words of each document in random order, mean of 3 orders"
    assert (provenance["n_queries"], provenance["n_documents"]) == (N + 1, N + 1)
    words = [
        one
        for one in json.loads(run(*asked, "--table", "words").stdout)["rows"]
        if one["document"] == "hub"
    ]
    assert words[0]["word"] == "which" and words[0]["occurrences"] == 3
    assert words[0]["method"] == "terms" and words[0]["share"] > 0
    # Only words that occur in a query have a share.
    queries = [f"which {NOUNS[n % 12]} is {n}" for n in range(N)]
    asked_for = {word for query in queries for word in query.split()}
    assert {one["word"] for one in words if one["share"]} <= asked_for
    # The same share, such as 0, for all queries doesn't show how much it varies.
    ends = [(word["share_low"], word["share_high"]) for word in words]
    assert None in {low for low, _ in ends} and all(low is None or low < high for low, high in ends)
    assert {end for word, end in zip(words, ends, strict=True) if not word["share"]} == {
        (None, None)
    }
    file = tmp_path / "hubs.json"
    run(*asked, "--figure", str(file))
    drawn = json.loads(file.read_text())
    assert drawn["layout"]["meta"]["figure"] == "hubs"
    assert [one["name"] for one in drawn["data"]] == ["BM25", "BM25, random word order"]
    assert drawn["data"][0]["y"][0] == N and drawn["data"][0]["customdata"][0] == ["hub"]


def test_failed_attributions_are_listed_and_retried(corpus: str) -> None:
    result = poslens.hubs("BM25", dataset=corpus, top=3)
    assert result.to_frame("failures").empty
    (summary,) = result.summaries
    pair = explained_hubs(summary)[0].pairs(summary)[0]
    service().store.put_failures(summary.model.key, summary.words_method, [(pair, "No space.")])
    asked = ("--model", "BM25", "--dataset", corpus, "--top", "3", "--table", "failures")
    failed = {"model": "BM25", "item": pair.pair_id, "reason": "No space."}
    assert json.loads(run(*asked).stdout)["rows"] == [failed]
    assert json.loads(run(*asked, "--retry-failed").stdout)["rows"] == []


def test_ties_and_queries_without_a_result_are_stated(tmp_path: Path) -> None:
    rows = [
        {"pair_id": f"d{n}", "query": f"old {NOUNS[n]}", "document": f"The {NOUNS[n]} is old here."}
        for n in range(12)
    ]
    rows[0]["query"] = "\u200b"
    rows[1]["query"] = NOUNS[1]  # retrieves only its own document
    path = written(tmp_path / "ties.jsonl", rows)
    told = run("--model", "BM25", "--dataset", path, "--top", "3").stderr
    without = "2 of 12 queries retrieve no document other than their relevant ones"
    assert f"BM25: {without}." in told
    # Of ten queries, every other document has the same score for the word `old`.
    assert "BM25: for 10 of 12 queries, documents at ranks 3 and 4 have equal scores." in told
    for n, row in enumerate(rows):
        row["query"] = "\u200b" * (n + 1)
    path = written(tmp_path / "none.jsonl", rows)
    told = run("--model", "BM25", "--dataset", path, "--top", "3").stderr
    assert "no query retrieves a document other than its relevant ones" in told


def test_a_corpus_without_queries_uses_its_sentences_as_queries(tmp_path: Path) -> None:
    path = written(
        tmp_path / "texts.jsonl", [{"_id": f"d{n}", "text": document_of(n)} for n in range(N)]
    )
    found = poslens.hubs("BM25", dataset=path, top=3, sentences=30)
    (summary,) = found.summaries
    assert summary.original.n_queries == 30 and summary.original.counts.sum() == 90
    texts = {f"d{n}": document_of(n) for n in range(N)}
    for query, top in zip(summary.queries, summary.original.tops, strict=True):
        (own,) = query.relevant
        assert query.text in texts[own] and own not in {summary.ids[n] for n in top}


@pytest.mark.parametrize(
    ("n", "arguments", "sentence"),
    [
        (8, [], "has only 8 documents, so every document would be in the top 10"),
        (4, ["--top", "3"], "choose a smaller top k or add documents"),
        (12, ["--top", "0"], "must be a whole number from 1"),
        (12, ["--top", "51"], "must be a whole number from 1 to 50"),
    ],
)
def test_too_little_data_is_refused_in_one_sentence(
    tmp_path: Path, n: int, arguments: list[str], sentence: str
) -> None:
    rows = [
        {"pair_id": f"d{i}", "query": f"what is {i}", "document": document_of(i)} for i in range(n)
    ]
    path = written(tmp_path / "mine.jsonl", rows)
    result = run("--model", "BM25", "--dataset", path, *arguments)
    assert result.exit_code == 2 and sentence in result.stderr and "Traceback" not in result.stderr


def test_an_empty_corpus_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = Collection("mine", "Mine", (), lambda: iter(()))
    monkeypatch.setattr("poslens.studies.hubs.study.searched", lambda _: empty)
    with pytest.raises(UserError, match="Mine has no documents: add some to its corpus"):
        HUBS.corpus(DataSet("mine", "Mine", Pairs()), HUBS.parameters.settings())


def test_few_queries_have_no_interval_and_no_verdict(tmp_path: Path) -> None:
    rows = [
        {"pair_id": f"d{i}", "query": f"what is {i} red", "document": document_of(i)}
        for i in range(8)
    ]
    found = poslens.hubs("BM25", dataset=written(tmp_path / "few.jsonl", rows), top=2)
    (row,) = found.to_frame("hubness").to_dict("records")
    assert row["difference_verdict"] == "too few documents" and row["skewness_low"] is None
    assert "Too few documents to decide" in found.verdicts[0]


def test_each_table_names_its_own_intervals(tmp_path: Path) -> None:
    """Skewness has a jackknife's, a hub's share a bootstrap's, and the figure draws none."""
    rows = [
        {"pair_id": f"d{i}", "query": f"what is {i} red", "document": document_of(i)}
        for i in range(16)
    ]
    result = poslens.hubs("BM25", dataset=written(tmp_path / "own.jsonl", rows), top=2)
    expected = {
        "hubness": "95%, jackknife for 16 documents",
        "hubs": "95%, bootstrap over 15 documents; "
        "share (some rows): 95%, Agresti-Coull for 15 documents",
        "queries": "",
        "Sorted in-degrees": "",
    }
    for shown, text in expected.items():
        (source,) = HUBS.provenances(result.summaries, shown)
        assert source.interval == text, shown
    (entry,) = result.figure("hubs").layout.meta["provenance"]
    assert "interval" not in entry


def test_a_reranker_has_no_in_degrees(
    corpus: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_families.cross_encoder(tiny_folder("bert").parent / "raw", tmp_path)
    with pytest.raises(UserError, match="only reranks documents"):
        poslens.hubs(str(folder), dataset=corpus)

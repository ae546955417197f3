"""A curve minus its null control: planted words, an independent difference, invalid input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import poslens
from poslens.attribution.datasets import read
from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.compute.compute import service
from poslens.studies.curves.null_controls import controls
from tests.support import tiny_families
from tests.support.nouns import NOUNS

N = 24


@pytest.fixture(autouse=True)
def apart(own_service: None) -> None:
    """A separate store for this test."""


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """The first sentence of each document has its query's noun; one document has no other."""
    path = tmp_path / "mine.jsonl"
    rest = " Nobody saw more at dawn. The lake lay still. Some people spoke of the evening."
    texts = [f"The {NOUNS[n % 12]} of house {n} is old.{rest}" for n in range(N)]
    texts.append("The tide rises twice a day")
    queries = [f"{NOUNS[n % 12]} {n}" for n in range(N)] + ["tide"]
    rows = [
        {"pair_id": f"p{n}", "query": query, "document": text}
        for n, (query, text) in enumerate(zip(queries, texts, strict=True))
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def test_shuffling_shows_that_the_planted_words_are_at_the_beginning(corpus: str) -> None:
    result = poslens.control("BM25", corpus, method="terms", control="shuffled", pairs=0)
    (row,) = result.to_frame().to_dict("records")
    assert (row["n"], row["documents"]) == (N, N), "a document of one sentence is left out"
    assert row["index_minus_control_verdict"] == "lower" and row["index_minus_control_high"] < 0
    assert "nearer the beginning than under the control" in result.verdicts[0]
    assert result.study.remarks(result.summaries) == [
        "1 pair left out, because the control can't be made of it."
    ]
    # The same difference from the two mean curves.
    compute, data, method = service(), read(Path(corpus).name), make_method("terms")
    spec, pairs = with_corpus(resolve("BM25"), data.name), data.pairs[:N]
    nulls = controls("shuffled", pairs, data.pairs)
    own, null = (compute.curve(spec, method, each, data.name) for each in (pairs, nulls))
    points = result.to_frame("curve")
    expected = own.summary.curve.mean - null.summary.curve.mean
    np.testing.assert_allclose(points["mean"], expected, atol=1e-6)
    assert (points["mean_low"] <= points["mean"]).all() and len(points) == 100
    index = own.summary.primacy_recency_index, null.summary.primacy_recency_index
    assert row["index_minus_control"] == pytest.approx(index[0].value - index[1].value, abs=1e-6)
    (shown, *_) = [line for line in result.figure().data if line.mode and len(line.y) == 100]
    np.testing.assert_allclose(shown.y, points["mean"], atol=1e-6)
    entry = result.provenance[0].entry()
    assert entry["control"] == "shuffled sentences, subtracted" and entry["truncated"] == 0
    one_sided = f"distance from control: 95%, one-sided from 0, bootstrap over {N} documents"
    assert one_sided in str(entry["interval"])


def test_truncated_documents_are_counted_among_the_pairs_with_a_control(tmp_path: Path) -> None:
    path = tmp_path / "fog.jsonl"
    texts = ["Fog lifts. The tide rises.", "Fog lifts. " * 200, "Tea " * 400]
    rows = [{"query": f"fog {n}", "document": text} for n, text in enumerate(texts)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    result = poslens.control("MiniLM@configured", str(path), control="shuffled", pairs=0)
    entry = result.provenance[0].entry()
    assert (entry["n_pairs"], entry["truncated"]) == (2, 1), "one sentence can't be shuffled"


def test_controls_without_any_attribution_count_and_are_reported(corpus: str) -> None:
    result = poslens.control("BM25", corpus, method="terms", control="unrelated", pairs=0)
    (row,) = result.to_frame().to_dict("records")
    data = read(Path(corpus).name)
    nulls = controls("unrelated", data.pairs, data.pairs)
    zero = sum(
        not set(pair.query.lower().split()) & set(re.findall(r"\w+", pair.document.lower()))
        for pair in nulls
    )
    assert 0 < zero < len(nulls) and (row["n"], row["n_zero"]) == (len(nulls), zero)
    assert result.study.remarks(result.summaries) == [
        f"BM25: {zero} of {len(nulls)} control curves are 0 everywhere, because no token "
        "contributes to the score."
    ]


def test_unfit_controls_and_methods_are_refused(
    corpus: str, tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    cross = tiny_families.cross_encoder(tiny_folder("bert").parent / "raw", tmp_path / "cross")
    with pytest.raises(UserError, match=r"cross is not one: choose from unrelated, shuffled, fil"):
        poslens.control(f"cross={cross}", corpus, control="profile")
    with pytest.raises(UserError, match=r"profile is for saliency only: choose from unrelated, "):
        poslens.control("BM25", corpus, method="terms", control="profile")
    no_query = r"only the query, which profile doesn't use: choose from shuffled, filler\."
    with pytest.raises(UserError, match=no_query):
        poslens.control("MiniLM", corpus, method="profile", control="unrelated")
    with pytest.raises(UserError, match="saliency is unavailable for BM25"):
        poslens.control("BM25", corpus)
    with pytest.raises(UserError, match="Control: choose from unrelated"):
        poslens.control("BM25", corpus, control="none")

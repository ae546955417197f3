"""Scores without gradients equal those of attributions, for every family."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poslens.attribution import batching
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.base import reads_jointly
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.scoring import score_texts, size
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.cache.lru_cache import LRUCache
from tests.support import tiny_families

QUERIES = ["the tide rises", "lazy dogs", "piñas 🚀"]
DOCUMENTS = [
    "The tide rises twice a day because the Moon pulls the water. " * 2,
    "a quick brown fox, jumping over 12 lazy dogs; isn't it? naïve.",
    "El niño comió piñas.",
]
PAIRS = [(query, document) for document in DOCUMENTS for query in QUERIES]
FAMILIES = [
    "dense",
    "left padding",
    "prompts",
    "two encoders",
    "late interaction",
    "sparse",
    "cross-encoder",
    "generative",
    "lexical",
    "lexical over a corpus",
]


@pytest.fixture(scope="module")
def make(
    tiny_folder: Callable[..., Path],
    tiny: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Any]:
    def build(kind: str) -> Any:
        folder = tmp_path_factory.mktemp("family")
        raw = tiny_folder("bert").parent / "raw"

        def spec(family: str, source: Path, **fields: Any) -> RetrieverSpec:
            return RetrieverSpec("tiny", kind, family, f"folder:{source}", **fields)

        if kind == "dense":
            return tiny("bert", query_max_length=6)
        if kind == "left padding":
            return tiny("qwen3-left")
        if kind == "prompts":
            return tiny("roberta", query_prompt="query: ", document_prompt="passage: ")
        if kind == "two encoders":
            other = f"folder:{tiny_folder('bert', seed=8)}"
            return load(spec("dense", tiny_folder("bert"), query_source=other), "cpu")
        if kind == "late interaction":
            return load(
                spec("late_interaction", tiny_families.late_interaction(raw, folder)), "cpu"
            )
        if kind == "sparse":
            return load(spec("sparse", tiny_families.sparse(raw, folder)), "cpu")
        if kind == "cross-encoder":
            return load(spec("cross_encoder", tiny_families.cross_encoder(raw, folder)), "cpu")
        if kind == "generative":
            raw = tiny_folder("qwen3-left").parent / "raw"
            return load(spec("cross_encoder", tiny_families.generative(raw, folder)), "cpu")
        bm25 = resolve.resolve("BM25")
        return load(with_corpus(bm25, "sample") if "corpus" in kind else bm25)

    return build


@pytest.mark.parametrize("kind", FAMILIES)
def test_scores_equal_those_of_attributions(
    kind: str, make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = make(kind)
    texts = [*PAIRS[::-1], PAIRS[3]]
    together = score_texts(retriever, texts)
    monkeypatch.setattr(batching, "CPU_BATCH_TOKENS", 40)
    found = score_texts(retriever, texts)
    method = make_method("occlusion", {"level": "sentence"})
    expected = [
        METHODS["occlusion"].compute(retriever, method, [TextPair("p", q, d)])[0].score
        for q, d in texts
    ]
    assert np.ptp(expected) > 0
    assert found.shape == (len(texts),) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())
    np.testing.assert_allclose(together, found, rtol=2e-5, atol=2e-5 * np.abs(expected).max())
    known: LRUCache[Any] = LRUCache(2**20, weigh=size)
    for some in (texts[:2], texts):
        again = score_texts(retriever, some, cached=known)
        np.testing.assert_allclose(
            again, found[: len(some)], rtol=2e-5, atol=2e-5 * np.abs(expected).max()
        )
    apart = not reads_jointly(retriever) and retriever.family != "lexical"
    assert (known.weight > 0) == apart


def counted(retriever: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each later forward pass."""
    rows: list[int] = []
    embed = retriever.embed

    def counting(encoded: Any) -> Any:
        rows.append(len(encoded.features["input_ids"]))
        return embed(encoded)

    monkeypatch.setattr(retriever, "embed", counting)
    return rows


def test_each_text_is_embedded_once(
    make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "CPU_BATCH_TOKENS", 30)
    retriever = make("dense")
    rows = counted(retriever, monkeypatch)
    score_texts(retriever, PAIRS * 2)
    assert sum(rows) == len(QUERIES) + len(DOCUMENTS)


@pytest.mark.parametrize("kind", ["dense", "prompts", "left padding", "late interaction"])
def test_texts_that_differ_past_the_context_limit_are_embedded_once(
    kind: str, make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = make(kind)
    start = "a quick brown fox jumping over lazy dogs " * retriever.max_length
    texts = [start + "the tide rises", start + "El niño", "the tide rises " + start]
    pairs = [(QUERIES[0], text) for text in texts]
    expected = [score_texts(retriever, [pair])[0] for pair in pairs]
    rows = counted(retriever, monkeypatch)
    cached: LRUCache[Any] = LRUCache(2**24, weigh=size)
    scores = score_texts(retriever, pairs, cached=cached)
    assert sum(rows) == 1 + 2, "the query and two readings"
    np.testing.assert_allclose(scores, expected, rtol=2e-5)
    assert scores[0] == scores[1] != scores[2]
    score_texts(retriever, pairs, cached=cached)
    assert sum(rows) == 3, "each text is cached under its own name"


def test_long_texts_with_different_beginnings_are_tokenized_once(
    make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = make("dense")
    tokenized: list[str] = []
    encode = retriever.encode_plain

    def counting(texts: list[str], side: str) -> Any:
        tokenized.extend(texts)
        return encode(texts, side)

    monkeypatch.setattr(retriever, "encode_plain", counting)
    long = [word + " quick brown fox" * retriever.max_length for word in ("tide", "moon", "fox")]
    score_texts(retriever, [(QUERIES[0], text) for text in long])
    assert sorted(tokenized) == sorted([QUERIES[0], *long])


@pytest.mark.parametrize("kind", ["dense", "cross-encoder", "lexical"])
def test_scoring_stops_between_batches_and_releases_the_lock(
    kind: str, make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "CPU_BATCH_TOKENS", 20)
    retriever, asked = make(kind), []

    def should_stop() -> bool:
        taken: list[bool] = []

        def take() -> None:
            taken.append(retriever.lock.acquire(timeout=1))
            retriever.lock.release()

        other = threading.Thread(target=take)
        other.start()
        other.join()
        asked.append(taken == [True])
        return len(asked) == 3

    with pytest.raises(Stopped), stoppable(should_stop):
        score_texts(retriever, PAIRS)
    assert asked[0] and len(asked) == 3


def test_a_batch_that_does_not_fit_is_halved(make: Callable[[str], Any]) -> None:
    retriever = make("dense")
    expected, embed = score_texts(retriever, PAIRS), retriever.embed

    def small(encoded: Any) -> Any:
        if len(encoded.features["input_ids"]) > 1:
            raise torch.OutOfMemoryError
        return embed(encoded)

    retriever.embed = small
    np.testing.assert_allclose(score_texts(retriever, PAIRS), expected, atol=2e-5)


@pytest.mark.parametrize("kind", ["dense", "prompts", "cross-encoder", "lexical"])
def test_a_text_without_tokens_is_refused(kind: str, make: Callable[[str], Any]) -> None:
    with pytest.raises(UserError, match="reads no word of the document"):
        score_texts(make(kind), [("the tide", "")])


def test_an_empty_list_has_no_scores_and_gradients_still_work(make: Callable[[str], Any]) -> None:
    retriever = make("dense")
    assert score_texts(retriever, []).shape == (0,)
    score_texts(retriever, PAIRS)
    # Scoring without gradients doesn't prevent a later run that needs them.
    METHODS["saliency"].compute(retriever, make_method("saliency"), [TextPair("p", *PAIRS[0])])
    assert not any(p.requires_grad for p in retriever.model.parameters())

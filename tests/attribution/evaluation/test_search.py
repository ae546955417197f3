"""Search equals brute force for any block size and every family that can be searched."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import RLock, Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.datasets.corpus import Collection, Document, Query
from poslens.attribution.datasets.types import Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.scorers import dense, readable, scorer
from poslens.attribution.evaluation.search import (
    Ranking,
    TopK,
    rankings,
    rerank,
    search,
    search_lexical,
)
from poslens.attribution.retrievers.base import tokenizer_lock
from poslens.attribution.retrievers.lexical import statistics_of, terms_of
from poslens.attribution.types import TextPair
from tests.support import tiny_families

TEXTS = [
    "Ice melts in spring.",
    "Stone stays where it is.",
    "Fog lifts at noon.",
    "Ice is cold ice.",
    "A ferry crosses the bay.",
    "Snow melts on stone.",
    "Bread rises overnight.",
    "Noon is bright.",
]
ASKED = ["what melts", "when does fog lift", "what is stone", "which bread rises"]


def collection(
    texts: list[str] = TEXTS, queries: list[str] = ASKED, parts: tuple[str, ...] = ("",)
) -> Collection:
    """Documents in consecutive blocks, one for each part; queries assigned to parts in turn."""
    size = -(-len(texts) // len(parts))
    documents = [
        Document(f"d{n}", text, parts[n // size], ("eng", "pol")[n % 2])
        for n, text in enumerate(texts)
    ]
    asked = [
        Query(f"q{n}", text, parts[n % len(parts)], "eng", {"d0": 1}, {}, None, None)
        for n, text in enumerate(queries)
    ]
    return Collection("toy", "Toy", tuple(asked), lambda: iter(documents))


@pytest.fixture(scope="module")
def tiny_family(
    tiny_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Any]:
    """`tiny_family("sparse")`: a random model of that family, loaded once."""
    from poslens.attribution.retrievers.load import load
    from poslens.attribution.retrievers.specs import RetrieverSpec

    @cache
    def build(family: str) -> Any:
        folder = tmp_path_factory.mktemp(family)
        folder = getattr(tiny_families, family)(tiny_folder("bert"), folder)
        spec = RetrieverSpec(f"tiny-{family}", family, family, f"folder:{folder}")
        return load(spec, device="cpu")

    return build


def dot() -> SimpleNamespace:
    """A stub for `dense`: a model whose similarity is the dot product."""
    return SimpleNamespace(similarities=lambda a, b: a @ b.T)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 50), st.randoms())
def test_top_k_equals_brute_force_for_any_block_size(n: int, k: int, block: int, random) -> None:
    # Few distinct integers give many ties, which the earlier document wins.
    scores = torch.tensor([[random.choice([-2.0, -0.0, 0.0, 1.5, 3.0]) for _ in range(n)]] * 2)
    scores[1] = scores[1].flip(0)
    best = TopK(2, k)
    for start in range(0, n, block):
        best.add([0, 1], scores[:, start : start + block], start)
    for row in range(2):
        places, found = best.found(row)
        expected = sorted(range(n), key=lambda i: (-float(scores[row, i]), i))[:k]
        assert places == expected
        assert found.tolist() == [float(scores[row, i]) for i in expected]


def test_scores_are_kept_exactly_and_nan_is_refused() -> None:
    values = torch.tensor([[1e-45, -1e38, 3.14159274, -0.1, float("-inf")]])
    best = TopK(1, 5)
    best.add([0], values, 7)
    places, found = best.found(0)
    assert places == [9, 7, 10, 8] and found.tolist() == values[0][[2, 0, 3, 1]].tolist()
    with pytest.raises(UserError, match="not a number"):
        best.add([0], torch.tensor([[float("nan")]]), 0)


def test_dense_search_equals_brute_force() -> None:
    generator = torch.Generator().manual_seed(3)
    documents = torch.randn(900, 16, generator=generator)
    asked = torch.randn(30, 16, generator=generator)
    table = {f"t{i}": v for i, v in enumerate(documents)} | {
        f"s{i}": v for i, v in enumerate(asked)
    }
    found = collection([f"t{i}" for i in range(900)], [f"s{i}" for i in range(30)])

    def vectorise(texts, side):
        return torch.stack([table[text] for text in texts])

    by_vectors = dense(dot(), [q.text for q in found.queries], vectorise)
    expected = np.argsort(-(asked @ documents.T).numpy(), axis=1, kind="stable")[:, :100]
    for block in (7, 256, 1000):
        got = rankings(found, search(found, by_vectors, block=block))
        assert [[int(key[1:]) for key in one.document_ids] for one in got] == expected.tolist()


def test_own_corpus_searches_only_the_querys_part() -> None:
    found = collection(parts=("left", "right"))
    table = {text: torch.tensor([float(n)]) for n, text in enumerate(TEXTS)}
    table |= {text: torch.tensor([1.0]) for text in ASKED}
    by_vectors = dense(dot(), ASKED, lambda texts, side: torch.stack([table[t] for t in texts]))
    whole = rankings(found, search(found, by_vectors, block=3))
    own = rankings(found, search(found, by_vectors, block=3, own_corpus=True))
    assert whole[0].document_ids[0] == "right/d7" and len(whole[0].document_ids) == 8
    assert own[0].document_ids == ("left/d3", "left/d2", "left/d1", "left/d0")
    assert own[1].document_ids == ("right/d7", "right/d6", "right/d5", "right/d4")
    assert own[1].languages == ("pol", "eng", "pol", "eng")


def test_a_stopped_search_resumes_where_it_stopped() -> None:
    found = collection()
    read: list[str] = []

    def vectorise(texts, side):
        read.extend(texts)
        return torch.tensor([[float(len(text))] for text in texts])

    by_vectors = dense(dot(), ASKED, vectorise)
    whole = search(found, by_vectors, block=2)
    read.clear()
    with stoppable(lambda: len(read) >= 4):
        half = search(found, by_vectors, block=2)
    assert half.seen == 4 and read == TEXTS[:4]
    # Another kind of machine resumes with another block size.
    resumed = search(found, by_vectors, block=3, best=half)
    assert read == TEXTS and torch.equal(resumed.keys, whole.keys) and resumed.seen == 8


def test_texts_without_tokens_are_never_found_and_find_nothing(
    tiny: Callable[..., object],
) -> None:
    retriever = tiny("bert")
    assert readable(retriever, ["ice", "\u200b", "stone"], "document") == [True, False, True]
    found = collection([TEXTS[0], "\u200b", TEXTS[1]], ["what melts", "\u200b"])
    got = rankings(found, search(found, scorer(retriever, [q.text for q in found.queries])))
    assert sorted(got[0].document_ids) == ["d0", "d2"] and got[1].document_ids == ()


@pytest.mark.parametrize("family", ["dense", "late_interaction", "sparse", "cross_encoder"])
def test_the_tokenizer_is_locked_while_texts_of_one_side_are_tokenized(
    tiny: Callable[..., object],
    tiny_family: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    family: str,
) -> None:
    retriever: Any = tiny("bert") if family == "dense" else tiny_family(family)
    tokenize = retriever.model.preprocess
    free: list[bool] = []

    def other_thread() -> None:
        free.append(retriever.tokenizing.acquire(blocking=False))
        if free[-1]:
            retriever.tokenizing.release()

    def preprocess(*args: object, **options: object) -> object:
        thread = Thread(target=other_thread)
        thread.start()
        thread.join()
        return tokenize(*args, **options)

    monkeypatch.setattr(retriever.model, "preprocess", preprocess)
    if family == "cross_encoder":
        retriever.encode_pairs([TextPair("p", ASKED[0], TEXTS[0])])
    else:
        readable(retriever, ASKED, "query")
        retriever.encode_texts(TEXTS, "document")
        retriever.encode_plain(TEXTS, "document")
    assert free and not any(free)
    other_thread()
    assert free[-1]  # and the lock is released


def test_an_apple_gpu_is_used_by_one_thread_at_a_time() -> None:
    lock = RLock()
    assert tokenizer_lock(lock, torch.device("mps")) is lock
    assert tokenizer_lock(lock, torch.device("cpu")) is not lock


def test_dense_scores_equal_those_of_the_model(tiny: Callable[..., object]) -> None:
    retriever = tiny("bert")
    found = collection()
    got = rankings(found, search(found, scorer(retriever, ASKED), block=3))
    from sentence_transformers import util

    queries = retriever.model.encode(ASKED, prompt=retriever.prompts["query"] or None)
    documents = retriever.model.encode(TEXTS, prompt=retriever.prompts["document"] or None)
    expected = util.cos_sim(queries, documents).numpy()
    for row, one in enumerate(got):
        scores = dict(zip(one.document_ids, one.scores, strict=True))
        assert [scores[f"d{n}"] for n in range(8)] == pytest.approx(expected[row], abs=2e-5)
        assert list(one.scores) == sorted(one.scores, reverse=True)


@pytest.mark.parametrize("family", ["sparse", "late_interaction"])
def test_search_scores_of_other_families_equal_their_pair_scores(
    family: str, tiny_family: Callable[[str], object]
) -> None:
    from poslens.attribution.retrievers.base import encode

    retriever = tiny_family(family)
    found = collection()
    for block in (3, 100):
        got = rankings(found, search(found, scorer(retriever, ASKED), block=block))
        for row, one in enumerate(got):
            for key, score in zip(one.document_ids, one.scores, strict=True):
                pair = TextPair("p", ASKED[row], TEXTS[int(key[1:])])
                with torch.no_grad():
                    sides = [retriever.embed(side) for side in encode(retriever, [pair])]
                    expected = float(retriever.similarity(*sides))
                assert score == pytest.approx(expected, rel=1e-4, abs=1e-5)
            if family == "late_interaction":
                assert len(one.document_ids) == len(TEXTS)


def test_a_cross_encoder_reranks_the_given_documents(tiny_family: Callable[[str], object]) -> None:
    retriever = tiny_family("cross_encoder")
    first = Ranking("q", ("d3", "d1", "d0"), np.array([3.0, 2.0, 1.0]), ("eng", "pol", None))
    texts = [TEXTS[3], TEXTS[1], TEXTS[0]]
    got = rerank(retriever, "what melts", first, texts)
    scores = {}
    for key, text in zip(first.document_ids, texts, strict=True):
        with torch.no_grad():
            encoded = retriever.encode_pairs([TextPair("p", "what melts", text)])[0]
            scores[key] = float(retriever.embed(encoded))
    assert dict(zip(got.document_ids, got.scores, strict=True)) == pytest.approx(scores, abs=1e-5)
    assert list(got.scores) == sorted(got.scores, reverse=True)
    assert dict(zip(got.document_ids, got.languages, strict=True))["d1"] == "pol"
    with pytest.raises(UserError, match="use it as a reranker"):
        scorer(retriever, ASKED)


def test_bm25_scores_follow_the_formula() -> None:
    found = collection()
    best = search_lexical(found, 1.2, 0.75)
    assert best is not None
    words = [terms_of(text) for text in TEXTS]
    known = statistics_of(words)

    def score(query: str, document: tuple[str, ...]) -> float:
        total = 0.0
        for term in terms_of(query):
            n, tf = known.frequencies.get(term, 0), document.count(term)
            idf = np.log1p((known.n - n + 0.5) / (n + 0.5))
            norm = 1.2 * (1 - 0.75 + 0.75 * len(document) / known.average_length)
            total += idf * tf / (tf + norm)
        return float(total)

    for row, one in enumerate(rankings(found, best)):
        expected = {f"d{n}": s for n, d in enumerate(words) if (s := score(ASKED[row], d)) > 0}
        got = dict(zip(one.document_ids, one.scores, strict=True))
        assert got == pytest.approx(expected, rel=1e-5)
    # A query of unknown words finds nothing, and so does one in a part without its words.
    apart = collection(queries=["what melts", "qqqq"], parts=("left", "right"))
    own = search_lexical(apart, 1.2, 0.75, own_corpus=True)
    assert own is not None
    got = rankings(apart, own)
    assert got[0].document_ids == ("left/d0",) and got[1].document_ids == ()
    with stoppable(lambda: True):
        assert search_lexical(found, 1.2, 0.75) is None


def test_a_query_without_words_finds_nothing_with_bm25() -> None:
    found = collection(queries=["what melts", "???", "🔥🔥"])
    best = search_lexical(found, 1.2, 0.75)
    assert best is not None and best.seen == len(TEXTS)
    got = rankings(found, best)
    assert len(got[0].document_ids) > 0
    assert got[1].document_ids == got[2].document_ids == ()


def test_a_corpus_is_read_once_per_search_and_never_held_in_memory(tmp_path: Path) -> None:
    passes = 0

    def stream():
        nonlocal passes
        passes += 1
        for n in range(1000):
            document = Document(f"d{n}", f"text {n}", "", "eng")
            yield document if n % 10 else Rejection("f", n + 1, "The document is empty")

    found = Collection("c", "C", collection().queries, stream)
    survey = found.survey
    assert survey.n == 900 and len(survey.rejected) == 100
    assert survey.rejected[0].row == 1 and "The document is empty" in survey.rejected[0].reason
    by_vectors = dense(dot(), ASKED, lambda texts, side: torch.ones(len(texts), 2))
    best = search(found, by_vectors)
    assert passes == 2 and best.seen == 900

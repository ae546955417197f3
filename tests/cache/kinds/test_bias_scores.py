"""Scores of pairs of documents: stored, resumed, and computed one by one if a batch fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from poslens.attribution import datasets
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.evaluation.bias_pairs import pairs_for
from poslens.attribution.evaluation.bias_tests import DocumentPair, PairScores
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.scoring import score_texts, size
from poslens.attribution.types import TextPair
from poslens.cache.jobs.items import compute_missing
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds import bias as bias_scores
from poslens.cache.kinds.bias import BIAS_SCORES, CPU_AHEAD
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage.results import Results
from poslens.cache.storage.store import ModelKey
from poslens.compute.item_job import Batched

MODEL = ModelKey("tiny", "0" * 16)


def score_missing(
    retriever: DenseRetriever,
    model: ModelKey,
    items: list[DocumentPair],
    store: Results[DocumentPair, PairScores],
    options: RunOptions = RunOptions(),
) -> Progress:
    known = LRUCache(2**20, weigh=size)
    scores = Batched[DocumentPair, PairScores](
        lambda pairs: bias_scores.score(retriever, pairs, known)
    )
    return compute_missing(
        store,
        model,
        BIAS_SCORES,
        items,
        scores,
        options=options,
        portion=bias_scores.ahead(retriever),
        prepare=scores.prepare,
    )


@pytest.fixture
def items() -> list[DocumentPair]:
    data = datasets.read("sample-bias")
    return [p for test in ("brevity", "position") for p in pairs_for(data, test).pairs]


@pytest.fixture
def store(tmp_path: Path) -> Results[DocumentPair, PairScores]:
    return bias_scores.store(tmp_path)


@pytest.fixture(scope="module")
def bert(tiny) -> DenseRetriever:
    return tiny("bert")


def test_scores_equal_the_models_in_the_order_of_documents(bert, items, store) -> None:
    progress = score_missing(bert, MODEL, items, store)
    assert (progress.done, progress.computed, progress.failed) == (24, 24, 0)
    found = store.select(MODEL, BIAS_SCORES, items).results
    for item in (items[0], items[CPU_AHEAD], items[-1]):
        texts = [(one.query, one.document) for one in (item.first, item.second)]
        wanted = [float(score_texts(bert, [one])[0]) for one in texts]
        scores = found[item.item_id]
        assert [scores.first, scores.second] == pytest.approx(wanted, abs=1e-5)
    again = score_missing(bert, MODEL, items, store)
    assert (again.done, again.computed) == (24, 0)


def test_a_run_embeds_each_text_once(bert, items, store) -> None:
    passes: list[int] = []
    layer = bert.backbone.get_submodule("encoder.layer.0")
    hook = layer.register_forward_hook(lambda _module, args, _out: passes.append(len(args[0])))
    try:
        score_missing(bert, MODEL, items, store)
    finally:
        hook.remove()
    texts = [one for item in items for one in (item.first, item.second)]
    queries, documents = {one.query for one in texts}, {one.document for one in texts}
    assert len(documents) < len(texts)
    assert sum(passes) == len(queries) + len(documents)


def test_a_run_can_be_stopped_and_resumed(bert, items, store) -> None:
    done: list[int] = []
    options = RunOptions(lambda p: done.append(p.done))
    with stoppable(lambda: len(done) > 3):
        progress = score_missing(bert, MODEL, items, store, options=options)
    assert progress.stopped and progress.done == 3
    assert len(store.select(MODEL, BIAS_SCORES, items).results) == 3
    progress = score_missing(bert, MODEL, items, store)
    assert (progress.done, progress.computed) == (24, 21)


def test_another_text_is_another_pair(bert, items, store) -> None:
    score_missing(bert, MODEL, items[:1], store)
    one = items[0]
    changed = DocumentPair(
        one.item_id,
        one.first,
        TextPair(one.second.pair_id, one.second.query, "Another.", dataset=one.second.dataset),
        one.source,
    )
    assert store.get(MODEL, BIAS_SCORES, one) is not None
    assert store.get(MODEL, BIAS_SCORES, changed) is None


def test_a_failed_pair_does_not_affect_the_others(bert, items, store) -> None:
    empty = "\N{ZERO WIDTH SPACE}"
    broken = DocumentPair(
        "brevity/broken",
        TextPair("1", "q", empty, dataset="d"),
        TextPair("2", "q", "Ice melts.", dataset="d"),
        "source",
    )
    listed = [items[0], broken, *items[1:4]]
    progress = score_missing(bert, MODEL, listed, store)
    stored = store.select(MODEL, BIAS_SCORES, listed)
    assert progress.failed == 1 and list(stored.failed) == ["brevity/broken"]
    assert len(stored.results) == 4


def test_truncated_documents_are_marked(bert, store) -> None:
    long = "Ice melts. " * 2000
    pair = DocumentPair("b/1", TextPair("1", "q", "Ice melts."), TextPair("2", "q", long), "source")
    (found,) = bias_scores.score(bert, [pair])
    assert found.truncated
    short = DocumentPair(
        "b/2", TextPair("1", "q", "Ice melts."), TextPair("2", "q", "Ice."), "source"
    )
    assert not bias_scores.score(bert, [short])[0].truncated

"""Rankings are computed once, stopped searches resume, and a changed corpus is another
collection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from poslens.attribution import batching
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.datasets import beir, from_pairs
from poslens.attribution.datasets.corpus import Collection, Document, Query
from poslens.attribution.datasets.types import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.search import BLOCK, Ranking, TopK, search_lexical
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.lexical import terms_of
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.specs import presets
from poslens.attribution.types import TextPair
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds import embeddings, rankings
from poslens.cache.kinds.rankings import (
    RankingStore,
    Search,
    complete,
    fingerprint,
    ranking_method,
)
from poslens.cache.storage.store import ModelKey

KEY = ModelKey("tiny", "0" * 16)
METHOD = ranking_method(own_corpus=False)


def collection(n: int = 5 * BLOCK, name: str = "set") -> Collection:
    documents = [Document(f"d{i}", f"Number {i} melts in spring.") for i in range(n)]
    queries = tuple(
        Query(f"q{i}", f"what is number {i}", "", None, {f"d{i}": 1}, {}, None, None)
        for i in range(4)
    )
    return Collection(name, name, queries, lambda: iter(documents))


def test_a_resumed_search_gives_the_same_rankings(
    tiny: Callable[..., object], tmp_path: Path
) -> None:
    retriever, found = tiny("bert"), collection()
    whole = RankingStore(tmp_path / "whole", found)
    done = whole.search(retriever, KEY, METHOD)
    n = 4 + 5 * BLOCK  # queries and documents
    assert (done.done, done.total, done.stopped) == (n, n, False)
    expected = whole.select(KEY, METHOD)
    assert complete(expected, found)

    store = RankingStore(tmp_path / "parts", found)
    stop = threading.Event()

    def report(progress) -> None:
        if progress.done >= 4 + 2 * BLOCK:
            stop.set()

    with stoppable(stop.is_set):
        half = store.search(retriever, KEY, METHOD, options=RunOptions(report))
    assert half.stopped and half.done == 4 + 2 * BLOCK and store.select(KEY, METHOD) == []
    again = RankingStore(tmp_path / "parts", found)
    seen: list[int] = []
    told = RunOptions(on_progress=lambda p: seen.append(p.done))
    rest = again.search(retriever, KEY, METHOD, options=told)
    assert seen[0] == 2 * BLOCK and rest.computed == 3 * BLOCK
    for actual, theirs in zip(again.select(KEY, METHOD), expected, strict=True):
        assert actual.document_ids == theirs.document_ids
        assert actual.scores.tolist() == theirs.scores.tolist()


@pytest.mark.parametrize("name", ["bert", "BM25"])
def test_progress_counts_texts_as_they_are_encoded(
    tiny: Callable[..., object], tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within a block, which takes minutes with a large model."""
    monkeypatch.setattr(embeddings, "_REPORT_SECONDS", 0)
    monkeypatch.setattr(batching, "CPU_BATCH_TOKENS", 64)
    retriever = load(presets()["BM25"]) if name == "BM25" else tiny(name)
    found, seen = collection(BLOCK + 3), list[Progress]()
    RankingStore(tmp_path, found).search(
        retriever, KEY, METHOD, options=RunOptions(on_progress=seen.append)
    )
    counts = [one.done for one in seen]
    assert counts == sorted(counts) and counts[-1] == seen[-1].total == 4 + BLOCK + 3
    assert len({one for one in counts if one < BLOCK}) > 4
    assert all(one.rate for one in seen if one.computed)


def test_a_second_search_embeds_nothing(tiny: Callable[..., object], tmp_path: Path) -> None:
    retriever, found = tiny("bert"), collection(BLOCK + 3)
    RankingStore(tmp_path, found).search(retriever, KEY, METHOD)
    own = ranking_method(own_corpus=True)
    retriever.embed = lambda encoded: pytest.fail("a text was embedded again")
    RankingStore(tmp_path, found).search(retriever, KEY, own)
    assert complete(RankingStore(tmp_path, found).select(KEY, own), found)


@pytest.mark.parametrize("change", ["reversed", "shortened", "removed"])
def test_a_corpus_that_changes_during_a_search_is_not_ranked(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search numbers documents, and another corpus gives these numbers to other documents."""
    corpus = tmp_path / "corpus.jsonl"
    lines = [f'{{"_id": "d{i}", "text": "{i}"}}\n' for i in range(9)]
    corpus.write_text("".join(lines))
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "7"}')
    (tmp_path / "qrels.tsv").write_text("q\td7\t1\n")
    store = RankingStore(tmp_path / "cache", beir.read(tmp_path, "set").collection())

    def change_after(*args: Any, **options: Any) -> TopK | None:
        best = search_lexical(*args, **options)
        corpus.unlink()
        if change != "removed":
            corpus.write_text("".join(lines[::-1] if change == "reversed" else lines[:5]))
        return best

    monkeypatch.setattr(rankings, "search_lexical", change_after)
    with pytest.raises(UserError, match=r"set .* changed during the search: run it again"):
        store.search(load(presets()["BM25"]), KEY, METHOD)


def test_a_changed_corpus_or_question_is_another_collection(tmp_path: Path) -> None:
    one = collection(3)
    other = replace(one, stream=lambda: iter([Document("d0", "Number 0 melts in autumn.")]))
    asked = replace(one, queries=(replace(one.queries[0], text="why"), *one.queries[1:]))
    judged = replace(one, queries=(replace(one.queries[0], relevant={"d1": 1}), *one.queries[1:]))

    def with_first(**changes: str) -> Collection:
        first, *others = one.documents()
        return replace(one, stream=lambda: iter([replace(first, **changes), *others]))

    # Sentences and searches of a part of the corpus depend on these.
    german, moved = with_first(language="deu"), with_first(part="other")
    prints = {fingerprint(c) for c in (one, other, asked, judged, german, moved)}
    assert len(prints) == 6 and fingerprint(collection(3)) == fingerprint(one)
    file = tmp_path / "corpus"
    file.write_text("one")
    first = fingerprint(replace(one, files=(file,)))
    file.write_text("two")
    assert fingerprint(replace(one, files=(file,))) != first


class Longest:
    """Scores a pair by its document's length; reads one pair after the other."""

    family, name, max_length = "cross_encoder", "longest", 100
    device, lock = torch.device("cpu"), threading.RLock()

    def __init__(self) -> None:
        self.read = 0

    def encode_pairs(self, pairs):
        self.read += len(pairs)
        return [len(pair.document) for pair in pairs], None

    def embed(self, lengths):
        return torch.tensor(lengths, dtype=torch.float32)


class Bm25:
    spec, k1, b = presets()["BM25"], 1.2, 0.75
    terms_of = staticmethod(terms_of)


def first_stage(folder: Path) -> tuple[RankingStore, list[Ranking]]:
    """BM25's rankings of two queries."""
    pairs = tuple(
        TextPair(str(n), "which ice", f"ice {'very ' * n}cold", dataset="p") for n in range(5)
    )
    found = from_pairs(
        DataSet("p", "P", Pairs((*pairs, TextPair("s", "what stone", "ice stone ice"))))
    )
    store = RankingStore(folder, found)
    store.search(Bm25(), ModelKey("BM25", "1" * 16), METHOD)
    first = store.select(ModelKey("BM25", "1" * 16), METHOD)
    assert complete(first, found)
    return store, first


def test_a_cross_encoder_reranks_and_resumes(tmp_path: Path) -> None:
    store, first = first_stage(tmp_path)
    method, longest = ranking_method(False, "BM25"), Longest()
    with stoppable(lambda: bool(store.select(KEY, method))):  # after the first query
        half = store.rerank(longest, KEY, method, first)
    assert half.stopped and half.done == 1
    done = store.rerank(longest, KEY, method, first)
    ranked = store.select(KEY, method)
    assert done.computed == 1 and complete(ranked, store.collection)
    assert ranked[0].document_ids[:2] == ("4", "3") and longest.read == 6 + 1
    assert set(ranked[0].document_ids) == set(first[0].document_ids)
    assert ranked[1].document_ids == ("s",)


def test_a_query_that_failed_is_reranked_at_the_next_start(tmp_path: Path) -> None:
    store, first = first_stage(tmp_path)
    method = ranking_method(False, "BM25")

    def fails(*arguments: object) -> None:
        raise UserError("A score is no number.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("poslens.cache.kinds.rankings.rerank", fails)
        failed = store.rerank(Longest(), KEY, method, first)
    assert (failed.failed, failed.stopped) == (2, False)
    done = store.rerank(Longest(), KEY, method, first)
    assert (done.computed, done.failed) == (2, 0)
    assert complete(store.select(KEY, method), store.collection)


def test_a_ranking_of_unknown_documents_counts_as_missing(tmp_path: Path) -> None:
    """Its types are valid, but it was forged for this collection's fingerprint."""
    store, first = first_stage(tmp_path)
    method, bm25 = ranking_method(False, "BM25"), ModelKey("BM25", "1" * 16)
    made_up = replace(first[0], document_ids=("nowhere", *first[0].document_ids[1:]))
    items = [store._item(query) for query in store.collection.queries]
    for model, how in ((bm25, METHOD), (KEY, method)):
        store._rankings.put(model, how, [(items[0], made_up), (items[1], first[1])])
        assert store.select(model, how) == [first[1]]
    store.search(Bm25(), bm25, METHOD)
    assert complete(store.select(bm25, METHOD), store.collection)
    done = store.rerank(Longest(), KEY, method, store.select(bm25, METHOD))
    assert (done.computed, done.failed) == (1, 0)
    assert complete(store.select(KEY, method), store.collection)


@pytest.mark.parametrize(("seen", "score", "place"), [(2, 1, 3), (99, 1, 0), (2, float("nan"), 0)])
def test_a_stopped_search_with_impossible_results_counts_as_missing(
    tmp_path: Path, seen: int, score: float, place: int
) -> None:
    store = RankingStore(tmp_path, collection(4))
    bits = int(torch.tensor(score, dtype=torch.float32).view(torch.int32))
    for wrong in (False, True):
        best = TopK(4)
        best.add(range(4), torch.ones(4, 2), 0)
        best.seen = 2
        if wrong:
            best.keys[1, 0] = (bits << 32) | (2**32 - 1 - place)
            best.seen = seen
        store._searches.put(KEY, METHOD, [(store._whole, Search.of(best))])
        assert (store.search_of(KEY, METHOD) is None) == wrong

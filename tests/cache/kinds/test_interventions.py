"""Interventions are read back unchanged, and only for the same pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from poslens.attribution import text
from poslens.attribution.datasets.corpus import Collection, Document
from poslens.attribution.interventions.ablation import ablation_method
from poslens.attribution.interventions.displacement import displacement_method
from poslens.attribution.interventions.relocation import relocation_method
from poslens.attribution.retrievers.scoring import score_texts, size
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.cache.jobs.items import compute_missing
from poslens.cache.kinds.audit import AuditStore
from poslens.cache.kinds.interventions import (
    OTHERS,
    AmongOthers,
    OtherScores,
    cause_key,
    causes,
    intervene,
    intervene_all,
    others,
    score_others,
)
from poslens.cache.kinds.study_items import WhyItem, explanations
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage.store import ModelKey
from poslens.studies.needles import Documents, Grid

MODEL = ModelKey("tiny-bert", "0" * 16)
PAIR = TextPair(
    "p", "the tide", "The tide rises. Lazy dogs. Twice a day.", EvidenceSpan(16, 26), "eng"
)
METHODS = [
    relocation_method(3),
    *(ablation_method(by, 4) for by in ("delete", "mask", "filler")),
    displacement_method("prefix", (0, 5)),
    displacement_method("positions", (0, 5)),
]


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_stored_results_equal_those_computed(
    method: Any, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    retriever, kept = tiny("bert"), causes(tmp_path, method)
    progress = compute_missing(
        kept, MODEL, method, [PAIR], lambda pair: intervene(retriever, method, pair)
    )
    assert (progress.done, progress.failed) == (1, 0)
    found, fresh = kept.get(MODEL, method, PAIR), intervene(retriever, method, PAIR)
    assert type(found) is type(fresh)
    for field in fields(fresh):
        if field.name != "seconds":
            a, b = getattr(found, field.name), getattr(fresh, field.name)
            assert np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b, field.name
    again = compute_missing(kept, MODEL, method, [PAIR], lambda pair: pytest.fail("computed twice"))
    assert again.computed == 0


def test_another_evidence_text_or_language_is_a_miss(
    tiny: Callable[..., Any], tmp_path: Path
) -> None:
    method = METHODS[0]
    kept = causes(tmp_path, method)
    kept.put(MODEL, method, [(PAIR, intervene(tiny("bert"), method, PAIR))])
    for changed in (
        replace(PAIR, evidence=EvidenceSpan(0, 15)),
        replace(PAIR, query="the moon"),
        replace(PAIR, language="pol"),
    ):
        assert kept.get(MODEL, method, changed) is None
    assert kept.get(MODEL, relocation_method(4), PAIR) is None


@pytest.mark.parametrize(("code", "revised"), [("ell", True), ("pol", False)])
def test_results_under_earlier_sentence_rules_are_misses(
    code: str, revised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Collection("c", "c", (), lambda: iter([Document("d", "One. Two.", language=code)]))
    texts, settings = Documents("c", (("One. Two.", code),), ""), SimpleNamespace(depths=(0,))

    def keys() -> list[str]:
        (cell,) = Grid(None, texts, settings, (64,), ()).items()
        explained = WhyItem("c", "q", "tide", "d", "corpus", language=code)
        return [
            cause_key(replace(PAIR, language=code)).fingerprint,
            explanations(tmp_path).key(explained).fingerprint,
            AuditStore(tmp_path, corpus).fingerprint,
            cell.corpus,
        ]

    now = keys()
    monkeypatch.setattr(text, "_REVISED", frozenset())
    assert [a != b for a, b in zip(now, keys(), strict=True)] == [revised] * 4


def test_a_pair_that_cannot_be_moved_is_stored_as_a_failure_with_its_reason(
    tiny: Callable[..., Any], tmp_path: Path
) -> None:
    method, retriever = METHODS[0], tiny("bert")
    kept = causes(tmp_path, method)
    pairs = [replace(PAIR, pair_id="bad", evidence=None), PAIR]
    progress = compute_missing(
        kept, MODEL, method, pairs, lambda pair: intervene(retriever, method, pair)
    )
    assert (progress.done, progress.failed) == (2, 1)
    stored = kept.select(MODEL, method, pairs)
    assert list(stored.results) == ["p"] and "evidence span" in stored.failed["bad"]


def test_scores_of_other_documents_are_computed_and_stored(
    tiny: Callable[..., Any], tmp_path: Path
) -> None:
    retriever, documents = tiny("bert"), ["The Moon.", "Twice a day."]
    kept = others(tmp_path)
    scores = score_others(retriever, MODEL, PAIR, documents, tmp_path)
    wanted = score_texts(retriever, [(PAIR.query, text) for text in documents])
    np.testing.assert_allclose(scores, wanted, rtol=0, atol=1e-6)
    # For the next pair, only its query is encoded.
    run: list[int] = []
    layer = retriever.backbone.get_submodule("encoder.layer.0")
    layer.register_forward_hook(lambda _module, args, _output: run.append(len(args[0])))
    score_others(retriever, MODEL, replace(PAIR, query="the moon"), documents[::-1], tmp_path)
    assert run == [1]
    among = AmongOthers(PAIR, documents)
    kept.put(MODEL, OTHERS, [(among, OtherScores(scores))])
    found = kept.get(MODEL, OTHERS, among)
    assert found is not None and np.array_equal(found.scores, scores)
    for other in (documents[::-1], documents[:1]):
        assert kept.get(MODEL, OTHERS, AmongOthers(PAIR, other)) is None


SHARING = [
    replace(PAIR, pair_id=f"p{n}", query=query, document=document)
    for n, (query, document) in enumerate(
        [
            ("the tide", PAIR.document),
            ("the moon", PAIR.document),
            ("the tide", "The tide falls. Lazy cats. Once a day."),
            ("lazy dogs", PAIR.document),
        ]
    )
]
EACH_ONCE = [
    (relocation_method(3), 3 + 2 * 3),  # three positions each, one of them the original text
    (ablation_method("delete", 4), 3 + 2 * 5),
    (ablation_method("filler", 4), 3 + 2 * 5),
    (ablation_method("mask", 4), 2 * (4 + 1) + 4),  # and each pair's query
    (displacement_method("prefix", (0, 5)), 3 + 2 * 2),
    (displacement_method("positions", (0, 5)), 4 * (1 + 2)),
]


@pytest.mark.parametrize(("method", "rows"), EACH_ONCE, ids=[repr(m) for m, _ in EACH_ONCE])
def test_texts_shared_by_pairs_are_embedded_once_per_run(
    method: Any, rows: int, tiny: Callable[..., Any], tmp_path: Path
) -> None:
    retriever = tiny("bert")
    alone = {pair.pair_id: intervene(retriever, method, pair) for pair in SHARING}
    passes: list[int] = []
    layer = retriever.backbone.get_submodule("encoder.layer.0")
    hook = layer.register_forward_hook(lambda _module, args, _out: passes.append(len(args[0])))
    try:
        done = intervene_all(retriever, MODEL, method, SHARING, tmp_path)
    finally:
        hook.remove()
    assert (done.computed, done.failed) == (4, 0) and sum(passes) == rows
    found = causes(tmp_path, method).select(MODEL, method, SHARING).results
    for pair_id, one in alone.items():
        for field in ("effects", "scores"):
            if hasattr(one, field):
                np.testing.assert_allclose(
                    getattr(found[pair_id], field), getattr(one, field), rtol=0, atol=1e-6
                )


def test_a_runs_cache_of_vectors_is_bounded(tiny: Callable[..., Any]) -> None:
    known, retriever = LRUCache(2**20, weigh=size), tiny("bert")
    for pair in SHARING:
        intervene(retriever, METHODS[0], pair, cached=known)
    vector = retriever.embed(retriever.encode_plain([PAIR.document], "document"))
    assert known.weight == (3 + 2 * 3) * vector.nbytes
    many = LRUCache(2 * vector.nbytes, weigh=size)  # too small for all texts
    for pair in SHARING:
        found = intervene(retriever, METHODS[0], pair, cached=many)
        fresh = intervene(retriever, METHODS[0], pair)
        np.testing.assert_allclose(found.scores, fresh.scores, rtol=0, atol=1e-6)
    assert many.weight <= 2 * vector.nbytes

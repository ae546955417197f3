"""Interventions come back from the store as they were, and only for the very same pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attribution.interventions.ablation import ablation_method
from attribution.interventions.displacement import displacement_method
from attribution.interventions.relocation import relocation_method
from attribution.retrievers.scoring import score_texts
from attribution.types import EvidenceSpan, TextPair
from cache.jobs.items import compute_missing
from cache.kinds.interventions import causes, intervene, others, others_method, score_others
from cache.storage.store import ModelKey

MODEL = ModelKey("tiny", "0" * 16)
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
def test_what_is_stored_is_what_was_computed(
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


def test_a_pair_that_cannot_be_moved_is_a_failure_with_its_reason(
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


def test_scores_of_other_documents(tiny: Callable[..., Any], tmp_path: Path) -> None:
    retriever, documents = tiny("bert"), ["The Moon.", "Twice a day."]
    method, kept = others_method(documents), others(tmp_path)
    scores = score_others(retriever, MODEL, PAIR, documents, tmp_path)
    wanted = score_texts(retriever, [(PAIR.query, text) for text in documents])
    np.testing.assert_allclose(scores, wanted, rtol=0, atol=1e-6)
    # The next pair's query is all that is read then.
    run: list[int] = []
    layer = retriever.backbone.get_submodule("encoder.layer.0")
    layer.register_forward_hook(lambda _module, args, _output: run.append(len(args[0])))
    score_others(retriever, MODEL, replace(PAIR, query="the moon"), documents[::-1], tmp_path)
    assert run == [1]
    kept.put(MODEL, method, [(PAIR, scores)])
    assert np.array_equal(kept.get(MODEL, method, PAIR), scores)
    assert others_method(documents[::-1]) != method
    with pytest.raises(ValueError, match="no intervention"):
        causes(tmp_path, method)

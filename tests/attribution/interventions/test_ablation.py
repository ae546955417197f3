"""Ablation: parts, the three ways to remove them, and equivalent computations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.evaluation.deletion import deletion_insertion
from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.interventions.ablation import (
    REPLACEMENTS,
    ablation,
    ablation_method,
    of_tokens,
    parts_of,
    without,
)
from poslens.attribution.interventions.filler import (
    FILLERS,
    filler,
    filler_note,
)
from poslens.attribution.interventions.relocation import tokens_of
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.scoring import score_texts
from poslens.attribution.text import words
from poslens.attribution.types import TextPair

TEXT = "The tide rises twice a day because the Moon pulls the water nearer to it, more strongly."
PAIR = TextPair("p", "why does the tide rise", TEXT, language="eng")


@given(st.text(alphabet="ab, \n水", min_size=1, max_size=80), st.integers(2, 25))
def test_parts_cover_the_text_and_begin_at_words(text: str, bins: int) -> None:
    if not words(text):
        return
    parts = parts_of(text, len(text), bins)
    assert parts[0][0] == 0 and parts[-1][1] == len(text)
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    starts = {start for start, _ in words(text)}
    assert all(a in starts for a, _ in parts[1:])
    assert 1 <= len(parts) <= min(bins, len(starts))
    assert "".join(text[a:b] for a, b in parts) == text


def test_parts_computed_by_hand() -> None:
    assert parts_of("aa bb cc dd", 11, 4) == ((0, 3), (3, 6), (6, 9), (9, 11))
    assert without("aa bb cc dd", (3, 6)) == "aa cc dd"


def test_deletion_equals_scoring_the_text_edited_by_hand(tiny: Callable[..., Any]) -> None:
    retriever = tiny("roberta")
    found = ablation(retriever, PAIR, "delete", 4)
    assert len(found.spans) == 4 and found.note == "" and found.read_share == 1
    for (start, end), effect in zip(found.spans, found.effects, strict=True):
        by_hand = TEXT[:start] + TEXT[end:]
        whole, rest = score_texts(retriever, [(PAIR.query, TEXT), (PAIR.query, by_hand)])
        assert effect == pytest.approx(whole - rest, abs=2e-5)
        assert whole == pytest.approx(found.score, abs=2e-5)


def test_masking_a_word_equals_occluding_it(tiny: Callable[..., Any]) -> None:
    retriever = tiny("bert")
    text = "The tide rises twice"
    pair = TextPair("p", PAIR.query, text)
    found = ablation(retriever, pair, "mask", 100)
    assert len(found.spans) == 4
    occlusion = METHODS["occlusion"].compute(retriever, make_method("occlusion"), [pair])[0]
    tokens, scores = occlusion.document.tokens, occlusion.document_scores
    for (start, end), effect in zip(found.spans, found.effects, strict=True):
        inside = [not t.is_special and start <= t.start < end for t in tokens]
        assert effect == pytest.approx(float(scores[inside].sum()), abs=2e-5)


def test_masking_everything_gives_the_empty_document(tiny: Callable[..., Any]) -> None:
    """The two ends of the erasure curve in another module."""
    retriever = tiny("bert")
    pair = TextPair("p", PAIR.query, "tide rises")
    found = ablation(retriever, pair, "mask", 2)
    saliency = METHODS["saliency"].compute(retriever, make_method("saliency"), [pair])[0]
    test = deletion_insertion(retriever, pair, saliency, ErasureParameters(n_random=1))
    assert found.score == pytest.approx(test.score, abs=2e-5)


def test_filler_has_as_many_tokens_and_moves_nothing(tiny: Callable[..., Any]) -> None:
    retriever = tiny("roberta")
    for n in (1, 5, 17, 40):
        text = of_tokens(retriever, "q", "eng", n, 5 * n)
        read = int(tokens_of(retriever, "q", text).content.sum())
        # Cuts are at the ends of words, so lengths differ by at most the longest word's tokens (one
        # per byte).
        longest = max(len(text[a:b].encode()) for a, b in words(text))
        assert abs(read - n) <= longest
    found = ablation(retriever, PAIR, "filler", 5)
    assert found.effects.shape == (5,) and np.ptp(found.effects) > 0


def test_bm25_loses_the_shares_of_its_matching_words() -> None:
    found = ablation(load(resolve("BM25")), TextPair("p", "tide", "aa tide bb cc"), "mask", 4)
    assert found.effects.tolist() == pytest.approx([0, found.score, 0, 0])


@pytest.mark.parametrize("by", REPLACEMENTS)
def test_one_word_cannot_be_ablated(by: Any, tiny: Callable[..., Any]) -> None:
    with pytest.raises(UserError, match="one word"):
        ablation(tiny("bert"), TextPair("p", "q", "tide"), by)


def test_ablation_can_be_stopped(tiny: Callable[..., Any]) -> None:
    for by in REPLACEMENTS:
        with stoppable(lambda: True), pytest.raises(Stopped):
            ablation(tiny("bert"), PAIR, by, 5)


def test_only_text_that_was_read_is_ablated(tiny: Callable[..., Any]) -> None:
    retriever = tiny("bert", max_length=10)
    for by in REPLACEMENTS:
        found = ablation(retriever, PAIR, by, 3)
        assert 0 < found.read_share < 1
        assert found.spans[-1][1] == pytest.approx(found.read_share * len(TEXT))


@pytest.mark.parametrize("by", REPLACEMENTS)
def test_text_past_the_context_limit_is_not_pulled_in(by: Any, tiny: Callable[..., Any]) -> None:
    """Whatever text follows, the effects equal those of the read text alone."""
    retriever = tiny("bert", max_length=10)
    until = tokens_of(retriever, PAIR.query, TEXT).read_until
    read = ablation(retriever, replace(PAIR, document=TEXT[:until]), by, 3)
    for rest in (TEXT[until:], " tide tide tide the Moon, the Moon, the Moon"):
        found = ablation(retriever, replace(PAIR, document=TEXT[:until] + rest), by, 3)
        assert found.spans == read.spans and found.read_share < 1
        np.testing.assert_allclose(found.effects, read.effects, atol=2e-6)


def test_methods_are_named_and_unknown_replacements_refused() -> None:
    assert repr(ablation_method("mask", 10)) == "ablation(by=mask, bins=10, version=2)"
    with pytest.raises(UserError, match="delete, mask, filler"):
        ablation_method("burn")  # type: ignore[arg-type]


def test_filler_text_exists_in_every_language_of_the_sample(sample: Any) -> None:
    assert set(FILLERS) == {pair.language for pair in sample.pairs}
    for language in FILLERS:
        assert len(filler(language, 300)) >= 300 and filler_note(language) == ""
        assert filler(language, 30, 1) != filler(language, 30, 0)
    assert filler("deu", 30) == filler("eng", 30) and "deu" in filler_note("deu")
    assert filler(None, 0) == FILLERS["eng"][0]

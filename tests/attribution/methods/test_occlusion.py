"""Occlusion compared with a loop that replaces embeddings explicitly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from poslens.attribution.checkpoints import reporting, stoppable
from poslens.attribution.curves.positions import aggregated, unit_scores
from poslens.attribution.errors import Stopped
from poslens.attribution.methods import make_method, occlusion, perturbation
from poslens.attribution.methods.occlusion import attribute, units
from poslens.attribution.methods.perturbation import Kept
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.resolve import minilm_folder
from poslens.attribution.retrievers.scoring import size
from poslens.attribution.text import sentences, words
from poslens.attribution.types import TextPair

LEVELS = ("token", "word", "sentence")
METHOD = {level: make_method("occlusion", {"level": level}) for level in LEVELS}
PAIR = TextPair(
    "p",
    "why does the tide rise?",
    "Fog lifts by noon. The Moon pulls unhydrodynamically! Salt.",
    language="eng",
)


def starts(parts: list[str]) -> list[int]:
    """Where each part begins in PAIR.document."""
    found, cursor = [], 0
    for part in parts:
        found.append(PAIR.document.index(part, cursor))
        cursor = found[-1] + len(part)
    return found


STARTS = {  # of each unit, in characters
    "word": starts(
        [
            "Fog",
            "lifts",
            "by",
            "noon",
            ".",
            "The",
            "Moon",
            "pulls",
            "unhydrodynamically",
            "!",
            "Salt",
            ".",
        ]
    ),
    "sentence": starts(["Fog lifts by noon.", "The Moon pulls unhydrodynamically!", "Salt."]),
}


@pytest.fixture(scope="module")
def reference(one_thread: None) -> Callable[[str, str, list[list[int]]], np.ndarray]:
    """Effects on cos(text, other) of replacing each given group of tokens by padding, computed with
    transformers alone, one text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = AutoModel.from_pretrained(minilm_folder()).eval()
    words = model.get_input_embeddings().weight

    @torch.no_grad()
    def effects(text: str, other: str, groups: list[list[int]]) -> np.ndarray:
        def vector(inputs: Tensor) -> Tensor:
            return model(inputs_embeds=inputs[None]).last_hidden_state[0].mean(0)

        def score(inputs: Tensor) -> float:
            return float(torch.cosine_similarity(vector(inputs), constant, dim=0))

        inputs, others = (words[tokenizer(t)["input_ids"]] for t in (text, other))
        constant = vector(others)
        found = []
        for group in groups:
            without = inputs.clone()
            without[group] = words[tokenizer.pad_token_id]
            found.append(score(inputs) - score(without))
        return np.array(found)

    return effects


@pytest.mark.parametrize("level", LEVELS)
def test_equals_a_loop(
    minilm: DenseRetriever, reference: Callable[..., np.ndarray], level: str
) -> None:
    (result,) = attribute(minilm, METHOD[level], [PAIR])
    tokens = result.document.tokens
    content = [i for i, token in enumerate(tokens) if not token.is_special]
    if level == "token":
        groups = [[i] for i in content]
    else:
        bounds = [*STARTS[level], len(PAIR.document)]
        groups = [
            [i for i in content if begin <= tokens[i].start < end]
            for begin, end in pairwise(bounds)
        ]
    assert sorted(chain(*groups)) == content and all(groups)
    assert level == "token" or max(map(len, groups)) > 1
    expected = reference(PAIR.document, PAIR.query, groups)
    # The tokens of a unit share its effect equally.
    for group, effect in zip(groups, expected, strict=True):
        np.testing.assert_allclose(result.document_scores[group], effect / len(group), atol=2e-6)
    assert (result.document_scores[~result.document.content] == 0).all()

    content = np.flatnonzero(result.query.content).tolist()
    expected = reference(PAIR.query, PAIR.document, [[i] for i in content])
    np.testing.assert_allclose(result.query_scores[content], expected, atol=2e-6)
    assert (result.query_scores[~result.query.content] == 0).all()
    assert result.bias_share is None and result.completeness_error is None


def test_occluding_the_answer_has_the_largest_effect(minilm: DenseRetriever) -> None:
    (result,) = attribute(minilm, METHOD["sentence"], [PAIR])
    sentence_of = units(result.document, PAIR, "sentence")
    effects = aggregated(result.document_scores, sentence_of, int(sentence_of.max()) + 1, "sum")
    assert np.argmax(effects) == 1


@pytest.mark.parametrize(
    ("level", "language", "document", "groups"),
    [
        ("word", "eng", "It isn't 3.5, is it?", ["It", "isn't", "3.5", ",", "is", "it", "?"]),
        ("sentence", "cmn", "海洋潮汐。土星有光环。", ["海洋潮汐。", "土星有光环。"]),
        ("word", "cmn", "海洋 潮汐", ["海", "洋", "潮", "汐"]),
        ("sentence", None, "One. Two", ["One.", "Two"]),
    ],
)
def test_tokens_are_grouped_into_units(
    tiny: Callable[..., DenseRetriever],
    level: str,
    language: str | None,
    document: str,
    groups: list[str],
) -> None:
    retriever = tiny("roberta", document_prompt="query: ")
    (text,) = retriever.encode_texts([document], "document").texts
    found: dict[int, str] = {}
    pair = TextPair("p", "q", document, language=language)
    numbers = units(text, pair, level)
    assert len(numbers) == len(text.tokens)
    for token, number in zip(text.tokens, numbers, strict=True):
        if not token.is_special:
            found.setdefault(number, document[token.start :])
    assert len(found) == len(groups)
    for rest, group in zip(found.values(), groups, strict=True):
        assert rest.startswith(group)


def test_batching_copies_does_not_change_effects(
    minilm: DenseRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    (together,) = attribute(minilm, METHOD["token"], [PAIR])
    monkeypatch.setattr(perturbation, "BATCH_TOKENS", 1)
    (one_by_one,) = attribute(minilm, METHOD["token"], [PAIR])
    np.testing.assert_allclose(together.document_scores, one_by_one.document_scores, atol=1e-6)
    np.testing.assert_allclose(together.query_scores, one_by_one.query_scores, atol=1e-6)


@pytest.mark.parametrize("limit", [0, 3000, 2**28])
def test_the_cache_for_other_queries_is_bounded_and_does_not_change_effects(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Vectors of 32 numbers have 128 bytes, and batches of five copies 640; the last batch is
    smaller."""
    retriever = tiny("bert")
    pairs = [replace(PAIR, query=query) for query in (PAIR.query, "what does the Moon pull?")]
    alone = [attribute(retriever, METHOD["token"], [pair])[0] for pair in pairs]
    (text,) = retriever.encode_texts([PAIR.document], "document").texts
    monkeypatch.setattr(perturbation, "BATCH_TOKENS", 5 * len(text))
    kept: list[Kept] = []

    def limited() -> Kept:
        kept.append(Kept(room=limit))
        return kept[-1]

    monkeypatch.setattr(occlusion, "Kept", limited)
    attribute(retriever, METHOD["token"], pairs[:1])
    assert not kept  # a lookup could never find it
    for one, found in zip(alone, attribute(retriever, METHOD["token"], pairs), strict=True):
        np.testing.assert_allclose(found.document_scores, one.document_scores, atol=1e-6)
        np.testing.assert_allclose(found.query_scores, one.query_scores, atol=1e-6)
    (one_document,) = kept
    assert sum(map(size, one_document.outputs)) <= limit
    assert bool(one_document.outputs) == bool(limit)


@pytest.mark.parametrize("level", ["word", "sentence"])
@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "qwen3-left"])
def test_the_value_of_a_unit_is_its_effect_with_the_white_space_before_it(
    tiny: Callable[..., DenseRetriever], name: str, level: str
) -> None:
    document = "The tide.\n\nThe  Moon pulls 海洋. \n It rises  twice \n"
    retriever, pair = tiny(name), TextPair("p", "tide", document)
    (attribution,) = attribute(retriever, METHOD[level], [pair])
    text, spans = attribution.document, {"word": words, "sentence": sentences}[level](document)
    values = unit_scores(text, attribution.document_scores, spans, "sum")
    encoded = retriever.encode_texts([document], "document")
    query = retriever.embed(retriever.encode_texts([pair.query], "query"))
    baseline = retriever.baseline(encoded)
    before = np.array([0, *(end for _, end in spans[:-1])])
    until = np.array([*(end for _, end in spans[:-1]), len(document)])
    for value, start, end in zip(values, before, until, strict=True):
        own = text.content & (text.starts >= start) & (text.starts < end)
        changed = torch.where(
            torch.from_numpy(own)[None, :, None], baseline, retriever.input_embeddings(encoded)
        )
        with retriever.override_embeddings(changed), torch.no_grad():
            score = retriever.similarity(query, retriever.embed(encoded))
        assert value == pytest.approx(attribution.score - float(score), abs=1e-5)
    assert values.sum() == pytest.approx(attribution.document_scores.sum(), abs=1e-5)


@pytest.mark.parametrize("name", ["bert", "roberta", "qwen3-left", "llama-right"])
def test_prompts_and_special_tokens_have_no_effect(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    retriever = tiny(name, document_prompt="query: fox ", query_prompt="instruct: ")
    (result,) = attribute(retriever, METHOD["word"], [TextPair("p", "tide", "The tide rises.")])
    content = result.document.content
    assert (result.document_scores[~content] == 0).all() and (~content).sum() >= 3
    assert (result.document_scores[content] != 0).all()


def test_a_token_that_already_is_padding_has_no_effect(
    tiny: Callable[..., DenseRetriever],
) -> None:
    """Replacing a token by itself changes nothing."""
    retriever = tiny("bert")
    weights = retriever.embeddings.weight
    word = retriever.model.tokenizer.convert_tokens_to_ids("moon")
    weights[word] = weights[retriever.model.tokenizer.pad_token_id]
    (result,) = attribute(
        retriever, METHOD["token"], [TextPair("p", "tide", "the Moon pulls the Moon")]
    )
    texts = [token.text for token in result.document.tokens]
    assert [t for t, s in zip(texts, result.document_scores, strict=True) if abs(s) < 1e-6] == [
        "[CLS]",
        "moon",
        "moon",
        "[SEP]",
    ]


def test_a_slow_pair_reports_progress_and_can_be_stopped(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever, told = tiny("bert"), list[float]()
    monkeypatch.setattr(perturbation, "BATCH_TOKENS", 1)
    with reporting(lambda share, doing, before: told.append(share)):
        attribute(retriever, METHOD["token"], [PAIR])
    assert told == sorted(told) and told[0] == 0 and 0.9 < told[-1] < 1
    told.clear()
    with (
        reporting(lambda share, doing, before: told.append(share)),
        stoppable(lambda: bool(told) and told[-1] > 0.5),
        pytest.raises(Stopped),
    ):
        attribute(retriever, METHOD["token"], [PAIR])
    assert 0.5 < told[-1] < 0.7

"""Sequence-to-sequence rerankers: the logits of transformers, and their attributions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.deletion import deletion_insertion
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.detect import family_of_folder
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.seq2seq import Seq2SeqRetriever
from poslens.attribution.retrievers.specs import RetrieverSpec, presets
from poslens.attribution.types import Attribution, TextPair
from tests.support import tiny_families

PAIRS = [
    TextPair("a", "the tide rises", "The tide rises twice a day because the Moon pulls the water."),
    TextPair("b", "lazy dogs", "a quick brown fox, jumping over 12 lazy dogs; isn't it? naïve."),
    TextPair("c", "piñas 🚀", "El niño comió piñas."),
]
KINDS = {
    # T5 of 2019 has one embedding table for everything; 1.1, mT5 and plT5 are gated and have a
    # separate head.
    "t5": ("t5", {}),
    "t5-gated": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("mt5", {"tie_word_embeddings": False}),
    "umt5": ("umt5", {}),
}
Make = Callable[..., Seq2SeqRetriever]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Make:
    built: dict[str, Path] = {}

    def build(kind: str, **fields: object) -> Seq2SeqRetriever:
        if kind not in built:
            model_type, settings = KINDS[kind]
            folder = tmp_path_factory.mktemp(kind)
            built[kind] = tiny_families.seq2seq(folder, model_type, **settings)
        spec = RetrieverSpec(
            f"tiny-{kind}",
            kind,
            "cross_encoder",
            f"folder:{built[kind]}",
            **fields,  # type: ignore[arg-type]
        )
        return load(spec, "cpu")

    return build


def attribute(
    retriever: Seq2SeqRetriever, name: str, pairs: list[TextPair], **options: str
) -> list[Attribution]:
    return METHODS[name].compute(retriever, make_method(name, options), pairs)


def directly(retriever: Seq2SeqRetriever, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Word embeddings [1, T, H] of a prompt and its score, by transformers alone."""
    model, tokenizer = retriever.backbone, retriever.model.tokenizer
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    words = model.shared(ids).detach().requires_grad_()
    start = torch.tensor([[model.config.decoder_start_token_id]])
    logits = model(inputs_embeds=words, decoder_input_ids=start).logits[0, 0]
    yes, no = (tokenizer(w, add_special_tokens=False)["input_ids"][0] for w in model.config.answers)
    return words, logits[yes] - logits[no]


def number(score: torch.Tensor) -> float:
    return float(score.detach())


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_saliency_equal_those_of_the_prompt_in_transformers(
    make: Make, kind: str
) -> None:
    retriever = make(kind)
    seen = set()
    for pair in PAIRS:
        text = f"Query: {pair.query} Document: {pair.document} Relevant:"
        words, score = directly(retriever, text)
        (found,) = attribute(retriever, "saliency", [pair])
        assert found.score == pytest.approx(number(score), abs=1e-5, rel=1e-5)
        seen.add(round(float(score), 4))
        (gradient,) = torch.autograd.grad(score, words)
        both = np.concatenate([found.query_scores, found.document_scores])
        np.testing.assert_allclose(both, gradient[0].norm(dim=-1), rtol=1e-3, atol=1e-6)
    assert len(seen) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_check_passes_and_shares_add_up(make: Make, kind: str) -> None:
    retriever = make(kind)
    checked = check_retriever(retriever)
    assert checked.library.distance < 1e-4 and checked.library.library == "transformers"
    # Also through the cross-attention: the decoder itself only contributes to the bias share.
    assert checked.unfit == {}
    (found,) = attribute(retriever, "decomposition", PAIRS[:1])
    assert found.bias_share is not None
    total = float(found.query_scores.sum() + found.document_scores.sum()) + found.bias_share
    parts = float(abs(found.query_scores).sum() + abs(found.document_scores).sum())
    assert found.document_scores.any() and total == pytest.approx(found.score, abs=1e-4 * parts)


def test_token_offsets_point_at_their_characters(make: Make) -> None:
    retriever = make("t5")
    for pair in PAIRS:
        (found,) = attribute(retriever, "saliency", [pair])
        for text, read in ((pair.query, found.query), (pair.document, found.document)):
            covered = {i for t in read.tokens if not t.is_special for i in range(t.start, t.end)}
            assert {i for i, c in enumerate(text) if not c.isspace()} <= covered
            assert all(0 <= t.start <= t.end <= len(text) for t in read.tokens)
            assert not read.truncated and read.read_until == len(text)


@pytest.mark.parametrize("name", ["saliency", "input_x_gradient", "integrated_gradients"])
def test_batches_equal_single_pairs(make: Make, name: str) -> None:
    retriever = make("t5-gated")
    # In float64, where rounding is negligible, padding changes nothing. In float32, even the
    # gradients of a single pair are off by up to 2e-4 of their maximum.
    small = 1e-6
    retriever.backbone.double()
    options = {"steps": "16"} if name == "integrated_gradients" else {}
    for pair, batched in zip(PAIRS, attribute(retriever, name, PAIRS, **options), strict=True):
        (single,) = attribute(retriever, name, [pair], **options)
        assert batched.score == pytest.approx(single.score, rel=small, abs=small)
        for side in ("query_scores", "document_scores"):
            one, other = getattr(batched, side), getattr(single, side)
            np.testing.assert_allclose(one, other, atol=small * abs(other).max() + 1e-9)


def test_occlusion_and_deletion_are_supported(make: Make) -> None:
    retriever = make("t5")
    (found,) = attribute(retriever, "occlusion", PAIRS[:1], level="token")
    words, score = directly(
        retriever, f"Query: {PAIRS[0].query} Document: {PAIRS[0].document} Relevant:"
    )
    at = len(found.query.tokens) + 2
    assert not found.document.tokens[2].is_special
    changed = words.detach().clone()
    changed[0, at] = retriever.backbone.shared.weight[retriever.model.tokenizer.pad_token_id]
    start = torch.tensor([[retriever.backbone.config.decoder_start_token_id]])
    logits = retriever.backbone(inputs_embeds=changed, decoder_input_ids=start).logits[0, 0]
    yes, no = retriever.model.answer_ids
    assert found.document_scores[2] == pytest.approx(
        number(score - logits[yes] + logits[no]), abs=1e-4
    )
    result = deletion_insertion(retriever, PAIRS[0], found)
    assert result.score == pytest.approx(found.score, abs=1e-4)


def test_only_the_end_of_a_long_document_is_truncated(make: Make) -> None:
    retriever = make("t5", max_length=60)
    pair = TextPair("l", "tide", PAIRS[0].document * 4)
    (found,) = attribute(retriever, "saliency", [pair])
    assert len(found.query.tokens) + len(found.document.tokens) == 60
    assert found.document.truncated and not found.query.truncated
    assert found.query.n_tokens_full == int(found.query.content.sum())
    (whole,) = attribute(make("t5"), "saliency", [pair])
    assert found.document.n_tokens_full == whole.document.n_tokens_full
    # The rest is encoded like a text that ends there, followed by the end of the prompt.
    tail = [t.text for t in whole.document.tokens if t.is_special][-2:]
    assert [t.text for t in found.document.tokens][-2:] == tail
    read = [t for t in found.document.tokens if not t.is_special]
    assert read == [t for t in whole.document.tokens if not t.is_special][: len(read)]
    with pytest.raises(UserError, match="The query leaves no room"):
        attribute(retriever, "saliency", [replace(pair, query=pair.document)])


def test_answers_are_single_tokens_of_the_vocabulary(make: Make, tmp_path: Path) -> None:
    retriever = make("t5")
    first, second = retriever.backbone.config.answers
    turned = make("t5", answers=(second, first))
    (one,), (other,) = (attribute(r, "saliency", PAIRS[:1]) for r in (retriever, turned))
    assert one.score == pytest.approx(-other.score, abs=1e-5)
    assert f"answers={second}/{first}" in turned.spec.settings
    assert "answers" not in retriever.spec.settings
    with pytest.raises(UserError, match="answer 'Relevantissimo'"):
        make("t5", answers=("Relevantissimo", first))
    folder = Path(retriever.spec.source.removeprefix("folder:"))
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    del config["answers"]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="answer 'true' is not a single token"):
        load(RetrieverSpec("c", "c", "cross_encoder", f"folder:{copy}"), "cpu")


def test_the_family_is_detected_and_missing_weights_are_refused(make: Make, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(make("mt5").spec.source.removeprefix("folder:"))
    assert family_of_folder(folder).name == "cross_encoder"
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    weights = load_file(copy / "model.safetensors")
    weights = {k: v for k, v in weights.items() if k != "decoder.final_layer_norm.weight"}
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="could not be loaded as a cross-encoder model"):
        load(RetrieverSpec("c", "c", "cross_encoder", f"folder:{copy}"), "cpu")
    # A T5 encoder for embeddings is still detected as dense.
    (copy / "modules.json").write_text("[]")
    assert family_of_folder(copy).name == "dense"


def test_the_preset_answers_in_polish() -> None:
    assert presets()["plt5-reranker"].answers == ("prawda", "fałsz")

"""Cross-encoders: the logit as predicted by sentence-transformers, and the tokens of both texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.deletion import deletion_insertion
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.cross_encoder import CrossEncoderRetriever
from poslens.attribution.retrievers.detect import family_of_folder
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Attribution, TextPair
from tests.support import tiny_families

PAIRS = [
    TextPair("a", "the tide rises", "The tide rises twice a day because the Moon pulls the water."),
    TextPair("b", "lazy dogs", "a quick brown fox, jumping over 12 lazy dogs; isn't it? naïve."),
    TextPair("c", "piñas 🚀", "El niño comió piñas."),
]
KINDS = ["bert", "bert-two", "roberta", "distilbert", "modernbert", "generative"]
Make = Callable[..., CrossEncoderRetriever]


@pytest.fixture(scope="module")
def make(tiny_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Make:
    built: dict[str, Path] = {}

    def build(kind: str, **fields: object) -> CrossEncoderRetriever:
        if kind not in built:
            folder = tmp_path_factory.mktemp(kind)
            if kind == "generative":
                raw = tiny_folder("qwen3-left").parent / "raw"
                built[kind] = tiny_families.generative(raw, folder)
            else:
                name, _, two = kind.partition("-")
                labels = {"": 1, "two": 2, "three": 3}[two]
                raw = tiny_folder(name).parent / "raw"
                built[kind] = tiny_families.cross_encoder(raw, folder, labels)
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
    retriever: CrossEncoderRetriever, name: str, pairs: list[TextPair], **options: str
) -> list[Attribution]:
    return METHODS[name].compute(retriever, make_method(name, options), pairs)


def library(retriever: CrossEncoderRetriever, pair: TextPair) -> float:
    found = retriever.model.predict(
        [(pair.query, pair.document)], activation_fn=nn.Identity(), prompt=retriever.prompt or None
    )[0]
    return float(found[1] - found[0]) if np.ndim(found) else float(found)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_the_librarys(make: Make, kind: str) -> None:
    retriever = make(kind)
    scores = [library(retriever, pair) for pair in PAIRS]
    assert len(set(scores)) == 3
    for name in ("saliency", "input_x_gradient", "occlusion"):
        for pair, expected in zip(PAIRS, scores, strict=True):
            found = attribute(retriever, name, [pair])[0].score
            assert found == pytest.approx(expected, abs=1e-5, rel=1e-5)
    checked = check_retriever(retriever)
    assert checked.library.distance < 1e-5 and not checked.unfit


@pytest.mark.parametrize("kind", KINDS)
def test_token_offsets_point_at_their_characters(make: Make, kind: str) -> None:
    retriever = make(kind)
    for pair in PAIRS:
        (found,) = attribute(retriever, "saliency", [pair])
        for text, read in ((pair.query, found.query), (pair.document, found.document)):
            covered = {i for t in read.tokens if not t.is_special for i in range(t.start, t.end)}
            assert {i for i, c in enumerate(text) if not c.isspace()} <= covered
            assert not read.truncated and read.read_until == len(text)


@pytest.mark.parametrize("kind", ["bert", "generative"])
def test_saliency_equals_a_direct_loop(make: Make, kind: str) -> None:
    retriever = make(kind)
    pair = PAIRS[0]
    (found,) = attribute(retriever, "saliency", [pair])
    features = retriever.model.preprocess([(pair.query, pair.document)])
    words = retriever.embeddings(features["input_ids"]).detach().requires_grad_()
    hook = retriever.embeddings.register_forward_hook(lambda *_: words)
    try:
        score = retriever.model(features)["scores"].sum()
    finally:
        hook.remove()
    (gradient,) = torch.autograd.grad(score, words)
    both = np.concatenate([found.query_scores, found.document_scores])
    np.testing.assert_allclose(both, gradient[0].norm(dim=-1), rtol=1e-4, atol=1e-7)
    assert both.any()


@pytest.mark.parametrize("kind", ["bert", "roberta", "generative"])
@pytest.mark.parametrize("name", ["saliency", "input_x_gradient"])
def test_batches_equal_single_pairs(make: Make, kind: str, name: str) -> None:
    retriever = make(kind)
    for pair, batched in zip(PAIRS, attribute(retriever, name, PAIRS), strict=True):
        (single,) = attribute(retriever, name, [pair])
        assert batched.score == pytest.approx(single.score, abs=1e-4)
        for side in ("query_scores", "document_scores"):
            one, other = getattr(batched, side), getattr(single, side)
            np.testing.assert_allclose(one, other, atol=1e-4 * abs(other).max() + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_decomposition_is_complete_with_the_head(make: Make, kind: str) -> None:
    retriever = make(kind)
    for pair, found in zip(PAIRS, attribute(retriever, "decomposition", PAIRS), strict=True):
        assert found.score == pytest.approx(library(retriever, pair), abs=1e-4)
        assert found.bias_share is not None
        total = float(found.query_scores.sum() + found.document_scores.sum()) + found.bias_share
        parts = abs(found.query_scores).sum() + abs(found.document_scores).sum()
        assert total == pytest.approx(found.score, abs=1e-4 * float(parts))
        assert found.query_scores.any() and found.document_scores.any()
    checked = check_retriever(retriever)
    assert checked.completeness is not None and checked.completeness < 1e-3
    assert checked.forward is not None and checked.forward < 1e-3


def test_decomposition_is_refused_where_the_head_cannot_be_frozen(make: Make) -> None:
    retriever = make("bert")
    # Far from linear at every logit, including small ones.
    retriever.backbone.classifier.register_forward_hook(lambda _m, _a, out: 2 + torch.cos(out))
    assert "can't be linearized" in check_retriever(retriever).unfit["decomposition"]
    with pytest.raises(UserError, match="matrix = no"):
        attribute(make("bert"), "decomposition", PAIRS[:1], matrix="yes")


def test_occlusion_equals_the_loss_in_score_without_the_word(make: Make) -> None:
    retriever = make("bert")
    pair = PAIRS[0]
    (found,) = attribute(retriever, "occlusion", [pair], level="token")
    features = retriever.model.preprocess([(pair.query, pair.document)])
    for place in (1, len(found.query.tokens) + 2):
        words = retriever.embeddings(features["input_ids"]).detach().clone()
        words[0, place] = retriever.embeddings.weight[retriever.model.tokenizer.pad_token_id]  # type: ignore[index, union-attr]
        hook = retriever.embeddings.register_forward_hook(lambda *_, words=words: words)
        try:
            without = float(retriever.model(dict(features))["scores"])
        finally:
            hook.remove()
        both = np.concatenate([found.query_scores, found.document_scores])
        assert both[place] == pytest.approx(found.score - without, abs=1e-4)


def test_long_documents_are_truncated_where_the_library_truncates(make: Make) -> None:
    retriever = make("bert", max_length=24)
    pair = TextPair("l", "tide", PAIRS[0].document * 3)
    (found,) = attribute(retriever, "saliency", [pair])
    assert len(found.query.tokens) + len(found.document.tokens) == 24
    assert found.document.truncated and not found.query.truncated
    assert found.score == pytest.approx(library(retriever, pair), abs=1e-5)
    whole = make("bert")
    (all_read,) = attribute(whole, "saliency", [pair])
    assert found.document.n_tokens_full == all_read.document.n_tokens_full


def test_truncated_documents_keep_the_end_of_the_template(make: Make) -> None:
    retriever = make("generative")
    pair = TextPair("l", "tide", PAIRS[0].document * 6)
    (found,) = attribute(retriever, "saliency", [pair])
    assert found.score == pytest.approx(library(retriever, pair), abs=1e-4)
    assert len(found.query.tokens) + len(found.document.tokens) == retriever.max_length == 128
    assert found.document.truncated and found.document.tokens[-1].is_special
    tail = retriever.model.tokenizer("\nanswer:", add_special_tokens=False).tokens()
    assert [t.text for t in found.document.tokens[-len(tail) :]] == tail
    assert not found.document.tokens[-len(tail) - 1].is_special


def test_prompts_are_not_part_of_the_query(make: Make) -> None:
    retriever = make("bert", query_prompt="query: ")
    (found,) = attribute(retriever, "saliency", PAIRS[:1])
    assert found.score == pytest.approx(library(retriever, PAIRS[0]), abs=1e-5)
    assert found.score != pytest.approx(library(make("bert"), PAIRS[0]), abs=1e-5)
    content = [t for t in found.query.tokens if not t.is_special]
    assert (content[0].start, content[-1].end) == (0, len(PAIRS[0].query))


def test_deletion_is_supported(make: Make) -> None:
    retriever = make("generative")
    (found,) = attribute(retriever, "occlusion", PAIRS[:1])
    result = deletion_insertion(retriever, PAIRS[0], found)
    assert result.score == pytest.approx(found.score, abs=1e-4)
    assert result.baseline != result.score


def test_models_without_a_relevance_score_are_refused(make: Make) -> None:
    with pytest.raises(UserError, match="3 output labels"):
        make("bert-three")


def test_a_missing_head_is_refused(tiny_folder: Callable[..., Path]) -> None:
    raw = tiny_folder("bert").parent / "raw"
    with pytest.raises(UserError, match="could not be loaded"):
        load(RetrieverSpec("raw", "raw", "cross_encoder", f"folder:{raw}"), "cpu")


def test_a_template_that_changes_the_texts_is_refused(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    raw = tiny_folder("qwen3-left").parent / "raw"
    template = tiny_families.TEMPLATE.replace("{{ m['content'] if", "{{ m['content'] | upper if")
    folder = tiny_families.generative(raw, tmp_path, template)
    retriever = load(RetrieverSpec("up", "up", "cross_encoder", f"folder:{folder}"), "cpu")
    with pytest.raises(UserError, match="changes the texts"):
        attribute(retriever, "saliency", PAIRS[:1])


def test_the_family_is_detected_from_the_folder(make: Make) -> None:
    for kind in ("bert", "generative"):
        folder = Path(make(kind).spec.source.removeprefix("folder:"))
        assert family_of_folder(folder).name == "cross_encoder"
    assert family_of_folder(folder.parent / "raw").name == "dense"

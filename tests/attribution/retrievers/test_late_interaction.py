"""Late interaction: MaxSim as in sentence-transformers, and its shares."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.deletion import deletion_insertion
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.detect import family_of, family_of_folder
from poslens.attribution.retrievers.late_interaction import LateInteractionRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Attribution, TextPair
from tests.support import tiny_families

PAIRS = [
    TextPair("a", "the tide rises", "The tide rises twice a day because the Moon pulls the water."),
    TextPair("b", "lazy dogs", "a quick brown fox, jumping over 12 lazy dogs; isn't it? naïve."),
    TextPair("c", "piñas", "El niño comió piñas."),
]
Make = Callable[..., LateInteractionRetriever]


@pytest.fixture(scope="module")
def make(tiny_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Make:
    def build(**options: object) -> LateInteractionRetriever:
        raw = tiny_folder("bert").parent / "raw"
        folder = tiny_families.late_interaction(raw, tmp_path_factory.mktemp("late"), **options)
        return load(
            RetrieverSpec("tiny-late", "late", "late_interaction", f"folder:{folder}"), "cpu"
        )

    return build


@pytest.fixture(scope="module")
def late(make: Make) -> LateInteractionRetriever:
    return make(prompts={"query": "query: ", "document": "passage: "})


def attribute(
    retriever: LateInteractionRetriever, name: str, pairs: list[TextPair], **options: str
) -> list[Attribution]:
    return METHODS[name].compute(retriever, make_method(name, options), pairs)


def library(retriever: LateInteractionRetriever, pair: TextPair) -> float:
    model = retriever.model
    query, document = model.encode_query([pair.query]), model.encode_document([pair.document])
    return float(model.similarity_pairwise(query, document))


@pytest.mark.parametrize(
    "expansion",
    [
        None,
        {"strategy": "fixed", "length": 12},
        {"strategy": "fixed", "length": 12, "attend": True},
        {"strategy": "min", "length": 12},
    ],
)
@pytest.mark.parametrize("similarity", ["maxsim", "meanmaxsim"])
def test_scores_equal_the_librarys(make: Make, expansion: object, similarity: str) -> None:
    retriever = make(expansion=expansion, similarity_fn_name=similarity)
    for pair in PAIRS:
        expected = library(retriever, pair)
        for name in ("maxsim", "saliency", "occlusion"):
            assert attribute(retriever, name, [pair])[0].score == pytest.approx(expected, abs=1e-5)
    checked = check_retriever(retriever)
    assert checked.library.distance < 1e-5 and not checked.unfit


def test_shares_add_up_and_belong_to_the_best_matching_tokens(
    late: LateInteractionRetriever,
) -> None:
    for pair in PAIRS:
        (found,) = attribute(late, "maxsim", [pair])
        (shown,) = attribute(late, "maxsim", [pair], matrix="similarities")
        assert found.document_scores.sum() == pytest.approx(found.score, abs=1e-5)
        assert found.query_scores.sum() == pytest.approx(found.score, abs=1e-5)
        assert found.matrix is not None and shown.matrix is not None
        assert (np.count_nonzero(found.matrix, axis=1) <= 1).all()
        # An independent loop over the library's vectors.
        query = late.model.encode_query([pair.query])[0]
        document = late.model.encode_document([pair.document])[0]
        scored = shown.matrix.any(axis=0)
        products = (query @ document.T).numpy()
        np.testing.assert_allclose(shown.matrix[:, scored], products, atol=1e-5)
        expected = np.zeros(len(document))
        for row in products:
            expected[row.argmax()] += row.max()
        np.testing.assert_allclose(found.document_scores[scored], expected, atol=1e-5)
        np.testing.assert_array_equal(found.document_scores, shown.document_scores)


def test_expansion_tokens_are_special_and_skipped_tokens_have_no_share(
    late: LateInteractionRetriever,
) -> None:
    (found,) = attribute(late, "maxsim", PAIRS[:1])
    assert len(found.query.tokens) == 12
    masks = [t for t in found.query.tokens if t.text == "[MASK]"]
    assert masks and all(t.is_special for t in masks)
    points = [i for i, t in enumerate(found.document.tokens) if t.text == "."]
    assert points and not found.document_scores[points].any()
    text = PAIRS[0].document
    for token in found.document.tokens:
        if not token.is_special:
            assert text[token.start : token.end].lower() == token.text.removeprefix("##")


def test_saliency_equals_a_direct_loop(late: LateInteractionRetriever) -> None:
    pair = PAIRS[1]
    (found,) = attribute(late, "saliency", [pair])
    with torch.no_grad():
        query = late.model.encode_query([pair.query])[0].clone()
    features = late.model.preprocess([pair.document], prompt="passage: ", task="document")
    words = late.embeddings(features["input_ids"]).detach().requires_grad_()
    hook = late.embeddings.register_forward_hook(lambda *_: words)
    try:
        output = late.model(features, task="document")
    finally:
        hook.remove()
    vectors = output["token_embeddings"][0][output["attention_mask"][0].bool()]
    score = sum((row @ vectors.T).max() for row in query)
    (gradient,) = torch.autograd.grad(score, words)
    np.testing.assert_allclose(found.document_scores, gradient[0].norm(dim=-1), rtol=1e-4)


def test_integrated_gradients_and_deletion_are_supported(late: LateInteractionRetriever) -> None:
    (found,) = attribute(late, "integrated_gradients", PAIRS[:1], steps="64")
    assert found.bias_share is not None and found.completeness_error is not None
    total = float(found.document_scores.sum()) + found.bias_share + found.completeness_error
    assert total == pytest.approx(found.score, abs=1e-5)
    result = deletion_insertion(late, PAIRS[0], found)
    assert result.score == pytest.approx(found.score, abs=1e-5)


def test_long_documents_are_truncated_where_the_model_truncates(make: Make) -> None:
    retriever = make(document_length=20)
    pair = TextPair("l", "tide", PAIRS[0].document * 4)
    (found,) = attribute(retriever, "maxsim", [pair])
    assert len(found.document.tokens) == 20 and found.document.truncated
    assert found.score == pytest.approx(library(retriever, pair), abs=1e-5)


def test_the_layout_of_colbertv2_is_read(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    """One file with the encoder under `bert.` and the projection next to it; markers and lengths
    are in artifact.metadata."""
    raw = tiny_folder("bert").parent / "raw"
    folder = tmp_path / "colbert"
    shutil.copytree(raw, folder)
    weights = {
        f"bert.{name}": tensor for name, tensor in load_file(raw / "model.safetensors").items()
    }
    torch.manual_seed(5)
    projection = torch.randn(16, 32)
    save_file(
        {**weights, "linear.weight": projection}, folder / "model.safetensors", {"format": "pt"}
    )
    config = json.loads((raw / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "artifact.metadata").write_text(
        json.dumps(
            {
                "query_token_id": "[unused0]",
                "doc_token_id": "[unused1]",
                "query_maxlen": 16,
                "doc_maxlen": 40,
                "dim": 16,
                "mask_punctuation": True,
                "similarity": "cosine",
            }
        )
    )
    assert family_of_folder(folder).name == "late_interaction"
    retriever = load(RetrieverSpec("c", "c", "late_interaction", f"folder:{folder}"), "cpu")
    assert any(torch.equal(p, projection) for p in retriever.model.parameters())
    (found,) = attribute(retriever, "maxsim", PAIRS[:1])
    assert found.score == pytest.approx(library(retriever, PAIRS[0]), abs=1e-5)
    assert len(found.query.tokens) == 16 and check_retriever(retriever).library.distance < 1e-5


def test_a_document_of_skipped_tokens_is_refused(late: LateInteractionRetriever) -> None:
    no_prompt = late.prompts["document"]
    late.prompts["document"] = ""
    mask = late.model[-1]
    before, mask._skiplist_ids = mask._skiplist_ids, torch.arange(1000)
    try:
        with pytest.raises(UserError, match="tiny-late scores no token"):
            attribute(late, "maxsim", PAIRS[:1])
    finally:
        late.prompts["document"], mask._skiplist_ids = no_prompt, before


def test_a_bare_encoder_is_refused(tiny_folder: Callable[..., Path]) -> None:
    raw = tiny_folder("bert").parent / "raw"
    with pytest.raises(UserError, match="no projection"):
        load(RetrieverSpec("raw", "raw", "late_interaction", f"folder:{raw}"), "cpu")


def test_decomposition_is_unavailable(late: LateInteractionRetriever) -> None:
    assert not METHODS["decomposition"].fits(family_of(late.spec))

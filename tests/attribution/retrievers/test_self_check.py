"""Each model is checked on loading: what the check measures, and what it detects."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.family import FAMILIES
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.types import TextPair


def test_minilm_passes_the_check(minilm: DenseRetriever) -> None:
    checked = check_retriever(minilm)
    assert checked.library.distance < 1e-5 and not checked.unfit
    assert checked.forward is not None and checked.forward < 1e-5
    assert checked.completeness is not None and checked.completeness < 1e-5
    assert "Checked when loaded" in checked.sentence()


@pytest.mark.parametrize("name", ["roberta", "mpnet", "modernbert", "qwen3-left", "qwen3-right"])
def test_every_architecture_passes_the_check(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    assert not check_retriever(tiny(name)).unfit


def test_the_check_includes_prompts(tiny: Callable[..., DenseRetriever]) -> None:
    assert check_retriever(tiny("bert", document_prompt="passage: ")).library.distance < 1e-5


def test_a_model_that_cannot_be_linearized_loses_only_decomposition(
    tiny: Callable[..., DenseRetriever],
) -> None:
    retriever = tiny("bert")
    retriever.backbone.encoder.layer[0].register_forward_hook(  # type: ignore[index, union-attr]
        lambda _m, _a, output: torch.sin(output)
    )
    checked = check_retriever(retriever)
    assert list(checked.unfit) == ["decomposition"] and "can't be linearized" in str(checked.unfit)


def test_a_distance_loses_the_methods_that_divide_an_inner_product(
    tiny: Callable[..., DenseRetriever],
) -> None:
    retriever = tiny("bert", similarity="euclidean")
    pair = TextPair("p", "tide", "The tide rises twice a day.")
    refused = []
    for name, entry in METHODS.items():
        if entry.fits(FAMILIES["dense"]):
            try:
                entry.compute(retriever, make_method(name), [pair])
            except UserError:
                refused.append(name)
    unfit = check_retriever(retriever).unfit
    assert list(unfit) == refused == ["decomposition", "profile", "integrated_jacobians", "bilrp"]
    assert set(unfit.values()) == {
        "it scores by euclidean distance, which is not a sum over tokens"
    }


def test_no_gradient_loses_the_gradient_methods(tiny: Callable[..., DenseRetriever]) -> None:
    retriever = tiny("bert")
    retriever.backbone.encoder.layer[0].register_forward_hook(  # type: ignore[index, union-attr]
        lambda _m, _a, output: output.detach()
    )
    assert "saliency" in check_retriever(retriever).unfit


def test_a_model_read_differently_than_by_the_library_is_refused(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = tiny("bert")
    embed = DenseRetriever.embed
    monkeypatch.setattr(DenseRetriever, "embed", lambda self, e: embed(self, e).flip(-1))
    with pytest.raises(UserError, match="embeds the same text differently"):
        check_retriever(retriever)


def test_a_model_whose_check_exceeds_the_free_memory_is_refused(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.")

    monkeypatch.setattr(DenseRetriever, "embed", full)
    with pytest.raises(UserError, match="does not fit into the free memory of cpu"):
        check_retriever(tiny("bert"))

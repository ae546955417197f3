"""Each model proves itself: what the proof measures, and what it catches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from attribution.errors import UserError
from attribution.retrievers.dense import DenseRetriever
from attribution.retrievers.self_check import prove


def test_minilm_passes(minilm: DenseRetriever) -> None:
    proof = prove(minilm)
    assert proof.reading < 1e-5 and not proof.unfit
    assert proof.forward is not None and proof.forward < 1e-5
    assert proof.completeness is not None and proof.completeness < 1e-5
    assert "Checked on loading" in proof.sentence()


@pytest.mark.parametrize("name", ["roberta", "mpnet", "modernbert", "qwen3-left", "qwen3-right"])
def test_architectures_pass(tiny: Callable[..., DenseRetriever], name: str) -> None:
    assert not prove(tiny(name)).unfit


def test_prompts_are_part_of_the_reading(tiny: Callable[..., DenseRetriever]) -> None:
    assert prove(tiny("bert", document_prompt="passage: ")).reading < 1e-5


def test_what_cannot_be_linearised_loses_decomposition_alone(
    tiny: Callable[..., DenseRetriever],
) -> None:
    retriever = tiny("bert")
    retriever.backbone.encoder.layer[0].register_forward_hook(  # type: ignore[index, union-attr]
        lambda _m, _a, output: torch.sin(output)
    )
    proof = prove(retriever)
    assert list(proof.unfit) == ["decomposition"] and "cannot be linearised" in str(proof.unfit)


def test_no_gradient_loses_the_gradient_methods(tiny: Callable[..., DenseRetriever]) -> None:
    retriever = tiny("bert")
    retriever.backbone.encoder.layer[0].register_forward_hook(  # type: ignore[index, union-attr]
        lambda _m, _a, output: output.detach()
    )
    assert "saliency" in prove(retriever).unfit


def test_a_different_reading_is_refused(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = tiny("bert")
    embed = DenseRetriever.embed
    monkeypatch.setattr(DenseRetriever, "embed", lambda self, e: embed(self, e).flip(-1))
    with pytest.raises(UserError, match="embeds the same text differently"):
        prove(retriever)

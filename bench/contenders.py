"""Computations of saliency on texts of a given length: PosLens', its parts, and PosIR's published
loop."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.methods.gradients import explain_side, read_once
from poslens.attribution.methods.passes import Read, one_round
from poslens.attribution.methods.saliency import gradient_norms
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import TextPair

WORDS = "the harbour light turns slowly above grey water while boats return with the evening tide "
SALIENCY, LOOP = "saliency", "published loop"


def pairs(n: int, tokens: int, query_tokens: int = 12) -> list[TextPair]:
    """`n` pairs of different texts: documents of `tokens`, queries of `query_tokens` tokens,
    including the two special ones."""
    words = WORDS.split()

    def text(generator: random.Random, n_words: int) -> str:
        return " ".join(generator.choices(words, k=n_words))

    generators = [random.Random(i) for i in range(n)]
    return [
        TextPair(str(i), text(generator, query_tokens - 2), text(generator, tokens - 2))
        for i, generator in enumerate(generators)
    ]


def pooled(model: torch.nn.Module, inputs: Tensor, mask: Tensor, pooling: str = "mean") -> Tensor:
    """Normalized vectors [B, H] of texts given as word embeddings [B, T, H], with mean pooling or
    that of the last token ("lasttoken")."""
    hidden = model(inputs_embeds=inputs, attention_mask=mask).last_hidden_state
    if pooling == "lasttoken":
        return torch.nn.functional.normalize(hidden[:, -1], dim=-1)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


def published_loop(
    model: torch.nn.Module,
    tokenizer: Any,
    batch: list[TextPair],
    max_length: int,
    pooling: str = "mean",
) -> None:
    """PosIR's loop, one pair at a time: embed both, score, backward through all weights, and norms
    of the gradients of the document's word embeddings."""
    embeddings = model.get_input_embeddings()  # type: ignore[operator]
    device = embeddings.weight.device

    for pair in batch:
        read = {"truncation": True, "max_length": max_length, "return_tensors": "pt"}
        query, document = (
            tokenizer(text, **read).to(device) for text in (pair.query, pair.document)
        )
        with torch.no_grad():
            constant = pooled(
                model, embeddings(query["input_ids"]), query["attention_mask"], pooling
            )
        inputs = embeddings(document["input_ids"]).detach().requires_grad_()
        score = (pooled(model, inputs, document["attention_mask"], pooling) * constant).sum()
        model.zero_grad()
        score.backward()
        assert inputs.grad is not None
        inputs.grad[0].float().norm(dim=-1).cpu().numpy()


def contenders(
    retriever: DenseRetriever, tokens: int, pooling: str = "mean", *, compiled: bool = False
) -> dict[str, Callable[[int], object]]:
    """The contenders by name, as functions of the number of pairs, whose documents have `tokens`
    tokens.

    `forward` embeds queries and documents without gradients. `gradient` is the saliency of the
    documents only, and `saliency` is what a run computes, from texts to results on both sides.
    `plain` is the gradient of the documents without hooks and Captum; if `compiled`, `compiled` and
    `graphs` are the same with torch.compile and with CUDA graphs. The texts of `forward`,
    `gradient` and `plain` are already tokenized.
    """
    backbone: Any = retriever.backbone
    method = make_method("saliency")
    (pair,) = pairs(1, tokens)
    query = retriever.encode_texts([pair.query], "query")
    document = retriever.encode_texts([pair.document], "document")
    assert len(document.texts[0].tokens) == tokens
    with torch.no_grad():
        other = retriever.embed(query)

    def forward(n: int) -> Tensor:
        with torch.no_grad():
            queries = retriever.embed(query.repeated(n))
            return retriever.similarity(queries, retriever.embed(document.repeated(n)))

    def saliency(n: int) -> object:
        return METHODS[method.name].compute(retriever, method, pairs(n, tokens))

    def gradient(n: int) -> object:
        rounds = one_round(n)
        constant = Read(query.repeated(n), rounds, (), other.expand(n, -1))
        documents = read_once(retriever, document.repeated(n), rounds)
        return explain_side(retriever, documents, constant, gradient_norms)

    def core(run: Any) -> Callable[[int], Tensor]:
        def run_core(n: int) -> Tensor:
            many = document.repeated(n)
            inputs = retriever.input_embeddings(many).requires_grad_()
            vectors = pooled(run, inputs, many.features["attention_mask"], pooling)
            (values,) = torch.autograd.grad((vectors * other).sum(), inputs)
            norms: Tensor = values.float().norm(dim=-1).cpu()
            return norms

        return run_core

    def loop(n: int) -> None:
        backbone.requires_grad_(True)
        try:
            published_loop(backbone, retriever.model.tokenizer, pairs(n, tokens), tokens, pooling)
        finally:
            backbone.zero_grad(set_to_none=True)
            backbone.requires_grad_(False)

    runs: dict[str, Callable[[int], object]] = {
        "forward": forward,
        "gradient": gradient,
        SALIENCY: saliency,
        "plain": core(backbone),
        LOOP: loop,
    }
    if compiled:
        runs["compiled"] = core(torch.compile(backbone))
        if retriever.device.type == "cuda":
            runs["graphs"] = core(torch.compile(backbone, mode="reduce-overhead"))
    return runs

"""Cost of saliency relative to a forward pass of the same batch and to PosIR's published loop.

    python -m bench.saliency [--rounds 7]

One interleaved run on all-MiniLM-L6-v2, documents of 256 and of 512 tokens, queries of 12:

- `forward`: embed queries and documents, no gradients; saliency takes about twice this at least;
- `document saliency`: as defined in docs/methods.md, section 2, for the batch's documents;
- `both sides`: document and query tokens, as pages and runs compute it;
- `autograd`: the gradients of `document saliency` without Captum;
- `published loop`: one pair at a time with weights that require gradients, as in PosIR's scripts.
"""

from __future__ import annotations

import argparse
import random
import statistics
from functools import partial
from typing import Any

import torch

from bench.timing import interleaved, ratio
from poslens.attribution.methods import make_method, saliency
from poslens.attribution.methods.gradients import explain_side, read_once
from poslens.attribution.methods.passes import Read, one_round
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.types import TextPair

WORDS = "the harbour light turns slowly above grey water while boats return with the evening tide "


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


def pooled(
    model: torch.nn.Module, inputs: torch.Tensor, mask: torch.Tensor, pooling: str = "mean"
) -> torch.Tensor:
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


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    retriever, copy = (load(resolve("MiniLM"), device="cpu") for _ in range(2))
    assert isinstance(retriever, DenseRetriever) and isinstance(copy, DenseRetriever)
    trainable = copy.model
    backbone = trainable.transformers_model
    assert backbone is not None
    backbone.requires_grad_(True)
    method = make_method("saliency")
    for tokens in (256, 512):
        batch = pairs(options.batch, tokens)
        queries = retriever.encode_texts([p.query for p in batch], "query")
        documents = retriever.encode_texts([p.document for p in batch], "document")
        assert len(documents.texts[0].tokens) == tokens and len(queries.texts[0].tokens) == 12

        def forward(queries: Encoded = queries, documents: Encoded = documents) -> None:
            with torch.no_grad():
                retriever.similarity(retriever.embed(queries), retriever.embed(documents))

        def document_saliency(queries: Encoded = queries, documents: Encoded = documents) -> None:
            rounds = one_round(len(documents.texts))
            with torch.no_grad():
                constant = Read(queries, rounds, (), retriever.embed(queries))
            document = read_once(retriever, documents, rounds)
            explain_side(retriever, document, constant, saliency.gradient_norms)

        def autograd(queries: Encoded = queries, documents: Encoded = documents) -> None:
            with torch.no_grad():
                constant = retriever.embed(queries)
            inputs = retriever.input_embeddings(documents).requires_grad_()
            with retriever.override_embeddings(inputs):
                scores = retriever.similarity(retriever.embed(documents), constant)
            (gradient,) = torch.autograd.grad(scores.sum(), inputs)
            gradient.norm(dim=-1)

        seconds = interleaved(
            {
                "forward": forward,
                "document saliency": document_saliency,
                "both sides": partial(saliency.attribute, retriever, method, batch),
                "autograd": autograd,
                "published loop": partial(
                    published_loop, backbone, trainable.tokenizer, batch, 512
                ),
            },
            options.rounds,
        )
        print(
            f"{tokens} tokens, batch {options.batch}, {torch.get_num_threads()} threads, "
            f"median of {options.rounds}"
        )
        for name, values in seconds.items():
            median = statistics.median(values)
            print(
                f"  {name:18} {1000 * median:8.1f} ms  {options.batch / median:7.2f} pairs/s  "
                f"{ratio(values, seconds['forward']):5.2f}x forward"
            )
        both = ratio(seconds["published loop"], seconds["both sides"])
        alone = ratio(seconds["published loop"], seconds["document saliency"])
        captum = 1 - ratio(seconds["autograd"], seconds["document saliency"])
        print(
            f"  pairs per second over the published loop: {alone:.2f}x (documents), {both:.2f}x "
            f"(both sides); Captum's share: {100 * captum:.1f}%"
        )


if __name__ == "__main__":
    main()

"""Occlusion: how far the score falls when a unit is replaced by padding-token embeddings, through
Captum's FeatureAblation. Signed, in the score's units."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from captum.attr import FeatureAblation
from torch import Tensor

from attribution.methods.base import (
    Clock,
    MethodEntry,
    Parameter,
    build_batch,
    register,
)
from attribution.methods.perturbation import Varied, varied
from attribution.retrievers.base import Embedded
from attribution.retrievers.family import Capability
from attribution.text import sentences, words
from attribution.types import Attribution, Method, TextPair, TokenizedText


def attribute(retriever: Embedded, method: Method, pairs: Sequence[TextPair]) -> list[Attribution]:
    """s - s(without the unit) for every token, word or sentence of the document, and for every
    token of the query. A unit's effect is split evenly over its tokens, so that the sum over a
    unit is its effect. Effects of units need not add up to the score.
    """
    level = str(method.params["level"])
    results = []
    for pair in pairs:
        clock = Clock()
        with retriever.lock:
            document, query = (varied(retriever, pair, side) for side in ("document", "query"))
            with torch.no_grad():
                score = float(document.score(document.inputs))
                of_document = _effects(document, units(document.encoded.texts[0], pair, level))
                text = query.encoded.texts[0]
                of_query = _effects(query, list(range(len(text.tokens))))
        results += build_batch(
            retriever,
            method,
            [pair],
            clock,
            scores=torch.tensor([score], dtype=torch.float64),
            queries=query.encoded,
            documents=document.encoded,
            query_scores=of_query,
            document_scores=of_document,
        )
    return results


def units(text: TokenizedText, pair: TextPair, level: str) -> list[int]:
    """For each token the number of its unit: itself, or the word or sentence it starts in (the
    next one, where it starts between two)."""
    if level == "token":
        return list(range(len(text.tokens)))
    spans = words(pair.document) if level == "word" else sentences(pair.document, pair.language)
    ends = [end for _, end in spans]
    found, unit = [], 0
    for token in text.tokens:
        while not token.is_special and unit < len(ends) - 1 and token.start >= ends[unit]:
            unit += 1
        found.append(unit)
    return found


def _effects(text: Varied, unit_of: list[int]) -> Tensor:
    """Effects [1, T] on the text's positions, zero for special tokens."""
    content = text.encoded.texts[0].content
    start = text.encoded.offsets[0]
    # Feature 0 is all that stays: special tokens and padding, where baseline and input are equal.
    kept = sorted({unit_of[i] for i in range(len(content)) if content[i]})
    number = {unit: n for n, unit in enumerate(kept, start=1)}
    mask = torch.zeros(1, text.inputs.shape[1], 1, dtype=torch.long, device=text.inputs.device)
    sizes = torch.zeros(len(kept) + 1)
    for i, unit in enumerate(unit_of):
        if content[i]:
            mask[0, start + i] = number[unit]
            sizes[number[unit]] += 1
    effects = FeatureAblation(text.score).attribute(
        text.inputs,
        baselines=text.neutral,
        feature_mask=mask.expand_as(text.inputs),
        perturbations_per_eval=text.batch,
    )
    each = effects[..., 0].detach().float().cpu()
    features = mask[..., 0].cpu()
    return torch.where(features > 0, each / sizes.clamp_min(1)[features], 0.0)


register(
    MethodEntry(
        name="occlusion",
        title="Occlusion",
        help="How far the score falls when a unit is replaced by padding tokens: signed. Slow.",
        axis="Score lost by occlusion",
        unit="score",
        signed=True,
        additive=False,
        needs=Capability.EMBEDDINGS,
        version=1,
        compute=attribute,
        order=6,
        citation="Zeiler and Fergus 2014, arXiv 1311.2901",
        slow=True,
        parameters=(
            Parameter("level", ("word", "token", "sentence"), "What is replaced at a time."),
        ),
    )
)

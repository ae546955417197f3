"""Occlusion: how much the score falls when a unit is replaced with padding-token embeddings,
through Captum's FeatureAblation. Signed, in units of the score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poslens.attribution.methods.base import (
    Clock,
    MethodEntry,
    MethodParameter,
    build_batch,
    register,
)
from poslens.attribution.methods.perturbation import Kept, Perturbed, perturbed
from poslens.attribution.retrievers.base import Embedded, reads_jointly
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.text import sentences, unit_of, words
from poslens.attribution.types import Attribution, Method, TextPair, TokenizedText


def attribute(retriever: Embedded, method: Method, pairs: Sequence[TextPair]) -> list[Attribution]:
    """s - s(without the unit) for every token, word or sentence of the document, and for every
    token of the query. A unit's effect is split evenly over its tokens, so the sum over a unit is
    its effect. Effects do not sum to the score.

    Encodings of a document without each of its units are shared by all of its queries.
    """
    by_document: dict[tuple[str, str | None], list[int]] = {}
    for number, pair in enumerate(pairs):
        # Sentence boundaries depend on the language.
        by_document.setdefault((pair.document, pair.language), []).append(number)
    attributions: dict[int, Attribution] = {}
    for numbers in by_document.values():
        shared = len(numbers) > 1 and not reads_jointly(retriever)
        state = Kept() if shared else None
        for number in numbers:
            attributions[number] = _attribute(retriever, method, pairs[number], state)
    return [attributions[number] for number in range(len(pairs))]


def _attribute(
    retriever: Embedded, method: Method, pair: TextPair, state: Kept | None
) -> Attribution:
    """The values of one pair; `state` as for `perturbed`, of the document."""
    level = str(method.params["level"])
    clock = Clock()
    with retriever.lock:
        document = perturbed(retriever, pair, "document", state)
        query = perturbed(retriever, pair, "query")
        with torch.no_grad():
            score = float(document.score(document.inputs))
            of_document = _effects(document, units(document.encoded.texts[0], pair, level))
            of_query = _effects(query, units(query.encoded.texts[0], pair, "token"))
    (result,) = build_batch(
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
    return result


def units(text: TokenizedText, pair: TextPair, level: str) -> NDArray[np.int64]:
    """The index of each token's unit [T]: the token itself, or its word or sentence."""
    if level == "token":
        return np.arange(len(text))
    spans = words(pair.document) if level == "word" else sentences(pair.document, pair.language)
    return unit_of(text, spans)


def _effects(text: Perturbed, unit_numbers: NDArray[np.int64]) -> Tensor:
    """Effects [1, T] on the text's positions, zero for special tokens."""
    content = text.encoded.texts[0].content
    start = text.encoded.offsets[0]
    # Feature 0 never changes: special tokens and padding, where baseline and input are equal.
    number = {unit: n for n, unit in enumerate(np.unique(unit_numbers[content]), start=1)}
    mask = torch.zeros(1, text.inputs.shape[1], 1, dtype=torch.long, device=text.inputs.device)
    sizes = torch.zeros(len(number) + 1)
    for i, unit in enumerate(unit_numbers):
        if content[i]:
            mask[0, start + i] = number[unit]
            sizes[number[unit]] += 1
    from captum.attr import FeatureAblation  # here: slow to import

    effects = FeatureAblation(text.score).attribute(
        text.inputs,
        baselines=text.baseline,
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
        help="How much the score falls when a unit (word, token or sentence) is replaced with "
        "padding tokens, or deleted if the model is an endpoint or a Python object with only an "
        "encode method. Signed. Slow.",
        axis="Score lost by occlusion",
        unit="score",
        signed=True,
        additive=False,
        needs=Capability.EMBEDDINGS,
        version=1,
        compute=attribute,
        order=7,
        citation="Zeiler and Fergus 2014, arXiv 1311.2901",
        slow=True,
        parameters=(
            MethodParameter(
                "level", ("word", "token", "sentence"), "Which unit is replaced at a time."
            ),
        ),
    )
)

"""Occlusion: how much the score falls when a unit is replaced with padding-token embeddings.
Signed, in units of the score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.methods.base import MethodEntry, MethodParameter, build_batch, register
from poslens.attribution.methods.perturbation import Kept, Perturbed
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
    """The values of one pair; `state` as for `Perturbed`, of the document."""
    level = str(method.params["level"])
    with retriever.lock, torch.no_grad():
        document = Perturbed(retriever, pair, "document", state)
        query = Perturbed(retriever, pair, "query")
        in_document = _masks(document, units(document.encoded.texts[0], pair, level))
        in_query = _masks(query, units(query.encoded.texts[0], pair, "token"))
        share = in_document.numel() / max(1, in_document.numel() + in_query.numel())
        score, of_document = _effects(document, in_document, (0, share))
        _, of_query = _effects(query, in_query, (share, 1))
    (result,) = build_batch(
        retriever,
        method,
        [pair],
        scores=score.double(),
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


def _masks(text: Perturbed, unit_numbers: NDArray[np.int64]) -> Tensor:
    """Whether a position of the text belongs to a unit [U, T]; special tokens belong to none."""
    content = text.encoded.texts[0].content
    unit_ids = np.unique(unit_numbers[content])
    masks = torch.zeros(len(unit_ids), text.inputs.shape[1], dtype=torch.bool)
    masks[:, text.encoded.span(0)] = torch.from_numpy(content & (unit_numbers == unit_ids[:, None]))
    return masks


def _effects(text: Perturbed, masks: Tensor, shares: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The score [1] and the effects [1, T] of units on the text's positions, zero for special
    tokens; `shares` of the pair are finished before and after it."""
    begin, end = shares
    whole = torch.zeros_like(masks[:1])
    scores = text.scores([*whole, *masks], lambda share: checkpoint(begin + (end - begin) * share))
    lost = (scores[:1] - scores[1:]).float() / masks.sum(1)
    return scores[:1], (lost[:, None] * masks).sum(0, keepdim=True)


register(
    MethodEntry(
        name="occlusion",
        title="Occlusion",
        help="How much the score falls when a unit (word, token or sentence) is replaced with "
        "padding tokens, or left out if the model is BM25, an endpoint or a Python object with "
        "only an encode method. Signed. Slow.",
        axis="Score lost by occlusion",
        unit="score",
        signed=True,
        additive=False,
        needs=Capability.REMOVAL,
        compute=attribute,
        order=7,
        citation="Zeiler and Fergus 2014, arXiv 1311.2901",
        slow=True,
        one_document=True,
        parameters=(
            MethodParameter(
                "level", ("word", "token", "sentence"), "The unit replaced in each step."
            ),
        ),
    )
)

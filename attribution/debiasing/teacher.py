"""The teacher: the same model reading a text sentence by sentence, so that order has no effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.dense import DenseRetriever


@dataclass(frozen=True, slots=True)
class SentenceReading:
    """A sentence read alone: `parts` [H] is the vector that is averaged over the sentences of a
    text, `vector` [D] its embedding of length 1, `norm` the embedding's length before
    normalization and `tokens` its token count."""

    parts: Tensor
    vector: Tensor
    norm: float
    tokens: int


class Teacher:
    """Reads sentences one at a time with a frozen model, so that a reading is independent of other
    sentences, and combines the readings into the vector of a text.

    With mean pooling that vector is the mean of the token states of all sentences, followed by the
    model's modules after pooling (such as a dense layer). With any other pooling it has the
    direction of the mean of the sentences' vectors, each of length 1, weighted by token count.
    """

    def __init__(
        self, retriever: DenseRetriever, frozen: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`frozen()` is a context in which the retriever computes as before training.

        Raises:
            UserError: the model does not use a single pooling mode.
        """
        self._retriever, self._frozen = retriever, frozen
        modules = list(retriever.model)
        places = [place for place, module in enumerate(modules) if isinstance(module, Pooling)]
        if len(places) != 1 or not isinstance(modules[places[0]].pooling_mode, str):
            raise UserError(
                f"{retriever.name} concatenates several poolings, so it can't be debiased: choose "
                "a model with mean, CLS or last-token pooling."
            )
        self._pooling: Any = modules[places[0]]
        self._after_pooling: list[nn.Module] = modules[places[0] + 1 :]
        self._sums_states = self._pooling.pooling_mode == "mean"
        self._read: dict[str, SentenceReading] = {}

    @torch.no_grad()
    def reading(self, sentence: str) -> SentenceReading:
        """The reading of a sentence alone, cached."""
        if sentence not in self._read:
            with self._frozen():
                self._read[sentence] = self._compute(sentence)
        return self._read[sentence]

    def _compute(self, sentence: str) -> SentenceReading:
        encoded = self._retriever.encode_plain([sentence], "document")
        pooled: list[Tensor] = []
        hook = self._pooling.register_forward_hook(
            lambda _module, _inputs, output: pooled.append(output["sentence_embedding"][0].clone())
        )
        try:
            vector = self._retriever.embed(encoded)[0].float()
        finally:
            hook.remove()
        tokens = int(encoded.features["attention_mask"].sum())
        if not self._pooling.include_prompt:
            tokens -= int(encoded.features.get("prompt_length", 0))
        unit = nn.functional.normalize(vector, dim=0)
        parts = pooled[0].float() if self._sums_states else unit
        return SentenceReading(parts, unit, float(vector.norm()), tokens)

    @torch.no_grad()
    def queries(self, queries: Sequence[str]) -> Tensor:
        """Embeddings [n, D] of queries by the frozen model."""
        with self._frozen():
            encoded = self._retriever.encode_plain(queries, "query")
            return self._retriever.embed(encoded).float()

    @torch.no_grad()
    def target(self, sentences: Sequence[str]) -> Tensor:
        """The order-invariant vector [D] of a text with these sentences, not normalized."""
        readings = [self.reading(sentence) for sentence in sentences]
        weights = torch.tensor(
            [reading.tokens for reading in readings],
            dtype=torch.float32,
            device=readings[0].parts.device,
        )
        weights /= weights.sum()
        combined = (weights[:, None] * torch.stack([reading.parts for reading in readings])).sum(0)
        if not self._sums_states:
            norm = sum(
                w * reading.norm for w, reading in zip(weights.tolist(), readings, strict=True)
            )
            target: Tensor = nn.functional.normalize(combined, dim=0) * norm
            return target
        features = {"sentence_embedding": combined[None]}
        for module in self._after_pooling:
            features = module(features)
        return self._retriever.truncated(features["sentence_embedding"], "document")[0]

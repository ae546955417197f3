"""Dependence of a model's embedding on sentence position, without labels: measured on texts of
sentences in random order, each also in reversed order."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poslens.attribution.curves.bootstrap import Estimate, estimate
from poslens.attribution.debiasing.corpus import Sentence, by_language
from poslens.attribution.debiasing.teacher import Teacher
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.text import joined

SENTENCES = 16
"""Number of sentences of a validation text, if they fit within the model's limit."""
_MIN_SENTENCES = 4


def validation_texts(
    pool: Sequence[Sentence], teacher: Teacher, limit: int, n: int, seed: int
) -> list[tuple[str, ...]]:
    """`n` texts as lists of sentences, sampled with a seed; each is in one language and within
    `limit` tokens."""
    rng = random.Random(f"validation {seed}")
    groups = by_language(pool, _MIN_SENTENCES)
    if not groups:
        return []
    texts = []
    for _ in range(n):
        (group,) = rng.choices(groups, [len(group) for group in groups])
        drawn = rng.sample(group, min(SENTENCES, len(group)))
        texts.append(tuple(within(teacher, [pool[i].text for i in drawn], limit)))
    return [text for text in texts if len(text) >= _MIN_SENTENCES]


def within(teacher: Teacher, sentences: Sequence[str], limit: int) -> list[str]:
    """The longest prefix of `sentences` within `limit` tokens in total; always at least two
    sentences."""
    chosen: list[str] = []
    tokens = 0
    for sentence in sentences:
        tokens += teacher.reading(sentence).tokens
        if tokens > limit and len(chosen) >= 2:
            break
        chosen.append(sentence)
    return chosen


@torch.no_grad()
def position_effect(
    retriever: DenseRetriever,
    teacher: Teacher,
    texts: Sequence[Sequence[str]],
    slot: Callable[[], AbstractContextManager[None]],
) -> Estimate | None:
    """Mean cosine of a text with its sentences in the last third minus that with those in the
    first third. Each sentence is embedded alone, and the interval resamples texts. A negative
    value means that the embedding represents the beginning more than the end. Each text is read
    in both directions, so that only position can differ. None without texts."""
    differences: list[list[float]] = []
    for sentences in texts:
        with slot():
            alone = torch.stack([teacher.reading(sentence).vector for sentence in sentences])
            both = embed_documents(retriever, [joined(sentences), joined(sentences[::-1])])
        cosines = (both @ alone.T).cpu().double().numpy()
        differences.append([_last_minus_first(np.stack([cosines[0], cosines[1, ::-1]]))])
    return estimate(np.array(differences), resampled="texts") if differences else None


def _last_minus_first(cosines: NDArray[np.float64]) -> float:
    """Last third minus first third of cosines [2, n] of the sentences by position, in both
    directions."""
    n = cosines.shape[1]
    third = max(1, n // 3)
    return float(cosines[:, -third:].mean() - cosines[:, :third].mean())


def embed_documents(retriever: DenseRetriever, texts: Sequence[str]) -> Tensor:
    """Embeddings of documents [n, D], normalized to length 1."""
    return nn.functional.normalize(
        retriever.embed(retriever.encode_plain(texts, "document")).float(), dim=1
    )

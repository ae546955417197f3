"""Results without a model: the store doesn't depend on the source of numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from poslens.attribution.methods import make_method
from poslens.attribution.types import Attribution, TextPair, Token, TokenizedText
from poslens.cache.storage.store import Store

Make = Callable[..., tuple[TextPair, Attribution]]


def _text(text: str, n_full: int | None) -> TokenizedText:
    words = text.split(" ")
    starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).tolist()
    content = tuple(
        Token(word, start, start + len(word)) for word, start in zip(words, starts, strict=True)
    )
    tokens = (Token("[CLS]", 0, 0, True), *content, Token("[SEP]", 0, 0, True))
    return TokenizedText.of(tokens, n_full or len(words), 512)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


@pytest.fixture
def result() -> Make:
    """`result("p1")`: a pair and its attribution, with random numbers seeded by its id."""

    def make(
        pair_id: str,
        *,
        query: str = "when does fog lift",
        document: str = "Fog forms over cold water 🚀 النخلة and lifts at noon",
        dataset: str = "set",
        n_full: int | None = None,
        **fields: object,
    ) -> tuple[TextPair, Attribution]:
        pair = TextPair(pair_id, query, document, dataset=dataset)
        q, d = _text(query, None), _text(document, n_full)
        generator = np.random.default_rng(list(pair_id.encode()))
        result = Attribution(
            model="M",
            method=make_method("saliency"),
            pair_id=pair_id,
            score=float(np.float32(generator.normal())),
            query=q,
            document=d,
            query_scores=generator.gamma(2, 0.01, len(q.tokens)),
            document_scores=generator.gamma(2, 0.01, len(d.tokens)),
            seconds=0.1 + generator.random(),
            **fields,  # type: ignore[arg-type]
        )
        return pair, result

    return make

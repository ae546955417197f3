"""The word part and the position part of a share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from poslens.attribution.errors import UserError
from poslens.attribution.methods import make_method
from poslens.attribution.methods.decomposition import attribute
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import TextPair

PAIR = TextPair("p", "what melts", "Ice melts. Stone stays where it is.")


def scores(retriever: DenseRetriever, part: str):
    return attribute(retriever, make_method("decomposition", {"part": part}), [PAIR])[0]


def test_parts_add_up_to_the_whole_and_state_no_completeness(minilm: DenseRetriever) -> None:
    whole, word, position = (scores(minilm, part) for part in ("whole", "word", "position"))
    total = word.document_scores + position.document_scores
    assert total == pytest.approx(whole.document_scores, abs=1e-6)
    assert abs(position.document_scores).max() > 1e-4
    assert whole.bias_share is not None
    assert word.bias_share is None and position.completeness_error is None


def test_a_model_without_position_embeddings_is_refused(
    tiny: Callable[..., DenseRetriever],
) -> None:
    with pytest.raises(UserError, match="no position embeddings"):
        scores(tiny("qwen3-right"), "position")


def test_a_matrix_of_a_part_is_refused(minilm: DenseRetriever) -> None:
    method = make_method("decomposition", {"part": "word", "matrix": "yes"})
    with pytest.raises(UserError, match="matrix"):
        attribute(minilm, method, [PAIR])

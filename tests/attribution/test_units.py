"""Words and sentences: the score of a unit does not depend on its number of tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from poslens.attribution.curves.positions import Aggregate, aggregated, unit_scores
from poslens.attribution.datasets import DataSet
from poslens.attribution.evaluation.deletion import _order
from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.methods import METHODS, attribute_batches, make_method
from poslens.attribution.text import words
from poslens.attribution.types import TextPair, Token, TokenizedText

UNITS = np.array([0, 0, -1, 2, 0, 2])
SCORES = np.array([1.0, -4.0, 99.0, 0.5, 4.0, 1.5], dtype=np.float32)

AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)


@pytest.mark.parametrize(
    ("how", "wanted"),
    [("sum", [1.0, np.nan, 2.0]), ("mean", [1 / 3, np.nan, 1.0]), ("max", [-4.0, np.nan, 1.5])],
)
def test_tokens_are_grouped_into_units_as_by_hand(how: Aggregate, wanted: list[float]) -> None:
    np.testing.assert_allclose(aggregated(SCORES, UNITS, 3, how), wanted, rtol=1e-6)


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(-9, 9)), max_size=30))
def test_tokens_are_grouped_into_units_as_by_a_plain_loop(tokens: list[tuple[int, int]]) -> None:
    unit_of = np.array([unit for unit, _ in tokens], dtype=np.int64)
    scores = np.array([score for _, score in tokens], dtype=np.float32)
    for how in AGGREGATES:
        found = aggregated(scores, unit_of, 5, how)
        for unit in range(5):
            own = [score for where, score in tokens if where == unit]
            if not own:
                assert np.isnan(found[unit])
            elif how == "max":
                assert found[unit] == max(own, key=abs)
            else:
                assert found[unit] == pytest.approx(sum(own) / (len(own) if how == "mean" else 1))


def test_only_additive_scores_are_summed() -> None:
    lengths = {"saliency", "profile"}
    for name, entry in METHODS.items():
        assert entry.aggregate == ("mean" if name in lengths else "sum"), name


def test_word_saliency_does_not_depend_on_the_number_of_tokens(minilm, sample: DataSet) -> None:
    method = make_method("saliency")
    pairs = [pair for pair in sample.pairs if pair.language == "eng"][::12][:10]
    found: dict[Aggregate, list[float]] = {how: [] for how in AGGREGATES}
    for batch in attribute_batches(minilm, method, pairs):
        for outcome in batch:
            assert outcome.attribution is not None
            text, scores = outcome.attribution.document, outcome.attribution.document_scores
            spans = words(outcome.pair.document)
            pieces = unit_scores(text, np.ones(len(text.tokens), dtype=np.float32), spans, "sum")
            read = np.isfinite(pieces)
            for how in AGGREGATES:
                values = unit_scores(text, scores, spans, how)
                found[how].append(spearmanr(values[read], pieces[read]).statistic)
    mean = {how: float(np.mean(values)) for how, values in found.items()}
    assert mean["sum"] > 0.3, "a sum counts pieces"
    assert abs(mean["mean"]) < mean["sum"] / 2, mean


@pytest.mark.parametrize(("method", "first"), [("saliency", 1), ("decomposition", 0)])
def test_word_order_for_faithfulness_depends_on_the_method(method: str, first: int) -> None:
    tokens = tuple(Token("t", at, at + 1) for at in range(4))  # "abc" in three pieces, and "d"
    scores = np.array([1, 1, 1, 2], dtype=np.float32)
    document = SimpleNamespace(
        text=TokenizedText.of(tokens, 4, 512), unit_of=np.array([0, 0, 0, 1]), n_units=2
    )
    attribution = SimpleNamespace(document_scores=scores, method=make_method(method))
    order = _order(document, attribution, ErasureParameters(), TextPair("p", "q", "abc d"))  # type: ignore[arg-type]
    assert order[0] == first

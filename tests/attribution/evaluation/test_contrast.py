"""A contrast of two documents adds up to the difference of their scores."""

from __future__ import annotations

import numpy as np
import pytest

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.contrast import contrast, negated
from poslens.attribution.types import Attribution, Method, Token, TokenizedText


def attributed(
    shares: list[float], bias: float | None, score: float, name: str = "decomposition"
) -> Attribution:
    def text(n: int) -> TokenizedText:
        return TokenizedText.of(tuple(Token("x", i, i + 1) for i in range(n)), n, 99)

    total = None if bias is None else score - sum(shares) - bias
    return Attribution(
        "m",
        Method(name),
        "p",
        score,
        text(2),
        text(len(shares)),
        np.array([0.1, 0.2]),
        np.array(shares),
        bias_share=bias,
        completeness_error=total,
    )


def test_a_contrast_adds_up() -> None:
    found = contrast(attributed([0.5, 0.25], 0.125, 1.0), attributed([0.25, -0.5, 1.0], 0.5, 1.25))
    assert found.difference == -0.25 and found.tokens == 0 and found.bias == -0.375
    assert found.error == pytest.approx(0.125) and found.query == pytest.approx(0)
    assert found.tokens + found.query + found.bias + found.error == pytest.approx(found.difference)
    assert found.second.document_scores.tolist() == [-0.25, 0.5, -1.0]
    drawn = found.first.document_scores.sum() + found.second.document_scores.sum()
    assert drawn == pytest.approx(found.tokens)
    back = negated(found.second)
    assert back.document_scores.tolist() == [0.25, -0.5, 1.0] and back.score == 1.25


def test_a_method_of_sensitivities_has_no_contrast() -> None:
    one = attributed([1.0], None, 1.0, "saliency")
    with pytest.raises(UserError, match="The values of saliency don't sum"):
        contrast(one, one)
    with pytest.raises(ValueError, match="one model under one method"):
        contrast(attributed([1.0], 0.0, 1.0), one)

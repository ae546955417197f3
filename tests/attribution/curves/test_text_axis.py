"""Token positions and shares of the whole text, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from poslens.attribution.curves.positions import token_range
from poslens.attribution.curves.text_axis import curve_over_text, token_shares
from poslens.attribution.methods import make_method
from poslens.attribution.types import Attribution, EvidenceSpan, Token, TokenizedText


def text_of(*spans: tuple[int, int], full: int | None = None) -> TokenizedText:
    content = tuple(Token("t", start, end) for start, end in spans)
    special = Token("[CLS]", 0, 0, True)
    return TokenizedText.of((special, *content, special), full or len(spans), 512)


UNEVEN = text_of((0, 10), (11, 13), (14, 16), (17, 40))


def test_tokens_of_different_lengths_move_evidence_to_where_it_is_read() -> None:
    """The span covers the two short tokens in the middle: half of the tokens, a tenth of the
    text."""
    assert token_range(UNEVEN, EvidenceSpan(11, 16)) == (0.25, 0.75)
    assert_allclose(token_shares(UNEVEN, 40, [11 / 40, 17 / 40, 1]), [0.25, 0.75, 1])
    assert_allclose(token_shares(UNEVEN, 40, [0, 5.5 / 40, 1]), [0, 0.125, 1])


def test_truncated_text_has_no_token_position() -> None:
    cut = text_of((0, 10), (11, 20), full=9)
    found = token_shares(cut, 100, [0.0, 0.2, 0.21, 1.0])
    assert_allclose(found[:2], [0, 1])
    assert np.isnan(found[2:]).all()


def test_tokens_that_share_characters_share_a_position() -> None:
    """As the byte tokens of one emoji do."""
    emoji = text_of((0, 4), (4, 5), (4, 5), (4, 5), (5, 9))
    assert_allclose(token_shares(emoji, 9, np.array([2, 4.5, 5, 7]) / 9), [0.1, 0.7, 0.8, 0.9])
    with pytest.raises(ValueError, match="no token was read"):
        token_shares(TokenizedText.of((), 0, 9), 9, [0.5])


def test_two_models_that_truncate_differently_agree_about_the_same_words() -> None:
    """Both have a peak at the same characters. One reads the whole text of 200 tokens, the other
    its first half in 50 longer tokens. By token position the peaks are at 25% and 50%; here both
    are at 25%."""
    method = make_method("saliency", {"normalization": "none"})

    def result(document: TokenizedText, peak: int) -> Attribution:
        scores = np.zeros(len(document.tokens))
        scores[peak + 1] = 1.0
        return Attribution("m", method, "p", 0.5, document, document, np.zeros(len(scores)), scores)

    whole = result(text_of(*[(4 * j, 4 * j + 4) for j in range(200)]), 50)
    half = result(text_of(*[(8 * j, 8 * j + 8) for j in range(50)], full=100), 25)
    for one, read in ((whole, 1.0), (half, 0.5)):
        curve = curve_over_text(one, 800)
        assert np.nanargmax(curve) == 25
        assert np.isfinite(curve).tolist() == [(b + 0.5) / 100 <= read for b in range(100)]

"""One model's scores minus another's, character by character."""

from __future__ import annotations

import numpy as np
import pytest

from poslens.attribution.types import Token, TokenizedText
from poslens.studies.explain.minus import by_character, pieces

TEXT = "Ice melts."


def read(*spans: tuple[int, int], special: bool = True) -> TokenizedText:
    """TEXT tokenized at `spans`, between two special tokens."""
    tokens = [Token(TEXT[a:b], a, b) for a, b in spans]
    if special:
        tokens = [Token("[CLS]", 0, 0, True), *tokens, Token("[SEP]", 0, 0, True)]
    return TokenizedText.of(tuple(tokens), len(spans), 512)


ALIKE = read((0, 3), (4, 9), (9, 10))
SPLIT = read((0, 3), (4, 6), (6, 9), (9, 10))


def test_equal_tokenizations_are_subtracted_token_by_token() -> None:
    a, b = np.array([9, 1.0, 2.0, 3.0, 9]), np.array([7, 0.5, 4.0, 3.0, 7])
    assert pieces(ALIKE, ALIKE, (a, b), len(TEXT)) == [
        (0, 3, pytest.approx(0.5)),
        (4, 9, pytest.approx(-2.0)),
        (9, 10, pytest.approx(0.0)),
    ]


def test_different_tokenizations_are_subtracted_by_characters() -> None:
    a, b = np.array([9, 1.0, 2.0, 3.0, 9]), np.array([7, 0.5, 4.0, 1.0, 3.0, 7])
    found = pieces(ALIKE, SPLIT, (a, b), len(TEXT))
    assert [(start, end) for start, end, _ in found] == [(0, 3), (4, 6), (6, 9), (9, 10)]
    # "melts" has 2.0 for model A: 2/5 of it are in its first two letters.
    assert [value for *_, value in found] == pytest.approx([0.5, 0.8 - 4, 1.2 - 1, 0])
    # Nothing is lost: the drawn values sum to the models' scores.
    assert sum(value for *_, value in found) == pytest.approx((1 + 2 + 3) - (0.5 + 4 + 1 + 3))


def test_text_that_one_model_truncates_has_no_difference() -> None:
    short = read((0, 3))
    a, b = np.array([9, 1.0, 2.0, 3.0, 9]), np.array([7, 0.5, 7])
    assert pieces(ALIKE, short, (a, b), len(TEXT)) == [(0, 3, pytest.approx(0.5))]


def test_a_token_without_characters_adds_its_score_at_its_offset() -> None:
    tokens = read((0, 3), (4, 4), (4, 9), special=False)
    found = by_character(tokens, np.array([3.0, 1.0, 5.0]), len(TEXT))
    assert found.sum() == pytest.approx(9) and found[4] == pytest.approx(2)


@pytest.mark.parametrize("at", [0, 3, 6, 10])
def test_the_scores_of_tokens_without_characters_are_in_the_pieces(at: int) -> None:
    # Between words and at both ends of the text, where no other token has the character.
    spaced = read(*sorted([(0, 3), (at, at), (4, 9), (9, 10)]))
    a, b = np.array([9, 1.0, 2.0, 4.0, 8.0, 9]), np.array([7, 0.5, 4.0, 3.0, 7])
    found = pieces(spaced, ALIKE, (a, b), len(TEXT))
    assert sum(value for *_, value in found) == pytest.approx(15 - 7.5)
    assert all(end <= len(TEXT) for _, end, _ in found)

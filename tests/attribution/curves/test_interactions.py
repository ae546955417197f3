"""The interaction matrix summed to words, sentences and bins, against sums done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from poslens.attribution.curves.interactions import COLUMN_BINS, interactions
from poslens.attribution.methods import make_method
from poslens.attribution.types import (
    Attribution,
    EvidenceSpan,
    TextPair,
    Token,
    TokenizedText,
)

METHOD = make_method("decomposition", {"matrix": "yes"})
SPECIAL = Token("[CLS]", 0, 0, is_special=True)
END = Token("[SEP]", 0, 0, is_special=True)


def tokenized(text: str, pieces: list[str]) -> TokenizedText:
    """`pieces` of `text`, in order, between two special tokens."""
    tokens, cursor = [SPECIAL], 0
    for piece in pieces:
        start = text.index(piece, cursor)
        cursor = start + len(piece)
        tokens.append(Token(piece, start, cursor))
    return TokenizedText.of((*tokens, END), len(pieces), 512)


def attributed(
    pair: TextPair, query: list[str], document: list[str], matrix: np.ndarray
) -> Attribution:
    q, d = tokenized(pair.query, query), tokenized(pair.document, document)
    return Attribution(
        model="m",
        method=METHOD,
        pair_id=pair.pair_id,
        score=1.0,
        query=q,
        document=d,
        query_scores=np.zeros(len(q.tokens)),
        document_scores=np.zeros(len(d.tokens)),
        matrix=matrix,
    )


PAIR = TextPair(
    "p", "moon tides", "Tides rise. The Moon pulls.", EvidenceSpan(12, 20), language="eng"
)
QUERY = ["moon", "tid", "es"]
DOCUMENT = ["Tid", "es", "rise", ".", "The", "Moon", "pulls", "."]
# Rows and columns have different weights, so that all sums differ.
ROWS = np.array([100.0, 1.0, 10.0, 1000.0, 3.0])
COLUMNS = np.array([50.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 70.0])
MATRIX = np.outer(ROWS, COLUMNS)


@pytest.fixture
def attribution() -> Attribution:
    return attributed(PAIR, QUERY, DOCUMENT, MATRIX)


LEVELS = {
    "rows": {
        "token": (["moon", "tid", "es"], [1, 10, 1000]),
        "word": (["moon", "tides"], [1, 1010]),
    },
    "columns": {
        "token": (DOCUMENT, [1, 2, 4, 8, 16, 32, 64, 128]),
        "word": (["Tides", "rise", ".", "The", "Moon", "pulls", "."], [3, 4, 8, 16, 32, 64, 128]),
        "sentence": (["Tides rise.", "The Moon pulls."], [15, 240]),
        # No more bins than tokens.
        "bin": (
            ["0-12%", "12-25%", "25-38%", "38-50%", "50-62%", "62-75%", "75-88%", "88-100%"],
            [1, 2, 4, 8, 16, 32, 64, 128],
        ),
    },
}


@pytest.mark.parametrize("rows", LEVELS["rows"])
@pytest.mark.parametrize("columns", LEVELS["columns"])
def test_sums_computed_by_hand(attribution: Attribution, rows, columns) -> None:
    found = interactions(attribution, PAIR, rows, columns)
    row_labels, row_sums = LEVELS["rows"][rows]
    column_labels, column_sums = LEVELS["columns"][columns]
    assert list(found.rows) == row_labels and list(found.columns) == column_labels
    np.testing.assert_array_equal(found.matrix, np.outer(row_sums, column_sums))
    assert found.total == MATRIX.sum() == 1114 * 375
    assert found.special == 1114 * 375 - 1011 * 255
    assert found.matrix.sum() + found.special == found.total


@pytest.mark.parametrize(
    ("columns", "overlapping"),
    [("token", (4, 5)), ("word", (3, 4)), ("sentence", (1,)), ("bin", (4, 5))],
)
def test_evidence_columns(attribution: Attribution, columns, overlapping: tuple[int, ...]) -> None:
    """Characters 12 to 20 are "The Moon"."""
    assert PAIR.document[12:20] == "The Moon"
    found = interactions(attribution, PAIR, "word", columns)
    assert found.evidence_columns == overlapping
    without = TextPair("p", PAIR.query, PAIR.document, language="eng")
    assert interactions(attribution, without, "word", columns).evidence_columns == ()


@pytest.mark.parametrize(("start", "end", "column"), [(21, 26, 5), (26, 27, 6), (22, 23, 5)])
def test_units_that_only_touch_the_evidence_are_not_part_of_it(
    attribution: Attribution, start: int, end: int, column: int
) -> None:
    """ "pulls" ends where "." begins."""
    pair = TextPair("p", PAIR.query, PAIR.document, EvidenceSpan(start, end), language="eng")
    assert interactions(attribution, pair, "word", "word").evidence_columns == (column,)


def test_bins_of_a_long_document() -> None:
    """120 tokens in 50 bins: bin b has the tokens i with floor(50 i / 120) = b."""
    words = [f"w{i}" for i in range(120)]
    pair = TextPair("p", "q", " ".join(words))
    matrix = np.zeros((3, 122))
    matrix[1, 1:-1] = np.arange(120)
    found = interactions(attributed(pair, ["q"], words, matrix), pair, "token", "bin")
    assert found.matrix.shape == (1, COLUMN_BINS)
    expected = [sum(i for i in range(120) if 50 * i // 120 == b) for b in range(50)]
    np.testing.assert_array_equal(found.matrix[0], expected)
    assert found.total == 119 * 60 and found.special == 0
    assert (found.columns[0], found.columns[-1]) == ("0-2%", "98-100%")


def test_words_past_the_context_limit_are_left_out() -> None:
    pair = TextPair("p", "moon", "Tides rise. The Moon pulls.")
    matrix = np.ones((3, 5))
    attribution = attributed(pair, ["moon"], ["Tides", "rise", "."], matrix)
    words = interactions(attribution, pair, "word", "word")
    assert words.columns == ("Tides", "rise", ".")
    assert interactions(attribution, pair, "word", "sentence").columns == ("Tides rise.",)
    assert words.total == 15 and words.special == 12


def test_a_token_between_words_is_counted_with_the_next_word() -> None:
    """Byte-level tokens may hold the space before a word, or be nothing but a space."""
    text = "ab  cd"
    tokens = (Token("ab", 0, 2), Token(" ", 2, 3), Token(" cd", 3, 6))
    document = TokenizedText.of(tokens, 3, 512)
    query = TokenizedText.of((Token("q", 0, 1),), 1, 512)
    attribution = Attribution(
        model="m",
        method=METHOD,
        pair_id="p",
        score=1.0,
        query=query,
        document=document,
        query_scores=np.zeros(1),
        document_scores=np.zeros(3),
        matrix=np.array([[1.0, 2.0, 4.0]]),
    )
    found = interactions(attribution, TextPair("p", "q", text), "word", "word")
    assert found.columns == ("ab", "cd")
    np.testing.assert_array_equal(found.matrix, [[1, 6]])


def test_long_sentences_are_shortened_in_labels() -> None:
    text = "word " * 40 + "end.\nNext   one."
    pair = TextPair("p", "q", text, language="eng")
    pieces = [*["word"] * 40, "end.", "Next", "one."]
    found = interactions(
        attributed(pair, ["q"], pieces, np.zeros((3, 45))), pair, "word", "sentence"
    )
    assert found.columns == (text[:59] + "…", "Next one.")


def test_an_attribution_without_matrix_raises_value_error(attribution: Attribution) -> None:
    bare = Attribution(
        model="m",
        method=METHOD,
        pair_id="p",
        score=1.0,
        query=attribution.query,
        document=attribution.document,
        query_scores=attribution.query_scores,
        document_scores=attribution.document_scores,
    )
    with pytest.raises(ValueError, match="no matrix"):
        interactions(bare, PAIR, "word", "word")

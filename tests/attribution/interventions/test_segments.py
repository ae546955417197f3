"""Curves of documents alone: texts split and edited by hand, and cosines from the library's
encoder."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.interventions.segments import (
    POSITIONS,
    SHARES,
    documents_of,
    edit_curves,
    inserted,
    pieces_of,
    placed,
    removed,
    segment_curve,
    segments_of,
    thirds,
)
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.text import words
from poslens.attribution.types import EvidenceSpan, TextPair

TEXT = "The tide rises. The moon pulls it.\n\nBoats wait for it. Then they leave the harbour."
PAIR = TextPair("p", "", TEXT)


def cosines(model: SentenceTransformer, whole: str, parts: list[str]) -> np.ndarray:
    found = model.encode([whole, *parts], normalize_embeddings=True)
    return found[1:] @ found[0]


@pytest.fixture(params=["bert", "bert-cls", "qwen3-left"])
def dense(request: pytest.FixtureRequest, tiny: Callable[..., DenseRetriever]) -> DenseRetriever:
    return tiny(request.param)


def test_segments_start_at_sentences_and_are_compared_with_the_whole(
    dense: DenseRetriever,
) -> None:
    found = segment_curve(dense, PAIR, segments=2)
    parts = [
        "The tide rises. The moon pulls it.",
        "Boats wait for it. Then they leave the harbour.",
    ]
    np.testing.assert_allclose(found.cosines, cosines(dense.model, TEXT, parts), atol=1e-5)
    read = dense.encode_texts([TEXT], "document").texts[0]
    tokens = [token for token in read.tokens if not token.is_special]
    first = sum(token.start < TEXT.index("Boats") for token in tokens)
    np.testing.assert_allclose(found.edges, [0, first / len(tokens), 1], atol=1e-6)
    curve = found.curve(100)
    assert curve[0] == pytest.approx(found.cosines[0])
    assert curve[-1] == pytest.approx(found.cosines[1])
    assert (found.read_share, found.note) == (1.0, "")


def test_a_text_of_fewer_sentences_has_fewer_segments(dense: DenseRetriever) -> None:
    found = segment_curve(dense, PAIR, segments=10)
    assert len(found.cosines) == 4 and found.note == "the text has 4 segments, not 10"
    with pytest.raises(UserError, match="one sentence"):
        segment_curve(dense, TextPair("p", "", "The tide rises."))


def test_shuffled_segments_are_compared_with_the_shuffled_text(dense: DenseRetriever) -> None:
    found = segment_curve(dense, PAIR, "shuffled", 4)
    parts = pieces_of(TEXT, segments_of(TEXT, 4, None))
    assert parts.joined(range(4)) == TEXT
    orders = [
        order
        for order in permutations(range(4))
        if np.allclose(
            found.cosines,
            cosines(dense.model, parts.joined(order), [parts.sentences[i] for i in order]),
            atol=1e-5,
        )
    ]
    assert len(orders) == 1, "one order of the segments, with its text, explains the numbers"
    assert segment_curve(dense, PAIR, "shuffled", 4).cosines.tolist() == found.cosines.tolist()
    spans = placed(parts, orders[0], len(TEXT))
    text = parts.joined(orders[0])
    assert [text[a:b].strip() for a, b in spans] == [parts.sentences[i] for i in orders[0]]


def test_thirds_have_equal_numbers_of_characters(dense: DenseRetriever) -> None:
    assert thirds("abcdefg") == ((0, 2), (2, 5), (5, 7))
    found = segment_curve(dense, PAIR, "thirds")
    n = len(TEXT)
    cuts = [0, round(n / 3), round(2 * n / 3), n]
    parts = [TEXT[a:b].strip() for a, b in pairwise(cuts)]
    np.testing.assert_allclose(found.cosines, cosines(dense.model, TEXT, parts), atol=1e-5)


def test_insertions_and_removals_equal_those_made_by_hand() -> None:
    text = "aaa bbb ccc ddd eee "
    put = inserted(text, "eng", 0.25, "beginning")
    assert put == f"This {text}" and inserted(text, "eng", 0.25, "end") == f"{text}This"
    assert inserted("aaa bbb ccc ddd", "eng", 0.3, "middle") == "aaa bbb This ccc ddd"
    ten = "a1 a2 a3 a4 a5 a6 a7 a8 a9 b0"
    assert removed(ten, 0.2, "beginning") == "a3 a4 a5 a6 a7 a8 a9 b0"
    assert removed(ten, 0.2, "end") == "a1 a2 a3 a4 a5 a6 a7 a8"
    assert removed(ten, 0.2, "middle") == "a1 a2 a3 a4 a7 a8 a9 b0"


def test_text_without_spaces_is_edited_by_characters() -> None:
    title, body = "潮汐的成因", "潮水每天涨落两次。船在港口等候。" * 10
    text = f"{title}\n{body}"
    for share in SHARES["removal"]:
        gone = round(share * len(text))
        assert abs(len(text) - gone - len(removed(text, share, "beginning"))) <= 1
        assert abs(len(text) - gone - len(removed(text, share, "end"))) <= 1
        middle = removed(text, share, "middle")
        assert abs(len(text) - gone - len(middle)) <= 2
        assert middle[:9] == text[:9] and middle[-9:] == text[-9:]
    half = inserted(text, "cmn", 0.1, "middle").index("这一部分")
    assert abs(half - len(text) // 2) <= 1


@pytest.mark.parametrize("place", POSITIONS)
@pytest.mark.parametrize("share", SHARES["removal"])
def test_short_texts_lose_a_word_and_keep_one(share: float, place: Any) -> None:
    text = "Light energy becomes chemical energy stored in large carbohydrates."
    for n in range(2, len(words(text))):
        short = " ".join(text.split()[:n])
        rest = removed(short, share, place).split()
        assert 0 < len(rest) < n
        if place == "middle" and n > 2:
            assert (rest[0], rest[-1]) == ("Light", short.split()[-1])


@pytest.mark.parametrize("by", ["insertion", "removal"])
def test_edits_are_compared_with_the_text_itself(dense: DenseRetriever, by: Any) -> None:
    found = edit_curves(dense, PAIR, by)
    text = TEXT[: round(found.read_share * len(TEXT))]
    texts = [
        inserted(text, None, share, place) if by == "insertion" else removed(text, share, place)
        for place in POSITIONS
        for share in SHARES[by]
    ]
    expected = cosines(dense.model, text, texts).reshape(3, -1)
    np.testing.assert_allclose(found.cosines, expected, atol=1e-5)


def test_inserted_text_is_read_even_in_a_long_document(tiny: Callable[..., Any]) -> None:
    model = tiny("bert")
    long = TextPair("p", "", "The tide rises and the boats wait. " * 400)
    found = edit_curves(model, long, "insertion")
    assert 0 < found.read_share < 1
    text = long.document[: round(found.read_share * len(long.document))]
    encoded = model.encode_texts([inserted(text, None, 1.0, "beginning")], "document")
    assert not encoded.texts[0].truncated
    assert segment_curve(model, long).read_share < 1 and found.truncated


def test_text_shortened_before_an_insertion_need_not_be_truncated(tiny: Callable[..., Any]) -> None:
    model = tiny("bert")
    text = "The tide rises and the boats wait. "
    text *= int(0.75 * model.max_length) // len(model.encode_texts([text], "document").texts[0])
    pair = TextPair("p", "", text)
    inserted_into, removed_from = (edit_curves(model, pair, by) for by in ("insertion", "removal"))
    assert inserted_into.read_share < 1 and removed_from.read_share == 1
    assert not inserted_into.truncated and not removed_from.truncated


def test_a_title_is_not_all_that_an_insertion_keeps(tiny: Callable[..., Any]) -> None:
    text = "潮汐的成因\n" + "潮水每天涨落两次。船在港口等候。" * 40
    found = edit_curves(tiny("bert"), TextPair("p", "", text, language="cmn"), "insertion")
    assert 20 < found.read_share * len(text) < len(text)


def test_text_without_spaces_is_edited_too(tiny: Callable[..., Any]) -> None:
    model = tiny("bert")
    text = "潮水每天涨落两次。船在港口等候。" * 20
    found = edit_curves(model, TextPair("p", "", text, language="cmn"), "insertion")
    assert 0 < found.read_share < 1 and np.ptp(found.cosines) > 0
    assert edit_curves(model, TextPair("p", "", text), "removal").cosines.max() < 1


def test_queries_have_no_influence_and_documents_count_once(dense: DenseRetriever) -> None:
    pairs = [
        TextPair("a", "moon", TEXT, EvidenceSpan(0, 3)),
        TextPair("b", "boats", TEXT),
        TextPair("c", "boats", TEXT[:34]),
    ]
    found = documents_of(pairs)
    assert [(one.pair_id, one.query, one.evidence) for one in found] == [
        ("document-1", "", None),
        ("document-2", "", None),
    ]
    first, second = (segment_curve(dense, pair, segments=2) for pair in (pairs[0], found[0]))
    np.testing.assert_array_equal(first.cosines, second.cosines)


def test_invalid_input_is_refused_in_one_sentence(dense: DenseRetriever) -> None:
    with pytest.raises(UserError, match="choose a dense model"):
        segment_curve(load(resolve("BM25"), "cpu", "float32"), PAIR)
    with pytest.raises(UserError, match="one word"):
        edit_curves(dense, TextPair("p", "", "tide."), "removal")
    with stoppable(lambda: True), pytest.raises(Stopped):
        segment_curve(dense, PAIR)

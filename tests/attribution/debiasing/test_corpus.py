"""Splitting a corpus by document, and building texts and queries from its sentences."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poslens.attribution.debiasing.corpus import (
    MIN_DOCUMENTS,
    fingerprint,
    half_query,
    training_corpus,
)
from poslens.attribution.errors import UserError
from tests.attribution.debiasing.debias_testing import documents


def test_half_of_the_documents_are_held_out_with_all_their_sentences() -> None:
    texts = documents(40)
    found = training_corpus("c", texts)
    held_out = [text for text, _ in texts if found.held_out(text)]
    assert len(held_out) == 20 and found.n_documents == 40
    used = {one.text for one in (*found.train, *found.validate)}
    assert not any(f"{part}." in used for text in held_out for part in text.rstrip(".").split(". "))


def test_no_document_is_in_both_training_and_validation() -> None:
    texts = documents(40)
    found = training_corpus("c", texts)
    train, validate = ({one.text for one in part} for part in (found.train, found.validate))
    assert validate and not train & validate
    for text, _ in texts:
        assert not (any(t in text for t in train) and any(v in text for v in validate))


def test_a_split_does_not_depend_on_the_order_of_documents_nor_on_copies() -> None:
    texts = documents(40)
    again = [*reversed(texts), *texts[:7]]
    assert training_corpus("c", again) == training_corpus("c", texts)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (documents(MIN_DOCUMENTS - 1), "needs at least 8"),
        (documents(12, 2), "too few sentences"),
    ],
)
def test_a_corpus_that_is_too_small_is_refused(
    texts: list[tuple[str, str | None]], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        training_corpus("c", texts)


def test_scripts_without_marked_sentences_are_left_out() -> None:
    thai = [("นกเงือกเป็นนกขนาดใหญ่ อาศัยอยู่ในป่า" + str(n), "tha") for n in range(10)]
    found = training_corpus("c", [*documents(40), *thai])
    assert all(one.language == "eng" for one in (*found.train, *found.validate))


@given(st.integers(0, 10_000))
def test_a_half_query_has_half_of_the_words_in_order(seed: int) -> None:
    sentence = "The quick brown fox isn't 3.5 times faster, they say."
    query = half_query(sentence, random.Random(seed)).split()
    words = ["The", "quick", "brown", "fox", "isn't", "3.5", "times", "faster", "they", "say"]
    places = [words.index(word) for word in query]
    assert places == sorted(places) and len(query) == 5


def test_queries_in_scripts_without_spaces_have_none() -> None:
    sentence = "海洋潮汐是由月球引力引起的。"
    query = half_query(sentence, random.Random(0))
    assert len(query) == 7 and set(query) < set(sentence)


def test_the_same_text_is_always_on_the_same_side() -> None:
    text = documents(40)[3][0]
    assert fingerprint(text) == fingerprint(text[:]) != fingerprint(text + " ")

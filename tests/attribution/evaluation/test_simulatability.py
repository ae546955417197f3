"""Predictions from a few words: by hand, and with planted words."""

from __future__ import annotations

import random

import numpy as np
import pytest

from poslens.attribution.evaluation.simulatability import (
    N_RANDOM,
    VIEWS,
    ForcedChoice,
    ReadWords,
    Simulator,
    predictions,
)
from tests.support.nouns import NOUNS

FILLER = ("000", "111", "222", "333", "444", "555")


def read(words: str, contributions: list[float]) -> ReadWords:
    return ReadWords(tuple(words.split()), np.array(contributions, dtype=np.float64))


def test_chosen_words_equal_those_found_by_hand() -> None:
    side = read("a b c d", [0.1, 0.3, -0.5, 0.3])
    assert side.largest(1) == (1,)  # the earlier one of equal contributions
    assert side.largest(2) == (1, 3)
    assert side.largest(9) == (0, 1, 2, 3)
    assert side.text((1, 3)) == "b d"
    drawn = [side.drawn(2, random.Random(seed)) for seed in range(40)]
    assert all(first < second for first, second in drawn)
    assert {index for pair in drawn for index in pair} == {0, 1, 2, 3}
    assert side.drawn(9, random.Random(0)) == (0, 1, 2, 3)


def test_the_more_similar_document_is_predicted() -> None:
    simulator = Simulator(["fog lifts at noon", "gulls sleep on water"])
    assert simulator.credit("when does fog lift", "fog noon", "gulls sleep") == 1
    assert simulator.credit("when does fog lift", "gulls sleep", "fog noon") == 0
    assert simulator.credit("when does fog lift", "gulls", "gulls") == 0.5
    same, other, unknown = simulator.similarities("fog", ["fog", "gulls", "xyz"])
    assert same == pytest.approx(1) and other == unknown == 0


def planted(number: int, rank: int) -> ForcedChoice:
    """In the higher document the query's noun is the word with the contribution of rank `rank`,
    among words unrelated to the query."""
    noun = NOUNS[number % len(NOUNS)]
    words = [FILLER[(number + i) % len(FILLER)] for i in range(30)]
    at = number % 30
    higher = [*words[:at], noun, *words[at + 1 :]]
    contributions = np.linspace(0.2, 0.1, 30)
    contributions = np.insert(np.delete(contributions, rank), at, contributions[rank])
    lower = ReadWords(tuple(words), np.linspace(0.2, 0.1, 30))
    return ForcedChoice(f"q{number}", noun, ReadWords(tuple(higher), contributions), lower)


def test_only_a_method_that_finds_the_word_predicts_the_ranking() -> None:
    choices = [planted(number, rank=0) for number in range(40)]
    simulator = Simulator([side.text(range(30)) for c in choices for side in (c.higher, c.lower)])
    shares = {
        view: np.mean([predictions(simulator, choice, 3)[view] for choice in choices])
        for view in VIEWS
    }
    assert shares["explanation"] == shares["similar"] == shares["all"] == 1
    # 3 of 30 words include the noun with probability 1/10; otherwise there is a tie.
    assert shares["random"] == pytest.approx(0.55, abs=0.03)
    # The noun is among the first three words of 6 of the 40 documents.
    assert shares["first"] == pytest.approx(0.5 + 0.5 * 6 / 40)
    blind = [predictions(simulator, planted(number, rank=29), 3) for number in range(40)]
    assert np.mean([credit["explanation"] for credit in blind]) == pytest.approx(0.5, abs=0.01)


def test_random_words_do_not_depend_on_the_method() -> None:
    choice = planted(3, rank=0)
    other = ForcedChoice(
        choice.choice_id,
        choice.query,
        ReadWords(choice.higher.words, -choice.higher.contributions),
        choice.lower,
    )
    simulator = Simulator([choice.higher.text(range(30))])
    first, second = (predictions(simulator, c, 3) for c in (choice, other))
    assert first["random"] == second["random"] and N_RANDOM * 2 * first["random"] % 1 == 0
    assert first["explanation"] != second["explanation"]

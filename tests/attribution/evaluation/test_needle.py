"""Needle grids: texts of the requested length, needles at the requested position, ranks by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.evaluation.needle import (
    Haystacks,
    NeedleCell,
    NeedleGrid,
    cell,
    needles,
)
from poslens.attribution.interventions.relocation import tokens_of
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.scoring import score_texts

DOCUMENTS = [
    (" ".join(f"Text {d} says {'so ' * (n % 5)}in line {n}." for n in range(30)), "eng")
    for d in range(4)
]


@pytest.fixture(scope="module")
def bm25() -> Any:
    return load(resolve("BM25"), "cpu", "float32")


def test_needles_have_distinct_names_and_codes() -> None:
    found = needles(100, 3)
    assert len({one.sentence for one in found}) == len({one.question for one in found}) == 100
    for one in found:
        name = one.question.removeprefix("What is the access code of the ").removesuffix("?")
        code = one.sentence.removeprefix(f"The access code of the {name} is ").removesuffix(".")
        assert len(code) == 5 and code.isdigit()
    names = [word for one in found[:20] for word in one.question.rstrip("?").split()[-2:]]
    assert len(set(names)) == 40
    assert needles(5, 3) != needles(5, 4) and needles(5, 3) == needles(5, 3)


def test_texts_have_the_requested_length_and_differ_only_in_the_needles_position(bm25: Any) -> None:
    """Tokens of BM25 are words, so lengths are exact."""
    asked = needles(3)
    haystacks = Haystacks(bm25, DOCUMENTS, asked)
    for number, needle in enumerate(asked):
        rests, places = set(), []
        for depth in (0, 25, 50, 75, 100):
            text, n, repeated = haystacks.text(number, 200, depth)
            assert n == 200 == len(tokens_of(bm25, "x", text).tokens) and not repeated
            before, middle, after = text.partition(needle.sentence)
            assert middle
            rests.add(" ".join((before + after).split()))
            places.append(len(before) / (len(before) + len(after)))
            assert depth in (0, 100) or before.rstrip()[-1] == "."
        assert len(rests) == 1
        assert places == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.05)
        assert places[0] == 0 and text.endswith(needle.sentence)


def test_chinese_texts_have_the_requested_length_and_no_spaces(bm25: Any) -> None:
    line = "天上有第{}颗星，夜里很亮，人们都能看见它。"
    haystacks = Haystacks(bm25, [("".join(map(line.format, range(9))), "cmn")], needles(2))
    for depth in (0, 50, 100):
        text, n, _ = haystacks.text(0, 100, depth)
        assert n == 100 == len(tokens_of(bm25, "x", text).tokens)
        assert " " not in text.replace(needles(2)[0].sentence, "")


def test_a_short_corpus_is_repeated_and_reported(bm25: Any) -> None:
    haystacks = Haystacks(bm25, [("One line only. And this.", None)], needles(2))
    text, n, repeated = haystacks.text(0, 100, 50)
    assert n == 100 and repeated and text.count("One line only.") > 5
    with pytest.raises(UserError, match="can't read any sentence"):
        Haystacks(bm25, [("... !!!", None)], needles(2)).text(0, 100, 50)


def test_texts_fit_the_context_limit(tiny: Callable[..., Any]) -> None:
    retriever = tiny("bert")
    length = min(64, retriever.max_length)
    haystacks = Haystacks(retriever, DOCUMENTS, needles(3))
    for depth in (0, 50, 100):
        text, n, _ = haystacks.text(1, length, depth)
        read = tokens_of(retriever, "x", text)
        assert not read.truncated and n == len(read.tokens) <= length
        assert n > length - 8, "filled up to the last word that fits"
    with pytest.raises(UserError, match="A needle has more"):
        haystacks.text(0, 5, 50)


def test_ranks_equal_those_of_a_plain_loop(tiny: Callable[..., Any]) -> None:
    retriever, asked = tiny("bert"), needles(4)
    haystacks = Haystacks(retriever, DOCUMENTS, asked)
    found = cell(haystacks, 64, 50)
    texts = [haystacks.text(number, 64, 50)[0] for number in range(4)]
    for number, needle in enumerate(asked):
        scores = [float(score_texts(retriever, [(needle.question, text)])[0]) for text in texts]
        better = sum(s > scores[number] + 1e-6 for at, s in enumerate(scores) if at != number)
        assert found.ranks[number] == 1 + better
    assert found.n_repeated == 0 and len(found.tokens) == 4
    with stoppable(lambda: True), pytest.raises(Stopped):
        cell(haystacks, 64, 50)


def test_bm25_finds_every_needle_at_every_depth(bm25: Any) -> None:
    """The control, which ignores order, finds every needle at every depth."""
    haystacks = Haystacks(bm25, DOCUMENTS, needles(6))
    assert all(cell(haystacks, 200, depth).ranks == (1,) * 6 for depth in (0, 50, 100))


def test_a_tie_does_not_count_as_found(bm25: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "poslens.attribution.evaluation.needle.score_texts",
        lambda _, pairs, **__: np.zeros(len(pairs)),
    )
    found = cell(Haystacks(bm25, DOCUMENTS, needles(3)), 100, 0)
    assert found.ranks == (3, 3, 3) and found.found == [False] * 3


def test_means_and_last_minus_first_computed_by_hand() -> None:
    early = NeedleCell((1,) * 9 + (2,) * 3, (60,) * 12, 0)
    late = NeedleCell((1,) * 3 + (2,) * 9, (60,) * 12, 0)
    grid = NeedleGrid((64, 128), (0, 50, 100), {(64, 0): early, (64, 50): early, (64, 100): late})
    accuracy, lean, mean = grid.accuracy(64, 0), grid.last_minus_first, grid.mean()
    assert accuracy is not None and lean is not None and mean is not None
    assert accuracy.value == 0.75 and accuracy.low is not None and accuracy.low < 0.75
    change = lean.difference
    assert change.value == pytest.approx(-0.5) and change.resampled == "needles"
    assert change.n_resampled == 12 and change.high is not None and change.high < 0
    assert mean.value == pytest.approx((0.75 + 0.75 + 0.25) / 3) and grid.mean(64) == mean
    assert grid.accuracy(128, 0) is None and grid.mean(128) is None


def test_ten_needles_found_everywhere_are_too_few_to_show_equal_depths() -> None:
    """Without any difference, a bootstrap's interval would be [0, 0]."""
    every = NeedleCell((1,) * 10, (60,) * 10, 0)
    change = NeedleGrid((64,), (0, 100), {(64, 0): every, (64, 100): every}).last_minus_first
    assert change is not None and change.verdict == "too few documents"
    assert change.difference.interval == pytest.approx((-0.308, 0.308), abs=5e-4)
    assert change.needed == 149
    blind = NeedleGrid((64,), (0, 100), {(64, 0): every, (64, 100): every}, order_blind=True)
    assert blind.last_minus_first is not None
    assert blind.last_minus_first.verdict == "equivalent", "whatever the needle"


def test_two_missed_needles_do_not_show_that_depth_matters() -> None:
    """The bootstrap's interval excludes 0, but p, which verdicts follow, is 0.16."""
    first, last = (NeedleCell(ranks, (60,) * 20, 0) for ranks in ((1,) * 20, (1,) * 18 + (2, 2)))
    change = NeedleGrid((64,), (0, 100), {(64, 0): first, (64, 100): last}).last_minus_first
    assert change is not None and change.p == pytest.approx(0.162, abs=5e-3)
    assert change.verdict == "too few documents"

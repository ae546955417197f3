"""Estimates of an incomplete audit: when they are precise enough, and that they are correct."""

from __future__ import annotations

import numpy as np
import pytest

from poslens.attribution.curves.proportions import agresti_coull
from poslens.attribution.evaluation.audit import SentenceRanks, unretrieved_share
from poslens.attribution.evaluation.audit_precision import Outlook, Precision
from poslens.cache.jobs.items import random_order

TOP = 10


def document(number: int, unretrieved: int, sentences: int = 10) -> SentenceRanks:
    """The first `unretrieved` sentences have rank 11, the others rank 1."""
    ranks = np.where(np.arange(sentences) < unretrieved, TOP + 1, 1)
    shares = np.tile(np.linspace(0, 1, sentences), (2, 1))
    spans = tuple((10 * i, 10 * i + 9) for i in range(sentences))
    both = np.broadcast_to(ranks, (2, 2, sentences)).copy()
    return SentenceRanks(f"d{number}", "eng", 100, spans, shares, np.ones_like(shares), both)


def corpus(n: int, seed: int = 0) -> list[SentenceRanks]:
    """Documents of 0 to 10 unretrieved sentences; most have few."""
    counts = np.random.default_rng(seed).binomial(10, np.random.default_rng(seed).beta(0.5, 4, n))
    return [document(number, int(count)) for number, count in enumerate(counts)]


def test_every_document_is_searched_for_once_in_the_same_random_order() -> None:
    order = random_order(200)
    assert sorted(order) == list(range(200)) and order == random_order(200)
    assert order != list(range(200))
    # The order is random: its first half has as many documents from the corpus's end as its
    # beginning.
    assert 35 < sum(number < 100 for number in order[:100]) < 65


def test_the_target_is_reached_when_the_interval_is_narrow_enough() -> None:
    documents = corpus(400)
    for n in (50, 100, 200, 400):
        share = Precision("sentence", TOP).share(documents[:n], "original")
        assert share is not None and share.interval is not None
        width = share.interval[1] - share.interval[0]
        at_least = agresti_coull(0, n).high
        assert at_least is not None
        assert Precision("sentence", TOP, max(width, at_least) + 1e-9).reached(documents[:n])
        assert not Precision("sentence", TOP, width - 1e-3).reached(documents[:n])
        # The order of the searches doesn't matter.
        precision = Precision("sentence", TOP)
        assert precision.share(documents[:n][::-1], "original") == precision.share(
            documents[:n], "original"
        )
    assert not Precision("sentence", TOP).reached(documents), "0 asks for all"


def test_a_sample_without_unretrieved_sentences_is_not_precise() -> None:
    """The interval ends at (z^2 / 2 + z sqrt(z^2 / 2 (1 - z^2 / 2 / n'))) / n' with n' = n + z^2,
    0.0402 for 111 documents and 0.0399 for 112."""
    perfect = [document(number, 0) for number in range(112)]
    assert not Precision("sentence", TOP, 0.04).reached(perfect[:111])
    assert Precision("sentence", TOP, 0.04).reached(perfect)
    assert not Precision("sentence", TOP, 0.9).reached(perfect[:9]), "no interval below ten"


def test_both_orders_have_to_be_precise() -> None:
    documents = corpus(200)
    for one in documents[::2]:  # retrieved in original order only
        one.ranks[1] = TOP + 1
    share = unretrieved_share(documents, "original", "sentence", TOP)
    assert share is not None and share.interval is not None
    width = share.interval[1] - share.interval[0] + 0.005
    assert not Precision("sentence", TOP, width).reached(documents)


def test_the_interval_at_which_an_audit_stops_contains_the_share_of_the_corpus() -> None:
    """Stopping when the interval is narrow keeps its coverage: at least 85% of 40 audits."""
    documents = corpus(1500, seed=3)
    truth = unretrieved_share(documents, "original", "sentence", TOP)
    assert truth is not None
    hits, counts = 0, []
    for seed in range(40):
        order = np.random.default_rng(seed).permutation(len(documents))
        outlook = Outlook(Precision("sentence", TOP, 0.06))
        for n, number in enumerate(order, start=1):
            outlook.add(documents[number])
            if n % 16 == 0 and outlook.look() and outlook.reached:
                counts.append(n)
                break
        share = unretrieved_share(
            [documents[number] for number in order[: counts[-1]]], "original", "sentence", TOP
        )
        assert share is not None and share.interval is not None
        hits += share.interval[0] <= truth.value <= share.interval[1]
    assert hits >= 34 and max(counts) < 600


def test_the_outlook_states_the_share_so_far() -> None:
    outlook = Outlook(Precision("sentence", TOP, 0.5), [document(number, 1) for number in range(9)])
    assert not outlook.look() and outlook.words == ""
    outlook.add(document(9, 1))
    assert outlook.look() and outlook.words.startswith("10.0% [10.0%, 10.0%]")
    assert not outlook.look(), "nothing new"


@pytest.mark.parametrize("top", [1, TOP])
def test_the_interval_depends_on_the_top_k(top: int) -> None:
    documents = corpus(300)
    for one in documents:
        one.ranks[one.ranks == 1] = 2
    assert Precision("sentence", top, 0.1).reached(documents)
    share = Precision("sentence", top).share(documents, "original")
    assert share is not None and (share.value == 1) == (top == 1)

"""Chunk plans: windows and cut evidence counted by hand, the selection rule, and the verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest

from poslens.attribution.evaluation.chunk_plan import (
    MEASURES,
    DocumentChunks,
    EncodingTime,
    IndexSetting,
    Tried,
    choose,
    losses,
    settings_of,
)
from poslens.attribution.evaluation.chunks import (
    WHOLE,
    Chunks,
    chunks_of,
    read_spans,
    window_spans,
    windows_of,
)
from poslens.attribution.evaluation.comparison import Comparison, adjusted, compared
from poslens.attribution.evaluation.document_index import Ranks
from poslens.attribution.evaluation.recommendation import setting_recommendation
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve

Tiny = Callable[..., DenseRetriever]
LETTERS = "a b c d e f g h i j"
TOP = 10


def test_settings_list_whole_documents_and_every_size_and_overlap() -> None:
    assert list(map(str, settings_of((8, 64), (0, 25)))) == [
        "whole",
        "late:64",
        "windows:64",
        "windows:64+title",
        "windows:64:16",
        "windows:64:16+title",
        "late:8",
        "windows:8",
        "windows:8+title",
        "windows:8:2",
        "windows:8:2+title",
    ]
    only = settings_of((4,), (0, 1, 90), windows=True, titled=False, late=False)
    # 1% of 4 tokens rounds to 0. 90% are 3.6 tokens, but windows overlap by at most 3.
    assert list(map(str, only)) == ["whole", "windows:4", "windows:4:3"]
    assert IndexSetting(chunks_of("windows:64:16"), titled=True).title() == (
        "windows of 64 tokens, overlap 16, with the title"
    )


@pytest.mark.parametrize(
    ("chunks", "n", "holding"),
    [
        # Evidence "c d e" is characters 4 to 9.
        ("windows:4:1", 3, []),  # a-d, d-g, g-j
        ("windows:4:2", 4, [1]),  # a-d, c-f, e-h, g-j
        ("windows:5", 2, [0]),  # a-e, f-j
        ("whole", 1, [0]),
    ],
)
def test_chunks_and_cut_evidence_of_ten_words(chunks: str, n: int, holding: list[int]) -> None:
    bm25 = load(resolve("BM25"), device="cpu")
    spans = read_spans(bm25, LETTERS, chunks_of(chunks))
    assert spans is not None and len(spans) == n
    assert [i for i, (a, b) in enumerate(spans) if a <= 4 and b >= 9] == holding


def test_chunks_cover_only_what_the_model_reads(tiny: Tiny) -> None:
    retriever = tiny("bert", max_length=8)  # 6 tokens and two special ones
    words = "snow snow snow snow snow snow snow snow snow"
    assert len(retriever.model.tokenizer(words, add_special_tokens=False)["input_ids"]) >= 9
    ((start, end),) = read_spans(retriever, words, WHOLE) or []
    whole = tiny("bert")
    ((_, all_of_it),) = read_spans(whole, words, WHOLE) or []
    assert start == 0 and end < all_of_it == len(words)
    windows = window_spans(retriever, words, Chunks("windows", 6))
    assert windows[0] == (0, end) and windows[-1][1] == len(words)
    # Late chunks cover the same characters as the whole text, without overlap.
    late = read_spans(whole, words, Chunks("late", 4)) or []
    assert late[0][0] == 0 and late[-1][1] == len(words)
    assert all(a[1] <= b[0] for a, b in pairwise(late))


def test_windows_after_the_first_begin_with_the_title(tiny: Tiny) -> None:
    bm25 = load(resolve("BM25"), device="cpu")
    chunks = Chunks("windows", 4)
    assert windows_of(bm25, LETTERS, chunks, "a b") == ["a b c d", "a b e f g h", "a b i j"]
    assert windows_of(bm25, LETTERS, chunks) == ["a b c d", "e f g h", "i j"]
    # A title is left out if a full-size window has no room for it.
    short, roomy = tiny("bert", max_length=16), tiny("bert")
    text = "Snow melts in spring. " * 10
    for retriever, titled in ((short, False), (roomy, True)):
        windows = windows_of(retriever, text, Chunks("windows", 14), "Snow melts")
        assert len(windows) > 2
        read = retriever.encode_texts(windows, "document").texts
        assert not any(one.truncated for one in read)
        plain = windows_of(retriever, text, Chunks("windows", 14))
        assert (windows[1:] == [f"Snow melts {one}" for one in plain[1:]]) == titled


def test_vectors_are_counted_per_document() -> None:
    # Document 2 is a copy of 0, and 3 cannot be read.
    assert Ranks([0, 0, 0, 1], [0, 1, 0, 3]).n_vectors.tolist() == [3, 1, 3, 0]


# -- selection -------------------------------------------------------------------------------------


def tried(
    setting: str,
    vectors: int,
    ranks: Callable[[int], Sequence[int]],
    query_ranks: Sequence[int] = (),
    cut: Sequence[int] = (),
    n: int = 60,
) -> Tried:
    documents = {
        f"d{i}": DocumentChunks(
            f"d{i}",
            vectors,
            np.array(ranks(i), dtype=np.int64),
            np.array(query_ranks, dtype=np.int64),
            np.array(cut, dtype=np.int64),
        )
        for i in range(n)
    }
    return Tried(IndexSetting(chunks_of(setting)), documents, EncodingTime((0.5,) * 12))


def lost(n: int, of: int = 10) -> Callable[[int], list[int]]:
    """`n` of `of` sentences of each document are unretrieved, and one more in every second
    document."""
    return lambda i: [TOP + 1] * (n + i % 2) + [1] * (of - n - i % 2)


def test_shares_and_losses_computed_by_hand() -> None:
    one = tried("whole", 1, lambda i: [11, 10, 0, 1], [1, 4, 0], [1, 0, -1])
    keys = list(one.documents)
    shares = {name: measure.share(one, keys, TOP) for name, measure in MEASURES.items()}
    # 1 of 3 sentences that were searched for; (1 + 1/4) / 2 of two queries; 1 of 2 evidences.
    expected = {"unretrieved": 1 / 3, "reciprocal_rank": 0.625, "cut": 0.5}
    for name, value in expected.items():
        share = shares[name]
        assert share is not None and share.value == pytest.approx(value)
    assert losses([one], keys, TOP) == pytest.approx([(1 / 3 + 0.375 + 0.5) / 3])
    assert one.n_vectors == 60 and one.seconds is not None and one.seconds.value == 0.5
    bare = tried("whole", 1, lost(2))
    assert MEASURES["cut"].share(bare, keys, TOP) is None
    assert losses([bare], keys, TOP) == pytest.approx([0.25])
    # Without cut evidence in one setting, it counts in neither.
    assert losses([one, bare], keys, TOP) == pytest.approx([1 / 3, 0.25])


def test_a_measure_that_one_setting_lacks_does_not_decide() -> None:
    """Cut evidence of whole documents behind an endpoint is unknown. Windows with the same ranks
    would look better (0.1 instead of 0.15) if they alone had a third measure, of 0."""
    settings = [
        tried("whole", 1, lambda _: [TOP + 1] * 3 + [1] * 7, [1], [-1]),
        tried("windows:64", 8, lambda _: [TOP + 1] * 3 + [1] * 7, [1], [0]),
    ]
    assert losses(settings, list(settings[0].documents), TOP) == pytest.approx([0.15, 0.15])
    choice = choose(settings, TOP)
    assert choice is not None and choice.chosen is settings[0]


def advice(choice: object, top: int = TOP) -> tuple[bool, str]:
    changes = choice.changes(top)  # type: ignore[attr-defined]
    together = dict(zip(changes, adjusted(list(changes.values())), strict=True))
    result = setting_recommendation(
        {MEASURES[name].title: (MEASURES[name].wanted, one) for name, one in together.items()}
    )
    return result.recommended, result.reason


def test_the_smallest_index_within_the_margin_is_chosen_and_tested_on_held_out_documents() -> None:
    settings = [
        tried("whole", 1, lost(4)),
        tried("windows:128", 4, lost(0)),
        tried("windows:64", 8, lost(0)),
    ]
    choice = choose(settings, TOP)
    assert choice is not None
    assert (choice.chosen, choice.reference) == (settings[1], settings[0])
    assert len(choice.held_out) == 30
    assert choice.held_out == getattr(choose(settings, TOP), "held_out", None), "seeded"
    assert advice(choice) == (
        True,
        "On held-out documents, the share of unretrieved sentences is lower.",
    )


def test_a_gain_that_held_out_documents_do_not_confirm_is_not_recommended() -> None:
    whole = tried("whole", 1, lost(4))
    choice = choose([whole, tried("windows:64", 8, lost(0))], TOP)
    assert choice is not None
    # It is better only in the half that it was selected on.
    held_out = set(choice.held_out)
    luck = tried("windows:64", 8, lambda i: (lost(4) if f"d{i}" in held_out else lost(0))(i))
    choice = choose([whole, luck], TOP)
    assert choice is not None and choice.chosen is luck
    recommended, reason = advice(choice)
    assert not recommended
    # No held-out document differs: 149 would rule out that 2% of all documents do.
    assert reason.startswith("Too few held-out documents to decide; about 149 would be needed")


def test_a_gain_with_a_likely_loss_is_not_recommended() -> None:
    """Too few documents decide whether ranks are worse, but the estimate is a loss."""
    better = {"sentences": ("lower", _change(-0.3, 0.05)), "ranks": ("higher", _change(-0.07, 0.3))}
    result = setting_recommendation(better)  # type: ignore[arg-type]
    assert not result.recommended
    assert "sentences is lower, but ranks may be worse; about " in result.reason
    even = {**better, "ranks": ("higher", _change(0.001, 0.3))}
    result = setting_recommendation(even)  # type: ignore[arg-type]
    assert result.recommended and result.reason.endswith("a loss in ranks is not ruled out.")


def _change(mean: float, spread: float) -> Comparison:
    drawn = np.random.default_rng(2).normal(size=30)
    change = compared((mean + spread * (drawn - drawn.mean()))[:, None], None, 0.01)
    assert change is not None
    return change


def test_equal_settings_keep_whole_documents() -> None:
    settings = [tried(name, 1, lost(1), [1], [0]) for name in ("whole", "windows:64", "late:64")]
    choice = choose(settings, TOP)
    assert choice is not None
    assert (choice.chosen, choice.reference) == (settings[0], settings[1])
    recommended, reason = advice(choice)
    assert not recommended and "every measure is equivalent" in reason


def test_whole_documents_are_recommended_if_windows_are_worse() -> None:
    settings = [tried("whole", 1, lost(0)), tried("windows:64", 8, lost(4))]
    choice = choose(settings, TOP)
    assert choice is not None and choice.chosen is settings[0]
    assert advice(choice)[0]


def test_a_gain_in_one_measure_at_the_cost_of_another_is_not_recommended() -> None:
    settings = [
        tried("whole", 1, lost(8), [2], [0]),
        tried("windows:64", 8, lost(0), [3], [0]),
    ]
    choice = choose(settings, TOP)
    assert choice is not None and choice.chosen is settings[1]
    recommended, reason = advice(choice)
    assert not recommended
    assert reason == (
        "On held-out documents, the mean reciprocal rank of the queries is lower, although the "
        "share of unretrieved sentences is lower."
    )


def test_few_documents_give_no_recommendation() -> None:
    settings = [tried("whole", 1, lost(4), n=12), tried("windows:64", 8, lost(0), n=12)]
    choice = choose(settings, TOP)
    assert choice is not None and len(choice.held_out) == 6
    recommended, reason = advice(choice)
    assert not recommended and reason.startswith("Too few held-out documents to decide")
    assert choose(settings[:1], TOP) is None

"""Reachability in corpora with known answers, and compared with counts by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from poslens.attribution.datasets.corpus import Document
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.audit import (
    SentenceRanks,
    document_queries,
    frequent_words,
    groups,
    last_minus_first,
    question,
    recovered,
    repeated,
    require_top,
    shuffled,
    unretrieved_curve,
    unretrieved_share,
    worst,
)
from poslens.attribution.evaluation.document_index import (
    NOT_FOUND,
    LexicalIndex,
    Ranks,
    VectorIndex,
)

N_DOCUMENTS, N_SENTENCES, LENGTH = 12, 10, 5
CORPUS = [
    Document(
        f"d{d}",
        " ".join(
            f"{'Word' + str(d) + 'x' + str(s)} "
            + " ".join(f"w{d}q{s}q{i}" for i in range(3))
            + " end."
            for s in range(N_SENTENCES)
        ),
        language="eng" if d % 2 else "pol",
    )
    for d in range(N_DOCUMENTS)
]
VOCABULARY = {
    word: at
    for at, word in enumerate(
        sorted({w for one in CORPUS for w in one.text.lower().replace(".", "").split()})
    )
}


def bag(text: str, reads: int | None = None) -> torch.Tensor:
    """Word counts of the first `reads` words: an encoder with a known limit."""
    vector = torch.zeros(len(VOCABULARY))
    for word in text.lower().replace(".", "").split()[:reads]:
        vector[VOCABULARY[word]] += 1
    vector[VOCABULARY["end"]] = 0
    return vector


def audit(reads: int | None) -> list[SentenceRanks]:
    """Search every sentence in an index of such vectors, in original and in random order."""
    frequent = frequent_words(CORPUS)
    ranks = Ranks(range(N_DOCUMENTS), range(N_DOCUMENTS))
    indexes = [
        VectorIndex(torch.stack([bag(text, reads) for text in texts]), ranks, lambda q, d: q @ d.T)
        for texts in ([one.text for one in CORPUS], [shuffled(one) for one in CORPUS])
    ]
    found = []
    for number, one in enumerate(CORPUS):
        made = document_queries(one, frequent)
        own = [number] * len(made.sentences)
        rows = [
            [
                index.ranks(torch.stack([bag(text) for text in texts]), own)
                for texts in (made.sentences, made.questions)
            ]
            for index in indexes
        ]
        ones = np.ones_like(made.positions)
        found.append(
            SentenceRanks(
                one.key,
                one.language,
                made.n_words,
                made.spans,
                made.positions,
                ones,
                np.array(rows),
            )
        )
    return found


def test_an_encoder_that_truncates_leaves_the_rest_unretrieved() -> None:
    """30 of 50 words are read: sentences 0 to 5 find their document. Sentences 6 to 9 share nothing
    with any vector, so all documents tie and corpus order decides."""
    found = audit(30)
    for number, one in enumerate(found):
        ranks = one.ranks[0, 0]
        assert ranks[:6].tolist() == [1] * 6
        assert ranks[6:].tolist() == [number + 1] * 4
    curve = unretrieved_curve(found, "original", "sentence", 3)
    expected = (N_DOCUMENTS - 3) / N_DOCUMENTS
    np.testing.assert_allclose(curve.share, [0] * 6 + [expected] * 4)
    assert curve.n.tolist() == [N_DOCUMENTS] * 10
    # In random order the same positions are unretrieved, whatever their content.
    null = unretrieved_curve(found, "random", "sentence", 3)
    np.testing.assert_allclose(null.share, [0] * 6 + [expected] * 4, atol=1e-12)
    steep = last_minus_first(found, "random", "sentence", 3)
    assert steep is not None and steep.difference.value == pytest.approx(expected)


def test_an_encoder_of_all_words_leaves_nothing_unretrieved() -> None:
    found = audit(None)
    assert all((one.ranks == 1).all() for one in found)
    share = unretrieved_share(found, "original", "sentence", 1)
    assert share is not None and share.value == 0
    change = last_minus_first(found, "random", "sentence", 1)
    assert change is not None and change.verdict == "too few documents", "149 would be needed"
    assert change.needed == 149


def test_unretrieved_content_is_not_an_effect_of_position() -> None:
    """The last sentence is the same in all documents: it is unretrieved at the end in original
    order, and at any position in random order."""
    position, read = np.stack([np.linspace(0.05, 0.95, 10)] * 2), np.ones((2, 10))
    found = []
    for number in range(len(CORPUS)):
        ranks = np.ones((2, 2, 10), dtype=np.int64)
        ranks[0, :, 9] = 5
        ranks[1, :, number % 10] = 5
        found.append(SentenceRanks(f"d{number}", None, 50, ((0, 1),) * 10, position, read, ranks))
    own, null = (unretrieved_curve(found, order, "sentence", 3) for order in ("original", "random"))
    assert own.share.tolist() == [0] * 9 + [1]
    assert null.share.max() < 0.2 and null.share.sum() == pytest.approx(1)


def rank_by_hand(scores: Sequence[float], own: int) -> int:
    """The 1-based rank in a stable sort."""
    return sorted(range(len(scores)), key=lambda d: (-scores[d], d)).index(own) + 1


def test_ranks_equal_those_of_a_stable_sort() -> None:
    generator = np.random.default_rng(3)
    scores = generator.integers(0, 4, (40, 9)).astype(np.float32)  # many ties
    own = generator.integers(0, 9, 40).tolist()
    found = Ranks(range(9), range(9)).of(scores, own)
    assert found.tolist() == [
        rank_by_hand(row.tolist(), one) for row, one in zip(scores, own, strict=True)
    ]


def test_a_document_scores_as_high_as_its_best_window() -> None:
    scores = np.array([[0.1, 0.9, 0.5, 0.6, 0.2]], dtype=np.float32)
    ranks = Ranks([0, 0, 1, 1, 2], [0, 1, 2])
    assert [ranks.of(scores, [d])[0] for d in range(3)] == [1, 2, 3]


def test_duplicates_are_ranked_in_corpus_order() -> None:
    """Documents 0, 2 and 3 have the same text, so a query finds document 0 first."""
    ranks = Ranks([0, 1, 4], [0, 1, 0, 0, 4])
    scores = np.array([[0.9, 0.2, 0.95]], dtype=np.float32)
    assert [ranks.of(scores, [d])[0] for d in range(5)] == [2, 5, 3, 4, 1]


def test_a_document_without_a_vector_is_not_found() -> None:
    ranks = Ranks([0, 2], [0, 1, 2])
    scores = np.array([[0.5, 0.4]], dtype=np.float32)
    assert ranks.of(scores, [1])[0] == NOT_FOUND
    assert ranks.of(scores, [2])[0] == 2


def test_block_size_does_not_change_ranks() -> None:
    vectors = torch.randn(20, 6, generator=torch.Generator().manual_seed(1))
    queries = torch.randn(15, 6, generator=torch.Generator().manual_seed(2))
    own = [n % 20 for n in range(15)]
    ranks = Ranks(range(20), range(20))
    whole = VectorIndex(vectors, ranks, lambda q, d: q @ d.T).ranks(queries, own)
    cut = VectorIndex(vectors, ranks, lambda q, d: q @ d.T, memory=1).ranks(queries, own)
    assert whole.tolist() == cut.tolist()


def test_bm25_ranks_as_its_library_does_and_finds_nothing_without_a_shared_word() -> None:
    chunks = [["sun", "moon"], ["moon"], ["rain", "rain", "sun"]]
    index = LexicalIndex(chunks, Ranks(range(3), range(3)), 1.2, 0.75)
    found = index.ranks([["rain"], ["moon"], ["moon"], ["snow"]], [2, 1, 0, 0])
    assert found.tolist() == [1, 1, 2, NOT_FOUND]


def test_a_question_leaves_out_the_words_that_make_up_half_of_the_corpus() -> None:
    corpus = [Document("a", "the the the the cat sat. the dog sat, too!", language="eng")]
    frequent = frequent_words(corpus)["eng"]
    assert frequent == {"the"}
    assert question("The dog, it sat: THE end!", frequent) == "dog it sat end"
    assert question("The the.", frequent) == ""
    assert question("海洋潮汐", frozenset("洋")) == "海 潮汐"


def test_shuffled_text_has_the_same_sentences_at_the_given_starts() -> None:
    one = CORPUS[0]
    made = document_queries(one, {})
    assert made.shuffled != one.text
    assert sorted(made.shuffled.split()) == sorted(one.text.split())
    for sentence, start in zip(made.sentences, made.shuffled_starts, strict=True):
        assert made.shuffled[start : start + len(sentence)] == sentence
    assert made.shuffled == shuffled(one)
    assert made.positions[0].tolist() == sorted(made.positions[0])


def reach(ranks: Sequence[int], **changed: object) -> SentenceRanks:
    n = len(ranks)
    position = (np.arange(n) + 0.5) / n
    fields: dict[str, object] = {
        "document_id": "d",
        "language": "eng",
        "n_words": 100,
        "spans": ((0, 1),) * n,
        "positions": np.stack([position, position]),
        "read": np.ones((2, n)),
        "ranks": np.array([[ranks, ranks], [ranks, ranks]]),
    }
    return SentenceRanks(**(fields | changed))  # type: ignore[arg-type]


def test_intervals_resample_documents_and_need_ten_of_them() -> None:
    few = [reach([1, 20]) for _ in range(9)]
    share = unretrieved_share(few, "original", "sentence", 10)
    assert share is not None and share.value == 0.5 and share.interval is None
    assert unretrieved_curve(few, "original", "sentence", 10).low is None
    # Sentences vary between documents but not within: resampled, they would give a narrower
    # interval.
    many = [reach([20] * 50 if d % 2 else [1] * 50, document_id=str(d)) for d in range(20)]
    share = unretrieved_share(many, "original", "sentence", 10)
    assert share is not None and share.interval is not None
    assert share.interval[1] - share.interval[0] > 0.3
    curve = unretrieved_curve(many, "original", "sentence", 10)
    assert curve.low is not None and curve.high is not None
    assert ((curve.low < 0.5) & (curve.high > 0.5) & (curve.high - curve.low > 0.3)).all()


def test_positions_in_fewer_than_ten_documents_have_no_interval() -> None:
    """All documents have a sentence at the beginning, and nine have one at the end."""
    documents = [
        reach([1, 11], positions=np.array([[0.05, at]] * 2)) for at in [0.95] * 9 + [0.05] * 21
    ]
    curve = unretrieved_curve(documents, "original", "sentence", 10)
    assert curve.low is not None and curve.high is not None
    assert np.isfinite(curve.low[0]) and curve.n[-1] == 9 and curve.share[-1] == 1
    assert np.isnan(curve.low[-1]) and np.isnan(curve.high[-1])
    change = last_minus_first(documents, "original", "sentence", 10)
    assert change is not None and change.difference.interval is None and change.p is None


def test_empty_queries_are_not_counted() -> None:
    share = unretrieved_share([reach([1, 0, 20, 0])] * 10, "original", "question", 10)
    assert share is not None and share.value == 0.5
    assert unretrieved_share([reach([0])], "original", "question", 10) is None


def test_read_and_unread_sentences_are_counted_separately() -> None:
    truncated = reach([1, 20, 20, 20], read=np.array([[1, 1, 0.5, 0], [1, 1, 1, 1]]))
    found = [truncated] * 10 + [reach([1, 20])] * 5
    inside = unretrieved_share(found, "original", "sentence", 10, read=True)
    behind = unretrieved_share(found, "original", "sentence", 10, read=False)
    assert inside is not None and behind is not None
    assert (inside.value, behind.value) == (0.5, 1.0)
    assert (inside.n_resampled, behind.n_resampled) == (15, 10)


def test_recovered_compares_the_same_sentences() -> None:
    before = [reach([1, 20, 20, 0], document_id=str(d)) for d in range(12)]
    after = [reach([1, 1, 20, 20], document_id=str(d)) for d in range(12)]
    found = recovered(before, [*after, reach([1], document_id="other")], "sentence", 10)
    assert found is not None and found.difference.value == pytest.approx(1 / 3)
    assert found.difference.interval == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert found.verdict == "higher" and found.p == pytest.approx(0)
    assert recovered(before, [], "sentence", 10) is None


def test_nothing_recovered_in_a_few_documents_does_not_rule_out_others() -> None:
    same = [reach([1, 20, 20, 0], document_id=str(d)) for d in range(12)]
    found = recovered(same, same, "sentence", 10)
    # The share of documents that 12 without a difference don't rule out (Clopper-Pearson).
    end = 1 - 0.025 ** (1 / 12)
    assert found is not None and (found.difference.value, found.p) == (0, 1)
    assert found.difference.interval == (pytest.approx(-end), pytest.approx(end))
    assert found.verdict == "too few documents"


def test_sentences_are_repeated_if_another_audited_document_has_them() -> None:
    texts = {"a": "One. Two. Two.", "b": "One. Three. Four.", "c": "Four. Five. Six."}
    spans = {
        key: ((0, 4), (5, len(text) - 5), (len(text) - 4, len(text))) for key, text in texts.items()
    }
    corpus = [Document(key, text) for key, text in texts.items()]
    ranks = [reach([1, 1, 1], document_id=key, spans=spans[key]) for key in "ab"]
    # "Two." occurs twice in one document, and the document with the other "Four." is not audited.
    found = {key: mask.tolist() for key, mask in repeated(ranks, corpus).items()}
    assert found == {"a": [True, False, False], "b": [True, False, False]}


def test_groups_and_least_retrievable_documents() -> None:
    found = [
        reach([1, 20], document_id="a", n_words=127),
        reach([20, 20, 20], document_id="b", language=None, n_words=128),
        reach([1, 1], document_id="c", n_words=5000),
    ]
    made = {one.name: one for one in groups(found, "sentence", 10)}
    assert list(made) == [
        "eng",
        "unknown",
        "0 to 127 words",
        "128 to 255 words",
        "1,024 words or more",
    ]
    assert made["eng"].n_documents == 2 and made["eng"].n_sentences == 4
    assert made["eng"].original_order is not None and made["eng"].original_order.value == 0.25
    assert [(one.document_id, n, of) for one, n, of in worst(found, "sentence", 10)] == [
        ("b", 3, 3),
        ("a", 1, 2),
    ]


@pytest.mark.parametrize(
    ("top", "n", "message"),
    [
        (0, 50, "at least 1"),
        (10, 10, "includes all"),
        (1, 1, "at least two"),
        (1, 0, "no readable doc"),
    ],
)
def test_a_top_k_that_includes_every_document_is_refused(top: int, n: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        require_top(top, n)


def test_documents_without_sentences_are_refused() -> None:
    with pytest.raises(UserError, match="no sentence of three words"):
        document_queries(Document("a", "One. Two."), {})
    with pytest.raises(UserError, match="Thai"):
        document_queries(Document("a", "นกเงือกเป็นนกขนาดใหญ่ อาศัยอยู่ในป่า"), {})

"""Why a document is not retrieved: ranks by hand with models of a few lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from poslens.attribution.evaluation.document_index import NOT_FOUND, LexicalIndex, Ranks
from poslens.attribution.evaluation.why import Searched, Wanted, _windows, why
from poslens.attribution.evaluation.why_causes import Step, Why, why_method
from poslens.attribution.text import words
from poslens.attribution.types import Array, EvidenceSpan, Token, TokenizedText

FILL = [f"Line {name} tells of nothing much today." for name in ("one", "two", "three", "four")]
NEEDLE = "The blue heron nests on the northern shore."
OTHERS = ["a", "b", "c", "d", "e"]


def tokens(limit: int = 10_000) -> Callable[[str], TokenizedText]:
    """A model that reads `limit` words."""

    def read(text: str) -> TokenizedText:
        spans = list(words(text))
        return TokenizedText.of(
            (Token(text[a:b], a, b) for a, b in spans[:limit]), len(spans), limit
        )

    return read


def searched(
    model: Callable[[str], float],
    texts: Sequence[str],
    limit: int = 10_000,
) -> Searched:
    """A corpus of these texts, searched with a model that is a function of the text it reads."""
    read = tokens(limit)

    def score(some: Sequence[str]) -> Array:
        parts = [text[: read(text).read_until] if read(text).truncated else text for text in some]
        return np.array([model(part) for part in parts], dtype=np.float32)

    return Searched(
        score(texts),
        score,
        read,
        [f"d{number}" for number in range(len(texts))],
        lambda numbers: [texts[number] for number in numbers],
    )


def explained(
    model: Callable[[str], float],
    wanted: str,
    *others: str,
    limit: int = 10_000,
    top: int = 1,
    evidence: str | None = NEEDLE,
    relevant: frozenset[str] = frozenset(),
) -> Why:
    found = searched(model, [wanted, *others], limit)
    start = wanted.index(evidence) if evidence else 0
    span = EvidenceSpan(start, start + len(evidence)) if evidence else None
    return why(Wanted("heron", "d0", 0, wanted, span), found, top, relevant)


def ranks(step: Step | None) -> tuple[int, int | None] | None:
    return None if step is None else (step.rank, step.null)


def text(*parts: str) -> str:
    return " ".join(parts)


def share(part: str) -> float:
    """A model with dilution: the share of a text's words that are evidence."""
    return 8 * ("heron" in part) / len(part.split())


def early(part: str) -> float:
    """A model with primacy: 1 if the evidence starts the text, and less the later it starts."""
    return 1 - part.index("heron") / 500 if "heron" in part else 0.0


def test_a_document_in_the_top_k_is_not_a_miss() -> None:
    found = explained(share, NEEDLE, "x y z")
    assert (found.rank, found.cause, found.steps) == (1, "found", {})


def test_evidence_at_a_neglected_position() -> None:
    # Positions 0 and 4 of the needle; the competitor's "heron" begins at character 60.
    other = text("x" * 59, "heron")
    found = explained(early, text(*FILL, NEEDLE), other, "none", limit=60)
    assert found.rank == 2 and found.evidence_read == 1
    # Moved to the first position it wins; moving another sentence there does not help.
    assert ranks(found.moved) == (1, 2) and found.best_position == pytest.approx(
        21.5 / len(text(*FILL, NEEDLE))
    )
    assert ranks(found.alone) == (1, 2)
    assert found.read is None
    assert found.cause == "position"


def test_truncation_precedes_position_and_dilution_as_a_cause() -> None:
    behind = "x" * 300 + " heron"
    found = explained(early, text(*FILL, NEEDLE), behind, "none", limit=20, top=1)
    assert found.rank == 2 and found.evidence_read == 0
    assert (
        ranks(found.read) == (1, 2)
        and ranks(found.moved) == (1, 2)
        and ranks(found.alone) == (1, 2)
    )
    assert found.cause == "not read"


def test_diluted_evidence() -> None:
    # 8 of 36 words, at any position; alone 8 of 8. The competitor: 8 of 16.
    other = "heron " + "x " * 15
    found = explained(share, text(*FILL, NEEDLE), other, "none")
    assert found.rank == 2 and found.score == pytest.approx(8 / 36)
    assert ranks(found.moved) == (2, 2)
    assert ranks(found.alone) == (1, 2)
    assert found.cause == "dilution"


def test_evidence_that_does_not_match() -> None:
    other = "heron x"
    found = explained(lambda part: float("egret" in part), text(*FILL, NEEDLE), other, "egret")
    assert found.cause == "no match" and found.rank == 2
    assert all(step.rank == 2 for step in found.steps.values())
    assert found.shared_words == ("heron",) and found.n_query_words == 1


def test_near_duplicates_and_relevant_documents_are_removed() -> None:
    wanted = text(*FILL, NEEDLE)
    copy = text(FILL[0], NEEDLE)  # it contains the evidence in fewer words
    other = "heron " + "x " * 15
    found = explained(share, wanted, copy, "none", "nothing")
    assert found.rank == 2 and ranks(found.without) == (1, 2)
    assert found.above[0].duplicate and not found.above[0].relevant
    assert found.cause == "competitor"
    unlike = explained(share, wanted, other, "none", "nothing")
    assert unlike.without is None and unlike.cause == "dilution"
    relevant = explained(share, wanted, other, "none", relevant=frozenset({"d1"}))
    assert relevant.cause == "competitor" and relevant.relevant_above == 1
    assert relevant.duplicates_above == 0 and relevant.shorter_above == 1


def test_boilerplate_makes_no_near_duplicates() -> None:
    header = "This page of the museum is open to all visitors every day of the year. " * 2
    body = [f"Hall {n} shows tools of trade {n} and maps of coast {n}." for n in range(30)]
    others = [text(header, "heron", body[n]) for n in range(30)]
    wanted = text(header, *FILL, NEEDLE)
    found = explained(share, wanted, *others)
    assert found.rank == 31 and found.duplicates_above == 0 and found.without is None
    # Real duplicates still count, and a header that few documents share does.
    copies = [text(header, *FILL[:3], "heron", NEEDLE)] * 3
    assert explained(share, wanted, *copies, *others).duplicates_above == 3
    few = explained(share, wanted, *others[:3], *body * 2)
    assert few.duplicates_above == 3
    # Evidence that is boilerplate makes no near-duplicates, either.
    notice = "Nobody may feed the heron at any hour of the day."
    told = explained(
        lambda part: ("heron" in part) * (3 - len(part) / 1e4),
        text(notice, *FILL),
        *(text(notice, line) for line in body),
        evidence=notice,
    )
    assert told.rank > 1 and told.duplicates_above == 0
    # A source that is interleaved with others counts as much as one that is not.
    mixed = [text(header, "heron", body[n]) if n % 3 == 2 else body[n] * 3 for n in range(30)]
    assert explained(share, wanted, *mixed * 2).duplicates_above == 0


def test_the_null_of_removing_documents_is_the_expected_rank() -> None:
    # Of 40 others 20 rank higher, and 2 of these are removed; of 2 random ones, one would rank
    # higher.
    texts = [text("heron", "x " * 6)] * 18 + [text(FILL[0], NEEDLE)] * 2 + ["none"] * 20
    found = explained(share, text(*FILL, NEEDLE), *texts)
    assert found.rank == 21 and ranks(found.without) == (19, 20)


def test_without_marked_evidence_the_best_sentence_is_proposed() -> None:
    wanted = text(*FILL, NEEDLE)
    found = explained(share, wanted, "heron x", evidence=None)
    assert found.source == "proposed"
    assert wanted[found.start : found.end] == NEEDLE
    assert explained(share, wanted, "heron x").source == "data set"


def test_a_document_of_one_sentence_cannot_be_reordered() -> None:
    found = explained(lambda part: float("egret" in part), NEEDLE, "egret")
    assert found.steps == {} and found.cause == "no match"


def test_no_text_is_scored_twice() -> None:
    wanted = text(*FILL, NEEDLE)
    found = searched(share, [wanted, "heron " + "x " * 15])
    scored: list[str] = []

    def score(texts: Sequence[str]) -> Array:
        scored.extend(texts)
        return found.score(texts)

    why(Wanted("heron", "d0", 0, wanted), replace(found, score=score), 1, frozenset())
    # Five sentences alone: A, B, C, D and the evidence N. N moves to four other positions, and so
    # does C, which is nearest in length. The search has already scored the original document.
    assert len(scored) == len(set(scored)) == 5 + 4 + 4
    assert set(scored) >= {
        *FILL,
        NEEDLE,
        text(NEEDLE, *FILL),
        text(FILL[2], *FILL[:2], FILL[3], NEEDLE),
    }
    assert wanted not in scored


def test_position_is_not_the_cause_if_any_new_order_gains_half_as_much() -> None:
    base = {
        "document_id": "d",
        "top": 10,
        "n_documents": 20,
        "rank": 12,
        "score": 0.5,
        "source": "marked",
        "start": 0,
        "end": 5,
        "position": 0.5,
        "evidence_read": 1.0,
    }

    def cause(moved: Step, alone: Step | None = None) -> str:
        return Why(**base, moved=moved, alone=alone).cause  # type: ignore[arg-type]

    assert cause(Step(3, 11, 0.9, 0.8)) == "position"  # the null stays out of the top
    assert cause(Step(3, 10, 0.9, 0.69)) == "position"  # and here gains 0.19 of 0.4
    assert cause(Step(3, 10, 0.9, 0.71)) == "no match"
    assert cause(Step(3, 10, 0.9, 0.71), Step(1, 2)) == "dilution"
    assert cause(Step(3, 10)) == "no match"
    assert Why(**base, moved=Step(3, 10, 0.9, 0.71)).named(most_by_chance=1) == "position"  # type: ignore[arg-type]


def test_position_is_not_the_cause_if_the_evidence_alone_gains_far_more() -> None:
    def explained(moved: float, alone: Step) -> Why:
        return Why(
            "d", 10, 20, 12, 0.5, "marked", 0, 5, 0.5, 1.0, moved=Step(9, 11, moved), alone=alone
        )

    best = Step(1, 15, 0.9)  # gains 0.4, of which 0.3 are 0.12
    assert explained(0.63, best).cause == "position"
    assert explained(0.61, best).cause == "dilution"
    assert explained(0.61, best).named(least_of_alone=0.25) == "position"
    # If the evidence alone is not enough to reach the top, its gain doesn't rule out position.
    assert explained(0.61, Step(11, 15, 0.9)).cause == "position"


def test_moving_evidence_to_where_it_is_read_is_no_position_bias() -> None:
    """Any model that truncates gains from it."""

    def explained(share: float, read: Step | None, moved: Step) -> Why:
        return Why("d", 10, 20, 12, 0.5, "marked", 0, 5, 0.9, share, read=read, moved=moved)

    fails, helps = Step(11, 12), Step(3, 11, 0.9, 0.6)
    assert explained(0.0, fails, helps).cause == "not read"
    assert explained(0.0, fails, helps).decisive == "position"  # the change that brought it up
    assert explained(0.5, fails, helps).cause == "position"
    assert explained(0.0, None, helps).cause == "position"  # where truncation is not known
    assert explained(0.0, fails, Step(11, 12)).cause == "no match"
    whole = explained(0.0, Step(2, 12), helps)
    assert whole.cause == whole.decisive == "not read"


def test_ties_go_to_the_document_that_comes_first() -> None:
    found = searched(lambda part: 1.0, OTHERS)
    assert [found.rank(1.0, number) for number in range(5)] == [1, 2, 3, 4, 5]
    assert found.rank(2.0, 4) == 1 and found.rank(-np.inf, 0) == NOT_FOUND
    assert found.above(3, 2) == [0, 1] and found.above(0, 5) == []


def test_scores_that_differ_by_rounding_are_ties() -> None:
    """Copies of a document, scored in different batches."""
    scores = np.array([0.5, 0.5 + 6e-8, 0.5 - 6e-8, 0.5 + 3e-6], dtype=np.float32)
    found = Searched(scores, lambda texts: scores, tokens(), OTHERS[:4], lambda numbers: [])
    assert [found.rank(float(scores[n]), n) for n in range(4)] == [2, 3, 4, 1]
    assert [found.above(n, 9) for n in range(4)] == [[3], [3, 0], [3, 1, 0], []]


def test_documents_above_are_listed_in_ranking_order() -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.9, -np.inf], dtype=np.float32)
    found = Searched(scores, lambda texts: scores, tokens(), OTHERS, lambda numbers: [])
    assert found.above(0, 9) == [1, 3, 2]
    assert found.above(4, 9) == [1, 3, 2, 0]
    assert [found.rank(float(scores[n]), n) for n in range(5)] == [4, 1, 3, 2, NOT_FOUND]


def test_windows_cover_the_document_and_are_as_long_as_the_context_limit() -> None:
    document = " ".join(f"w{n}" for n in range(100))
    windows = list(_windows(document, tokens(20)))
    parts = [document[a:b].split() for a, b in windows]
    assert {word for part in parts for word in part} == set(document.split())
    assert all(18 <= len(part) <= 22 for part in parts)
    starts = [int(part[0][1:]) for part in parts]
    assert starts == sorted(set(starts)) and starts[1] == 16
    assert list(_windows("a b c", tokens(20))) == [(0, 5)]


def test_the_last_window_is_read_to_the_end_of_a_text_that_becomes_denser() -> None:
    """Twenty tokens are 219 characters at the beginning of the text, and 59 at its end."""
    words = [f"{n:010}" for n in range(50)] + [f"{n:02}" for n in range(50)]
    document = " ".join(words)
    parts = [document[a:b].split() for a, b in _windows(document, tokens(20))]
    assert all(len(part) <= 20 for part in parts) and len(parts[-1]) == 20
    assert {word for part in parts for word in part} == set(words)


def test_windows_of_a_text_without_spaces_overlap_and_are_as_long() -> None:
    document = "".join(chr(0x4E00 + n) for n in range(90))
    windows = list(_windows(document, tokens(20)))
    assert windows == [(0, 20), (15, 35), (30, 50), (45, 65), (60, 80), (70, 90)]


def test_scores_of_every_document_agree_with_ranks() -> None:
    ranks = Ranks([0, 0, 2], [0, 1, 2, 0])
    scores = np.array([[0.2, 0.7, 0.5]])
    assert ranks.documents(scores).tolist() == [[0.7, -np.inf, 0.5, 0.7]]
    chunks = [["heron", "blue"], ["stone"], ["heron"]]
    index = LexicalIndex(chunks, Ranks(range(3), range(3)), 1.2, 0.75)
    found = index.scores(["heron"])
    assert found[1] == -np.inf and found[2] > found[0] > 0
    assert index.statistics.n == 3 and index.statistics.frequencies["heron"] == 2


def test_results_are_stored_under_their_top_k() -> None:
    assert repr(why_method(5)) == "why(top=5, version=6)"

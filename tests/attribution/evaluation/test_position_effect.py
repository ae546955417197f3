"""Within-query position effect: values by hand, laws, and the null control."""

from __future__ import annotations

from dataclasses import replace

import ir_measures
import numpy as np
import pytest

from poslens.attribution.curves.proportions import agresti_coull
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.position_effect import (
    PositionRanks,
    QueryPositions,
    null_pair,
    position_effect,
    query_positions,
    third_parts,
)
from poslens.attribution.interventions.relocation import Relocation
from poslens.attribution.types import EvidenceSpan, TextPair

SENTENCES = [f"Number {n} is told here." for n in range(6)]
DOCUMENT = " ".join(SENTENCES)


def pair(number: int = 0, evidence: int = 2) -> TextPair:
    start = DOCUMENT.index(SENTENCES[evidence])
    span = EvidenceSpan(start, start + len(SENTENCES[evidence]))
    return TextPair(f"p{number}", "which number?", f"{DOCUMENT} {number}.", evidence=span)


def relocation(read: list[float], share: float = 1.0) -> Relocation:
    n = len(read)
    return Relocation(
        "m", "p0", np.linspace(0.1, 0.9, n), np.zeros(n), np.array(read), 0.0, 0.5, share, "", 0.0
    )


def query(number: int, ranks: list[int]) -> QueryPositions:
    return QueryPositions(pair(number), np.array(ranks), True)


def test_gains_equal_ir_measures_with_one_relevant_document() -> None:
    ranks = [1, 2, 9, 10, 11, 400]
    run = [
        ir_measures.ScoredDoc(str(i), "own" if r == rank else f"d{r}", -float(r))
        for i, rank in enumerate(ranks)
        for r in range(1, 402)
    ]
    qrels = [ir_measures.Qrel(str(i), "own", 1) for i in range(len(ranks))]
    effect = position_effect([query(0, ranks)])
    assert effect is not None
    for name, means in (("nDCG@10", effect.ndcg), ("RR", effect.mrr)):
        measure = ir_measures.parse_measure(name)
        found = {m.query_id: m.value for m in ir_measures.iter_calc([measure], qrels, run)}
        actual = [mean.value for mean in means]
        assert actual == pytest.approx([found[str(i)] for i in range(len(ranks))])


def test_means_computed_by_hand() -> None:
    found = position_effect([query(0, [1, 1, 2]), query(1, [1, 3, 20])])
    assert found is not None and (found.n, found.n_documents) == (2, 2)
    second, third = 1 / np.log2(3), 0.5
    assert [v.value for v in found.ndcg] == pytest.approx([1, (1 + third) / 2, second / 2])
    assert [v.value for v in found.mrr] == pytest.approx([1, (1 + 1 / 3) / 2, (0.5 + 0.05) / 2])
    assert [v.value for v in found.rank] == pytest.approx([1, 2, 11])
    assert found.positions == (0, 0.5, 1)
    assert found.effect.difference.value == pytest.approx(1 - second / 2)
    assert found.psi is not None and found.psi.value == pytest.approx(1 - second / 2)
    assert found.effect.difference.interval is None and found.effect.verdict == "too few documents"


def test_pairing_by_query_decides_where_queries_differ_widely() -> None:
    """Each query loses the same from first to last position, whatever its level."""
    queries = [query(n, [1 + n % 3, 2 + n % 3, 3 + n % 3]) for n in range(30)]
    found = position_effect(queries)
    assert found is not None and found.effect.verdict == "higher"
    low, high = found.effect.difference.interval or (0, 0)
    apart = found.first.interval, found.last.interval
    assert apart[0] is not None and high - low < apart[0][1] - apart[0][0]
    mirrored = position_effect([replace(q, ranks=q.ranks[::-1].copy()) for q in queries])
    assert mirrored is not None and mirrored.effect.verdict == "lower"
    assert mirrored.effect.difference.value == pytest.approx(-found.effect.difference.value)
    assert mirrored.psi is not None and found.psi is not None
    assert mirrored.psi.value == pytest.approx(found.psi.value)


def test_no_effect_is_equivalent_and_has_no_psi() -> None:
    found = position_effect([query(n, [1 + n % 4] * 5) for n in range(150)])
    assert found is not None and found.effect.verdict == "equivalent"
    assert found.effect.difference.value == 0 and found.psi is not None and found.psi.value == 0
    perfect = position_effect([query(n, [1] * 5) for n in range(15)])
    assert perfect is not None and perfect.psi is not None
    room = agresti_coull(15, 15).interval
    assert {
        estimate.interval
        for estimate in (*perfect.ndcg, *perfect.mrr, perfect.middle, *perfect.thirds)
    } == {room}
    assert perfect.psi.interval == agresti_coull(0, 15).interval
    blind = position_effect([query(n, [1] * 5) for n in range(15)], order_blind=True)
    assert blind is not None and blind.psi is not None and blind.psi.interval == (0, 0)


def test_few_documents_suffice_for_a_model_that_cannot_see_order() -> None:
    queries = [query(n, [1 + n % 4] * 5) for n in range(12)]
    sees, blind = position_effect(queries), position_effect(queries, order_blind=True)
    assert sees is not None and sees.effect.verdict == "too few documents"
    assert blind is not None and blind.effect.verdict == "equivalent"


@pytest.mark.parametrize(
    ("k", "parts"),
    [
        (2, ([0], [0, 1], [1])),
        (3, ([0], [1], [2])),
        (5, ([0, 1], [2], [3, 4])),
        (11, ([0, 1, 2, 3], [4, 5, 6], [7, 8, 9, 10])),
    ],
)
def test_positions_are_divided_into_thirds(k: int, parts: tuple[list[int], ...]) -> None:
    assert tuple(list(range(k))[part] for part in third_parts(k)) == parts


def test_positions_cover_only_what_is_read_in_full() -> None:
    ranks = PositionRanks("p0", np.array([1, 2, 3, 4, 5]))
    whole = query_positions(pair(), relocation([1, 1, 1, 1, 1]), ranks, 5)
    assert whole is not None and whole.ranks.tolist() == [1, 2, 3, 4, 5] and whole.whole
    cut = query_positions(pair(), relocation([1, 1, 1, 0.5, 0], 0.6), ranks, 5)
    assert cut is not None and cut.ranks.tolist() == [1, 1, 2, 3, 3] and not cut.whole
    assert query_positions(pair(), relocation([1, 0.5, 0, 0, 0], 0.3), ranks, 5) is None
    short = PositionRanks("p0", np.array([7, 8]))
    few = query_positions(pair(), relocation([1, 1]), short, 5)
    assert few is not None and few.ranks.tolist() == [7, 7, 7, 8, 8]


def test_the_null_moves_another_sentence_of_similar_length() -> None:
    own = pair()
    found = null_pair(own)
    assert found.evidence is not None and own.evidence is not None
    assert (found.query, found.document) == (own.query, own.document)
    chosen = found.document[found.evidence.start : found.evidence.end]
    assert chosen in SENTENCES and chosen != SENTENCES[2]
    assert found == null_pair(own) and found.pair_id != own.pair_id
    drawn = {null_pair(replace(own, pair_id=str(i))).evidence for i in range(40)}
    assert len(drawn) > 3
    long = replace(own, document=f"{own.document} {'A long sentence, ' * 40}end.")
    assert all(
        (span := null_pair(replace(long, pair_id=str(i))).evidence) and span.end < 200
        for i in range(20)
    )


def test_invalid_pairs_are_refused_in_one_sentence() -> None:
    everything = replace(pair(), evidence=EvidenceSpan(0, len(pair().document)))
    with pytest.raises(UserError, match="covers every sentence"):
        null_pair(everything)
    space = len(SENTENCES[0])
    with pytest.raises(UserError, match="has no words"):
        null_pair(replace(pair(), evidence=EvidenceSpan(space, space + 1)))
    with pytest.raises(ValueError, match="no ranks"):
        PositionRanks("p", np.array([0, 1]))
    assert position_effect([]) is None

"""Relocation: what moves, what stays, and curves of known shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.relocation import (
    Pieces,
    movable,
    rank_among,
    relocated,
    relocation,
    relocation_method,
)
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.text import sentences
from poslens.attribution.types import EvidenceSpan, TextPair

WORDS = ("tide", "moon", "harbour", "fox", "salt", "piñas", "水")


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, int]:
    """A text of 2 to 9 distinct sentences with irregular white space, and the index of one of
    them."""
    n = draw(st.integers(2, 9))
    gaps = st.sampled_from([" ", "  ", "\n\n", "\t"])
    parts = [
        f"Sentence {i} of the {draw(st.sampled_from(WORDS))} stands here." + draw(gaps)
        for i in range(n)
    ]
    return draw(st.sampled_from(["", " \n"])) + "".join(parts), draw(st.integers(0, n - 1))


def pair_of(document: str, number: int) -> TextPair:
    return TextPair("p", "why", document, EvidenceSpan(*sentences(document)[number]))


def test_evidence_in_a_script_without_sentences_is_not_moved(sample: DataSet) -> None:
    """A Thai article of four paragraphs would have four "sentences", and whole paragraphs would
    move."""
    thai = [pair for pair in sample.pairs if pair.language == "tha"]
    with pytest.raises(UserError, match="in Thai script, which PosLens cannot split"):
        relocated(thai[0])
    found, said = movable(sample.pairs)
    assert found == [pair for pair in sample.pairs if pair.language != "tha"]
    assert said.startswith("8 of 304 pairs with evidence cannot be used: PosLens cannot split Thai")
    assert movable(found) == (found, "")
    none, said = movable([*thai, TextPair("p", "q", "One is here. Two is here.")])
    assert none == [] and said.startswith("8 of 8 pairs")


@given(documents(), st.integers(2, 15))
def test_a_variant_has_the_same_sentences_and_gaps(made: tuple[str, int], positions: int) -> None:
    document, number = made
    pair = pair_of(document, number)
    whole = Pieces.of(document, sentences(document))
    assert whole.joined(range(len(whole.sentences))) == document
    found = relocated(pair, positions)[0]
    assert 2 <= len(found) <= min(positions, len(whole.sentences))
    evidence = whole.sentences[number]
    rest = [s for i, s in enumerate(whole.sentences) if i != number]
    for variant in found:
        assert Counter(variant.text) == Counter(document) and len(variant.text) == len(document)
        assert variant.text[variant.evidence.start : variant.evidence.end] == evidence
        cut = Pieces.of(variant.text, sentences(variant.text))
        assert cut.gaps == whole.gaps
        assert [s for s in cut.sentences if s != evidence] == rest
    assert found[0].text.lstrip().startswith(evidence)
    assert found[-1].text.rstrip().endswith(evidence)
    at = [variant.position for variant in found]
    assert at == sorted(at) and 0 < at[0] < at[-1] < 1
    assert document in {v.text for v in relocated(pair, len(whole.sentences))[0]}


def test_positions_are_spread_evenly_as_by_hand() -> None:
    pair = pair_of("One is. Two is. Three is. Four is. Five is.", 3)
    texts = [v.text for v in relocated(pair, 3)[0]]
    assert texts == [
        "Four is. One is. Two is. Three is. Five is.",
        "One is. Two is. Four is. Three is. Five is.",
        "One is. Two is. Three is. Five is. Four is.",
    ]
    assert relocated(pair, 3)[0][0].position == 4 / 43
    assert relocated(pair, 5)[1] == ""
    assert relocated(pair, 11)[1] == "5 sentences have 5 places, not 11"


def test_evidence_that_is_not_one_sentence_moves_whole_sentences() -> None:
    text = "One is here. Two is here. Three is here. Four is here."
    part = TextPair("p", "q", text, EvidenceSpan(text.index("Two"), text.index("Two") + 3))
    assert "not exactly one sentence" in relocated(part, 4)[1]
    assert relocated(part, 4)[0][0].text.startswith("Two is here. One")
    both = TextPair("p", "q", text, EvidenceSpan(text.index("Two"), text.index("Three") + 5))
    found, note = relocated(both, 3)
    assert "touches 2 sentences" in note
    assert found[0].text.startswith("Two is here. Three is here.")
    assert found[-1].text.endswith("Two is here. Three is here.")


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        (TextPair("a", "q", "One is. Two is."), "The typed document has no evidence span"),
        (TextPair("a", "q", "One is. Two is.", dataset="d"), "Pair a has no evidence span"),
        (TextPair("a", "q", "One is here.", EvidenceSpan(0, 5)), "document is one sentence"),
        (TextPair("a", "q", "One is. Two is.", EvidenceSpan(0, 15)), "covers every sentence"),
    ],
)
def test_evidence_that_cannot_be_moved_has_a_reason(pair: TextPair, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        relocated(pair)


def test_the_method_names_the_number_of_positions() -> None:
    assert repr(relocation_method(5)) == "relocation(positions=5, version=1)"


def test_bm25_has_a_flat_curve(sample: DataSet) -> None:
    """BM25 ignores the positions of words."""
    bm25 = load(with_corpus(resolve("BM25"), sample.name))
    for pair in sample.pairs[::40]:
        found = relocation(bm25, pair)
        assert np.ptp(found.scores) <= 1e-5 * max(1.0, abs(found.original))
        assert found.scores[0] == pytest.approx(found.original, rel=1e-5)
        assert (found.read == 1).all() and found.read_share == 1


@pytest.mark.parametrize(("name", "sign"), [("MiniLM-primacy", -1), ("MiniLM-recency", 1)])
def test_a_planted_bias_is_detected_with_its_direction(
    name: str, sign: int, sample: DataSet, one_thread: None
) -> None:
    retriever = load(resolve(name), "cpu")
    short = [p for p in sample.pairs if p.language == "eng" and (p.document_tokens or 0) < 450]
    moved = [relocation(retriever, pair, 3) for pair in short[::30]]
    leans = [found.last_minus_first or 0.0 for found in moved]
    assert len(leans) >= 3 and sign * float(np.mean(leans)) > 0.01


def test_scores_equal_those_of_the_variants(tiny: Callable[..., Any]) -> None:
    retriever = tiny("bert")
    text = "The tide rises. The fox jumps. Twice a day. Lazy dogs. The Moon pulls."
    pair = pair_of(text, 1)
    found = relocation(retriever, pair, 5)
    assert found.original == pytest.approx(float(found.scores[1]), abs=1e-5)
    assert np.ptp(found.scores) > 1e-4, "positions count in this model"
    for variant, score in zip(relocated(pair, 5)[0], found.scores, strict=True):
        query = retriever.embed(retriever.encode_texts([pair.query], "query"))
        document = retriever.embed(retriever.encode_texts([variant.text], "document"))
        assert float(retriever.similarity(query, document)) == pytest.approx(score, abs=1e-5)


def test_evidence_past_the_context_limit_is_reported(tiny: Callable[..., Any]) -> None:
    retriever = tiny("bert", max_length=24)
    text = " ".join(f"The tide number {i} rises twice a day." for i in range(12))
    found = relocation(retriever, pair_of(text, 5), 12)
    assert found.read_share < 0.5 and found.read[0] == 1 and found.read[-1] == 0
    assert (np.diff(found.read) <= 0).all()
    # Truncated evidence has no effect, so all positions past the limit have the same score.
    unread = found.scores[found.read == 0]
    assert len(unread) >= 3 and np.ptp(unread[1:]) < 1e-5


def test_the_rank_counts_documents_with_higher_scores() -> None:
    assert rank_among(0.5, [0.9, 0.5, 0.1]) == 2
    assert rank_among(1.0, []) == 1
    assert rank_among(0.5, [0.9, 0.5 + 6e-8, 0.1]) == 2  # equal up to rounding

"""Pairs of documents: ColDeR's rows, and pairs built from evidence spans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from poslens.attribution import datasets
from poslens.attribution.datasets import DataSet, formats
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.bias_pairs import (
    POSITIONS,
    available,
    build,
    lacking,
    pairs_for,
    unknown_files,
    variants,
    varied,
)
from poslens.attribution.evaluation.bias_tests import COLDER_TESTS, PairScores, paired_test
from poslens.attribution.pairs import Pairs
from poslens.attribution.text import sentences
from poslens.attribution.types import EvidenceSpan, TextPair
from tools.sample import build_bias as sample_bias

DOCUMENT = "Tea is hot. Fog lifts at noon. Ice melts. Salt dissolves."


def pair(evidence: str | None = "Ice melts.", document: str = DOCUMENT) -> TextPair:
    span = None
    if evidence is not None:
        start = document.index(evidence)
        span = EvidenceSpan(start, start + len(evidence))
    return TextPair("p1", "what melts", document, span, language="eng", dataset="mine")


def evidence_of(one: TextPair) -> str:
    assert one.evidence is not None
    return one.document[one.evidence.start : one.evidence.end]


@pytest.mark.parametrize(
    ("position", "moved"),
    [
        ("end", "Tea is hot. Fog lifts at noon. Salt dissolves. Ice melts."),
        ("middle", "Tea is hot. Ice melts. Fog lifts at noon. Salt dissolves."),
        ("own", DOCUMENT),
    ],
)
def test_position_pairs_move_only_the_evidence(position: str, moved: str) -> None:
    found = build(pair(), "position", position)
    first = "Ice melts. Tea is hot. Fog lifts at noon. Salt dissolves."
    assert (found.first.document, found.second.document) == (first, moved)
    assert evidence_of(found.first) == evidence_of(found.second) == "Ice melts."
    assert (found.first.query, found.first.dataset) == ("what melts", "mine")


def test_brevity_pairs_add_the_rest_of_the_document() -> None:
    found = build(pair("Fog lifts"), "brevity")  # the sentence that the span touches
    assert found.first.document == "Fog lifts at noon."
    assert found.second.document == "Fog lifts at noon. Tea is hot. Ice melts. Salt dissolves."


def test_necessity_pairs_remove_only_the_evidence() -> None:
    found = build(pair("Fog lifts"), "necessity")
    assert found.first.document == DOCUMENT and evidence_of(found.first) == "Fog lifts at noon."
    assert found.second.document == "Tea is hot. Ice melts. Salt dissolves."
    assert found.second.evidence is None
    with pytest.raises(UserError, match="no pairs for the test necessity: ColDeR's rows have no"):
        pairs_for(datasets.read("sample-bias"), "necessity")


def test_evidence_of_two_sentences_stays_together() -> None:
    found = build(pair("noon. Ice"), "position")
    assert found.first.document.startswith("Fog lifts at noon. Ice melts. Tea")
    assert evidence_of(found.second) == "Fog lifts at noon. Ice melts."


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("language", ["eng", "cmn", "ara", "pol"])
def test_the_sentences_stay_the_same(sample: DataSet, language: str, position: str) -> None:
    for one in [p for p in sample.pairs if p.language == language][:6]:
        found = build(one, "position", position)
        cut = [
            sorted(d.document[s:e] for s, e in sentences(d.document, language))
            for d in (one, found.first, found.second)
        ]
        assert cut[0] == cut[1] == cut[2]
        assert found.first.evidence is not None and found.first.evidence.start == 0
        assert evidence_of(found.first) == evidence_of(found.second)
        assert one.document[one.evidence.start : one.evidence.end] in evidence_of(found.first)  # type: ignore[union-attr]
        if position == "end":
            assert found.second.document.endswith(evidence_of(found.second))
        short = build(one, "brevity")
        assert short.second.document == found.first.document
        assert short.first.document == evidence_of(found.first)


@pytest.mark.parametrize(
    ("one", "test", "sentence"),
    [
        (pair("Ice melts.", "Ice melts."), "brevity", "no sentence outside the evidence"),
        (
            TextPair("p", "q", "Ice melts.  Tea is hot.", EvidenceSpan(10, 12)),
            "position",
            "has no words",
        ),
    ],
)
def test_pairs_that_cannot_be_built_have_a_reason(one: TextPair, test: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(one, test)


def test_pairs_without_evidence_are_counted() -> None:
    data = DataSet("mine", "mine", Pairs((pair(), pair(None), pair("Ice melts.", "Ice melts."))))
    found = pairs_for(data, "position")
    assert len(found.pairs) == 1 and sum(found.rejected.values()) == 2
    assert "built from evidence spans" in found.source and "to the end" in found.source
    short = DataSet("mine", "mine", Pairs((pair("Ice melts.", "Ice melts."),)))
    with pytest.raises(UserError, match=r"No pair of documents could be built .* 1 x The document"):
        pairs_for(short, "brevity")


def test_spread_evenly_takes_the_first_item_and_rounds_exactly() -> None:
    assert spread_evenly("abcdefghij", 4) == ["a", "c", "f", "h"]
    assert spread_evenly("abc", 5) == "abc"
    # as a float, a multiple of 304 / 140 falls just below a whole number once
    assert list(spread_evenly(range(304), 140)) == [i * 304 // 140 for i in range(140)]


def test_position_variants_move_the_evidence_past_a_share_of_the_sentences() -> None:
    sentences_of = [f"Tea {number} is hot." for number in range(8)]
    document = " ".join([*sentences_of[:3], "Ice melts.", *sentences_of[3:]])
    data = DataSet("mine", "mine", Pairs((pair(document=document),)))
    assert varied(data) == ("position",)
    built = variants(data, "position")
    assert [of.variant for of in built] == ["25%", "50%", "75%", "100%"]
    for of, before in zip(built, (2, 4, 6, 8), strict=True):
        (item,) = of.pairs
        assert item.first.document.startswith("Ice melts. ")
        moved = [*sentences_of[:before], "Ice melts.", *sentences_of[before:]]
        assert item.second.document == " ".join(moved) and of.variant in item.item_id
    assert built[-1].pairs[0].second.document == build(data.pairs[0], "position").second.document
    with pytest.raises(UserError, match=r"no variants of the test repetition: it needs Re-DocRED"):
        variants(data, "repetition")


def test_variants_of_colder_rows(tmp_path: Path) -> None:
    rows = {
        "literal_bias": [("LA", "Los Angeles"), ("New York", "NY"), ("A", "B")],
        "repetition_1_of_2": [("c", "d")],
        "repetition_2_of_2": [("e", "f"), ("g", "h")],
    }
    for name, listed in rows.items():
        objects = [{"query": "q", "document_1": a, "document_2": b} for a, b in listed]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in objects))
    data = formats.read(tmp_path, "c")
    assert varied(data) == ("literal",) and unknown_files(data) == []
    short, long = variants(data, "literal")
    assert (short.variant, [p.first.document for p in short.pairs]) == ("short name", ["LA"])
    assert (long.variant, [p.first.document for p in long.pairs]) == ("long name", ["New York"])
    # Variants of a test are returned with the test.
    (tmp_path / "repetition.jsonl").write_text((tmp_path / "repetition_2_of_2.jsonl").read_text())
    one, two = variants(formats.read(tmp_path, "c"), "repetition", limit=1)
    assert (one.variant, one.title, one.pairs[0].first.document) == (
        "1 of 2",
        "Repetition, 1 of 2",
        "c",
    )
    assert two.variant == "2 of 2" and two.source.endswith("as in ColDeR; 1 of 2 spread evenly")


def test_position_variants_of_colder_rows_start_from_d1() -> None:
    data = datasets.read("sample-bias")
    rows = pairs_for(data, "position").pairs
    built = variants(data, "position")
    assert [len(of.pairs) for of in built] == [12] * 4
    for row, item in zip(rows, built[-1].pairs, strict=True):
        assert item.first.document == row.first.document
        assert item.second.document == row.second.document


def test_a_limited_number_of_pairs_is_spread_evenly(sample: DataSet) -> None:
    data = datasets.read("sample-bias")
    every, some = pairs_for(data, "foil"), pairs_for(data, "foil", limit=4)
    assert [every.pairs.index(pair) for pair in some.pairs] == [0, 3, 6, 9]
    assert some.source == "pairs of documents as in ColDeR; 4 of 12 spread evenly"
    assert pairs_for(data, "foil", limit=99) == every
    built = pairs_for(sample, "brevity", limit=3)
    assert len(built.pairs) == 3 and built.source.endswith("; 3 of 296 spread evenly")
    # Thai texts are excluded: their "sentences" would be paragraphs.
    (reason,) = built.rejected
    assert reason.startswith("The document is in Thai script") and built.rejected[reason] == 8
    assert "tha" not in {one.first.language for one in pairs_for(sample, "position").pairs}


def test_the_error_names_what_the_data_set_lacks() -> None:
    spans = DataSet("mine", "mine", Pairs((pair(),)))
    assert available(spans) == ("position", "brevity", "necessity")
    assert "don't mark the entity" in lacking(spans)["literal"]
    assert "ColDeR" in lacking(spans)["repetition"]
    bare = DataSet("bare", "bare", Pairs((pair(None), pair(None))))
    assert available(bare) == () and "no evidence spans" in lacking(bare)["position"]
    with pytest.raises(UserError, match="mine has no pairs for the test foil: evidence spans"):
        pairs_for(spans, "foil")
    with pytest.raises(UserError, match="no bias test 'x': choose from answer_importance"):
        pairs_for(spans, "x")
    with pytest.raises(UserError, match="position can't be 'x': choose from end, middle, own"):
        pairs_for(spans, "position", "x")


def test_colder_rows_keep_their_two_documents_in_order(tmp_path: Path) -> None:
    rows = [{"query": f"q{i}", "document_1": f"a{i}", "document_2": f"b{i}"} for i in range(3)]
    broken = {"query": "q", "document_1": "a"}
    for name, listed in (
        ("position_bias", rows),
        ("foil", [rows[0], broken, rows[1]]),
        ("mine", rows[:1]),
    ):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in listed))
    data = formats.read(tmp_path, "c")
    assert available(data) == ("position", "foil") and unknown_files(data) == ["mine"]
    found = pairs_for(data, "position").pairs
    assert [(p.first.query, p.first.document, p.second.document) for p in found] == [
        (f"q{i}", f"a{i}", f"b{i}") for i in range(3)
    ]
    assert len(pairs_for(data, "foil").pairs) == 2
    with pytest.raises(UserError, match=r"has no pairs for it \(brevity\.jsonl\)"):
        pairs_for(data, "brevity")


def test_planted_scorers_give_the_expected_sign() -> None:
    """A scorer with a single bias gives the right sign on pairs in ColDeR's format."""
    data = datasets.read("sample-bias")

    def early(one: TextPair) -> float:  # where the entity's evidence starts
        assert one.evidence is not None
        return -one.evidence.start + 0.01 * len(one.query)

    def short(one: TextPair) -> float:
        return -float(len(one.document))

    def literal(one: TextPair) -> float:  # how often the document contains the query's longest word
        longest = max(one.query.strip("?").split(), key=len)
        return float(one.document.count(longest)) + len(one.document) / 1e4

    for test, scorer in (("position", early), ("brevity", short), ("repetition", literal)):
        pairs = pairs_for(data, test).pairs
        found = paired_test(test, [PairScores(scorer(p.first), scorer(p.second)) for p in pairs])
        assert found.n == 12 and (found.t or 0) > 2, test
        turned = paired_test(test, [PairScores(scorer(p.second), scorer(p.first)) for p in pairs])
        assert turned.t == pytest.approx(-(found.t or 0))
    # A scorer that only counts the answer has no bias.
    answers = {entity.id: entity.answer for entity in sample_bias.read()}
    for test, right in (("answer_importance", "d1"), ("foil", "d2"), ("poison", "d2")):
        scores = []
        for number, p in enumerate(pairs_for(data, test).pairs):
            answer = answers[p.item_id.split("/")[1]]
            held = [answer in p.first.document, answer in p.second.document]
            scores.append(PairScores(held[0] + number / 1e3 * held[0], held[1] + 0.0))
        found = paired_test(test, scores)
        assert found.resistance == 1, test
        assert (found.difference or 0) > 0 if right == "d1" else (found.difference or 0) < 0


def test_the_sample_equals_its_source(tmp_path: Path) -> None:
    entities = sample_bias.read()
    sample_bias.write(entities, tmp_path)
    for path in sorted((tmp_path / "test").iterdir()):
        assert (sample_bias.COLDER / "test" / path.name).read_text() == path.read_text()
    data = datasets.read("sample-bias")
    assert not data.rejected and available(data) == COLDER_TESTS
    assert all(len(pairs_for(data, test).pairs) == len(entities) >= 12 for test in COLDER_TESTS)
    for test in COLDER_TESTS:
        assert not any(p.identical for p in pairs_for(data, test).pairs)


def test_documents_of_the_sample_follow_the_papers_equations() -> None:
    entity = sample_bias.read()[0]
    found = sample_bias.documents(entity, ("U1.", "U2.", "U3.", "U4."))
    evidence, answer = entity.named(entity.evidence), entity.answer
    position = [d.split(". ") for d in found["position_bias"]]
    assert sorted(s.strip(".") for s in position[0]) == sorted(s.strip(".") for s in position[1])
    assert found["position_bias"][1].endswith(evidence)
    assert found["brevity_bias"] == (evidence, found["position_bias"][0])
    for name, counts in {
        "answer_importance": (1, 0),
        "foil": (0, 1),
        "poison": (0, 1),
        "literal_bias": (1, 1),
        "repetition_bias": (1, 1),
    }.items():
        assert tuple(document.count(answer) for document in found[name]) == counts, name
    heads = [document.count(entity.head) for document in found["repetition_bias"]]
    assert heads == [3, 1] and found["foil"][0].count(entity.head) == 3
    assert entity.wrong in found["poison"][0]
    assert entity.head not in found["literal_bias"][1]
    assert found["foil"][1] == f"U1. U2. U3. U4. {evidence} U1. U2. U3. U4."


def test_an_invalid_entity_is_named() -> None:
    from dataclasses import replace

    entity = sample_bias.read()[0]
    leaky = replace(entity, without=(*entity.without[:3], f"It is {entity.answer}."))
    assert "holds" in sample_bias.problems(leaky)[0]
    assert sample_bias.main(["--check"]) == 0

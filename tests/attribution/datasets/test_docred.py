"""Re-DocRED's layout, and the documents of the bias tests built from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poslens.attribution.datasets import DataSet, formats
from poslens.attribution.datasets.docred import NO_FACT
from poslens.attribution.datasets.docred_documents import QUESTIONS
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.bias_pairs import available, pairs_for, unknown_files, variants
from poslens.attribution.evaluation.bias_tests import COLDER_TESTS


def document(title: str, sentences: list[str], entities: list[list[str]], **fact: Any) -> Any:
    """A document in this format: entities are lists of `TYPE:name`, and each occurrence of a name
    in the sentences is a mention."""
    tokens = [sentence.split() for sentence in sentences]
    vertices: list[list[dict[str, Any]]] = []
    for names in entities:
        mentions = []
        for place, row in enumerate(tokens):
            taken: set[int] = set()
            for typed in sorted(names, key=len, reverse=True):
                kind, name = typed.split(":")
                words = name.split()
                for start in range(len(row)):
                    end = start + len(words)
                    if row[start:end] == words and not taken & {*range(start, end)}:
                        taken |= {*range(start, end)}
                        mentions.append(
                            {"name": name, "sent_id": place, "pos": [start, end], "type": kind}
                        )
        vertices.append(mentions)
    labels = [{"h": 0, "t": 1, "r": "P19", "evidence": [1], **fact}]
    return {"vertexSet": vertices, "labels": labels, "title": title, "sents": tokens}


ADA = document(
    "Ada Brook",
    [
        "Ada Brook was a painter .",
        "Ada Brook was born in Lund .",
        "Brook painted boats .",
        "The harbor was busy .",
        "Later Brook taught drawing .",
        "Boats need paint .",
        "Lund has a cathedral .",
        "Many artists lived there .",
    ],
    [["PER:Ada Brook", "PER:Brook"], ["LOC:Lund"]],
)
TEA = document(
    "Tea",
    ["Tea grows in Assam .", "Leaves are dried .", "Lund imports it .", "Water is hot .", "Cups ."],
    [["MISC:Tea"], ["LOC:Assam"]],
    evidence=[0],
)


@pytest.fixture
def data(tmp_path: Path) -> DataSet:
    return read(tmp_path, [ADA, TEA])


def read(folder: Path, documents: list[Any]) -> DataSet:
    (folder / "test_revised.json").write_text(json.dumps(documents))
    return formats.read(folder, "facts")


def both(data: DataSet, test: str) -> tuple[str, str, str]:
    pair = pairs_for(data, test).pairs[0]
    return pair.first.query, pair.first.document, pair.second.document


WITHOUT = "The harbor was busy . Boats need paint . Many artists lived there ."
EVIDENCE = "Ada Brook was born in Lund ."
UNRELATED = "Tea grows in Assam . Leaves are dried . Water is hot . Cups ."


def test_every_test_is_built_from_one_fact(data: DataSet) -> None:
    assert available(data) == COLDER_TESTS and unknown_files(data) == []
    question = "Where was Ada Brook born?"
    first = "Ada Brook was a painter ."
    assert both(data, "answer_importance") == (
        question,
        f"{EVIDENCE} {WITHOUT}",
        f"{first} {WITHOUT}",
    )
    assert both(data, "position")[1:] == (f"{EVIDENCE} {WITHOUT}", f"{WITHOUT} {EVIDENCE}")
    assert both(data, "brevity")[1:] == (EVIDENCE, f"{EVIDENCE} {WITHOUT}")
    assert both(data, "repetition")[1:] == (
        f"{EVIDENCE} {first} Brook painted boats .",
        f"{EVIDENCE} The harbor was busy . Boats need paint .",
    )
    foil = f"Ada Brook Ada Brook {first}"
    buried = f"{UNRELATED} {EVIDENCE} {UNRELATED}"
    assert both(data, "foil") == (question, foil, buried)
    assert both(data, "poison")[1:] == (f"{foil} Ada Brook was born in Assam .", buried)


def test_evidence_is_marked_where_a_document_has_it(data: DataSet) -> None:
    for test, has in {"position": (1, 1), "foil": (0, 1), "literal": (1, 1)}.items():
        pair = pairs_for(data, test).pairs[0]
        spans = [side.evidence for side in (pair.first, pair.second)]
        assert [span is not None for span in spans] == [bool(each) for each in has]
        for side, span in zip((pair.first, pair.second), spans, strict=True):
            assert span is None or side.document[span.start : span.end].endswith("born in Lund .")


def test_queries_and_documents_use_both_names(data: DataSet) -> None:
    short, long = variants(data, "literal")
    (one,), (other,) = short.pairs, long.pairs
    assert one.first.query == "Where was Brook born?"
    assert other.first.query == "Where was Ada Brook born?"
    assert "Ada" not in one.first.document and one.first.document.count("Brook") == 4
    assert one.second.document.count("Ada Brook") == 4
    assert (one.first.document, one.second.document) == (
        other.second.document,
        other.first.document,
    )
    assert one.source == other.source, "pairs of the same two documents are not independent"


def test_mentions_by_length(data: DataSet) -> None:
    cells = variants(data, "repetition")
    assert [cell.variant for cell in cells] == [
        "1 of 1",
        "1 of 2",
        "2 of 2",
        "1 of 3",
        "2 of 3",
        "3 of 3",
    ]
    for cell in cells:
        m, n = map(int, cell.variant.split(" of "))
        (pair,) = cell.pairs
        assert pair.first.document.count("Brook") == 1 + m
        assert pair.second.document.count("Brook") == 1
        assert pair.first.document.count(" .") == pair.second.document.count(" .") == 1 + n


def test_documents_without_a_suitable_fact_are_rejected(tmp_path: Path) -> None:
    several = {**ADA, "labels": [*ADA["labels"], {**ADA["labels"][0], "t": 0}]}
    broken = {**ADA, "labels": [{**ADA["labels"][0], "h": 9}]}
    unknown = {**ADA, "labels": [{**ADA["labels"][0], "r": "P0"}]}
    data = read(tmp_path, [ADA, several, broken, unknown, 3, {"title": "x"}])
    reasons = {row.row: row.reason for row in data.rejected}
    assert reasons[2] == reasons[4] == NO_FACT
    assert reasons[3] == "a fact names an entity or a sentence that the document lacks"
    assert reasons[5] == "the document is not an object"
    assert "lacks sents" in reasons[6] and len(reasons) == 5
    with pytest.raises(UserError, match=r"first error is in test_revised\.json row 1: no fact has"):
        read(tmp_path, [unknown])
    with pytest.raises(UserError, match="no relevance judgments"):
        formats.collection(tmp_path, "facts")


def test_there_is_a_question_for_each_relation() -> None:
    assert len(QUESTIONS) == 96
    assert all(text.count("{head}") == 1 and text.endswith("?") for text in QUESTIONS.values())

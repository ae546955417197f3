"""Each format once: files with known pairs, and rows that are rejected with one sentence."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from poslens.attribution.datasets import formats
from poslens.attribution.types import EvidenceSpan
from tests.support.format_files import Rows, write

FOG = "Fog forms over cold water. It lifts at noon."
TIDE = "The tide rises twice a day."


@dataclass(frozen=True)
class Example:
    """Files by path, and of their pairs: id, query, document, evidence, language, domain. The last
    row of each file belongs to the last `n_last` pairs, and to no other."""

    files: dict[str, Rows]
    pairs: list[tuple[str, str, str, str, str | None, str | None]]
    n_last: int = 1


def claim(original: str, language: str) -> str:
    return repr((original, original.upper(), [(language, 1.0)]))


FOIL = {"query": "when", "document_1": "Fog Fog Fog .", "document_2": "Tea . Fog at noon ."}
POSIR_QUERY = {
    "text": "when",
    "pos_char_span": [27, 44],
    "pos_char_length": 44,
    "pos_token_length": 10,
    "query_type": "time",
}
SPAN = {
    "openinference.span.kind": "RETRIEVER",
    "input.value": "when",
    "retrieval.documents.0.document.content": FOG,
    "retrieval.documents.0.document.id": "d1",
}
ANSWERS = [{"text": "lifts", "answer_start": 30}]
LIFTS = "It lifts at noon."
JUDGED = [{"query-id": f"q{n}", "corpus-id": f"d{n}", "score": 1} for n in (1, 2)]
EXAMPLES = {
    "own": Example(
        {
            "pairs.jsonl": [
                {"query": "when", "document": FOG, "evidence": LIFTS, "language": "en"},
                {
                    "query": "how often",
                    "document": TIDE,
                    "query_id": "q2",
                    "document_id": 2,
                    "domain": "sea",
                },
            ]
        },
        [
            ("row-1", "when", FOG, LIFTS, "eng", None),
            ("q2/2", "how often", TIDE, "", None, "sea"),
        ],
    ),
    "beir": Example(
        {
            "nq-de/corpus.jsonl": [
                {"_id": "d1", "title": "Fog", "text": FOG},
                {"_id": "d2", "title": "", "text": TIDE},
            ],
            "nq-de/queries.jsonl": [
                {"_id": "q1", "text": "when"},
                {"_id": "q2", "text": "how often"},
            ],
            "nq-de/qrels/test.jsonl": JUDGED,
        },
        [
            ("q1/d1", "when", f"Fog {FOG}", "", "deu", "nq"),
            ("q2/d2", "how often", TIDE, "", "deu", "nq"),
        ],
    ),
    "posir": Example(
        {
            "eng-Latn/sea/queries.parquet": [
                {"_id": "q1", **POSIR_QUERY},
                {"_id": "q2", **POSIR_QUERY, "pos_char_span": [0, 8]},
            ],
            "eng-Latn/sea/corpus.parquet": [
                {"_id": "d1", "text": FOG},
                {"_id": "d2", "text": TIDE},
            ],
            "eng-Latn/sea/qrels/test.parquet": JUDGED,
        },
        [
            ("q1", "when", FOG, LIFTS, "eng", "sea"),
            ("q2", "when", TIDE, "The tide", "eng", "sea"),
        ],
    ),
    "multiclaim": Example(
        {
            "posts.csv": [
                {"post_id": "1", "ocr": "[]", "text": claim("Hmla", "slk")},
                {"post_id": "2", "ocr": f"[{claim('Tea', 'eng')}]", "text": ""},
            ],
            "fact_checks.csv": [
                {"fact_check_id": "7", "claim": claim("Hmla stúpa", "slk")},
                {"fact_check_id": "8.0", "claim": claim("Mgła", "pol")},
            ],
            "fact_check_post_mapping.csv": [
                {"fact_check_id": "7", "post_id": "1"},
                {"fact_check_id": "8", "post_id": "2"},
            ],
        },
        [
            ("1/7", "Hmla", "Hmla stúpa", "", "slk", "one language"),
            ("2/8", "Tea", "Mgła", "", "pol", "two languages"),
        ],
    ),
    "colder": Example(
        {
            "test/foil.jsonl": [
                FOIL | {"id": "a", "evidence_sents": [["Fog", "at", "noon", "."]]},
                {"queries": "when", "doc1": "Fog .", "doc2": "Tea .", "id": 7},
            ]
        },
        [
            ("foil/a/1", "when", FOIL["document_1"], "", "eng", "foil"),
            ("foil/a/2", "when", FOIL["document_2"], "Fog at noon .", "eng", "foil"),
            ("foil/7/1", "when", "Fog .", "", "eng", "foil"),
            ("foil/7/2", "when", "Tea .", "", "eng", "foil"),
        ],
        n_last=2,
    ),
    "squad": Example(
        {
            "dev-v2.0.json": [
                FOG,
                {"id": "q1", "question": "does it", "answers": ANSWERS},
                {"id": "q2", "question": "when", "answers": [{"text": "Fog", "answer_start": 0}]},
            ]
        },
        [
            ("q1", "does it", FOG, "lifts", None, "Weather"),
            ("q2", "when", FOG, "Fog", None, "Weather"),
        ],
    ),
    "fineweb-posq": Example(
        {
            "data.jsonl": [
                {"content": FOG, "question": "when", "span_class": "End"},
                {"content": TIDE, "question": "how often", "span_class": ["end", "beginning"]},
            ]
        },
        [("row-1", "when", FOG, "", None, None), ("row-2", "how often", TIDE, "", None, None)],
    ),
    "documents": Example(
        {
            "corpus.jsonl": [
                {"_id": "d1", "title": "Fog", "text": FOG, "language": "en"},
                {"doc_id": 2, "document": TIDE},
            ]
        },
        [("d1", "", f"Fog {FOG}", "", "eng", None), ("2", "", TIDE, "", None, None)],
    ),
    "traces": Example(
        {
            "spans.jsonl": [
                {"spanId": "s1", "attributes": SPAN},
                {"spanId": "s2", "attributes": {**SPAN, "service.name": "desk"}},
            ]
        },
        [("s1/1", "when", FOG, "", None, None), ("s2/1", "when", FOG, "", None, "desk")],
    ),
}


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", EXAMPLES)
def test_each_format_is_detected_and_gives_its_pairs(
    name: str, packed: bool, tmp_path: Path
) -> None:
    path = write(tmp_path, EXAMPLES[name].files, packed=packed)
    assert formats.detect(path) == name
    data = formats.read(path, "mine")
    assert data.rejected == ()
    assert [
        (
            pair.pair_id,
            pair.query,
            pair.document,
            "" if pair.evidence is None else within(pair.document, pair.evidence),
            pair.language,
            pair.domain,
        )
        for pair in data.pairs
    ] == EXAMPLES[name].pairs
    assert {pair.dataset for pair in data.pairs} == {"mine"}
    texts = (
        {document.text for document in formats.corpus(path, "mine").documents()}
        if (name != "colder")
        else {pair.document for pair in data.pairs}
    )
    assert texts == {pair.document for pair in data.pairs}


def within(document: str, span: EvidenceSpan) -> str:
    return document[span.start : span.end]


LONE = "\ud800"
QRELS, CORPUS, QUERIES = "qrels/test.", "corpus.", "queries."
DAMAGES: dict[tuple[str, str], list[tuple[dict[str, Any] | str, str]]] = {
    ("own", "pairs"): [
        ({"query": " "}, "The query is empty"),
        ({"query": 3}, "the query is a number, not text"),
        ({"query": None}, "the query is missing"),
        ({"query": ...}, "the row lacks query; it has document, query_id, document_id, domain"),
        ({"document": ["d"]}, "the document is a list, not text"),
        ({"document": "x" * 2_000_001}, "2,000,001 characters; the limit is 2,000,000"),
        ({"evidence": "It lifts."}, "the evidence does not occur in the document"),
        (
            {"document": "Hải đăng\r\ncao. Mới.", "evidence": "Ha\u0309i \u0111a\u0306ng\ncao."},
            "the evidence differs from the document in white space or in the Unicode form",
        ),
        ({"evidence": 4}, "the evidence is a number, not text"),
        ({"pair_id": "row-1"}, "pair row-1 occurs twice, first in row 1"),
        ({"pair_id": f"p{LONE}"}, "contains characters that are not text"),
        ({"pair_id": {}}, "the pair_id is neither text nor a whole number"),
        ({"query_id": LONE}, "contains characters that are not text"),
        ({"document_id": "d\0"}, "contains characters that are not text"),
        ({"domain": "x" * 501}, "the domain has 501 characters; the limit is 500"),
        ({"query_type": LONE}, "contains characters that are not text"),
        ({"language": ["eng"]}, "the language is neither text nor a whole number"),
        ({"evidence_start": "--1", "evidence_end": 4}, "'--1', not a whole number"),
        ({"evidence_start": "²", "evidence_end": 4}, "'²', not a whole number"),
        ({"evidence_start": True, "evidence_end": 4}, "true or false, not a whole number"),
        ("{", "the line is not JSON"),
        ("[1]", "not an object"),
    ],
    ("beir", QRELS): [
        ({"score": "much"}, "the score 'much' is not a number up to 1,000,000"),
        ({"score": 1e300}, "is not a number up to 1,000,000"),
        ({"score": "nan"}, "is not a number up to 1,000,000"),
        ({"corpus-id": ...}, "the row lacks corpus-id; it has query-id, score"),
        ({"query-id": "q9"}, "q9/d2: query q9 does not exist"),
        ({"corpus-id": "d9"}, "q2/d9: document d9 does not exist"),
        ({"query-id": "q1", "corpus-id": "d1"}, "q1/d1: an earlier row judges the same pair"),
        ("[]", "not an object"),
    ],
    ("beir", CORPUS): [
        ({"text": " "}, "document d2: nq-de/corpus.jsonl row 2: The document is empty"),
        ({"text": 5}, "document d2: nq-de/corpus.jsonl row 2: the text is a number, not text"),
        ({"_id": True}, "row 2: the _id is neither text nor a whole number"),
        (
            '{"_id": "d2", "text": ',
            "1 rows have no valid id, the first is nq-de/corpus.jsonl row 2",
        ),
    ],
    ("beir", QUERIES): [
        ({"text": None}, "query q2: nq-de/queries.jsonl row 2: the text is missing")
    ],
    ("posir", QUERIES): [
        ({"text": " "}, "q2/d2: The query is empty"),
        ({"pos_char_span": [9, 99]}, "span [9, 99] is outside the document's 27 characters"),
        ({"pos_char_span": [9, 9]}, "span [9, 9] is outside"),
        ({"pos_char_span": [9]}, "the pos_char_span is not a list of two whole numbers"),
        ({"pos_char_span": None}, "the pos_char_span is missing"),
        ({"pos_char_span": list(range(1000))}, "is not a list of two whole numbers"),
        ({"pos_token_length": -1}, "the pos_token_length is -1, not a number of tokens"),
        ({"pos_token_length": 2**40}, "the pos_token_length exceeds 1,000,000,000,000"),
        ({"query_type": "x" * 10_000}, "the query_type has 10,000 characters"),
    ],
    ("posir", CORPUS): [({"text": None}, "q2/d2: the document is missing")],
    ("posir", QRELS): [
        ({"corpus-id": "d9"}, "q2/d9: document d9 does not exist"),
        ({"query-id": "q9"}, "q9/d2: query q9 does not exist"),
    ],
    ("multiclaim", "fact_check_post_mapping"): [
        ({"fact_check_id": "9"}, "claim 9 does not exist"),
        ({"post_id": "9"}, "post 9 does not exist"),
        ({"fact_check_id": "7", "post_id": "1"}, "post 1 with claim 7 occurs twice"),
        ({"post_id": " "}, "the post_id is empty"),
    ],
    ("multiclaim", "posts"): [
        ({"ocr": "", "text": ""}, "The post is empty"),
        (
            {"text": "__import__('os').getcwd()"},
            "post 2: posts.csv row 3: text is not a Python tuple",
        ),
        ({"text": "('only one',)"}, "a text is not (original, English"),
        ({"text": "('a', 'b', [('\\ud800', 1.0)])"}, "contains characters that are not text"),
        ({"ocr": "7"}, "ocr is not a list of texts"),
    ],
    ("multiclaim", "fact_checks"): [
        ({"claim": ""}, "claim 8: fact_checks.csv row 3: it has no claim")
    ],
    ("colder", "foil"): [
        ({"doc2": " "}, "The document_2 is empty"),
        ({"doc2": ...}, "the row lacks document_2 or doc2; it has queries, doc1, id"),
        ({"queries": ["q"]}, "the query is a list, not text"),
        ({"id": LONE}, "contains characters that are not text"),
        ("{", "the line is not JSON"),
    ],
    ("squad", "dev-v2.0"): [
        ({"id": None}, "the id is missing"),
        ({"id": "q1"}, "question q1 occurs twice"),
        ({"question": 7}, "the question is a number, not text"),
        ({"answers": []}, "its passage does not answer the question"),
        ({"is_impossible": True}, "its passage does not answer the question"),
        ({"answers": [7]}, "the answer is not an object with text"),
        ({"answers": [{"text": "noon", "answer_start": "four"}]}, "'four', not a whole number"),
        (
            {"answers": [{"text": "noon", "answer_start": 0}]},
            "is not at character 0 of its passage",
        ),
        ({"answers": [{"text": " ", "answer_start": 3}]}, "the answer is empty"),
    ],
    ("fineweb-posq", "data"): [
        ({"content": None}, "the content is missing"),
        ({"content": "  "}, "The content is empty"),
        ({"question": None}, "the row has no question, so it is only part of the corpus"),
        ({"question": 7}, "the question is a number, not text"),
        ({"span_class": "start"}, "span_class is not among beginning, middle, end"),
        ({"span_class": ["end", {}]}, "span_class is not among"),
        ({"span_class": None}, "the span_class is missing"),
    ],
    ("documents", CORPUS): [
        ({"document": " "}, "2: The document is empty"),
        ({"document": ...}, "the row lacks text or document; it has doc_id"),
        ({"doc_id": "d1"}, "d1: an earlier row has this id"),
        ({"language": 0.5}, "the language is neither text nor a whole number"),
    ],
    ("traces", "spans"): [
        ({"input.value": "__REDACTED__"}, "the query is hidden in the trace"),
        ({"input.value": ...}, "the span has no query as text in input.value"),
        (
            {"retrieval.documents.0.document.content": "__REDACTED__"},
            "document 1: the content is hidden in the trace",
        ),
        (
            {"retrieval.documents.0.document.content": 7},
            "document 1: the content is a number, not text",
        ),
        ("{broken", "the line is not JSON"),
    ],
}
CASES = [(*place, *damage) for place, damages in DAMAGES.items() for damage in damages]


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(("name", "stem", "damage", "sentence"), CASES)
def test_a_damaged_row_is_rejected_with_a_sentence(
    name: str, stem: str, damage: dict[str, Any] | str, sentence: str, tmp_path: Path
) -> None:
    example = EXAMPLES[name]
    files = deepcopy(example.files)
    (rows,) = [rows for file, rows in files.items() if f"/{stem}" in f"/{file}"]
    if isinstance(damage, str):
        rows[-1] = damage
    else:
        target = rows[-1]["attributes"] if name == "traces" else rows[-1]
        target.update(damage)
        for field in [field for field, value in target.items() if value is ...]:
            del target[field]
    data = formats.read(write(tmp_path, files), "mine")
    accepted = example.pairs[: -example.n_last]
    assert [pair.pair_id for pair in data.pairs] == [pair[0] for pair in accepted]
    reasons = {rejection.reason for rejection in data.rejected}
    assert any(sentence in reason for reason in reasons), reasons
    assert all(reason.encode() and "\n" not in reason for reason in reasons)
    assert all(rejection.row in (2, 3) for rejection in data.rejected)

"""Traces of retrievers: the formats in which spans are written, and what is left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from poslens.attribution.datasets import detect, formats
from poslens.attribution.errors import UserError

FOG, TIDE = "Fog lifts at noon.", "The tide turns twice a day."
FLAT: dict[str, Any] = {
    "openinference.span.kind": "RETRIEVER",
    "input.value": "when does fog lift",
    "retrieval.documents.0.document.content": FOG,
    "retrieval.documents.0.document.id": "fog",
    "retrieval.documents.0.document.score": 0.9,
    "retrieval.documents.1.document.content": TIDE,
    "retrieval.documents.1.document.metadata": '{"page": 2}',
}


def printed(span_id: str = "s1", **attributes: Any) -> dict[str, Any]:
    """A span as printed by OpenTelemetry's Python library."""
    return {
        "name": "retrieve",
        "context": {"trace_id": "0x1", "span_id": span_id},
        "kind": "SpanKind.INTERNAL",
        "attributes": {**FLAT, **attributes},
        "resource": {"attributes": {"service.name": "help desk"}},
    }


def otlp_value(value: Any) -> dict[str, Any]:
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}


def exported(*spans: dict[str, Any]) -> dict[str, Any]:
    """The output of a collector: OpenTelemetry's protocol as JSON."""
    listed = [
        {
            "traceId": "1",
            "spanId": span["context"]["span_id"],
            "attributes": [
                {"key": k, "value": otlp_value(v)} for k, v in span["attributes"].items()
            ],
        }
        for span in spans
    ]
    about = [{"key": "service.name", "value": {"stringValue": "help desk"}}]
    return {
        "resourceSpans": [{"resource": {"attributes": about}, "scopeSpans": [{"spans": listed}]}]
    }


def nested() -> dict[str, Any]:
    return {
        "context": {"span_id": "s1"},
        "span_kind": "RETRIEVER",
        "attributes": {
            "openinference": {"span": {"kind": "RETRIEVER"}},
            "input": {"value": FLAT["input.value"], "mime_type": "text/plain"},
            "retrieval": {
                "documents": [
                    {"document": {"content": FOG, "id": "fog", "score": 0.9}},
                    {"document": {"content": TIDE}},
                ]
            },
            "service": {"name": "help desk"},
        },
    }


def column() -> dict[str, Any]:
    """A row of a table of spans."""
    return {
        "context.span_id": "s1",
        "attributes.openinference.span.kind": "RETRIEVER",
        "attributes.input.value": FLAT["input.value"],
        "attributes.retrieval.documents": [
            {"document.content": FOG, "document.id": "fog", "document.score": 0.9},
            {"document.content": TIDE},
        ],
        "resource.attributes.service.name": "help desk",
    }


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


FORMS = {
    "lines of spans.jsonl": lines(printed()),
    "printed.json": json.dumps(printed(), indent=4),
    "list.json": json.dumps([printed()]),
    "collector.jsonl": lines(exported(printed())),
    "collector.json": json.dumps(exported(printed())),
    "nested.json": json.dumps({"spans": [nested()]}),
    "table.jsonl": lines(column()),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_span_gives_the_same_pairs(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(FORMS[name], encoding="utf-8")
    assert detect(path) == "traces" == detect(tmp_path)
    found = formats.read(path, "mine")
    assert found.title == "mine (traces)" and not found.rejected
    assert [
        (pair.pair_id, pair.query, pair.document, pair.query_type, pair.domain)
        for pair in found.pairs
    ] == [
        ("s1/1", "when does fog lift", FOG, "retriever", "help desk"),
        ("s1/2", "when does fog lift", TIDE, "retriever", "help desk"),
    ]
    corpus = formats.corpus(path, "mine")
    assert [(one.key, one.text) for one in corpus.documents()] == [("fog", FOG), ("s1/2", TIDE)]
    assert [query.text for query in corpus.queries] == ["when does fog lift"]
    assert not any(query.relevant or query.pairs for query in corpus.queries)


def test_concatenated_spans_are_read_from_gzip_too(tmp_path: Path) -> None:
    path = tmp_path / "spans.json.gz"
    text = json.dumps(printed("a"), indent=2) + "\n" + json.dumps(printed("b"), indent=2)
    path.write_bytes(gzip.compress(text.encode()))
    found = formats.read(path, "mine")
    assert [pair.pair_id for pair in found.pairs] == ["a/1", "a/2", "b/1", "b/2"]


def test_a_reranker_span_gives_its_top_document(tmp_path: Path) -> None:
    attributes = {
        "openinference.span.kind": "RERANKER",
        "reranker.query": "when does the tide turn",
        "input.value": "something else",
        "reranker.input_documents.0.document.content": FOG,
        "reranker.input_documents.1.document.content": TIDE,
        "reranker.output_documents.0.document.content": TIDE,
        "reranker.output_documents.0.document.score": 0.99,
    }
    path = tmp_path / "spans.jsonl"
    path.write_text(lines({"spanId": "r", "attributes": attributes}))
    (pair,) = formats.read(path, "mine").pairs
    assert (pair.query, pair.document) == ("when does the tide turn", TIDE)
    assert pair.query_type == "reranker"


@pytest.mark.parametrize(
    ("value", "query"),
    [
        ('{"query": "when"}', "when"),
        ('"when"', "when"),
        ('{"other": 1}', '{"other": 1}'),
        ("{when", "{when"),
    ],
)
def test_a_query_within_json_is_found(value: str, query: str, tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    span = printed(**{"input.value": value, "input.mime_type": "application/json"})
    path.write_text(lines(span))
    assert {pair.query for pair in formats.read(path, "mine").pairs} == {query}


def test_retrievals_without_a_pair_are_rejected_and_other_spans_ignored(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    spans: list[Any] = [
        {"name": "answer", "attributes": {"openinference.span.kind": "LLM"}},
        printed("good", **{"retrieval.documents.1.document.content": "__REDACTED__"}),
        printed("hidden", **{"input.value": "__REDACTED__"}),
        printed("good"),
        {"spanId": "none", "attributes": {**FLAT, "input.value": None}},
        {"spanId": "empty", "span_kind": "RETRIEVER", "attributes": {"input.value": "when"}},
        printed("number", **{"retrieval.documents.0.document.content": 7}),
    ]
    path.write_text(lines(*spans) + "{broken\n")
    found = formats.read(path, "mine")
    assert [pair.pair_id for pair in found.pairs] == ["good/1", "number/2"]
    assert [(one.row, one.reason) for one in found.rejected[:-1]] == [
        (2, "document 2: the content is hidden in the trace"),
        (3, "the query is hidden in the trace"),
        (4, "the span good occurs twice"),
        (5, "the span has no query as text in input.value"),
        (6, "the span has no documents"),
        (7, "document 1: the content is a number, not text"),
    ]
    assert found.rejected[-1].row == 8 and "is not JSON" in found.rejected[-1].reason


def test_an_id_shared_by_several_passages_names_the_first(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    second = {"retrieval.documents.1.document.id": "fog"}
    path.write_text(lines(printed("a", **second), printed("b", **second)))
    corpus = formats.corpus(path, "mine")
    assert [(one.key, one.text) for one in corpus.documents()] == [("fog", FOG), ("a/2", TIDE)]


def test_traces_have_no_relevance_judgments(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    path.write_text(lines(printed()))
    with pytest.raises(UserError, match="no relevance judgments"):
        formats.collection(path, "mine")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"openinference.span.kind": "RETRIEVER"}', "is damaged or not JSON"),
        ('{"resourceSpans": []}', "has no rows"),
        ('{"resourceSpans": ' + "[" * 3000, "is damaged or not JSON"),
    ],
)
def test_damaged_files_are_refused_in_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "spans.json"
    path.write_text(text)
    assert detect(path) == "traces"
    with pytest.raises(UserError, match=message):
        formats.read(path, "mine")


def test_a_text_that_mentions_spans_is_not_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    said = 'set "openinference.span.kind" to RETRIEVER'
    path.write_text(lines({"query": "how is a span told", "document": said}))
    assert detect(path) == "own"

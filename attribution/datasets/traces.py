"""Traces of a retriever in OpenTelemetry's and OpenInference's formats: queries and the documents
that were retrieved.

One file or a folder of them, `.json` or `.jsonl`. Spans are in OpenTelemetry's protocol
(`resourceSpans`, attributes as lists of `key` and `value`), as printed by its Python library
(attributes as an object), with nested attributes, or rows of a table with columns such as
`attributes.input.value`; a file contains one of these, a list, or any number in succession.

Spans of kind RETRIEVER have the query in `input.value` and documents in `retrieval.documents.N.
document.content`, `.id` and `.score`; spans of kind RERANKER have them in `reranker.query` and
`reranker.output_documents.N`
(https://github.com/Arize-ai/openinference/blob/main/spec/semantic_conventions.md). Each document is
a pair with its query, in the order of retrieval. A trace does not state which documents answer the
query, so there are no judgments. Spans of other kinds are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from poslens.attribution.datasets.corpus import Collection, Query
from poslens.attribution.datasets.formats import Format, files_below, register
from poslens.attribution.datasets.judged_pairs import Judged, judged_passages
from poslens.attribution.datasets.schema import (
    Column,
    Kind,
    Row,
    T,
    as_id,
    as_is,
    as_label,
    as_text,
    optional,
    required,
)
from poslens.attribution.datasets.streams import MAX_JSON, File, beginning, json_lines, open_text
from poslens.attribution.datasets.tables import json_object
from poslens.attribution.datasets.types import Judgment, Passages, Rejection
from poslens.attribution.errors import UserError
from poslens.attribution.types import TextPair

SUFFIXES = (".json", ".json.gz", ".jsonl", ".jsonl.gz")
_DOCUMENTS = {
    "RETRIEVER": ("retrieval.documents",),
    "RERANKER": ("reranker.output_documents", "reranker.input_documents", "retrieval.documents"),
}
_HIDDEN = "__REDACTED__"
"""Replaces texts that were hidden when the trace was recorded."""

_HEAD = 1 << 20
_TOLD_BY = re.compile(r'"resourceSpans"\s*:|"(?:attributes\.)?openinference(?:\.span\.kind)?"')
_MAX_DEPTH = 12
_NEXT = re.compile(r"[\s,]*")


def _content(value: Any, name: str) -> str:
    if value == _HIDDEN:
        raise UserError(f"the {name} is hidden in the trace")
    return as_text(value, name)


def _attribute(kind: Kind[T], *names: str) -> Column[T | None]:
    """A field of a span, in its attributes, in those of its resource, or at its top level."""
    places = ("", "attributes.", "resource.attributes.")
    return optional(names[0], kind, *(f"{place}{name}" for name in names for place in places))


KIND = _attribute(lambda value, name: str(value).upper(), "openinference.span.kind", "span_kind")
SPAN_ID = _attribute(as_id, "context.span_id", "spanId", "span_id")
QUERY = _attribute(as_is, "reranker.query", "input.value")
MIME_TYPE, SERVICE = _attribute(as_is, "input.mime_type"), _attribute(as_label, "service.name")
CONTENT, ID = required("content", _content), optional("id", as_id)


def judgments(
    files: Sequence[File], dataset: str, passages: Passages
) -> Iterator[Judgment | Rejection]:
    """Every retrieved document as a pair with its query, or as a rejection; row numbers count the
    lines of a `.jsonl` file and the spans of a `.json` file.

    Raises:
        UserError: a file cannot be read.
    """
    ids: dict[str, int] = {}
    queries: set[str] = set()
    for file in files:
        for span in _spans(file):
            row = span.number
            try:
                if (kind := span[KIND]) not in _DOCUMENTS:
                    continue
                place, query, documents = _retrieved(span, kind, f"{file.name}/{row}", queries)
                domain = span[SERVICE]
            except UserError as error:
                yield Rejection(file.name, row, str(error))
                continue
            for document in documents:
                name = f"{place}/{document.number}"
                try:
                    key, text = _passage(document, name, passages, ids)
                except UserError as error:
                    yield Rejection(file.name, row, f"document {document.number}: {error}")
                    continue
                pair = TextPair(
                    name, query, text, domain=domain, dataset=dataset, query_type=kind.lower()
                )
                yield Judgment(pair, place, key)


def _retrieved(span: Row, kind: str, where: str, seen: set[str]) -> tuple[str, str, list[Row]]:
    """The span's own id, its query and its documents, numbered from 1."""
    place = span[SPAN_ID] or where
    # A span that was exported twice is read once.
    if place in seen:
        raise UserError(f"the span {place} occurs twice")
    query = _plain_query(span[QUERY], span[MIME_TYPE])
    if query is None:
        raise UserError("the span has no query as text in input.value")
    query = _content(query, "query")
    for prefix in _DOCUMENTS[kind]:
        if documents := _listed(span.cells, prefix):
            seen.add(place)
            return place, query, documents
    raise UserError("the span has no documents")


def _plain_query(value: Any, kind: Any) -> Any:
    """The query in an input that is JSON: the string itself, or a field of an object."""
    if kind != "application/json" or not isinstance(value, str):
        return value
    try:
        query = json.loads(value)
    except (ValueError, RecursionError):
        return value
    if isinstance(query, Mapping):
        names = ("query", "question", "input", "query_str")
        query = next((query[name] for name in names if isinstance(query.get(name), str)), None)
    return query if isinstance(query, str) else value


def _listed(span: Mapping[str, Any], prefix: str) -> list[Row]:
    """The documents below `prefix` in the order of their numbers, counted from 1."""
    fields: dict[int, dict[str, Any]] = {}
    for start in (f"{prefix}.", f"attributes.{prefix}."):
        for name, value in span.items():
            if name.startswith(start):
                number, _, rest = name[len(start) :].partition(".")
                if number.isascii() and number.isdigit() and len(number) < 7:
                    fields.setdefault(int(number), {})[rest.removeprefix("document.")] = value
    return [Row(rank, fields[number]) for rank, number in enumerate(sorted(fields), start=1)]


def _passage(document: Row, place: str, passages: Passages, ids: dict[str, int]) -> tuple[str, str]:
    """The document's key and the stored copy of its text."""
    text = document[CONTENT]
    key = document[ID] or place
    # Several passages of one document can have the same id. Hashes save memory.
    if ids.setdefault(key, hash(text)) != hash(text):
        key = place
    return passages.of(text, key)


# -- spans of a file -------------------------------------------------------------------------------


def _spans(file: File) -> Iterator[Row]:
    """Every span as one level of fields, their names joined by dots."""
    if file.name.removesuffix(".gz").endswith(".jsonl"):
        for number, line in json_lines(file):
            fields = json_object(line)
            if isinstance(fields, str):
                yield Row(number, problem=fields)
                continue
            for span in _spans_of(fields):
                yield Row(number, _flat(span))
        return
    spans = (span for value in _values(file) for span in _spans_of(value))
    for number, span in enumerate(spans, start=1):
        yield Row(number, _flat(span))


def _values(file: File) -> Iterator[Any]:
    """The consecutive values of a file of JSON.

    Raises:
        UserError: the file is damaged or not JSON.
    """
    with open_text(file, MAX_JSON) as stream:
        text = stream.read()
    decoder, at = json.JSONDecoder(), 0
    while (at := _NEXT.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file.name} is damaged or not JSON: copy it again.") from error
        yield value


def _spans_of(value: Any) -> Iterator[Mapping[str, Any]]:
    """The spans of one export: a span, a list of spans, or OpenTelemetry's nested form."""
    todo: list[tuple[Any, Mapping[str, Any]]] = [(value, {})]
    while todo:
        item, about = todo.pop()
        if isinstance(item, list):
            todo.extend((inner, about) for inner in reversed(item))
            continue
        if not isinstance(item, Mapping):
            continue
        inner = [
            item[name]
            for name in ("resourceSpans", "scopeSpans", "instrumentationLibrarySpans", "spans")
            if isinstance(item.get(name), list)
        ]
        if inner:
            resource = item.get("resource")
            if isinstance(resource, Mapping):
                about = {"resource": resource}
            todo.extend((each, about) for each in reversed(inner))
            continue
        yield {**about, **item}


def _flat(span: Mapping[str, Any]) -> dict[str, Any]:
    """Nested objects and lists as one level; lists of `key` and `value` are objects."""
    fields: dict[str, Any] = {}
    todo: list[tuple[str, Any, int]] = [("", span, 0)]
    while todo:
        name, value, depth = todo.pop()
        value = _otlp(value)
        inner: Iterator[tuple[Any, Any]]
        if isinstance(value, Mapping) and depth < _MAX_DEPTH:
            inner = iter(value.items())
        elif (
            isinstance(value, list)
            and depth < _MAX_DEPTH
            # A list of numbers, such as an embedding, stays one field.
            and any(isinstance(each, Mapping | list) for each in value)
        ):
            inner = iter(enumerate(value))
        else:
            fields[name] = value
            continue
        todo.extend((f"{name}.{key}" if name else str(key), each, depth + 1) for key, each in inner)
    return fields


def _otlp(value: Any) -> Any:
    """A value of OpenTelemetry's protocol as a plain value: `{"stringValue": "a"}` is `"a"`, and a
    list of keys with values is an object."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, inner),) = value.items()
        if kind in ("stringValue", "boolValue", "intValue", "doubleValue"):
            return inner
        if kind in ("arrayValue", "kvlistValue") and isinstance(inner, Mapping):
            return _otlp(inner.get("values", []))
    if isinstance(value, list) and value and all(map(_is_key_value, value)):
        return {item["key"]: item["value"] for item in value}
    return value


def _is_key_value(item: Any) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("key"), str) and "value" in item


# -- the format ------------------------------------------------------------------------------------


def read(path: Path, name: str, title: str = "") -> Judged:
    """Every document that was retrieved, as a pair with its query."""
    return judged_passages(judgments, _files(path), name, title or f"{name} (traces)")


def documents(path: Path, name: str, title: str = "") -> Collection:
    """Every document that was retrieved, each text once, and the queries, without judgments.

    Raises:
        UserError: a file cannot be read, or no document was retrieved.
    """
    traced = read(path, name, title).collection()
    queries = (Query(q.query_id, q.text, q.part, q.language) for q in traced.queries)
    return replace(traced, queries=tuple(queries))


def _files(path: Path) -> list[File]:
    """The files of spans at a path; empty if one of them contains something else."""
    files = files_below(path, lambda name: name.endswith(SUFFIXES))
    return files if all(map(_fits, files)) else []


def _fits(file: File) -> bool:
    head = beginning(file, _HEAD)
    return head[:1] in ("{", "[") and _TOLD_BY.search(head) is not None


register(
    Format(
        name="traces",
        description="traces of OpenTelemetry or OpenInference (.json or .jsonl with spans of kind "
        "RETRIEVER or RERANKER)",
        order=44,
        fits=lambda path: bool(_files(path)),
        read=read,
        documents=documents,
        unjudged="contains the results of a retriever and no relevance judgments: choose a data "
        "set with judgments to rank.",
    )
)

"""The user's own pairs: one file with a row per pair, or a folder of such files.

Columns are `query` and `document`. Optional are `evidence` (a verbatim passage of the document; its
first occurrence counts) or `evidence_start` and `evidence_end` (characters of the document,
[start, end)), `language`, `query_language`, `domain`, `query_type`, `pair_id`, `query_id` and
`document_id`. Rows without `pair_id` are named after query_id and document_id; if one is missing,
after their file (if there are several) and row.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from poslens.attribution.datasets import tables
from poslens.attribution.datasets.formats import Format, files_of, register
from poslens.attribution.datasets.languages import as_language
from poslens.attribution.datasets.schema import (
    Row,
    accepted,
    as_label,
    as_text,
    as_whole,
    optional,
    required,
)
from poslens.attribution.datasets.streams import MEGABYTE, File
from poslens.attribution.datasets.types import DataSet, Rejection, collect
from poslens.attribution.errors import UserError
from poslens.attribution.text import clean
from poslens.attribution.types import EvidenceSpan, TextPair

QUERY, DOCUMENT = required("query", as_text), required("document", as_text)
EVIDENCE = optional("evidence", as_text)
START, END = optional("evidence_start", as_whole), optional("evidence_end", as_whole)
LANGUAGE, DOMAIN = optional("language", as_language), optional("domain", as_label)
QUERY_TYPE = optional("query_type", as_label)
QUERY_LANGUAGE = optional("query_language", as_language)
PAIR_ID = optional("pair_id", as_label)
QUERY_ID, DOCUMENT_ID = optional("query_id", as_label), optional("document_id", as_label)
COLUMNS = (
    *(QUERY, DOCUMENT, EVIDENCE, START, END),
    *(LANGUAGE, QUERY_LANGUAGE, DOMAIN, QUERY_TYPE, PAIR_ID, QUERY_ID, DOCUMENT_ID),
)


UPLOAD_BYTES, UPLOAD_UNPACKED, UPLOAD_ROWS = 20 * MEGABYTE, 100 * MEGABYTE, 200_000
"""Limits of uploads, which stay in the memory of a shared server: bytes, unpacked bytes, rows."""


def read(files: Sequence[File], name: str, title: str = "", *, uploaded: bool = False) -> DataSet:
    """Read one or several files of pairs; every row is a pair or a rejection. Files on disk have no
    size limits.

    Raises:
        UserError: a file is no table, lacks a column, is damaged or too large, or no row is a valid
            pair.
    """
    seen = _Seen()
    data = collect(name, title or name, _pairs(files, name, uploaded, seen))
    return replace(data, ids=seen.ids)


def read_upload(name: str, data: bytes, others: Iterable[DataSet] = ()) -> DataSet:
    """Read an uploaded file; `name` determines only its format and title.

    The data set's name contains a digest of the contents, so that two files with the same name
    never share stored results. Only letters, digits and `._-` of the file's name are used. The
    digest begins before them, because narrow lists cut off the end of a name; the title contains
    this beginning if it is also the title of one of the `others`.

    Raises:
        UserError: as `read`, or over 20 MB, 100 MB unpacked or 200,000 rows.
    """
    # Some browsers send a path; only its last part is the file's name.
    name = name.replace("\\", "/").rsplit("/", 1)[-1].strip()[-80:] or "upload"
    if len(data) > UPLOAD_BYTES:
        raise UserError(
            f"{name} has {len(data) / MEGABYTE:,.1f} MB; the limit is {UPLOAD_BYTES // MEGABYTE} "
            "MB: split the file, or start PosLens with --data NAME=PATH."
        )
    digest = hashlib.sha256(name.encode("utf-8", "replace") + b"\0" + data).hexdigest()[:12]
    file = title = clean(name, "file name")
    plain = re.sub(r"[^\w.-]+", "_", title)[:40]
    own = f"upload-{digest[:4]}-{plain}-{digest[4:]}"
    if any(other.title == title and other.name != own for other in others):
        title += f" ({digest[:4]})"
    return read([File(file, data)], own, title, uploaded=True)


@dataclass(slots=True)
class _Seen:
    """Ids so far: pairs by their location, texts by a hash and their location, and the rows' own
    ids of query and document by pair."""

    pairs: dict[str, str] = field(default_factory=dict)
    texts: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    ids: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)


def _pairs(
    files: Sequence[File], dataset: str, uploaded: bool, seen: _Seen
) -> Iterator[TextPair | Rejection]:
    total = 0
    for file in files:
        # Rows of two files in a folder can have the same number.
        prefix = f"{file.name}/" if len(files) > 1 else ""
        rows = tables.rows(file, COLUMNS, UPLOAD_UNPACKED if uploaded else None)
        for pair in accepted(file, rows, partial(_pair, dataset=dataset, prefix=prefix, seen=seen)):
            total += 1
            if uploaded and total > UPLOAD_ROWS:
                raise UserError(f"{file.name} has more than {UPLOAD_ROWS:,} rows: split the file.")
            yield pair


def _pair(row: Row, dataset: str, prefix: str, seen: _Seen) -> TextPair:
    where = f"{prefix}row {row.number}"
    query, document = row[QUERY], row[DOCUMENT]
    query_id, document_id = row[QUERY_ID], row[DOCUMENT_ID]
    for name, value, content in (
        ("query_id", query_id, query),
        ("document_id", document_id, document),
    ):
        if value is not None:
            # A hash saves memory for the ids of a large file.
            first = seen.texts.setdefault((name, value), (hash(content), where))
            if first[0] != hash(content):
                raise UserError(f"{name} {value} has another text in {first[1]}")
    pair_id = row[PAIR_ID]
    if pair_id is None:
        pair_id = f"{prefix}row-{row.number}"
        if query_id is not None:
            # A number alone could be the id of another row's document.
            pair_id = f"{query_id}/{document_id or pair_id}"
    if pair_id in seen.pairs:
        raise UserError(f"pair {pair_id} occurs twice, first in {seen.pairs[pair_id]}")
    pair = TextPair(
        pair_id=pair_id,
        query=query,
        document=document,
        evidence=_evidence(row, document),
        language=row[LANGUAGE],
        domain=row[DOMAIN],
        dataset=dataset,
        query_type=row[QUERY_TYPE],
        query_language=row[QUERY_LANGUAGE],
    )
    seen.pairs[pair_id] = where
    if query_id is not None or document_id is not None:
        seen.ids[pair_id] = query_id, document_id
    return pair


def _evidence(row: Row, document: str) -> EvidenceSpan | None:
    start, end, passage = row[START], row[END], row[EVIDENCE]
    if (start is None) != (end is None):
        raise UserError("evidence_start and evidence_end must both be present")
    if start is None or end is None:
        return None if passage is None else _occurrence(passage, document)
    if not 0 <= start < end:
        raise UserError(f"the evidence {start} to {end} is empty or negative")
    fits = end <= len(document)
    if fits and (passage is None or document[start:end] == passage):
        return EvidenceSpan(start, end)
    # Byte offsets are reported and not corrected, because one file can mix both.
    raw = document.encode()
    if len(raw) > len(document) and end <= len(raw):
        in_bytes = raw[start:end].decode(errors="replace")
        if passage is None or in_bytes == passage:
            raise UserError(
                f"the evidence {start} to {end} seems to count UTF-8 bytes: count characters, of "
                f"which the document has {len(document):,}"
            )
    if not fits:
        raise UserError(
            f"the evidence {start} to {end} is outside the document's {len(document):,} characters"
        )
    raise UserError(f"the evidence {start} to {end} is not the text in the column evidence")


def _occurrence(passage: str, document: str) -> EvidenceSpan:
    for text in (passage, passage.strip()):
        if (start := document.find(text)) >= 0:
            return EvidenceSpan(start, start + len(text))
    reason = "does not occur in the document"
    if _plain(passage) in _plain(document):
        reason = "differs from the document in white space or in the Unicode form of its accents"
    raise UserError(f"the evidence {reason}: copy it character for character")


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


register(
    Format(
        name="own",
        description="a .csv, .tsv, .jsonl or .parquet file with the columns query and document",
        order=50,
        fits=lambda path: bool(files_of(path, tables.SUFFIXES)),
        read=lambda path, name, title: read(files_of(path, tables.SUFFIXES), name, title),
    )
)

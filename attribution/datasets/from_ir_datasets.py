"""Data sets of ir_datasets (MacAvaney et al. 2021, arXiv 2103.02280), named `ir_datasets:ID`, as in
`ir_datasets:beir/scifact/test`.

The library fetches and reads them; what it gives is written once as a folder in the BEIR layout
below the data folder, and read from there. Texts are what the library calls a document's and a
query's default text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poslens.attribution.datasets import sources
from poslens.attribution.datasets.languages import iso_639_3
from poslens.attribution.errors import UserError

PREFIX = "ir_datasets:"
_SPLITS = ("test", "dev", "train")


def fetch(name: str) -> Path:
    """The folder of a data set of the library, written if it is not there.

    Raises:
        UserError: no such data set, one without documents or judgments, the library is missing, or
            it cannot fetch its files.
    """
    identity = sources.checked_name(name, PREFIX, "ID")
    try:
        import ir_datasets
    except ImportError as error:
        raise sources.not_installed("ir_datasets") from error
    try:
        library_set = ir_datasets.load(identity)
    except KeyError as error:
        raise UserError(
            f"ir_datasets has no data set {identity}: its ids are listed at https://ir-datasets.com."
        ) from error
    if not library_set.has_docs():
        raise UserError(f"{identity} of ir_datasets has no documents: choose another.")
    if library_set.has_queries() and not library_set.has_qrels():
        raise UserError(
            f"{identity} of ir_datasets has queries but no judgments: {_parts_of(identity)}."
        )
    split = identity.rpartition("/")[2]
    part = sources.LibraryCorpus(
        lambda: ((row.doc_id, _text(row)) for row in library_set.docs_iter()),
        lambda: ((row.query_id, _text(row)) for row in library_set.queries_iter()),
        lambda: ((row.query_id, row.doc_id, row.relevance) for row in library_set.qrels_iter()),
        split if split in _SPLITS else "test",
        judged=library_set.has_queries(),
    )
    try:
        place = sources.place_of(PREFIX, identity, iso_639_3(library_set.docs_lang()))
        return place if place.is_dir() else sources.written(place, [part])
    # What a broken connection or a damaged download raises is the library's own.
    except Exception as error:
        raise sources.unreachable(name, error) from error


def _parts_of(identity: str) -> str:
    """Data sets below this one that are judged, in words."""
    import ir_datasets

    parts = sorted(part for part in ir_datasets.registry if part.startswith(f"{identity}/"))
    judged = [part for part in parts if ir_datasets.load(part).has_qrels()][:5]
    return f"use a part of it, such as {', '.join(judged)}" if judged else "choose another"


def _text(row: Any) -> str:
    """The default text of a document or a query; of one that has none, its fields in order."""
    default = getattr(row, "default_text", None)
    if default is not None:
        return str(default())
    return " ".join(_texts(row))


def _texts(row: Any) -> Iterator[str]:
    return (field for field in row[1:] if isinstance(field, str))


sources.register(sources.Source(PREFIX, fetch, sources.short_name(PREFIX)))

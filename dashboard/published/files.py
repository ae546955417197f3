"""Files of published results, chosen from a folder named at the start or uploaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import streamlit as st

from poslens.attribution.curves import published
from poslens.attribution.curves.published import (
    CURVE_SUFFIXES,
    PublishedCurves,
    PublishedMeasures,
)
from poslens.attribution.errors import UserError
from poslens.figures.plain import plain

T = TypeVar("T")
_KEPT = "published files"
_MAX_KEPT = 12
_MAX_FILES = 6


def curves() -> list[PublishedCurves]:
    """The curves of the chosen files, a model a file, each read once a session."""

    def read(name: str, data: bytes) -> PublishedCurves:
        return published.read_curves(published.model_of(name), name, data)

    return _chosen("curves", CURVE_SUFFIXES, read, "Saliency curves, .npz or .pkl")


def measures() -> list[PublishedMeasures]:
    """The measures of the chosen files."""
    files = _chosen("measures", (".json",), published.read_measures, "Measures, .json")
    return [row for rows in files for row in rows]


def _chosen(
    key: str, suffixes: Sequence[str], read: Callable[[str, bytes], T], label: str
) -> list[T]:
    known = {n: p for n, p in published.known().items() if Path(n).suffix.lower() in suffixes}
    left, right = st.columns(2)
    names: list[str] = []
    if known:
        names = left.multiselect(
            "From the folder named at the start",
            list(known),
            default=list(known)[:_MAX_FILES],
            key=f"published.{key}",
            max_selections=_MAX_FILES,
        )
    given = (right if known else st).file_uploader(
        plain(label),
        type=[suffix.lstrip(".") for suffix in suffixes],
        accept_multiple_files=True,
        key=f"published.{key}.upload",
        max_upload_size=20,
        help="PosIR's published files, or any in their layout; pickles are read as arrays of "
        "numbers and as nothing else.",
    )
    found = []
    for name in names:
        found += _read(name, published.read_bytes(known[name]), read)
    for file in given[:_MAX_FILES]:
        # Some browsers send a path; only its last part is the file's name.
        name = file.name.replace("\\", "/").rsplit("/", 1)[-1].strip()[-80:]
        found += _read(name, file.getvalue(), read)
    return found


def _read(name: str, data: bytes, read: Callable[[str, bytes], T]) -> list[T]:
    """What a file holds, or one sentence in its place; kept for the session by its contents."""
    kept: dict[str, T] = st.session_state.setdefault(_KEPT, {})
    digest = hashlib.sha256(name.encode("utf-8", "replace") + b"\0" + data).hexdigest()
    if digest not in kept:
        try:
            kept[digest] = read(name, data)
        except UserError as error:
            st.error(plain(error), icon=":material/error:")
            return []
        while len(kept) > _MAX_KEPT:
            del kept[next(iter(kept))]
    return [kept[digest]]

"""Published curves and measures: PosIR's figure 5, files in the folders given at startup, and
uploads."""

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
    figure_5,
)
from poslens.attribution.errors import UserError
from poslens.compute.provenance import of_published
from poslens.dashboard.widgets import say
from poslens.figures.plain import plain

T = TypeVar("T")
_KEPT = "published files"
_MAX_KEPT = 12
_MAX_FILES = 6


def curves() -> list[PublishedCurves]:
    """The selected published curves, to be added to a chart; each file describes one model."""

    def read(name: str, data: bytes) -> PublishedCurves:
        return published.read_curves(published.model_of(name), name, data)

    # Expanded if a link selects curves.
    with st.expander("Published curves", expanded="published" in st.query_params):
        paths = _known(CURVE_SUFFIXES)
        shipped = {published.model: published for published in figure_5()}
        names = st.multiselect(
            "Add to the chart",
            [*shipped, *paths],
            key="published",
            bind="query-params",
            max_selections=_MAX_FILES,
            help="Figure 5 of PosIR (Zeng et al. 2026, arXiv:2601.08363): gradient saliency "
            "averaged over PosIR's pairs, from the curves that the authors published.",
        )
        selected = [shipped[name] for name in names if name in shipped]
        for name in names:
            if name in paths:
                selected += _read(name, published.read_bytes(paths[name]), read)
        selected += _uploaded("curves", CURVE_SUFFIXES, read, "Saliency curves, .npz or .pkl")
        for curve_set in selected:
            dataset = of_published(curve_set).dataset
            say.caption(f"{curve_set.model}: {curve_set.n:,} pairs; {dataset}")
    return selected


def measures() -> list[PublishedMeasures]:
    """The published measures in the selected files."""
    paths = _known((".json",))
    names: list[str] = []
    if paths:
        names = st.multiselect(
            "From the folder named at startup",
            list(paths),
            default=list(paths)[:_MAX_FILES],
            key="published.measures",
            max_selections=_MAX_FILES,
        )
    files: list[list[PublishedMeasures]] = []
    for name in names:
        files += _read(name, published.read_bytes(paths[name]), published.read_measures)
    files += _uploaded("measures", (".json",), published.read_measures, "Measures, .json")
    return [row for rows in files for row in rows]


def _known(suffixes: Sequence[str]) -> dict[str, Path]:
    return {n: p for n, p in published.known().items() if Path(n).suffix.lower() in suffixes}


def _uploaded(
    key: str, suffixes: Sequence[str], read: Callable[[str, bytes], T], label: str
) -> list[T]:
    """The contents of the uploaded files. The uploader forgets its files when the user leaves the
    page, so the session keeps what was read, and lists it with buttons to remove it."""
    contents: dict[str, T] = st.session_state.setdefault(f"published.{key}.contents", {})
    listed: list[str] = st.session_state.setdefault(f"published.{key}.listed", [])

    def forget(names: Sequence[str]) -> None:
        for name in names:
            contents.pop(name, None)

    given = st.file_uploader(
        plain(label),
        type=[suffix.lstrip(".") for suffix in suffixes],
        accept_multiple_files=True,
        key=f"published.{key}.upload",
        max_upload_size=20,
        on_change=forget,  # what it still lists is read again below
        args=(listed,),
        help="PosIR's published files, or files in the same format."
        + (
            " PosLens reads a pickle only if it holds nothing but arrays of numbers."
            if ".pkl" in suffixes
            else ""
        ),
    )
    listed.clear()
    for number, file in enumerate(given[:_MAX_FILES], 1):
        # Some browsers send a path; keep only the file name.
        name = file.name.replace("\\", "/").rsplit("/", 1)[-1].strip()[-80:]
        # Files of different folders may have the same name.
        listed.append(f"{name} ({number})" if name in listed else name)
        for content in _read(name, file.getvalue(), read):
            contents[listed[-1]] = content
    while len(contents) > _MAX_FILES:
        del contents[next(iter(contents))]
    for name in [each for each in contents if each not in listed]:
        st.button(
            plain(f"Remove {name}"),
            key=f"published.{key}.remove.{name}",
            icon=":material/close:",
            on_click=forget,
            args=([name],),
        )
    return list(contents.values())


def _read(name: str, data: bytes, read: Callable[[str, bytes], T]) -> list[T]:
    """The contents of a file; on error, an empty list and a message. Files are read once per
    session."""
    cached: dict[str, T] = st.session_state.setdefault(_KEPT, {})
    digest = hashlib.sha256(name.encode("utf-8", "replace") + b"\0" + data).hexdigest()
    if digest not in cached:
        try:
            cached[digest] = read(name, data)
        except UserError as error:
            say.error(error, icon=":material/error:")
            return []
        while len(cached) > _MAX_KEPT:
            del cached[next(iter(cached))]
    return [cached[digest]]

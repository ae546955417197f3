"""Base classes of the results of Python calls: table, figure, files, display in a notebook."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from poslens.attribution.types import Provenance
from poslens.cache.exchange.atomic_file import replacing
from poslens.export.files import TABLE_FORMATS, figure_bytes, table_files
from poslens.figures.palettes import Style

HEIGHT_PX = 460
"""Height of a heatmap in a notebook; a longer document scrolls."""

PICTURES = ("html", "png", "svg", "pdf")


class Result(ABC):
    """A table and a figure with their provenance; a notebook displays the figure."""

    @property
    @abstractmethod
    def provenance(self) -> list[Provenance]:
        """Everything needed to reproduce the result, one entry per model."""

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """The numbers as a table."""

    @abstractmethod
    def figure(self, style: Style | None = None) -> go.Figure:
        """The numbers as a Plotly figure.

        Raises:
            UserError: there is nothing to draw.
        """

    def save(self, path: str | Path) -> Path:
        """The figure as .html, .png, .svg or .pdf; the table as .csv, .parquet, .json or .tex
        (LaTeX with booktabs). A .csv gets a file with its provenance next to it,
        `NAME.provenance.json`.

        Raises:
            UserError: the suffix is not one of these, no browser is installed to draw a picture, or
                the file cannot be written.
        """
        fmt = suffix(path, (*PICTURES, *TABLE_FORMATS))
        if fmt in PICTURES:
            return written(path, self._picture(fmt))
        return table_written(path, self.to_frame(), fmt, self.provenance)

    def _picture(self, fmt: str) -> bytes:
        """The file of the figure in one of the formats `PICTURES`."""
        return figure_bytes(self.figure(), fmt, Style(), self.provenance)  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        return framed(self._picture("html"))


def framed(page: bytes) -> str:
    """HTML that shows a page in a notebook's cell, in a sandboxed frame whose script cannot access
    the notebook."""
    source = html.escape(page.decode(), quote=True)
    return (
        f'<iframe srcdoc="{source}" sandbox="allow-scripts" title="PosLens" '
        f'style="width:100%;height:{HEIGHT_PX}px;border:0"></iframe>'
    )


def suffix(path: str | Path, formats: Sequence[str]) -> str:
    """The format given by a file name's suffix.

    Raises:
        UserError: the suffix is not one of `formats`.
    """
    from poslens.commands.result_files import suffix_of

    return suffix_of(Path(path), list(dict.fromkeys(formats)))


def table_written(path: str | Path, frame: pd.DataFrame, fmt: str, provenance: Any) -> Path:
    """Write a table and its provenance to files; returns the table's path."""
    target = Path(path)
    files = table_files(frame, target.name, fmt, provenance)  # type: ignore[arg-type]
    for name, data in reversed(files.items()):  # provenance first, so that no table lacks it
        written(target.with_name(name), data)
    return target


def written(path: str | Path, data: bytes) -> Path:
    """Write `data` to a file, which is either complete or unchanged; returns its path.

    Raises:
        UserError: it cannot be written.
    """
    target = Path(path)
    with replacing(target) as file:
        file.write(data)
    return target

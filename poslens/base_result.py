"""The result of a Python call: tables and a figure with their provenance, which notebooks display
and which can be saved to files."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import pandas as pd
import plotly.graph_objects as go

from poslens.attribution.errors import UserError
from poslens.attribution.types import Provenance
from poslens.commands.result_files import suffix_of, written
from poslens.export.files import TABLE_FORMATS, figure_bytes, table_files
from poslens.figures.palettes import Style, styled

T = TypeVar("T")

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
    def to_frame(self, table: str | None = None) -> pd.DataFrame:
        """The table of this name, by default the first one.

        Raises:
            UserError: there is no such table.
        """

    def figure(self, table: str | None = None, *, style: Style | None = None) -> go.Figure:
        """The numbers of the table of this name, by default the first one, as a Plotly figure.

        Raises:
            UserError: there is no such table, it has no figure, or there is nothing to draw.
        """
        if not isinstance(style, Style | None):
            raise UserError(
                f"style must be a poslens.figures.palettes.Style, not {type(style).__name__}: to "
                "give a size or a palette by name, use save(path, size=..., palette=...)."
            )
        return self._drawn(table, style or Style())

    @abstractmethod
    def _drawn(self, table: str | None, style: Style) -> go.Figure:
        """See `figure`."""

    def save(
        self, path: str | Path, table: str | None = None, *, size: str = "", palette: str = ""
    ) -> Path:
        """The figure as .html, .png, .svg or .pdf; the table of this name, by default the first
        one, as .csv, .parquet, .json or .tex (LaTeX with booktabs). A .csv gets a file with its
        provenance next to it, `NAME.provenance.json`. `size` and `palette` of the figure are those
        of the commands, such as "single column" and "tol-bright".

        Raises:
            UserError: the suffix is not one of these, there is no such table, the size or palette
                is unknown, no browser is installed to draw a picture, or the file cannot be
                written.
        """
        fmt = suffix_of(Path(path), (*PICTURES, *TABLE_FORMATS))
        if fmt in PICTURES:
            style = styled(size, palette) if size or palette else None
            return written(path, self._picture(fmt, style, table))
        target = Path(path)
        files = table_files(self.to_frame(table), target.name, fmt, self.sources(table))  # type: ignore[arg-type]
        for name, data in reversed(files.items()):  # provenance first, so that no table lacks it
            written(target.with_name(name), data)
        return target

    def sources(self, table: str | None) -> list[Provenance]:
        """The provenance of one table."""
        return self.provenance

    def _picture(self, fmt: str, style: Style | None = None, table: str | None = None) -> bytes:
        """The file of the figure in one of the formats `PICTURES`."""
        style = style or Style()
        return figure_bytes(self.figure(table, style=style), fmt, style)  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        return framed(self._picture("html"))


def chosen(tables: Mapping[str, T], table: str | None, of: str, what: str = "table") -> T:
    """The table of this name, by default the first one; `what` is what is requested.

    Raises:
        UserError: there is none.
    """
    name = next(iter(tables)) if table is None else table
    if not isinstance(name, str) or name not in tables:
        shown = repr(name[:40]) if isinstance(name, str) else f"of type {type(name).__name__}"
        raise UserError(f"{of} has no {what} {shown}: choose from {', '.join(tables)}.")
    return tables[name]


class NoSuchModel(UserError, KeyError):
    """Raised for a model that a result does not have; a mapping must raise a KeyError."""

    __str__ = Exception.__str__  # KeyError's own shows only the repr


def require_model(model: object, names: Iterable[str], of: str) -> None:
    """Check that a result has a model of this name.

    Raises:
        NoSuchModel: it does not; the message has the names of those that it has.
    """
    names = list(names)
    if model not in names:
        raise NoSuchModel(f"{of} has no model {str(model)[:80]!r}: choose from {', '.join(names)}.")


FIGURE_OF = "figure of the table"
"""What `figure` requests from `chosen`."""


def framed(page: bytes) -> str:
    """HTML that shows a page in a notebook's cell, in a sandboxed frame whose script cannot access
    the notebook."""
    source = html.escape(page.decode(), quote=True)
    return (
        f'<iframe srcdoc="{source}" sandbox="allow-scripts" title="PosLens" '
        f'style="width:100%;height:{HEIGHT_PX}px;border:0"></iframe>'
    )

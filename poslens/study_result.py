"""The result of a study in a notebook or script: tables, figure, files and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from poslens.attribution.errors import UserError
from poslens.attribution.types import Provenance
from poslens.export.files import FIGURE_FORMATS, TABLE_FORMATS, figure_bytes
from poslens.figures.palettes import Style
from poslens.paired import difference_sentences
from poslens.study import Study


@dataclass(frozen=True, repr=False, eq=False)
class StudyResult:
    """The result of a study for one or more models. `summaries` are the study's own objects."""

    study: Study[Any, Any, Any]
    summaries: Sequence[Any]

    @property
    def verdicts(self) -> list[str]:
        """One sentence for each model, then one for each pair of models that the study compares."""
        own = [self.study.verdict(summary) for summary in self.summaries]
        return [*own, *difference_sentences(self.study.differences(self.summaries))]

    @property
    def provenance(self) -> list[Provenance]:
        """Everything needed to reproduce the result, one entry for each summary."""
        return self.study.provenances(self.summaries)

    def to_frame(self, table: str | None = None) -> pd.DataFrame:
        """The table of this name, by default the study's first one. An estimate has three columns.

        Raises:
            UserError: the study has no such table.
        """
        name = table or next(iter(self.study.all_tables))
        if name not in self.study.all_tables:
            raise UserError(
                f"{self.study.title} has no table {name[:40]!r}: choose from "
                f"{', '.join(self.study.all_tables)}."
            )
        return self.study.all_tables[name].frame(self.summaries)

    def figure(self, style: Style | None = None) -> go.Figure:
        """The study's first figure.

        Raises:
            UserError: the study has no figure.
        """
        if not self.study.figures:
            raise UserError(f"{self.study.title} has no figure.")
        return self.study.figures[0].draw(self.summaries, style or Style(), self.provenance)

    def save(self, path: str | Path, table: str | None = None) -> Path:
        """Write the figure (.html, .png, .svg or .pdf) or a table (.csv, .parquet, .json or .tex).

        Raises:
            UserError: another suffix, or the file cannot be written.
        """
        from poslens.result_base import suffix, table_written, written

        fmt = suffix(path, tuple(dict.fromkeys((*TABLE_FORMATS, *FIGURE_FORMATS))))
        if fmt in TABLE_FORMATS:
            provenance = self.study.provenances(self.summaries, table or "")
            return table_written(path, self.to_frame(table), fmt, provenance)
        style = Style()
        return written(path, figure_bytes(self.figure(style), fmt, style, self.provenance))  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        table = next(iter(self.study.all_tables.values()))
        return str(table.text_frame(self.summaries).to_html(escape=True, index=False))

    def __repr__(self) -> str:
        return f"<{self.study.title}: {' '.join(self.verdicts)}>"

"""Figures and tables as files with their provenance, a JSON list with one entry per model.

| format | location of the provenance |
|---|---|
| png | iTXt chunk `provenance`; as text in `Description`; resolution in pHYs |
| svg | `<metadata id="provenance">`; as text in `<desc>` |
| pdf | information dictionary: JSON in `Keywords`, text in `Title` and `Subject` |
| html | `<script type="application/json" id="provenance">` |
| json (figure) | `layout.meta.provenance` |
| json (table) | `provenance`, next to `rows` |
| parquet | schema metadata `provenance`; in pandas also `frame.attrs["provenance"]` |
| csv | separate JSON file `NAME.provenance.json`, see `table_files` |
"""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import re
import unicodedata
import zipfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from html import escape as html_escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.parquet as pq
from plotly.offline import get_plotlyjs

from poslens.attribution.text import inside
from poslens.attribution.types import N_BINS, Attribution, PositionCurve, TextPair
from poslens.export.inscription import inscribed
from poslens.export.json_text import json_text, script_json, without_surrogates
from poslens.export.latex import latex
from poslens.figures.captions import Provenances, provenance_entries
from poslens.figures.figure_base import CLEAR
from poslens.figures.palettes import FIGURE_FORMATS as FIGURE_FORMATS
from poslens.figures.palettes import FigureFormat, Style, printable

TableFormat = Literal["csv", "parquet", "json", "tex"]

MEDIA_TYPES: Mapping[str, str] = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "html": "text/html",
    "json": "application/json",
    "yaml": "application/yaml",
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "tex": "application/x-tex",
    "zip": "application/zip",
}
TABLE_FORMATS: tuple[TableFormat, ...] = ("csv", "parquet", "json", "tex")

# Characters that spreadsheets treat as the start of a formula (OWASP, "CSV Injection"), including
# full-width ones.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)


def file_name(*parts: object, fmt: str) -> str:
    """A file name of ASCII letters, digits, `-`, `_` and `.`, at most 80 characters with its
    suffix. Of a longer name, the last part, which says what the file contains, is kept, and a short
    digest distinguishes it from others with the same beginning.

    For any parts, the name has no slash or leading dot, is not a Windows device name and is not
    empty; characters of other scripts are dropped.
    """
    words = []
    for part in parts:
        ascii_part = unicodedata.normalize("NFKD", str(part)).encode("ascii", "ignore").decode()
        word = re.sub(r"[^A-Za-z0-9_.]+", "-", ascii_part).strip("-._")
        words.append(re.sub(r"\.{2,}", ".", word))
    *first, last = [word for word in words if word] or ["poslens"]
    suffix = re.sub(r"[^a-z0-9]", "", fmt.lower())[:10] or "bin"
    stem, room = "_".join([*first, last]), 79 - len(suffix)
    if len(stem) > room:
        digest = hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "replace")).hexdigest()
        end = f"{digest[:6]}_{last[: room - 7].rstrip('-._')}"
        start = "_".join(first)[: max(room - 1 - len(end), 0)].rstrip("-._")
        stem = f"{start}-{end}" if start else end
    return f"{'poslens_' if _RESERVED.match(stem) else ''}{stem}.{suffix}"[-80:]


def figure_bytes(
    figure: go.Figure, fmt: FigureFormat, style: Style, provenance: Provenances | None = None
) -> bytes:
    """`figure` as the bytes of a file that contains `provenance`, or else the figure's own.

    A PNG is `style.width_px * style.dpi / 96` dots wide; SVG and PDF have the size in inches (96
    px, 72 pt). The figure must be built with the width of `style`, because fonts and margins are
    not rescaled.

    Raises:
        UserError: png, svg or pdf without Chrome or Chromium, or a browser that does not answer.
        ValueError: no provenance, or a figure built for another width.
    """
    layout = figure.to_dict()["layout"]
    existing = layout.get("meta", {}).get("provenance") or ()
    entries = list(existing) if provenance is None and existing else _entries(provenance or ())
    width, height = layout.get("width", style.width_px), layout.get("height", style.height_px)
    if width != style.width_px:
        raise ValueError(f"the figure is {width} px wide, its style {style.width_px}")
    figure = go.Figure(figure)
    figure.update_layout(
        meta={**layout.get("meta", {}), "provenance": entries}, width=width, height=height
    )
    if fmt == "json":
        return str(figure.to_json()).encode()
    title = _title(entries)
    if fmt == "html":
        css = f"body {{ background: {style.colors.paper} }}"
        return page_bytes(title, entries, figure_div(figure, "figure"), css)
    from poslens.export.browser import render  # here: slow to import

    traces = [
        static_trace for trace in figure.data for static_trace in _without_clear_markers(trace)
    ]
    drawn = go.Figure(traces, figure.layout).to_dict()
    image = render(drawn, fmt, width, height, style.scale if fmt == "png" else 1)
    return inscribed(image, fmt, title, entries, style.dpi)


def _without_clear_markers(trace: Any) -> list[Any]:
    """The same trace for a static picture, without the invisible markers that only receive clicks
    and would add 100 shapes to the file."""
    colors = getattr(trace, "marker", None) and trace.marker.color
    if isinstance(colors, str) and colors == CLEAR:
        return [deepcopy(trace).update(mode="lines")]
    if not isinstance(colors, tuple) or CLEAR not in colors:
        return [trace]
    shown = [at for at, color in enumerate(colors) if color != CLEAR]
    symbols = deepcopy(trace)
    # None separates the points; the legend shows this trace's line and symbol.
    symbols.x = [value for at in shown for value in (trace.x[at], None)]
    symbols.y = [value for at in shown for value in (trace.y[at], None)]
    symbols.marker.color = colors[0]
    return [deepcopy(trace).update(mode="lines", showlegend=False), symbols]


def table_files(
    frame: pd.DataFrame, name: str, fmt: TableFormat, provenance: Provenances
) -> dict[str, bytes]:
    """The bytes of the files of a table, by name: the table as `name`, and for CSV its provenance
    as `STEM.provenance.json`. The other formats contain the provenance.

    Raises:
        ValueError: no provenance.
    """
    files = {name: table_bytes(frame, fmt, provenance, Path(name).stem)}
    if fmt == "csv":
        second = f"{Path(name).stem}.provenance.json"
        files[second] = json_text(_entries(provenance), indent=1).encode()
    return files


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Files by name as one ZIP archive; the same files give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def table_bytes(
    frame: pd.DataFrame, fmt: TableFormat, provenance: Provenances, name: str = ""
) -> bytes:
    """`frame` as the bytes of a file, without its index. All formats but CSV contain the
    provenance. `name` is that of the file without its suffix, for the label in LaTeX.

    CSV: readable with `pandas.read_csv(file)`; text cells and column names are quoted. Text that a
    spreadsheet would run as a formula is preceded by an apostrophe (`=1+1` becomes `'=1+1`);
    numbers are not. Missing values and infinities are empty. See `table_files` for the provenance.
    JSON: `{"provenance": [...], "rows": [{column: value}]}`, null for missing or infinite values.
    Parquet: unchanged values. LaTeX: see `latex`.

    Raises:
        ValueError: no provenance.
    """
    entries = _entries(provenance)
    frame = frame.rename(columns=_without_surrogates)
    for column in _text_columns(frame):
        frame[column] = frame[column].map(_without_surrogates, na_action="ignore")
    if fmt == "parquet":
        return _parquet(frame, entries)
    if fmt == "csv":
        return _csv(frame)
    if fmt == "tex":
        return latex(frame, entries, name)
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return json_text({"provenance": entries, "rows": rows}).encode()


def attribution_frame(attribution: Attribution, pair: TextPair) -> pd.DataFrame:
    """One row per token of the query and then of the document, including special tokens.

    Columns: side, index (among the tokens of that side), token, start, end (characters of the
    text), is_special, position ((j + 0.5) / D for the j-th of the D document tokens that are not
    special, otherwise missing), in_evidence (whether a document token shares a character with the
    evidence; missing without evidence), score.
    """
    frames = []
    span = pair.evidence
    sides = (
        ("query", attribution.query, attribution.query_scores),
        ("document", attribution.document, attribution.document_scores),
    )
    for side, text, scores in sides:
        in_document = np.full(len(text), side == "document")
        n_content = max(1, int(text.content.sum()))
        positions = (np.cumsum(text.content) - 0.5) / n_content
        frames.append(
            pd.DataFrame(
                {
                    "side": side,
                    "index": np.arange(len(text)),
                    "token": list(map(without_surrogates, text.texts)),
                    "start": text.starts.astype(np.int64),
                    "end": text.ends.astype(np.int64),
                    "is_special": ~text.content,
                    "position": np.where(in_document & text.content, positions, np.nan),
                    "in_evidence": pd.NA if span is None else in_document & inside(text, span),
                    "score": scores.astype(np.float64),
                }
            )
        )
    frame = pd.concat(frames, ignore_index=True)
    return frame.astype({"in_evidence": "boolean", "token": "str", "side": "str"})


_QUARTILES = ("lower_quartile", "median", "upper_quartile")
_COUNTS = ("n", "n_documents", "n_truncated", "n_failed")


def curve_frame(curves: Sequence[PositionCurve]) -> pd.DataFrame:
    """100 rows per curve: model, data set, method, bin 0..99, position in [0, 1], mean, std, ci_low
    and ci_high (missing below 10 documents), lower_quartile, median and upper_quartile (over pairs;
    missing if not stored), magnitude (the mean of |score|, from which index and center of mass are
    computed), and the numbers of pairs and documents. n_read is the number of pairs that were read
    at the position; it is missing unless the curve covers whole texts."""
    bins = np.arange(N_BINS)
    frames = [
        pd.DataFrame(
            {
                "model": curve.model,
                "dataset": curve.dataset,
                "method": repr(curve.method),
                "bin": bins,
                "position": curve.positions,
                "mean": curve.mean,
                "std": curve.std,
                "ci_low": np.nan if curve.ci_low is None else curve.ci_low,
                "ci_high": np.nan if curve.ci_high is None else curve.ci_high,
                **{
                    name: np.nan if curve.quartiles is None else curve.quartiles[at]
                    for at, name in enumerate(_QUARTILES)
                },
                "magnitude": np.nan if curve.magnitudes is None else curve.magnitudes,
                **{name: getattr(curve, name) for name in _COUNTS},
                "n_read": pd.array(
                    [pd.NA] * N_BINS if curve.n_read is None else curve.n_read, "Int64"
                ),
            }
        )
        for curve in curves
    ]
    return pd.concat(frames, ignore_index=True)


def _entries(provenance: Provenances) -> list[dict[str, Any]]:
    entries = provenance_entries(provenance)
    if not entries:
        raise ValueError("an export without provenance")
    return entries


def _title(entries: Sequence[Mapping[str, Any]]) -> str:
    parts = {key: list(dict.fromkeys(str(e[key]) for e in entries)) for key in ("model", "dataset")}
    return f"PosLens: {', '.join(parts['model'])} on {', '.join(parts['dataset'])}"


def figure_div(figure: go.Figure, name: str, *, library: bool = True, static: bool = False) -> str:
    """A figure as an HTML element with the id `name`. The first one on a page must include the
    drawing `library`. A `static` one, for printing, has no toolbar or interaction and is drawn
    immediately; others are drawn once the browser has unpacked the compressed library."""
    drawn: str = figure.to_html(
        full_html=False,
        include_plotlyjs=library and static,
        include_mathjax=False,
        div_id=name,
        config={"displaylogo": False, "staticPlot": static},
    )
    return f"{_compressed_library()}\n{drawn}" if library and not static else drawn


# Figures call `Plotly.newPlot` before the library is unpacked, so those calls are queued.
_UNPACK = """
window.Plotly = {newPlot: (...all) => unpacked.then(() => window.Plotly.newPlot.apply(null, all))};
const packed = document.getElementById("plotly").textContent;
const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
const unpacked = new Response(stream).text().then((source) => {
  const script = document.createElement("script");
  script.textContent = source;
  document.head.append(script);
});
"""


@cache
def _compressed_library() -> str:
    """plotly.js as an HTML element, compressed to a third of its size, so that a page needs no
    download."""
    packed = base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
    return (
        f'<script type="application/gzip" id="plotly">{packed}</script>\n<script>{_UNPACK}</script>'
    )


# Plotly hides its toolbar until the figure is hovered; without hovering it would cover the legend.
_PLOT_CSS = "@media (hover: none), print { .modebar { display: none } }"


def page_bytes(title: str, entries: Sequence[Mapping[str, Any]], body: str, css: str) -> bytes:
    """A self-contained HTML file with the markup `body` and the provenance; its content security
    policy forbids requests."""
    data = script_json(list(entries))
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    policy += "img-src data: blob:"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{html_escape(printable(title))}</title>\n"
        f'<script type="application/json" id="provenance">{data}</script>\n'
        f"<style>\n{css}\n{_PLOT_CSS}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    ).encode()


def _without_surrogates(value: Any) -> Any:
    return without_surrogates(value) if isinstance(value, str) else value


def _text_columns(frame: pd.DataFrame) -> list[Any]:
    return [
        name
        for name in frame.columns
        if pd.api.types.is_string_dtype(frame[name]) or frame[name].dtype == object
    ]


def _unformula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value


def _csv(frame: pd.DataFrame) -> bytes:
    frame = frame.rename(columns=_unformula).replace([np.inf, -np.inf], np.nan)
    for column in _text_columns(frame):
        frame[column] = frame[column].map(_unformula, na_action="ignore")
    table = frame.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    return str(table).encode()


def _parquet(frame: pd.DataFrame, entries: list[dict[str, Any]]) -> bytes:
    frame.attrs = {"provenance": entries}
    table = pa.Table.from_pandas(frame, preserve_index=False)
    table = table.replace_schema_metadata(
        {**(table.schema.metadata or {}), b"provenance": json.dumps(entries).encode()}
    )
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()

"""Parts that several pages show: heatmaps, a document's curves, downloads, guarded sections."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from poslens.attribution.methods import METHODS
from poslens.attribution.types import Method, Provenance, TextPair
from poslens.cache.lru_cache import LRUCache
from poslens.compute import coverage
from poslens.compute.compute import Explained, service
from poslens.dashboard.widgets import url_state
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.guard import guarded as guarded
from poslens.dashboard.widgets.heatmap import heatmap
from poslens.export.files import (
    FIGURE_FORMATS,
    MEDIA_TYPES,
    TABLE_FORMATS,
    attribution_frame,
    figure_bytes,
    file_name,
    table_files,
    zipped,
)
from poslens.figures.curves import PRESETS, Style
from poslens.figures.figure_base import (
    Provenances,
    caption_line,
    caption_text,
    provenance_entries,
)
from poslens.figures.palettes import PALETTES
from poslens.figures.plain import plain as plain
from poslens.heatmap import Pane, View
from poslens.heatmap.data import MAX_COLUMNS
from poslens.heatmap.results import heatmap_bytes as heatmap_bytes
from poslens.heatmap.results import labels as labels
from poslens.heatmap.results import panes as panes

_CLEAR = "rgba(0,0,0,0)"
BESIDE_PX = 450
"""Width of a figure beside another: what fits there fits also where there is more room."""
HEATMAP_FORMATS = ("png", "svg", "pdf", "html")
Draw = Callable[[Style], go.Figure]


def theme() -> str:
    """light or dark, as the reader's page is."""
    return "dark" if st.context.theme.type == "dark" else "light"


def screen_style(**changes: object) -> Style:
    """The style of figures on the page."""
    return Style(theme=theme(), **changes)  # type: ignore[arg-type]


_figures: LRUCache[go.Figure] = LRUCache(256)


def drawn(content: Hashable, draw: Draw, style: Style) -> go.Figure:
    """What `draw` gives, or gave before for the same content in this style: drawing takes longer
    than all else on a page whose results are stored. For `show` alone; an export changes its
    figure and draws its own."""
    return _figures.get((content, style), lambda: _on_page(draw(style)))


def _on_page(figure: go.Figure) -> go.Figure:
    return figure.update_layout(paper_bgcolor=_CLEAR, plot_bgcolor=_CLEAR)


def show(figure: go.Figure, key: str, alt: str, **options: Any) -> Any:
    """A figure on the page, on the page's own background."""
    if figure.layout.paper_bgcolor != _CLEAR:
        _on_page(figure)
    return st.plotly_chart(figure, theme=None, key=key, alt=alt, **options)


def clicked(event: Any, key: str) -> Any | None:
    """What the point of a chart carries that was clicked just now. A chart keeps what is selected,
    and gives it again at each rerun: then this is None, as it is without a point."""
    points = event.selection.points
    found = points[0].get("customdata") if points else None
    before = f"{key}.clicked"
    if found == st.session_state.get(before):
        return None
    st.session_state[before] = found
    return found


def side_by_side(key: str) -> tuple[DeltaGenerator, DeltaGenerator]:
    """Two places of one width beside each other, or one above the other where there is no room; one
    that stays empty leaves its room to the other."""
    # page.css knows the row by its key.
    row = st.container(horizontal=True, key=f"side_by_side.{key}")
    return row.container(), row.container()


def token_heatmap(drawn: Sequence[Pane], method: Method, key: str) -> View:
    """The token heatmap of several models, its toggles kept in the address."""
    # What the reader has not chosen follows the method, so nothing is remembered of it.
    usual = View(aggregate=METHODS[method.name].aggregate)
    values = {name: url_state.get(name) for name in usual.to_dict()}
    view = heatmap(drawn, View.from_dict(values, usual), key=key)
    for name, value in view.to_dict().items():
        url_state.put(name, "" if value == usual.to_dict()[name] else str(value))
    return view


def other_version(name: str, other: TextPair, room: bool) -> bool:
    """The other version of a pair, folded away; whether it is to be attributed beside this one,
    which needs `room` for twice the panes."""
    with st.expander(plain(name)):
        left, right = st.columns(2)
        left.caption("Query")
        left.text(other.query)
        right.caption("Document")
        right.text(other.document)
        beside = st.toggle(
            "Also attribute this text",
            key="versions",
            bind="query-params",
            disabled=not room,
            help="Shows both versions next to each other for the same models.",
        )
        if not room:
            st.caption(
                f"Both versions fit next to each other for at most {MAX_COLUMNS // 2:,} models. "
                "Select fewer models."
            )
    return beside and room


def reading_note(result: Explained) -> str:
    """What the model read of the document, in words."""
    document = result.attribution.document
    read = int(document.content.sum())
    text = f"The model reads all {read:,} tokens."
    if document.truncated:
        text = (
            f"The model reads {read:,} of {document.n_tokens_full:,} tokens (context limit "
            f"{document.max_length:,}, including special tokens). The gray text is truncated."
        )
    return f"{text} {coverage.pair_sentence(coverage.of_pair(service(), result))}".rstrip()


def caption(provenance: Provenances) -> None:
    """Provenance below what it belongs to: one line, and all of it folded behind that line."""
    if entries := provenance_entries(provenance):
        with st.expander(plain(f"Provenance: {caption_line(entries)}")):
            st.caption(plain(caption_text(entries)))


def explained_frame(results: Sequence[Explained], label: str = "") -> pd.DataFrame:
    """A row for each token of each result; a column `label` has what the heatmap calls the result,
    where that is more than its model."""
    frames = []
    several = len({result.pair.dataset for result in results}) > 1
    for result in results:
        frame = attribution_frame(result.attribution, result.pair)
        frame.insert(0, "model", result.model.spec.name)
        if label:
            frame.insert(1, label, result.attribution.model)
        if several:
            frame.insert(1, "dataset", result.pair.dataset)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def publication_style(key: str) -> Style:
    """Size, font and palette of an exported figure, chosen in the popover."""
    size = st.selectbox("Size", list(PRESETS), key=f"{key}.size", persist_state="session")
    preset = PRESETS[size or "screen"]
    font = st.selectbox(
        "Font",
        ["Arial, Helvetica, sans-serif", "Times New Roman, Liberation Serif, serif"],
        key=f"{key}.font",
        persist_state="session",
        format_func=lambda family: family.split(",")[0],
    )
    points = st.number_input(
        "Font size (pt)",
        4.0,
        24.0,
        value=round(preset.font_size * 0.75, 1),
        step=0.5,
        key=f"{key}.points.{size}",
    )
    palette = st.selectbox("Palette", list(PALETTES), key=f"{key}.palette", persist_state="session")
    with_caption = st.toggle(
        "Provenance below the figure", key=f"{key}.caption", persist_state="session"
    )
    return replace(
        preset,
        font_family=font or preset.font_family,
        font_size=points / 0.75,
        palette=palette or preset.palette,
        caption=bool(with_caption),
    )


_PREPARED = "export.prepared"
"""Where a session keeps the one file that it had made last."""


@dataclass(frozen=True)
class Prepared:
    """A file that was made for download, and what the reader had chosen then: in the popover, and
    on the rest of the page."""

    of: Hashable
    page: Mapping[str, object]
    data: bytes

    def stands(self, of: Hashable) -> bool:
        """Whether `of` is what it was made for, and nothing is chosen otherwise now. A result that
        a run has added to meanwhile leaves the file as it is: it says itself how much it is of."""
        now = _chosen_on_page()
        return self.of == of and all(
            now.get(name, value) == value for name, value in self.page.items()
        )


def _chosen_on_page() -> dict[str, object]:
    """What the session keeps of the reader's choices: words, numbers and lists of them."""
    found: dict[str, object] = {}
    for name in map(str, st.session_state):
        value = st.session_state[name]
        if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
            found[name] = tuple(value)
        elif isinstance(value, str | int | float) and not name.endswith(".prepare"):
            found[name] = value
    return found


@fragment()
def downloads(
    key: str,
    name: Sequence[str],
    provenance: Sequence[Provenance],
    *,
    figures: Mapping[str, Draw] | None = None,
    heatmap: Sequence[Pane] = (),
    view: View | None = None,
    frame: pd.DataFrame | Callable[[], pd.DataFrame] | None = None,
    tables: Mapping[str, Callable[[], pd.DataFrame]] | None = None,
    documents: Mapping[str, tuple[Sequence[str], Callable[[Any], bytes]]] | None = None,
    sources: Mapping[str, Sequence[Provenance]] | None = None,
) -> None:
    """A popover that exports the figures, the heatmap and the tables of a section; `frame` is the
    one table of a section that has no other. `documents` are what else it has, each with its
    formats and what makes it in one of them. `sources` is the provenance of a table or heatmap that
    was made of something else than the rest, by its name.

    Files (and a `frame` that is given as what makes it) are made when they are asked for, not at
    every rerun. A part of the page that runs by itself: nothing else is made again for a choice in
    it.
    """
    # Its choices are made though it is folded away: the browser places it by their height, and near
    # the window's lower edge an empty one would stay a line high.
    with st.popover("Export", icon=":material/download:", key=f"export.{key}"):
        what = [*(documents or {}), *(figures or {})]
        if heatmap:
            what.append("Heatmap")
        numbers: dict[str, pd.DataFrame | Callable[[], pd.DataFrame]] = {**(tables or {})}
        if frame is not None:
            numbers["Numbers"] = frame
        what.extend(numbers)
        chosen = st.selectbox("What", what, key=f"{key}.what") or what[0]
        formats: Sequence[str] = FIGURE_FORMATS
        document = (documents or {}).get(chosen)
        if document:
            formats = document[0]
        elif chosen in numbers:
            formats = TABLE_FORMATS
        elif chosen == "Heatmap":
            formats = HEATMAP_FORMATS
        fmt = st.segmented_control(
            "Format",
            formats,
            default=formats[0],
            key=f"{key}.format.{chosen}",
            required=True,
            format_func=plain,
        )
        fixed = chosen in numbers or document
        target = file_name(*name, chosen.lower(), fmt=str(fmt))
        style = Style() if fixed else publication_style(key)

        def make() -> bytes:
            if document:
                return document[1](fmt)
            origin = (sources or {}).get(chosen, provenance)
            if chosen in numbers:
                made = numbers[chosen]
                table = made() if callable(made) else made
                files = table_files(table, target, fmt, origin)  # type: ignore[arg-type]
                return zipped(files) if len(files) > 1 else files[target]
            if chosen == "Heatmap" and view is not None:
                return heatmap_bytes(heatmap, origin, view, str(fmt), style)
            draw = (figures or {})[chosen]
            return figure_bytes(draw(style), fmt, style)  # type: ignore[arg-type]

        # Kept apart from the button: a page that begins anew before it comes here (a run has just
        # ended) would lose the click.
        asked = f"{key}.asked"
        st.button(
            "Prepare download",
            key=f"{key}.prepare",
            width="stretch",
            on_click=st.session_state.__setitem__,
            args=(asked, True),
        )
        of = (key, *name, chosen, fmt, style, view)
        if st.session_state.pop(asked, False):
            st.session_state.pop(_PREPARED, None)
            with guarded(), st.spinner("Drawing"):
                st.session_state[_PREPARED] = Prepared(of, _chosen_on_page(), make())
        # Drawn again as long as it stands: a run at work draws its page anew every second or two.
        prepared: Prepared | None = st.session_state.get(_PREPARED)
        if prepared is None or not prepared.stands(of):
            return
        # A table and the file with its provenance.
        packed = chosen in numbers and fmt == "csv"
        st.download_button(
            plain(f"Download {str(fmt).upper()}{' (ZIP)' if packed else ''}"),
            prepared.data,
            f"{Path(target).stem}.zip" if packed else target,
            MEDIA_TYPES["zip" if packed else str(fmt)],
            key=f"{key}.download",
            on_click="ignore",
            type="primary",
            width="stretch",
        )

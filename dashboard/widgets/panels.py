"""Parts shared by several pages: heatmaps, figures, captions, downloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from poslens.attribution.methods import METHODS
from poslens.attribution.types import Method, Provenance, TextPair
from poslens.cache.lru_cache import LRUCache
from poslens.dashboard.widgets import choices, say, url_state
from poslens.dashboard.widgets.guard import fragment
from poslens.dashboard.widgets.guard import guarded as guarded
from poslens.dashboard.widgets.heatmap import heatmap
from poslens.export.files import (
    FIGURE_FORMATS,
    MEDIA_TYPES,
    TABLE_FORMATS,
    figure_bytes,
    file_name,
    table_files,
    zipped,
)
from poslens.figures.captions import Provenances, caption_line, caption_parts, provenance_entries
from poslens.figures.palettes import PALETTES, PRESETS, Style
from poslens.figures.plain import plain as plain
from poslens.heatmap.data import MAX_COLUMNS, Pane, View
from poslens.heatmap.results import heatmap_bytes as heatmap_bytes
from poslens.heatmap.results import labels as labels
from poslens.heatmap.results import panes as panes

_CLEAR = "rgba(0,0,0,0)"
BESIDE_PX = 450
"""Width in pixels for figures placed side by side; labels that fit there fit in wider figures
too."""
HEATMAP_FORMATS = ("png", "svg", "pdf", "html")
Draw = Callable[[Style], go.Figure]


def screen_style(**changes: Any) -> Style:
    """The style of figures on the page, light or dark."""
    return Style(theme="dark" if st.context.theme.type == "dark" else "light", **changes)


_figures: LRUCache[go.Figure] = LRUCache(256)


def drawn(content: Hashable, draw: Draw, style: Style) -> go.Figure:
    """The figure that `draw` returns, cached by content and style, since drawing takes longer than
    everything else on a page of stored results. Only for `show`: an export modifies its figure and
    must draw its own."""
    return _figures.get((content, style), lambda: _on_page(draw(style)))


def _on_page(figure: go.Figure) -> go.Figure:
    return figure.update_layout(paper_bgcolor=_CLEAR, plot_bgcolor=_CLEAR)


def show(figure: go.Figure, key: str, alt: str, **options: Any) -> Any:
    """Show a figure on the page's background."""
    if figure.layout.paper_bgcolor != _CLEAR:
        _on_page(figure)
    return st.plotly_chart(figure, theme=None, key=key, alt=alt, **options)


def clicked(event: Any, key: str) -> Any | None:
    """The custom data of the chart point that was just clicked. A chart reports its selection again
    at each rerun; in that case, and without a point, this returns None."""
    points = event.selection.points
    data = points[0].get("customdata") if points else None
    before = f"{key}.clicked"
    if data == st.session_state.get(before):
        return None
    st.session_state[before] = data
    return data


def side_by_side(key: str, kind: str = "side_by_side") -> tuple[DeltaGenerator, DeltaGenerator]:
    """Two containers side by side, of equal width, or stacked on a narrow screen; an empty one
    leaves its space to the other. Of the kind `beside_text`, for a text and its charts, they are
    stacked unless the window is wider than lines of text should be."""
    # page.css selects the row by its kind.
    row = st.container(horizontal=True, key=f"{kind}.{key}")
    return row.container(), row.container()


def token_heatmap(drawn: Sequence[Pane], method: Method, key: str) -> View:
    """The token heatmap of several models, with the state of its toggles in the address."""
    # Until the user selects otherwise, the aggregate is the method's default, which is not stored.
    usual = View(aggregate=METHODS[method.name].aggregate)
    values = {name: url_state.get(name) for name in usual.to_dict()}
    view = heatmap(drawn, View.from_dict(values, usual), key=key)
    for name, value in view.to_dict().items():
        url_state.put(name, "" if value == usual.to_dict()[name] else str(value))
    return view


def other_version(name: str, other: TextPair, room: bool) -> bool:
    """The other version of a pair, in an expander. Returns whether it should be attributed next to
    this one, which needs `room` for twice as many panes."""
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


def caption(provenance: Provenances) -> None:
    """Provenance below the element it describes: one line, which expands to the full text."""
    if entries := provenance_entries(provenance):
        with st.expander(plain(f"Provenance: {caption_line(entries)}")):
            shared, *rest = caption_parts(entries)
            say.caption(shared)
            if rest:
                st.caption("\n".join(f"- {plain(part)}" for part in rest))


def publication_style(key: str) -> Style:
    """Size, font and palette of an exported figure, selected in the popover."""
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
        format="%.1f",
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
"""The session key of the most recently prepared file."""


@dataclass(frozen=True)
class Prepared:
    """A file prepared for download, with the selections it was made for: those of the popover, and
    those on the rest of the page."""

    of: Hashable
    page: Mapping[str, object]
    data: bytes

    def stands(self, of: Hashable) -> bool:
        """Whether the file was made for `of` and for the current selections. It stays valid when a
        run adds results in the meantime, since it states how many it includes."""
        now = _chosen_on_page()
        return self.of == of and all(
            now.get(name, value) == value for name, value in self.page.items()
        )


def _chosen_on_page() -> dict[str, object]:
    """The user's selections in the session state: strings, numbers and lists of them."""
    values: dict[str, object] = {}
    for name in map(str, st.session_state):
        value = st.session_state[name]
        if isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
            values[name] = tuple(value)
        elif isinstance(value, str | int | float) and not name.endswith(".prepare"):
            values[name] = value
    return values


def _exports(
    documents: Iterable[str], figures: Iterable[str], heatmaps: Iterable[str], tables: Iterable[str]
) -> dict[str, tuple[str, str]]:
    """The kind and title of each export, by the name under which it is offered: its title, with the
    kind if a figure and a table have the same."""
    of_kinds = {"document": documents, "figure": figures, "heatmap": heatmaps, "table": tables}
    exports = [(kind, title) for kind, titles in of_kinds.items() for title in titles]
    titles = Counter(title for _, title in exports)
    return {
        title if titles[title] == 1 else f"{title} ({kind})": (kind, title)
        for kind, title in exports
    }


@fragment()
def downloads(
    key: str,
    name: Sequence[str],
    provenance: Sequence[Provenance],
    *,
    figures: Mapping[str, Draw] = MappingProxyType({}),
    heatmap: Sequence[Pane] = (),
    view: View | None = None,
    tables: Mapping[str, Callable[[], pd.DataFrame]] = MappingProxyType({}),
    documents: Mapping[str, tuple[Sequence[str], Callable[[Any], bytes]]] = MappingProxyType({}),
    sources: Mapping[str, Callable[[], Sequence[Provenance]]] = MappingProxyType({}),
) -> None:
    """A popover that exports the figures, the heatmap and the tables of a section. `documents` are
    further exports, each with its formats and a function that creates it in one of them. `sources`
    returns, by name, the provenance of a table or heatmap that differs from that of the section.

    Tables and files are created on request, not at every rerun. A fragment: selections in it don't
    rerun the rest of the page.
    """
    # Its widgets are created even while it is closed: the browser positions the popover by its
    # height, and near the window's lower edge an empty one would stay one line high.
    with st.popover("Export", icon=":material/download:", key=f"export.{key}"):
        exports = _exports(documents, figures, ["Heatmap"] if heatmap else [], tables)
        chosen = st.selectbox("Figure or table", exports, key=f"{key}.what") or next(iter(exports))
        kind, title = exports[chosen]
        formats: Sequence[str] = {
            "document": documents[title][0] if kind == "document" else (),
            "figure": FIGURE_FORMATS,
            "heatmap": HEATMAP_FORMATS,
            "table": TABLE_FORMATS,
        }[kind]
        fmt = choices.one_of("Format", formats, f"{key}.format.{chosen}", bind=None)
        fixed = kind in ("document", "table")
        target = file_name(*name, chosen.lower(), fmt=fmt)
        style = Style() if fixed else publication_style(key)

        def make() -> bytes:
            if kind == "document":
                return documents[title][1](fmt)
            origin = sources[title]() if title in sources else provenance
            if kind == "table":
                files = table_files(tables[title](), target, fmt, origin)  # type: ignore[arg-type]
                return zipped(files) if len(files) > 1 else files[target]
            if kind == "heatmap" and view is not None:
                return heatmap_bytes(heatmap, origin, view, fmt, style)
            return figure_bytes(figures[title](style), fmt, style)  # type: ignore[arg-type]

        # Stored separately from the button, because a page that reruns before it gets here (when a
        # run has just ended) would lose the click.
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
        # Redrawn as long as it is valid, because an active run redraws its page every second or
        # two.
        prepared: Prepared | None = st.session_state.get(_PREPARED)
        if prepared is None or not prepared.stands(of):
            return
        # A table, and a file with its provenance.
        packed = kind == "table" and fmt == "csv"
        st.download_button(
            plain(f"Download {fmt.upper()}{' (ZIP)' if packed else ''}"),
            prepared.data,
            f"{Path(target).stem}.zip" if packed else target,
            MEDIA_TYPES["zip" if packed else fmt],
            key=f"{key}.download",
            on_click="ignore",
            type="primary",
            width="stretch",
        )

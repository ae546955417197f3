"""How a figure looks, apart from what it shows: sizes, colours, dashes, and text made safe."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import plotly.graph_objects as go

from attribution.errors import UserError

CSS_DPI = 96
"""Pixels of layout to the inch: what `width_px` and `font_size` are counted in."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

# Okabe & Ito (2008), "Color Universal Design"; Tol (2021), "Colour schemes", bright. Each list is
# ordered so that the first colours stand out most on that background; yellows and pale
# greys that vanish on white come only on dark, black only on white. The greys differ in lightness
# alone and lean on the dashes.
PALETTES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "okabe-ito": {
        "light": ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9"),
        "dark": ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#FFFFFF"),
    },
    "tol-bright": {
        "light": ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE", "#555555"),
        "dark": ("#66CCEE", "#EE6677", "#CCBB44", "#228833", "#BBBBBB", "#4477AA", "#AA3377"),
    },
    "grey": {
        "light": ("#000000", "#595959", "#8C8C8C", "#2E2E2E", "#737373"),
        "dark": ("#FFFFFF", "#B0B0B0", "#808080", "#D9D9D9", "#999999"),
    },
}


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours that carry no data."""

    paper: str
    ink: str
    muted: str
    grid: str
    evidence: str
    unread: str


THEMES: Mapping[str, Theme] = {
    "light": Theme(
        "#FFFFFF", "#1A1A1A", "#595959", "#E6E6E6", "rgba(240,228,66,0.38)", "rgba(0,0,0,0.07)"
    ),
    "dark": Theme(
        "#0E1117", "#ECECEC", "#A8ADB5", "#2A2E37", "rgba(240,228,66,0.20)", "rgba(255,255,255,0.1)"
    ),
}


@dataclass(frozen=True, slots=True)
class Style:
    """How a figure is drawn and how large.

    `width_px`, `height_px`, `font_size` and `line_width` are CSS pixels, 96 to the inch; a PNG has
    `dpi` dots to that inch, so 336 px at 300 dpi are 3.5 in and 1,050 dots. `caption` puts the
    provenance under the plot and adds the room it takes to the height.

    Raises:
        UserError: an unknown palette or theme, or a size outside what can be drawn.
    """

    font_family: str = "Arial, Helvetica, Liberation Sans, sans-serif"
    font_size: float = 14.0
    palette: str = "okabe-ito"
    width_px: int = 960
    height_px: int = 440
    theme: Literal["light", "dark"] = "light"
    dpi: int = 192
    line_width: float = 2.0
    caption: bool = False

    def __post_init__(self) -> None:
        if self.palette not in PALETTES:
            raise UserError(
                f"There is no palette {self.palette!r}: choose one of {', '.join(PALETTES)}."
            )
        if self.theme not in THEMES:
            raise UserError(f"There is no theme {self.theme!r}: choose light or dark.")
        limits = {
            "width_px": (120, 4000),
            "height_px": (100, 4000),
            "dpi": (48, 1200),
            "font_size": (4, 72),
            "line_width": (0.25, 20),
        }
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise UserError(
                    f"A figure's {name} must lie between {low} and {high}, not "
                    f"{getattr(self, name)}."
                )

    @property
    def scale(self) -> float:
        """Dots of a PNG for each pixel of layout."""
        return self.dpi / CSS_DPI

    @property
    def colours(self) -> Theme:
        """The colours that carry no data."""
        return THEMES[self.theme]

    def line(self, index: int) -> dict[str, object]:
        """Colour, dash and width of the `index`-th line.

        Colour and dash both advance, so that neighbours differ in print without colour and no
        two of the first 30 lines look alike.
        """
        colours = PALETTES[self.palette][self.theme]
        return {
            "color": colours[index % len(colours)],
            "dash": DASHES[index % len(DASHES)],
            "width": self.line_width,
        }

    def diverging(self) -> list[tuple[float, str]]:
        """Colour scale from negative through zero (the background, or mid grey) to positive."""
        if self.palette == "grey":
            # Two hues are not to be had: zero is mid grey and the sign is lightness.
            ends = ("#FFFFFF", "#9A9A9A", "#000000")
            low, middle, high = ends if self.theme == "light" else ends[::-1]
            return [(0.0, low), (0.5, middle), (1.0, high)]
        if self.theme == "light":
            return [
                (0.0, "#08519C"),
                (0.25, "#6BAED6"),
                (0.5, "#FFFFFF"),
                (0.75, "#FDAE6B"),
                (1.0, "#B33C00"),
            ]
        return [
            (0.0, "#7CC4F5"),
            (0.25, "#2C6C99"),
            (0.5, "#161A21"),
            (0.75, "#A85210"),
            (1.0, "#FFB469"),
        ]


PRESETS: Mapping[str, Style] = {
    "screen": Style(),
    "single column": Style(
        width_px=336, height_px=240, font_size=10.0, dpi=300, line_width=1.4
    ),  # 3.5 in wide, 7.5 pt
    "double column": Style(
        width_px=672, height_px=300, font_size=11.5, dpi=300, line_width=1.6
    ),  # 7 in wide, 8.6 pt
}


_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"}
# What XML 1.0 cannot hold at all (an SVG with one of these does not parse), and lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """`text` with characters that no XML file may hold replaced by U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", text)


def escape(text: object) -> str:
    """`text` so that Plotly shows it as it is.

    Plotly reads a subset of HTML (`<b>`, `<a href>`, `<br>`, entities) in every string it draws,
    `%{...}` as a template in names and titles, and `$...$` as TeX where MathJax is loaded. Line
    breaks become spaces. Apply once, to data; the result is markup.
    """
    shown = re.sub(r"[\r\n\t]+", " ", printable(str(text)))
    shown = re.sub(r"[&<>$]", lambda match: _ENTITIES[match.group()], shown)
    return shown.replace("%{", "&#37;{")


def text_width(text: str, font_size: float) -> float:
    """Roughly how wide `text` is drawn, in px: half an em a letter, an em for a wide one."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return font_size * (0.53 * (len(text) - wide) + 1.05 * wide)


def shorten(text: str, length: int) -> str:
    """`text` cut to `length` characters, an ellipsis included."""
    return text if len(text) <= length else text[: length - 1] + "…"


def wrap(text: object, width_px: float, font_size: float) -> list[str]:
    """`text` in lines of at most about `width_px`, not escaped yet; longer words are broken."""
    lines = [""]
    for word in str(text).split():
        joined = f"{lines[-1]} {word}".lstrip()
        if text_width(joined, font_size) <= width_px:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for letter in word:
            if lines[-1] and text_width(lines[-1] + letter, font_size) > width_px:
                lines.append("")
            lines[-1] += letter
    return lines


def faint(colour: str, opacity: float) -> str:
    """`#RRGGBB` as an rgba() with that opacity."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def legend_name(name: str, style: Style) -> str:
    """A name from data as a legend shows it: escaped, on as many lines as it takes."""
    return "<br>".join(map(escape, wrap(name, style.width_px - 9 * style.font_size, _small(style))))


def caption_text(entries: Sequence[Mapping[str, Any]]) -> str:
    """Provenance in words: what all entries share once, then what sets each apart."""
    filled = [{k: str(v) for k, v in entry.items() if str(v) != ""} for entry in entries]
    shared = {
        key: value
        for key, value in (filled[0] if filled else {}).items()
        if all(entry.get(key) == value for entry in filled)
    }
    parts = [
        " · ".join(f"{k.replace('_', ' ')} {v}" for k, v in group.items())
        for group in (
            shared,
            *({k: v for k, v in entry.items() if k not in shared} for entry in filled),
        )
        if group
    ]
    return "; ".join(parts)


def canvas(
    style: Style,
    x_title: str,
    y_title: str,
    provenance: Sequence[Mapping[str, Any]],
    *,
    top: bool = False,
) -> go.Figure:
    """An empty figure in `style`, caption included.

    `top` says that the x axis stands above the plot, so that only a line of labels and the
    caption stand below it. Titles are data: they are wrapped and escaped here.
    """
    theme, size, small = style.colours, style.font_size, _small(style)
    x_lines = wrap(x_title, style.width_px - 8 * size, size)
    y_lines = wrap(y_title, style.height_px - 8 * size, size)
    # From the plot's lower edge down to the caption: ticks, their labels, the title.
    foot = 1.8 * size if top else (2.4 + 1.3 * len(x_lines)) * size
    lines = (
        wrap(caption_text(provenance), style.width_px - 7 * size, 0.9 * small)
        if style.caption and provenance
        else []
    )
    below = 1.3 * 0.9 * small * len(lines) + (0.8 * size if lines else 0)
    axis: dict[str, Any] = {
        "showline": True,
        "linecolor": theme.ink,
        "linewidth": 1,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": theme.ink,
        "tickfont": {"size": small},
        "gridcolor": theme.grid,
        "gridwidth": 1,
        "zerolinecolor": theme.grid,
        "zerolinewidth": 1,
    }
    figure = go.Figure()
    figure.update_layout(
        template="none",
        width=style.width_px,
        height=style.height_px + round(below),
        font={"family": style.font_family, "size": size, "color": theme.ink},
        paper_bgcolor=theme.paper,
        plot_bgcolor=theme.paper,
        margin={"l": size, "r": 1.5 * size, "t": size, "b": foot + below, "pad": 0},
        hoverlabel={
            "namelength": -1,
            "bgcolor": theme.paper,
            "bordercolor": theme.muted,
            "font": {"color": theme.ink, "family": style.font_family, "size": small},
        },
        clickmode="event+select",
        xaxis={
            **axis,
            "title": {"text": "<br>".join(map(escape, x_lines)), "standoff": 0.6 * size},
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={
            **axis,
            "title": {"text": "<br>".join(map(escape, y_lines)), "standoff": 0.7 * size},
            "automargin": True,
        },
    )
    if lines:
        figure.add_annotation(
            text="<br>".join(map(escape, lines)),
            font={"size": 0.9 * small, "color": theme.muted},
            align="left",
            showarrow=False,
            xref="paper",
            yref="paper",
            x=0,
            y=0,
            xanchor="left",
            yanchor="top",
            yshift=-foot,
        )
    return figure


def label(
    figure: go.Figure, x: float, text: str, style: Style, *, y: float = 1, yanchor: str = "bottom"
) -> None:
    """A word of ours just outside the plot, at `x` of the x axis."""
    figure.add_annotation(
        text=text,
        font={"size": _small(style), "color": style.colours.muted},
        showarrow=False,
        xref="x",
        yref="paper",
        x=x,
        y=y,
        xanchor="center",
        yanchor=yanchor,
    )


def shade(
    figure: go.Figure, span: tuple[float, float], colour: str, text: str, style: Style
) -> None:
    """Shade a span of the document, shares in [0, 1], and name it above the plot."""
    start, end = span
    if not 0 <= start < end <= 1:
        raise ValueError(f"span {span}: 0 <= start < end <= 1")
    figure.add_vrect(
        x0=100 * start, x1=100 * end, fillcolor=colour, line={"width": 0}, layer="below"
    )
    # Half the word's width from the edge, or it would be cut off at 0 and 100%.
    reach = 50 * text_width(text, style.font_size) / (style.width_px - 6 * style.font_size)
    label(figure, min(max(50 * (start + end), reach), 100 - reach), text, style)


def with_legend(figure: go.Figure, style: Style, *, above: bool = False) -> go.Figure:
    """The legend over the plot, flush left; `above` leaves a line for labels between them."""
    plot = max(style.height_px - 8 * style.font_size, 1)
    figure.update_layout(
        showlegend=True,
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1 + (1.5 if above else 0.3) * style.font_size / plot,
            "yanchor": "bottom",
            "itemwidth": 30 + style.font_size,
            "font": {"size": _small(style)},
            "bgcolor": "rgba(0,0,0,0)",
        },
    )
    return figure


def _small(style: Style) -> float:
    """Tick labels, legends and labels inside the plot."""
    return 0.9 * style.font_size

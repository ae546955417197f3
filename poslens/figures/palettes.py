"""The look of figures: file formats, sizes, colors, dashes; and escaping of text from data."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal

import regex

from poslens.attribution.errors import UserError

FigureFormat = Literal["png", "svg", "pdf", "html", "json"]
FIGURE_FORMATS: tuple[FigureFormat, ...] = ("png", "svg", "pdf", "html", "json")

CSS_DPI = 96
"""CSS pixels per inch, the unit of `width_px` and `font_size`."""

_EDGES = ("solid", "dot", "dash", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")

# Okabe & Ito (2008), "Color Universal Design"; Tol (2021), "Color schemes", bright. Each list
# starts with the colors of the highest contrast to its background, and has none that are hardly
# visible on it. Grays differ only in lightness, so symbols distinguish their lines.
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
    """Colors of a figure's background, text, grid and shaded spans."""

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


_SCALES = {
    "light": ("#08519C", "#6BAED6", "#FFFFFF", "#FDAE6B", "#B33C00"),
    "dark": ("#7CC4F5", "#2C6C99", "#161A21", "#A85210", "#FFB469"),
}
# A gray palette has no hues: zero is mid gray and lightness encodes the sign.
_GREY_SCALES = {
    "light": ("#FFFFFF", "#9A9A9A", "#000000"),
    "dark": ("#000000", "#9A9A9A", "#FFFFFF"),
}
"""The colors of signed values, from the smallest to the largest, by theme."""

# Cividis (Nuñez et al. 2018) without the colors that are hardly visible on the theme's background.
_SHADES = {
    "light": ("#A59C74", "#8A8678", "#707173", "#575D6D", "#3B496C", "#123570", "#00224E"),
    "dark": ("#575D6D", "#707173", "#8A8678", "#A59C74", "#C3B369", "#FEE838"),
}
_GREY_SHADES = {"light": ("#999999", "#000000"), "dark": ("#6E6E6E", "#FFFFFF")}
"""The colors of points by their values, from the smallest to the largest, by theme: larger values
stand out more."""

MAX_HEIGHT_PX = 4000


@dataclass(frozen=True, slots=True)
class Style:
    """The look and size of a figure.

    `width_px`, `height_px`, `font_size` and `line_width` are CSS pixels (96 per inch); a PNG has
    `dpi` dots per inch, so 336 px at 300 dpi are 3.5 in and 1,050 dots. With `caption` the
    provenance is written below the plot, which makes the figure taller.

    Raises:
        UserError: an unknown palette or theme, or a size that cannot be drawn.
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
                f"There is no palette {self.palette!r}: choose from {', '.join(PALETTES)}."
            )
        if self.theme not in THEMES:
            raise UserError(f"There is no theme {self.theme!r}: choose light or dark.")
        limits = {
            "width_px": (120, 4000),
            "height_px": (100, MAX_HEIGHT_PX),
            "dpi": (48, 1200),
            "font_size": (4, 72),
            "line_width": (0.25, 20),
        }
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise UserError(
                    f"A figure's {name} must be between {low} and {high}, not "
                    f"{getattr(self, name)}."
                )

    @property
    def scale(self) -> float:
        """Dots of a PNG per layout pixel."""
        return self.dpi / CSS_DPI

    @property
    def colors(self) -> Theme:
        """The colors of background, text, grid and shaded spans."""
        return THEMES[self.theme]

    @property
    def small(self) -> float:
        """Font size of tick labels, legends and labels inside the plot, in px."""
        return 0.9 * self.font_size

    def line(self, index: int) -> dict[str, object]:
        """Color and width of the `index`-th line. Lines are solid, because dashes hide the shape of
        noisy curves.

        `symbol` also changes with the index, so that lines can be distinguished without color and
        no two of the first 30 look the same.
        """
        colors = PALETTES[self.palette][self.theme]
        return {
            "color": colors[index % len(colors)],
            "width": self.line_width,
        }

    def edge(self, index: int) -> dict[str, object]:
        """The outline of the `index`-th line's band. Only gray bands have one, with a dash of its
        own, because their overlap cannot be told from a darker gray."""
        if self.palette != "grey":
            return {"width": 0}
        dash = _EDGES[index % len(_EDGES)]
        return {"color": self.line(index)["color"], "width": 0.4 * self.line_width, "dash": dash}

    def symbol(self, index: int) -> str:
        """The symbol of the `index`-th line's points."""
        return SYMBOLS[index % len(SYMBOLS)]

    def marker(self, index: int, size: float, later: int = 0) -> dict[str, object]:
        """Markers of the `index`-th series, `size` times as large as the font.

        They are larger the more series are drawn `later`, whose markers would hide them if values
        are equal.
        """
        return {
            "color": self.line(index)["color"],
            "size": (size + 0.2 * min(later, 3)) * self.font_size,
            "symbol": self.symbol(index),
        }

    def diverging(self) -> list[tuple[float, str]]:
        """Color scale of signed values as (share in [0, 1], color), with zero at 0.5."""
        return _scale((_GREY_SCALES if self.palette == "grey" else _SCALES)[self.theme])

    def shades(self) -> list[tuple[float, str]]:
        """Color scale of points by their values as (share in [0, 1], color)."""
        return _scale((_GREY_SHADES if self.palette == "grey" else _SHADES)[self.theme])


def _scale(colors: Sequence[str]) -> list[tuple[float, str]]:
    return [(number / (len(colors) - 1), color) for number, color in enumerate(colors)]


PRESETS: Mapping[str, Style] = {
    "screen": Style(),
    "single column": Style(
        width_px=336, height_px=240, font_size=10.0, dpi=300, line_width=1.4
    ),  # 3.5 in wide, 7.5 pt
    "double column": Style(
        width_px=672, height_px=300, font_size=11.5, dpi=300, line_width=1.6
    ),  # 7 in wide, 8.6 pt
}


def styled(size: str, palette: str) -> Style:
    """The style of this size with this palette; both can be empty.

    Raises:
        UserError: there is no such size or palette.
    """
    if size and size not in PRESETS:
        raise UserError(f"There is no size {size[:40]!r}: choose from {', '.join(PRESETS)}.")
    style = PRESETS[size] if size else Style()
    return replace(style, palette=palette) if palette else style


_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"}
# Characters that XML 1.0 forbids (an SVG with one of them does not parse), and lone surrogates.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """`text` with the characters that XML forbids replaced by U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", text)


def escape(text: object) -> str:
    """`text` escaped so that Plotly shows it literally.

    Plotly reads a subset of HTML (`<b>`, `<a href>`, `<br>`, entities) in every string it draws,
    `%{...}` as a template in names and titles, and `$...$` as TeX where MathJax is loaded. Line
    breaks become spaces. Apply once, to data; the result is markup.
    """
    shown = re.sub(r"[\r\n\t]+", " ", printable(str(text)))
    shown = re.sub(r"[&<>$]", lambda match: _ENTITIES[match.group()], shown)
    return shown.replace("%{", "&#37;{")


TITLE_EM = 22
"""Maximum width of a line of an axis title in em, so that it fits on a phone: figures on pages are
as wide as the window, but their text is wrapped before that width is known."""


def text_width(text: str, font_size: float) -> float:
    """Approximate width of `text` in px: half an em per letter, an em per wide character, nothing
    for the marks on a letter."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    marks = sum(unicodedata.category(letter) in ("Mn", "Me", "Cf") for letter in text)
    return font_size * (0.51 * (len(text) - wide - marks) + 1.05 * wide)


def shorten(text: str, length: int) -> str:
    """`text` truncated to `length` characters, including the ellipsis, or to fewer, so that no
    mark is separated from its letter."""
    if len(text) <= length:
        return text
    ends = (match.end() for match in regex.finditer(r"\X", text))
    return text[: max(takewhile(lambda end: end < length, ends), default=length - 1)] + "…"


_BREAKS = re.compile(r"(?<=[-/,])|(?=[@(])")


def wrap(text: object, width_px: float, font_size: float) -> list[str]:
    """`text` in lines of at most about `width_px`, not escaped. Longer words are broken, where
    possible at punctuation, as in `MiniLM@calibrated(strength=1)`."""
    lines = [""]
    for word in str(text).split():
        joined = f"{lines[-1]} {word}".lstrip()
        if text_width(joined, font_size) <= width_px:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for part in _BREAKS.split(word):
            if lines[-1] and text_width(lines[-1] + part, font_size) > width_px:
                lines.append("")
            for letter in regex.findall(r"\X", part):
                if lines[-1] and text_width(lines[-1] + letter, font_size) > width_px:
                    lines.append("")
                lines[-1] += letter
    return lines

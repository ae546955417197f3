"""Passports as files, several side by side: HTML (one file that needs no network), PDF (A4), SVG,
PNG, JSON, and YAML for a model card."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import count
from typing import Any, Literal

from poslens.export.browser import Page, in_page
from poslens.export.files import figure_bytes, figure_div, page_bytes
from poslens.export.inscription import inscribed
from poslens.export.json_text import json_text
from poslens.figures.captions import caption_text, provenance_entries
from poslens.figures.palettes import PRESETS, Style, printable, wrap
from poslens.studies.passport.cohort import CSS as COHORT_CSS
from poslens.studies.passport.cohort import overview_html
from poslens.studies.passport.service import LIMITS, ModelPassport, entry, model_card
from poslens.study_part import Part

Format = Literal["html", "pdf", "svg", "png", "json", "yaml"]
FORMATS: tuple[Format, ...] = ("html", "pdf", "svg", "png", "json", "yaml")

STYLE = Style(width_px=460, height_px=280, font_size=12, line_width=1.6)
"""Style of the figures of a card."""

_GAP = 24
_PAGE_CSS = f"""
body {{ margin: {_GAP}px; color: #1a1a1a; background: #fff; font: 13px/1.4 {STYLE.font_family}; }}
main {{ display: flex; flex-wrap: wrap; gap: {2 * _GAP}px; align-items: start; }}
article {{ width: {STYLE.width_px}px; overflow-wrap: anywhere; }}
h1 {{ font-size: 22px; margin: 0; }}
h2 {{ font-size: 16px; margin: {_GAP}px 0 4px; }}
p {{ margin: 4px 0; }}
table {{ border-collapse: collapse; width: 100%; }}
td {{ padding: 2px 8px 2px 0; vertical-align: top; border-top: 1px solid #e6e6e6; }}
.quiet {{ color: #595959; font-size: 11px; }}
"""


_PRINTED_PX = 688
"""Width between the margins of an A4 page (210 mm minus two of 14 mm) at 96 px to the inch."""

_PRINTED_BESIDE = 2
"""Number of cards side by side on a printed page."""

_PRINT_CSS = f"""
@page {{
  size: A4; margin: 14mm;
  @bottom-right {{
    content: counter(page) " / " counter(pages); color: #595959; font: 9px {STYLE.font_family};
  }}
}}
body {{ margin: 0; color: #1a1a1a; background: #fff; font: 10.5px/1.3 {STYLE.font_family}; }}
.cards {{ border-collapse: collapse; table-layout: fixed; width: {_PRINTED_PX}px; }}
.cards + .cards {{ break-before: page; }}
.cards > * > tr {{ break-inside: avoid; }}
.cards > * > tr > * {{ padding: 0 0 {_GAP // 2}px; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }}
.cards > * > tr > * + * {{ padding-left: {_GAP}px; }}
h1 {{ font-size: 16px; margin: 0; }}
h2 {{ font-size: 13px; margin: 0 0 2px; }}
p {{ margin: 2px 0; }}
section table {{ border-collapse: collapse; width: 100%; }}
section td {{ padding: 1px 8px 1px 0; vertical-align: top; border-top: 1px solid #e6e6e6; }}
.quiet {{ color: #595959; font-size: 8.5px; }}
"""


def document_bytes(passports: Sequence[ModelPassport], fmt: Format) -> bytes:
    """Passports side by side as a file that contains their provenance.

    Raises:
        UserError: pdf, svg or png without Chrome or Chromium.
    """
    if fmt == "json":
        return json_text([entry(passport) for passport in passports], indent=1).encode()
    if fmt == "yaml":
        return model_card(passports).encode()
    return {"html": _html, "pdf": _pdf, "svg": _svg, "png": _png}[fmt](passports)


def _about(passports: Sequence[ModelPassport]) -> tuple[str, list[dict[str, Any]]]:
    """The title and the provenance that a file contains."""
    title = f"Position passport: {', '.join(passport.name for passport in passports)}"
    return title, provenance_entries([entry for each in passports for entry in each.provenance])


def _html(passports: Sequence[ModelPassport]) -> bytes:
    overview = overview_html(passports, PRESETS["double column"]) if len(passports) > 1 else ""
    figure = _figures(STYLE, library=not overview)
    articles = "\n".join(
        _article(passport, number, [figure(part) for part in passport.parts])
        for number, passport in enumerate(passports)
    )
    body = f"{overview}\n<main>\n{articles}\n</main>"
    return page_bytes(*_about(passports), body, _PAGE_CSS + COHORT_CSS)


def _figures(style: Style, *, library: bool = True, static: bool = False) -> Callable[[Part], str]:
    """A function that returns a part's figure as markup, numbered; empty without one. If `library`,
    the first one includes Plotly's library."""
    numbers = count(1)

    def figure(part: Part) -> str:
        drawn = part.figure(style)
        if drawn is None:
            return ""
        number = next(numbers)
        first = library and number == 1
        return figure_div(drawn, f"figure{number}", library=first, static=static)

    return figure


def _article(passport: ModelPassport, number: int, figures: Sequence[str]) -> str:
    sections = "\n".join(
        _section(part, figure) for part, figure in zip(passport.parts, figures, strict=True)
    )
    return (
        f'<article id="card{number}">\n<h1>{_text(passport.name)}</h1>\n'
        f'<p class="quiet">{_text(passport.heading)}</p>\n{sections}\n'
        f'<p class="quiet">{_text(LIMITS)}</p>\n</article>'
    )


def _section(part: Part, figure: str) -> str:
    rows = "".join(
        f"<tr><td>{_text(number.name)}</td><td>{_text(number.text)}</td></tr>"
        for number in part.numbers
    )
    return "\n".join(
        filter(
            None,
            (
                f"<section>\n<h2>{_text(part.title)}</h2>",
                f"<p>{_text(part.finding or part.absent)}</p>",
                figure,
                f"<table>{rows}</table>" if rows else "",
                f'<p class="quiet">What this doesn\'t show: {_text(part.limits)}</p>',
                f'<p class="quiet">{_text(caption_text(provenance_entries(part.provenance)))}</p>'
                if part.provenance
                else "",
                "</section>",
            ),
        )
    )


def _text(text: str) -> str:
    return escape(printable(text))


def printed_html(passports: Sequence[ModelPassport]) -> bytes:
    """The page that is printed: tables of up to `_PRINTED_BESIDE` cards with one row per part. A
    row is not split between pages, and each page begins with the models' names."""
    beside = min(len(passports), _PRINTED_BESIDE)
    width = (_PRINTED_PX - (beside - 1) * _GAP) // beside
    size = "single column" if beside > 1 else "double column"
    # Low enough that a page has room for two parts.
    style = replace(PRESETS[size], width_px=width, height_px=200)
    figure = _figures(style, static=True)

    def cell(part: Part | None) -> str:
        return "<td></td>" if part is None else f"<td>{_section(part, figure(part))}</td>"

    tables = []
    for start in range(0, len(passports), beside):
        cards = passports[start : start + beside]
        parts = [{part.key: part for part in card.parts} for card in cards]
        rows = ["".join(f'<td class="quiet">{_text(card.heading)}</td>' for card in cards)]
        keys = dict.fromkeys(key for by_key in parts for key in by_key)
        rows += ["".join(cell(by_key.get(key)) for by_key in parts) for key in keys]
        rows.append(f'<td class="quiet" colspan="{len(cards)}">{_text(LIMITS)}</td>')
        names = "".join(f"<th><h1>{_text(card.name)}</h1></th>" for card in cards)
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        tables.append(
            f'<table class="cards"><thead><tr>{names}</tr></thead>\n<tbody>{body}</tbody></table>'
        )
    return page_bytes(*_about(passports), "\n".join(tables), _PRINT_CSS)


def _pdf(passports: Sequence[ModelPassport]) -> bytes:
    source = printed_html(passports).decode()

    async def printed(page: Page) -> bytes:
        await page.show(source, _PRINTED_PX, 1000)
        return await page.paged_pdf()

    return inscribed(in_page(printed), "pdf", *_about(passports))


def _png(passports: Sequence[ModelPassport]) -> bytes:
    image, width, height = _drawing(passports)
    source = f"<style>body {{ margin: 0 }}</style>{image}"

    async def taken(page: Page) -> bytes:
        await page.show(source, width, height, STYLE.scale)
        return await page.screenshot(width, height)

    return inscribed(in_page(taken), "png", *_about(passports), STYLE.dpi)


def _svg(passports: Sequence[ModelPassport]) -> bytes:
    image, _, _ = _drawing(passports)
    return inscribed(image.encode(), "svg", *_about(passports))


def _drawing(passports: Sequence[ModelPassport]) -> tuple[str, int, int]:
    """The cards as one SVG, and its width and height in px."""
    columns = [list(_column(passport, number)) for number, passport in enumerate(passports)]
    width = len(passports) * (STYLE.width_px + 2 * _GAP)
    height = max(int(y) for column in columns for _, y in column) + _GAP
    inside = "\n".join(markup for column in columns for markup, _ in column)
    image = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="{escape(STYLE.font_family)}">\n'
        f'<rect width="100%" height="100%" fill="{STYLE.colors.paper}"/>\n{inside}\n</svg>\n'
    )
    return image, width, height


def _column(passport: ModelPassport, number: int) -> Iterator[tuple[str, float]]:
    """Elements of one card from top to bottom, each with the y at which it ends."""
    left, y = _GAP + number * (STYLE.width_px + 2 * _GAP), float(_GAP)
    theme = STYLE.colors

    def lines(text: str, size: float, color: str, weight: str = "normal") -> str:
        nonlocal y
        spans = []
        for line in wrap(text, STYLE.width_px, size):
            y += 1.3 * size
            spans.append(f'<tspan x="{left}" y="{y:.1f}">{_text(line)}</tspan>')
        look = f'font-size="{size}" fill="{color}" font-weight="{weight}"'
        return f"<text {look}>{''.join(spans)}</text>"

    yield lines(passport.name, 22, theme.ink, "bold"), y
    yield lines(passport.heading, 11, theme.muted), y
    for part in passport.parts:
        y += _GAP
        yield lines(part.title, 16, theme.ink, "bold"), y
        yield lines(part.finding or part.absent, 13, theme.ink), y
        if (figure := part.figure(STYLE)) is not None:
            drawing = figure_bytes(figure, "svg", STYLE, part.provenance).decode()
            # An XML declaration is not allowed inside another SVG.
            drawing = re.sub(r"^\s*<\?xml[^>]*\?>", "", drawing)
            placed = f'<g transform="translate({left},{y + 8:.1f})">{drawing}</g>'
            y += 8 + float(figure.layout.height)
            yield placed, y
        for value in part.numbers:
            yield lines(f"{value.name}: {value.text}", 12, theme.ink), y
        yield lines(f"Limitation: {part.limits}", 11, theme.muted), y
        if part.provenance:
            words = caption_text(provenance_entries(part.provenance))
            yield lines(words, 11, theme.muted), y
    y += _GAP
    yield lines(LIMITS, 11, theme.muted), y

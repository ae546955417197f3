"""Numbers, and numbers of things, as text."""

from __future__ import annotations

_ROUNDING = 1e-12
"""A number up to this far below 0 differs from it only by rounding."""


def number_text(value: float, form: str) -> str:
    """A number in this format. A number halfway between two is rounded away from 0, so that a share
    and the same in percent agree, and one that rounds to 0 has no minus sign."""
    sign = form[:1] if form[:1] in ("+", "-", " ") else ""
    # Binary fractions only approximate decimal ones: 0.2625 rounds up, 26.25 would round down.
    return format(value * (1 + 1e-13), f"{sign}z{form.removeprefix(sign)}")


def interval_text(low: float, high: float, form: str) -> str:
    """An interval in this format: `[low, high]`. An end below 0 that rounds to 0 keeps its minus
    sign, which says whether the interval includes 0."""
    return f"[{_end_text(low, form)}, {_end_text(high, form)}]"


def _end_text(end: float, form: str) -> str:
    text = number_text(end, form)
    if end >= -_ROUNDING or text.startswith("-"):
        return text
    return f"-{text.removeprefix('+')}"


def counted(n: int, noun: str) -> str:
    """A number with its noun, in the plural unless n is 1: `1 query`, `1,105 queries`."""
    return f"{n:,} {noun if n == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a regular noun: `queries`, `misses`, `pairs`."""
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def uncapitalized(title: str) -> str:
    """A title within a sentence; one that begins with an acronym stays as it is."""
    return title[:1].lower() + title[1:] if title[1:2].islower() else title

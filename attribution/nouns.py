"""Numbers of things in words."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """A number with its noun, in the plural unless n is 1: `1 query`, `1,105 queries`."""
    return f"{n:,} {noun if n == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """The plural of a regular noun: `queries`, `pairs`."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"

"""What a program gives to the calls of `poslens`, looked at before anything is computed: nobody has
checked it, unlike what a page or a command line gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from attribution.errors import UserError
from attribution.text import clean
from attribution.types import EvidenceSpan

Option: TypeAlias = "str | int | float | bool"
T = TypeVar("T")


def text_of(given: object, what: str) -> str:
    """A text without what is no text in it.

    Raises:
        UserError: it is no string, or empty, or too long; `what` names it.
    """
    if not isinstance(given, str):
        raise UserError(f"The {what} is no text but of type {type(given).__name__}: give a string.")
    return clean(given, what).text


def evidence_span(text: str, evidence: str | tuple[int, int] | None) -> EvidenceSpan | None:
    """Where the evidence stands in `text`.

    Raises:
        UserError: it does not stand there.
    """
    if evidence is None:
        return None
    if isinstance(evidence, str):
        start = text.find(evidence) if evidence else -1
        if start < 0:
            raise UserError("The evidence does not stand in the document, letter for letter.")
        return EvidenceSpan(start, start + len(evidence))
    try:
        start, end = map(int, evidence)
    except (TypeError, ValueError):
        raise UserError(
            "The evidence is a passage of the document, or its (start, end) in characters."
        ) from None
    if not 0 <= start < end <= len(text):
        raise UserError(
            f"The evidence {start:,} to {end:,} does not lie within the document's {len(text):,} "
            "characters."
        )
    return EvidenceSpan(start, end)


def option_words(options: Mapping[str, Option]) -> dict[str, str]:
    """A method's options as commands spell them: 50 is "50", True is "yes"."""
    return {
        name: ("yes" if value else "no") if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def listed(given: Sequence[T], what: str, name: str, example: str) -> Sequence[T]:
    """`given`, unless it is one string, which would be taken for a list of its letters.

    Raises:
        UserError: so it is.
    """
    if isinstance(given, str):
        raise UserError(
            f"{name} takes a list of {what}, such as [{example!r}], not {given[:80]!r}."
        )
    return given

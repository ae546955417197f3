"""Validation of the arguments of PosLens's Python functions."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.text import clean
from poslens.attribution.types import EvidenceSpan, Method

Option: TypeAlias = "str | int | float | bool"
T = TypeVar("T")


def text_of(given: object, what: str) -> str:
    """The text, cleaned of characters that are not allowed in texts (`clean`).

    Raises:
        UserError: it is not a string, or is empty or too long; `what` names it in the message.
    """
    if not isinstance(given, str):
        raise UserError(f"The {what} is no text but of type {type(given).__name__}: give a string.")
    return clean(given, what).text


def evidence_span(text: str, evidence: str | tuple[int, int] | None) -> EvidenceSpan | None:
    """Start and end of the evidence in `text`, in characters; None without evidence.

    Raises:
        UserError: the text does not contain it.
    """
    if evidence is None:
        return None
    if isinstance(evidence, str):
        start = text.find(evidence) if evidence else -1
        if start < 0:
            raise UserError("The evidence is not a verbatim part of the document.")
        return EvidenceSpan(start, start + len(evidence))
    try:
        start, end = map(operator.index, evidence)
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
    """A method's options in the notation of the commands: 50 and 50.0 are "50", True is "yes"."""
    return {name: _word(value) for name, value in options.items()}


def _word(value: Option) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def method_of(given: object, options: Mapping[str, Option]) -> Method:
    """The method of this name with these options.

    Raises:
        UserError: there is no such method, or it does not accept the options.
    """
    if not isinstance(given, str):
        raise UserError(
            f"The method is no name but of type {type(given).__name__}: choose one of "
            f"{', '.join(METHODS)}."
        )
    return make_method(given, option_words(options))


def listed(given: Sequence[T], what: str, name: str, example: str) -> Sequence[T]:
    """`given`, if it is a list or a tuple. Other iterables are refused, because iterating over a
    string gives letters and over a SentenceTransformer its modules.

    Raises:
        UserError: it is neither.
    """
    if not isinstance(given, list | tuple):
        shown = repr(given[:80]) if isinstance(given, str) else f"one {type(given).__name__}"
        raise UserError(f"{name} takes a list of {what}, such as [{example!r}], not {shown}.")
    return given

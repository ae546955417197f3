"""The one exception whose message is meant for the person at the screen."""

from __future__ import annotations

import re

_LONE = re.compile("[\ud800-\udfff\0]")


def printable(text: str) -> str:
    """`text` with U+FFFD for what cannot be written as UTF-8: a sentence that quotes a damaged file
    must not break the page or the terminal that shows it."""
    return (
        text
        if text.isascii() and "\0" not in text
        else _LONE.sub("\N{REPLACEMENT CHARACTER}", text)
    )


class UserError(Exception):
    """One clear sentence that names what is wrong and what to change.

    Everything that a user can cause (an empty text, an unknown model, a full disk) is raised as
    this, so that pages and the command line can show the message as it is; any other exception
    is a defect and is shown without details.
    """

    def __init__(self, sentence: str = "") -> None:
        super().__init__(printable(sentence))


class Stopped(UserError):
    """`should_stop` said so before the result was there."""


class Unavailable(Stopped):
    """What computes does not answer as it should, an endpoint above all: its sentence ends a whole
    run, and no item of it counts as failed."""

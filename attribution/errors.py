"""The exception whose message is shown to users."""

from __future__ import annotations

import re

_LONE = re.compile("[\ud800-\udfff\0]")


def printable(text: str) -> str:
    """`text` with U+FFFD in place of lone surrogates and NUL, so that it can be encoded as UTF-8
    and a message that quotes a damaged file can be displayed."""
    if text.isascii() and "\0" not in text:  # true for most texts, and much faster to check
        return text
    return _LONE.sub("\N{REPLACEMENT CHARACTER}", text)


class UserError(Exception):
    """An error that the user can fix. Its message is one sentence that names what to change.

    Everything that a user can cause (an empty text, an unknown model, a full disk) raises this
    exception, so pages and commands show the message unchanged. Any other exception is a defect
    and is shown without details.
    """

    def __init__(self, sentence: str = "") -> None:
        super().__init__(printable(sentence))


class RunEnded(UserError):
    """Ends the whole run: the item that raises it does not count as failed."""


class Stopped(RunEnded):
    """The computation was canceled before it had a result."""


class Unavailable(RunEnded):
    """A service, usually an endpoint, does not answer as it should."""

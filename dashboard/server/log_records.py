"""Log lines that nobody else can forge: what a request, a file or an endpoint put into a message is
escaped."""

from __future__ import annotations

import logging


class EscapedRecord(logging.LogRecord):
    """A record whose text reaches a terminal or a log file as printable characters alone. A
    traceback keeps its line breaks; a message is one line."""

    def getMessage(self) -> str:
        """The message with its arguments, escaped."""
        return escaped(super().getMessage())

    @property
    def exc_text(self) -> str | None:
        """The traceback as the formatter wrote it, escaped."""
        return self._exc_text

    @exc_text.setter
    def exc_text(self, text: str | None) -> None:
        self._exc_text = text and "\n".join(map(escaped, text.split("\n")))


def escaped(text: str) -> str:
    """`text` with what cannot be printed, line breaks too, as Python's escapes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def install() -> None:
    """Make every record of this process, of libraries too, one of these."""
    logging.setLogRecordFactory(EscapedRecord)

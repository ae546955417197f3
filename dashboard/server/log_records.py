"""Log records that can't be forged: text from a request, a file or an endpoint is escaped."""

from __future__ import annotations

import logging


class EscapedRecord(logging.LogRecord):
    """A record that contains only printable characters. A traceback keeps its line breaks; a
    message is one line."""

    def getMessage(self) -> str:
        """The message with its arguments, escaped."""
        return escaped(super().getMessage())

    @property
    def exc_text(self) -> str | None:
        """The traceback as formatted, escaped."""
        return self._exc_text

    @exc_text.setter
    def exc_text(self, text: str | None) -> None:
        self._exc_text = text and "\n".join(map(escaped, text.split("\n")))


def escaped(text: str) -> str:
    """`text` with unprintable characters, including line breaks, as Python escapes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def install() -> None:
    """Use this class for all records of this process, including those of libraries."""
    logging.setLogRecordFactory(EscapedRecord)

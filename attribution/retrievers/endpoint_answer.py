"""Limits on an endpoint's response, which follow from the request, and parsing its JSON.

json.loads blocks the interpreter until it is done, and a list takes only three bytes: 64 MiB of
lists blocked every other thread for 28 s and took 1.9 GB. So bytes, values and lists are counted
before anything is parsed, and vectors are parsed one by one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 64 << 20
"""Maximum size of a response: 2,048 vectors of 1,536 numbers."""
MAX_WIDTH = 16_384
"""Maximum length of a vector."""
_NUMBER = 48
"""Maximum bytes of a number: 17 digits, sign, exponent, comma and indentation."""
_AROUND, _A_ROW = 64 << 10, 4096
"""Maximum bytes besides the vectors or documents: in total, and for each vector or document."""
_VALUES, _LISTS = 64, 8
"""Maximum number of values, and of lists or objects, for each vector or document."""

_NUMBERS = re.compile(rb"\[[-+.,\s0-9eENaInfity]*\]")


@dataclass(frozen=True, slots=True)
class Bound:
    """Limits of a response: `size` bytes, `lists` opening brackets of lists and objects and,
    besides its vectors of up to `width` numbers, `rest` bytes, `commas` and `quotes`."""

    size: int
    lists: int
    rest: int
    commas: int
    quotes: int
    width: int = 0

    def parse(self, body: bytes | bytearray) -> object:
        """The value of a response's JSON.

        Raises:
            ValueError: it is not JSON, or exceeds a limit.
        """
        if len(body) > self.size or body.count(b"[") + body.count(b"{") > self.lists:
            raise ValueError("more than was asked for")
        vectors: list[Any] = []
        try:
            if self.width:
                body = self._without_vectors(bytes(body), vectors)
            few = body.count(b",") <= self.commas and body.count(b'"') <= self.quotes
            if not few or len(body) > self.rest:
                raise ValueError("more than was asked for")
            return json.loads(body, object_hook=lambda row: _with_vector(row, vectors))
        except RecursionError as error:
            raise ValueError("too many lists within lists") from error

    def _without_vectors(self, body: bytes, vectors: list[Any]) -> bytes:
        """The response with the index of each list of numbers in the list's place; the lists are
        appended to `vectors`. They are parsed one by one, so that other threads run in between."""
        parts, end = [], 0
        for match in _NUMBERS.finditer(body):
            numbers = match[0]
            if len(numbers) > self.width * _NUMBER or numbers.count(b",") >= self.width:
                raise ValueError("a vector that is too long")
            parts += [body[end : match.start()], b"[%d]" % len(vectors)]
            vectors.append(json.loads(numbers))
            end = match.end()
        return b"".join([*parts, body[end:]])


def _with_vector(row: dict[str, Any], vectors: list[Any]) -> dict[str, Any]:
    embedding = row.get("embedding")
    if isinstance(embedding, list) and len(embedding) == 1 and type(embedding[0]) is int:
        row["embedding"] = vectors[embedding[0]]
    return row


def of_vectors(n: int) -> Bound:
    """The limits of a response with the vectors of `n` texts."""
    rest, values = _AROUND + n * _A_ROW, (n + 4) * _VALUES
    size = min(rest + n * MAX_WIDTH * _NUMBER, MAX_BYTES)
    return Bound(size, (n + 4) * _LISTS, rest, values, values, MAX_WIDTH)


def of_scores(n: int, asked: bytes) -> Bound:
    """The limits of a response with the scores of `n` documents. Servers may repeat the documents,
    which have no more of anything than the request, `asked`; an escape takes six bytes."""
    size = min(_AROUND + n * _A_ROW + 6 * len(asked), MAX_BYTES)
    values = (n + 4) * _VALUES
    return Bound(
        size,
        (n + 4) * _LISTS + asked.count(b"[") + asked.count(b"{"),
        size,
        values + asked.count(b","),
        values + asked.count(b'"'),
    )

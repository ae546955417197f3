"""Files as bytes and as lines: unpacks gzip up to a limit, detects encodings, limits lines."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from poslens.attribution.errors import UserError
from poslens.attribution.paths import open_regular

MEGABYTE = 1_000_000
MAX_LINE = 12_500_000
"""Maximum characters of a line of JSON: the longest accepted text, with every character escaped."""

MAX_JSON = 500 * MEGABYTE
"""Maximum unpacked bytes of a JSON file, because all of it is read into memory. Files of JSON lines
have no limit."""

_FOREIGN = re.compile("[\udc80-\udcff]")
# Text is packed to a fifth or a tenth of its size; only a zip bomb unpacks to a hundred times.
_MAX_RATIO = 100


_opened: ContextVar[set[Path] | None] = ContextVar("opened", default=None)


@contextmanager
def files_opened() -> Iterator[set[Path]]:
    """The files on disk that are opened within this context, except those opened within an inner
    one."""
    files: set[Path] = set()
    token = _opened.set(files)
    try:
        yield files
    finally:
        _opened.reset(token)


@dataclass(frozen=True, slots=True)
class File:
    """A file on disk, or one that was uploaded; `name` is what messages call it."""

    name: str
    content: Path | bytes

    def open(self) -> IO[bytes]:
        """The bytes as stored, still packed.

        Raises:
            UserError: the file cannot be opened, or is not a regular file.
        """
        if isinstance(self.content, bytes):
            return io.BytesIO(self.content)
        if (opened := _opened.get()) is not None:
            opened.add(self.content)
        try:
            return open_regular(self.content)
        except OSError as error:
            raise UserError(
                f"{self.name} can't be read ({error.strerror}): check its path and permissions."
            ) from error


class _Counted(io.RawIOBase):
    """Passes bytes on, and raises an error after more than `limit`."""

    def __init__(self, inner: IO[bytes], file: File, limit: int | None) -> None:
        self._inner = inner
        self._file = file
        self._limit = limit
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            n = cast(io.BufferedIOBase, self._inner).readinto(buffer)
        except (EOFError, OSError, zlib.error) as error:
            raise UserError(
                f"{self._file.name} is damaged or truncated: copy or download it again."
            ) from error
        self._count += n
        if self._limit is not None and self._count > self._limit:
            raise UserError(
                f"{self._file.name} has more than {self._limit // MEGABYTE:,} MB when unpacked: "
                "split the file."
            )
        return n


@contextmanager
def open_bytes(file: File, limit: int | None = None) -> Iterator[io.BufferedReader[io.RawIOBase]]:
    """The file's bytes, unpacked if it is gzip (detected from its first bytes, not its name).

    `limit` is the maximum number of unpacked bytes, counted while they are read. Without a limit, a
    gzip file must not unpack to more than 100 MB if that is more than a hundred times its size.

    Raises:
        UserError: the limit is exceeded, the file cannot be read, or its gzip data is damaged.
    """
    with file.open() as raw:
        inner: IO[bytes] = raw
        if is_gzip := raw.read(2) == b"\x1f\x8b":
            inner = cast(IO[bytes], gzip.GzipFile(fileobj=raw))
            limit = limit or max(100 * MEGABYTE, _MAX_RATIO * raw.seek(0, io.SEEK_END))
        raw.seek(0)
        counted: io.RawIOBase = _Counted(inner, file, limit)
        with io.BufferedReader(counted, buffer_size=1 << 20) as stream:
            yield stream
        if is_gzip:
            inner.close()


def encoding_of(head: bytes) -> str:
    """The encoding of a text, detected from its first four bytes; UTF-8 by default."""
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "utf-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    # Without a byte order mark: a data file begins with ASCII (a column's name or a brace), and in
    # UTF-16 every other byte of ASCII is zero.
    if len(head) == 4 and not any(head[1::2]) and all(head[::2]):
        return "utf-16-le"
    if len(head) == 4 and not any(head[::2]) and all(head[1::2]):
        return "utf-16-be"
    return "utf-8-sig"


@contextmanager
def open_text(file: File, limit: int | None = None) -> Iterator[io.TextIOWrapper]:
    """The file as text: UTF-8, UTF-16 or UTF-32, without a byte order mark, with its line ends.

    Bytes that are not UTF-8 are decoded as lone surrogates, so that only their row is rejected
    (`has_foreign_bytes`).

    Raises:
        UserError: as `open_bytes`, or UTF-16 or UTF-32 text is invalid.
    """
    with open_bytes(file, limit) as stream:
        encoding = encoding_of(stream.peek(4)[:4])
        errors = "surrogateescape" if encoding == "utf-8-sig" else "surrogatepass"
        with io.TextIOWrapper(stream, encoding, errors, newline="") as text:
            try:
                yield text
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{file.name} is not valid {encoding.upper()}: save it as UTF-8."
                ) from error


def beginning(file: File, length: int = 1 << 16) -> str:
    """The first characters of a file, from which its format is detected, without leading white
    space; empty if it cannot be read as text."""
    try:
        with open_text(file) as text:
            return text.read(length).lstrip()
    except (UserError, OSError, UnicodeError):
        return ""


def has_foreign_bytes(text: str) -> bool:
    """Whether a text read by `open_text` contains bytes that are not UTF-8."""
    return not text.isascii() and _FOREIGN.search(text) is not None


def json_lines(file: File, limit: int | None = None) -> Iterator[tuple[int, str | None]]:
    """Number (from 1) and text of each line that is not blank; None for one over MAX_LINE.

    Raises:
        UserError: as `open_text`.
    """
    with open_text(file, limit) as stream:
        number = 0
        while line := stream.readline(MAX_LINE):
            number += 1
            if len(line) == MAX_LINE and line[-1] not in "\r\n":
                while (rest := stream.readline(MAX_LINE)) and rest[-1] not in "\r\n":
                    pass
                yield number, None
            elif line.strip():
                yield number, line

"""Reads untrusted files within limits: only regular files, whose size, depth and number of values
are checked before anything is parsed.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from poslens.attribution.paths import IrregularFileError, open_regular

MIB = 1 << 20
CONFIG_BYTES = 16 * MIB
"""Largest configuration file; the largest published ones (of tokenizers with many added tokens)
have some 5 MB."""
VOCABULARY_BYTES = 192 * MIB
"""Largest vocabulary; that of a million words has some 60 MB."""
MAX_DEPTH = 64
MAX_VALUES = 12_000_000
"""Values of a JSON file: two million words with three values each would be the largest known
vocabulary."""


class DamagedFolder(ValueError):
    """Says what is wrong with a folder, in words that follow the name of its model and contain no
    path of this machine."""


def read_bytes(path: Path, limit: int) -> bytes:
    """The contents of a regular file of at most `limit` bytes.

    Raises:
        DamagedFolder: it is something else, larger, or cannot be read.
    """
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > limit:
                raise DamagedFolder(too_large(path.name, limit))
            content = file.read(limit + 1)
    except IrregularFileError as error:
        raise DamagedFolder(irregular(path.name)) from error
    except OSError as error:
        raise DamagedFolder(
            f"has a file {shown(path.name)} that cannot be read ({type(error).__name__}): restore "
            "it."
        ) from error
    if len(content) > limit:
        raise DamagedFolder(too_large(path.name, limit))
    return content


def parse_json(content: bytes, name: str) -> Any:
    """The value in `content`, which is checked by `require_shallow` before it is parsed.

    Raises:
        DamagedFolder: it is not JSON, too deep, or has too many values.
    """
    require_shallow(content, name)
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedFolder(
            f"could not be loaded: {shown(name)} is damaged ({type(error).__name__}). Restore "
            "the file."
        ) from error


_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NO_BRACKET = bytes(b for b in range(256) if b not in b"[]{}")


def require_shallow(content: bytes, name: str) -> None:
    """Refuse JSON so deep or with so many values that it would exhaust the reader's memory. Takes
    about 10 ms per MB.

    Raises:
        DamagedFolder: it is too deep or has too many values.
    """
    if content.count(b",") > 4 * MAX_VALUES:
        raise DamagedFolder(f"has more values in {shown(name)} than any model: restore the file.")
    bare = _STRING.sub(b"", content)
    brackets = bare.translate(None, _NO_BRACKET)
    if bare.count(b",") + len(brackets) > MAX_VALUES:
        raise DamagedFolder(f"has more values in {shown(name)} than any model: restore the file.")
    # Each round removes the innermost pairs of brackets: what is left after MAX_DEPTH is deeper.
    for _ in range(MAX_DEPTH):
        if not brackets:
            return
        shorter = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(shorter) == len(brackets):
            return  # not balanced, so not JSON, which the parser reports
        brackets = shorter
    if brackets:
        raise DamagedFolder(f"has {shown(name)} with too deep nesting: restore the file.")


def shapes(path: Path) -> dict[str, list[int]]:
    """The shape of each tensor in a safetensors file, from its header.

    Raises:
        DamagedFolder: the file is truncated or not a safetensors file.
    """
    try:
        open_regular(path).close()  # a pipe would hold the library forever
        with safe_open(path, "numpy") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DamagedFolder(
            f"could not be loaded: {shown(path.name)} is truncated or not a safetensors file. "
            "Restore the file."
        ) from error


def shown(name: str) -> str:
    """A file's name for messages, escaped if it is unusual, because names are untrusted."""
    return name if re.fullmatch(r"[\w.-]{1,80}", name) else ascii(name[:80])


def irregular(name: str) -> str:
    return f"has {shown(name)} in its folder, which is not a regular file: restore the file."


def too_large(name: str, limit: int) -> str:
    return (
        f"has a file {shown(name)} of more than {limit // MIB} MB, which no model has: restore "
        "the file."
    )

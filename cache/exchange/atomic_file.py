"""Files that are written anew without losing what was there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from poslens.attribution.errors import UserError


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A file that takes its name once it is whole and on disk; until then, and where it cannot be
    written, the earlier file of that name stays. A link is followed; a pipe is written to.

    Raises:
        UserError: it cannot be written.
    """
    try:
        target = target.resolve()
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                yield stream
            return
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if target.exists():
                part.chmod(target.stat().st_mode & 0o7777)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror}).") from error

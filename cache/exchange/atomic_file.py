"""Files that are replaced atomically."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from poslens.attribution.errors import UserError


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `target` once it is complete and synced to disk. If
    writing fails, an existing file stays as it was. Symbolic links are followed; pipes are written
    directly.

    Raises:
        UserError: the file can't be written.
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


def require_writable(target: Path) -> None:
    """Check that `replacing` can write `target`, for a command whose computation takes long.

    Raises:
        UserError: `target` is a folder, or its folder does not exist or is not writable.
    """
    target = target.resolve()
    folder = target.parent
    if target.is_dir():
        reason = errno.EISDIR
    elif not folder.exists():
        reason = errno.ENOENT
    elif not folder.is_dir():
        reason = errno.ENOTDIR
    # Pipes and devices are written directly, other files are replaced by a new one in their folder.
    elif not os.access(target if target.exists() and not target.is_file() else folder, os.W_OK):
        reason = errno.EACCES
    else:
        return
    raise UserError(f"{target} cannot be written ({os.strerror(reason)}).")

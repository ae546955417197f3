"""Files that are replaced atomically, such as small caches in JSON."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from poslens.attribution.errors import UserError


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `target` once it is complete and synced to disk. If
    writing fails, an existing file stays as it was. Symbolic links are followed; pipes are written
    directly.

    Raises:
        UserError: the file can't be written.
    """
    given = target
    try:
        target = target.resolve()
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                yield stream
            return
        part = _part(target)
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
        raise UserError(f"{given} cannot be written ({error.strerror}).") from error


def require_writable(target: Path) -> None:
    """Check that `replacing` can write `target`, for a command whose computation takes long, by
    creating the file that would replace it. Permissions alone don't say so, such as for root.

    Raises:
        UserError: `target` is a folder, or its folder does not exist or is not writable.
    """
    try:
        file = target.resolve()
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not file.exists() or file.is_file():
            part = _part(file)
            part.touch()
            part.unlink()
        # Pipes and devices are written directly, and opening a pipe would wait for its reader.
        elif not os.access(file, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(f"{target} cannot be written ({error.strerror}).") from None


def json_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file can't be read or contains anything else."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _part(target: Path) -> Path:
    """The file that is written in place of `target` until it is complete."""
    return target.with_name(f".{target.name}.{os.getpid()}.part")

"""Paths as users type them, and opening files safely."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from poslens.attribution.errors import UserError


def expanded(path: str | Path) -> Path:
    """`path` with `~` expanded.

    Raises:
        UserError: the named user does not exist on this machine or has no home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{path} can't be used, because there is no such user with a home folder: use a path "
            "without ~."
        ) from error


is_folder = os.path.isdir
"""Whether a path is a folder; False for an invalid path, such as a name of 300 characters."""

exists = os.path.exists
"""Whether a path exists; False for an invalid path."""


class IrregularFileError(OSError):
    """Raised for a pipe, device, socket or folder where a regular file is required."""


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file for reading, following symbolic links.

    Opening never blocks: a pipe without a writer would hold the caller forever, and a device such
    as /dev/zero never ends.

    Raises:
        IrregularFileError: the path is not a regular file.
        OSError: the file cannot be opened.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IrregularFileError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


FileState = tuple[str, int, int, int, int]


def file_state(path: Path) -> FileState:
    """What changes with a file's contents: its path, size in bytes, modification and change times
    in nanoseconds, and inode. Programs can't set the change time, so a file replaced by one of the
    same name, size and modification time is noticed.

    Raises:
        OSError: there is no such file.
    """
    status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def sync_folder(folder: str | Path) -> None:
    """Flush a folder's entries to disk, where the system can open folders."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

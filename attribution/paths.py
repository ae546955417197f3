"""Paths as people type them, and the files at them."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from poslens.attribution.errors import UserError


def expanded(path: str | Path) -> Path:
    """`path` with `~` resolved.

    Raises:
        UserError: it names a user that this machine does not have, or whose folder is not known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{path} cannot be used: there is no user of that name here with a home folder. Give "
            "a path without ~."
        ) from error


def is_folder(path: str | Path) -> bool:
    """Whether there is a folder; not of what can be no path, such as a name of 300 characters."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def exists(path: str | Path) -> bool:
    """Whether there is anything; not of what can be no path."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


class IrregularFileError(OSError):
    """Raised for a pipe, device, socket or folder where a regular file was expected."""


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

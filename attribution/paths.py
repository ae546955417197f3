"""Paths as people type them."""

from __future__ import annotations

from pathlib import Path

from attribution.errors import UserError


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

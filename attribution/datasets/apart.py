"""Parquet from strangers, read in a process of its own.

A Parquet file with one wrong byte can end the process that reads it (an Arrow assertion), and one
that lies about its sizes can fill the memory. Here that ends a child with limits on memory and
time, and the server says one sentence.

Uploads are read by the child alone. Files on disk may be too large to come through a pipe: a child
decodes them to the end first, column by column as the server will, and only what it survived is
decoded again in the server. That guards against damaged files, of the hub too, not against one
that is exchanged in between by who starts the server.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attribution.errors import UserError

if TYPE_CHECKING:
    from attribution.datasets.streams import File
    from attribution.datasets.tables import Row

_SHIPPED = Path(__file__).parent / "sample"
_ROOT = Path(__file__).parents[2]
_CHECK = f"import sys; from {__name__} import check; sys.exit(check())"
_MAX_MEMORY = 4 << 30
_MAX_MEMORY_ON_DISK = 8 << 30
_MAX_SECONDS = 60
_SAID = 2
"""Exit code of a child whose error is a sentence for the user."""


def parquet_rows(
    data: bytes, name: str, needed: list[str], wanted: list[str], limit: int
) -> Iterator[Row]:
    """The rows of an uploaded Parquet file.

    Raises:
        UserError: a column is missing, over `limit`, or the file is damaged.
    """
    from attribution.datasets.tables import Row

    damaged = f"{name} is not a Parquet file that can be read: write it again."
    for line in run(main, [name, needed, wanted, limit], data, damaged).splitlines():
        yield Row(**json.loads(line))


def run(child: Callable[[], int], arguments: list[Any], data: bytes, damaged: str) -> bytes:
    """What `child` writes to stdout in a process of its own, `data` on its stdin and `arguments`
    as JSON in its first argument; `child` is a function of a module and limits itself.

    Raises:
        UserError: the child said so (`said`), or `damaged`, where it ended otherwise.
    """
    program = f"import sys; from {child.__module__} import {child.__name__} as f; sys.exit(f())"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, json.dumps(arguments)],
            input=data, capture_output=True, cwd=_ROOT, timeout=2 * _MAX_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UserError(damaged) from error
    if done.returncode == _SAID:
        raise UserError(json.loads(done.stdout.splitlines()[-1]))
    if done.returncode:
        raise UserError(damaged)
    return done.stdout


def said(error: UserError) -> int:
    """The exit code of a child after its sentence was written."""
    sys.stdout.write(json.dumps(str(error)) + "\n")
    return _SAID


def require_readable(files: Sequence[tuple[File, Sequence[str]]]) -> None:
    """Decode columns of files on disk in one child, whose start takes longer than most files;
    those that are shipped with the program need no check.

    Raises:
        UserError: the child did not survive one of them.
    """
    on_disk = [
        (file.name, str(file.content.resolve()), list(wanted))
        for file, wanted in files
        if isinstance(file.content, Path) and _SHIPPED not in file.content.resolve().parents
    ]
    if not on_disk:
        return
    asked = json.dumps(on_disk)
    done = subprocess.run(
        [sys.executable, "-c", _CHECK], input=asked.encode(), capture_output=True, cwd=_ROOT,
        check=False,
    )  # fmt: skip
    if done.returncode:
        # The child names each file before it opens it.
        name = json.loads((done.stdout.splitlines() or [json.dumps(on_disk[0][0]).encode()])[-1])
        raise UserError(
            f"{name} is not a Parquet file that can be read: write it again, in row groups of less "
            f"than {_MAX_MEMORY_ON_DISK >> 30} GB."
        )


def check() -> int:
    """Decode the files that stdin names; other errors than the end of this process are left to
    who reads them."""
    asked = json.loads(sys.stdin.buffer.read())
    limit_this_process(_MAX_MEMORY_ON_DISK, None)
    from attribution.datasets.streams import File
    from attribution.datasets.tables import decode

    for name, path, wanted in asked:
        sys.stdout.write(json.dumps(name) + "\n")
        sys.stdout.flush()
        with suppress(UserError):
            decode(File(name, Path(path)), wanted)
    return 0


def limit_this_process(memory: int = _MAX_MEMORY, seconds: int | None = _MAX_SECONDS) -> None:
    """Limits on memory and time, for a child to begin with."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    if seconds is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _other(value: Any) -> list[Any]:
    """Dates and the like are no text: a list is refused in every column."""
    return []


def main() -> int:
    """Rows of the file on stdin as lines of JSON on stdout, a sentence for the user as the last."""
    limit_this_process()
    from attribution.datasets.streams import File
    from attribution.datasets.tables import parquet_in_process

    name, needed, wanted, limit = json.loads(sys.argv[1])
    try:
        for row in parquet_in_process(File(name, sys.stdin.buffer.read()), needed, wanted, limit):
            sys.stdout.write(json.dumps(asdict(row), default=_other) + "\n")
    except UserError as error:
        return said(error)
    return 0

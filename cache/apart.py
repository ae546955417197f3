"""Read a stranger's file of results to its end, in a process of its own.

A Parquet file with one wrong byte can end the process that reads it (an Arrow assertion), and one
that lies about its sizes can fill the memory. Here that ends a child with a limit on memory, and
the program says one sentence.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from attribution.errors import UserError

_ROOT = Path(__file__).parents[1]
_CHILD = f"import sys; from {__name__} import main; sys.exit(main(*sys.argv[1:]))"
_MAX_MEMORY = 8 << 30
_SAID = 2
"""Exit code of a child whose error is a sentence for the user."""


def require_readable(path: Path, name: str, seconds: float | None = None) -> None:
    """Check a file of results, all its rows and checksums, in a child that may take so long.

    Raises:
        UserError: it is damaged, foreign, or the child did not survive it.
    """
    damaged = UserError(f"{name} is damaged or not a Parquet file: copy or export it again.")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(path.absolute()), name],
            stdin=subprocess.DEVNULL, capture_output=True, cwd=_ROOT, timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise damaged from error
    if done.returncode == _SAID:
        raise UserError(json.loads(done.stdout.splitlines()[-1]))
    if done.returncode:
        raise damaged


def main(path: str, name: str) -> int:
    """Read the file; a sentence for the user is the last line on stdout."""
    try:
        import resource
    except ImportError:  # not on Windows
        pass
    else:
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from cache.sealed import opened, require_whole

    try:
        with Path(path).open("rb") as stream, opened(stream, name) as sealed:
            for _, rows in sealed.batches():
                require_whole(rows, name)
    except OSError as error:
        sys.stdout.write(json.dumps(f"{name} cannot be read ({error.strerror}).") + "\n")
        return _SAID
    except UserError as error:
        sys.stdout.write(json.dumps(str(error)) + "\n")
        return _SAID
    return 0

"""Read strangers' files of results to their end, in a process of its own.

A Parquet file with one wrong byte can end the process that reads it (an Arrow assertion), and one
that lies about its sizes can fill the memory. Here that ends a child with a limit on memory, and
the program says one sentence. One child reads many files, since its start takes longer than most.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from attribution.errors import UserError

_ROOT = Path(__file__).parents[1]
_CHILD = f"import sys; from {__name__} import main; sys.exit(main())"
_MAX_MEMORY = 8 << 30


class Readers:
    """A child that reads files one after the other, and another one after a file that it did not
    survive. A context manager; a file may take `seconds`."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def require_readable(self, content: Path | bytes, name: str) -> None:
        """Check a file of results, all its rows and checksums.

        Raises:
            UserError: it is damaged, foreign, or the child did not survive it.
        """
        asked: dict[str, Any] = {"name": name}
        asked |= (
            {"path": str(content.absolute())} if isinstance(content, Path)
            else {"bytes": len(content)}
        )  # fmt: skip
        said = self._ask(
            json.dumps(asked).encode() + b"\n", content if isinstance(content, bytes) else b""
        )
        if said is None:
            self._end()
            raise UserError(f"{name} is damaged or not a Parquet file: copy or export it again.")
        if said:
            raise UserError(said)

    def _ask(self, head: bytes, data: bytes) -> str | None:
        """The child's sentence, empty where nothing is wrong; None where it ended."""
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=_ROOT,
            )  # fmt: skip
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        timer = None if self._seconds is None else threading.Timer(self._seconds, child.kill)
        if timer is not None:
            timer.start()
        try:
            child.stdin.write(head)
            child.stdin.write(data)
            child.stdin.flush()
            answer = child.stdout.readline()
        except OSError:
            return None
        finally:
            if timer is not None:
                timer.cancel()
        return json.loads(answer) if answer.endswith(b"\n") else None

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def require_readable(path: Path, name: str, seconds: float | None = None) -> None:
    """Check one file.

    Raises:
        UserError: as `Readers.require_readable`.
    """
    with Readers(seconds) as readers:
        readers.require_readable(path, name)


def main() -> int:
    """Read the files that stdin names or holds; a sentence for each, empty where nothing is wrong,
    as a line on stdout."""
    try:
        import resource
    except ImportError:  # not on Windows
        pass
    else:
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stdin = sys.stdin.buffer
    while line := stdin.readline():
        asked = json.loads(line)
        path = asked.get("path")
        said = _problem(Path(path) if path else stdin.read(asked["bytes"]), asked["name"])
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
    return 0


def _problem(content: Path | bytes, name: str) -> str:
    from cache.sealed import opened, require_whole

    try:
        with (
            content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as stream,
            opened(stream, name) as sealed,  # type: ignore[arg-type]
        ):
            for _, rows in sealed.batches():
                require_whole(rows, name)
    except OSError as error:
        return f"{name} cannot be read ({error.strerror})."
    except UserError as error:
        return str(error)
    return ""

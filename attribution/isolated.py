"""Strangers' files, read in a process of its own.

A file with one wrong byte can end the process that reads it (an Arrow assertion), and a small one
can ask for all memory or for hours. Here that ends a child with limits on memory and time, the
parent accepts no more than a stated number of bytes from it, and the program says one sentence.
The child gets none of this process's settings or secrets in its environment.

A reader is a function of a module, `function(data, *arguments)`, that yields its answer as bytes,
part by part; a UserError that it raises is raised in the parent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from poslens.attribution.errors import UserError

Function = Callable[..., Iterable[bytes]]

# The folder that holds the package `poslens`, in a checkout and where it is installed.
_ROOT = Path(sys.modules[__name__.partition(".")[0]].__file__ or "").resolve().parents[1]
_CHILD = f"from {__name__} import serve; serve()"
# What Python needs to start as it did here, and nothing that could be a secret.
_INHERITED = (
    "DYLD_LIBRARY_PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONUTF8",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
    "TMPDIR",
)
# One thread, and an allocator that asks for memory as it needs it: what counts is what is read.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
}
_MAX_SENTENCE = 100_000
_PART = 1 << 20

_reader_slots = threading.BoundedSemaphore(2)
"""Uploads that are read at once: each may take its limit of memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What reading one file may take: `memory` in bytes beyond what the child needs to start,
    `seconds` of a processor (None is no limit; the parent waits three times as long, since others
    may use it too), and `answer`, the bytes that the parent accepts."""

    memory: int = 1 << 30
    seconds: float | None = 60
    answer: int = 1 << 20


class Reader:
    """A child that reads files one after the other, and another one after a file that it did not
    survive: its start takes longer than most files. A context manager."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def call(
        self, function: Function, arguments: Sequence[Any] = (), data: bytes = b"", *, damaged: str
    ) -> bytes:
        """The answer of `function(data, *arguments)`, its parts joined; arguments go as JSON.

        Raises:
            UserError: the function said so, or `damaged`, where the child did not survive the
                file or answered with more than the limit.
        """
        asked = {
            "function": f"{function.__module__}:{function.__qualname__}",
            "arguments": list(arguments),
            "bytes": len(data),
        }
        child = self._child = self._child or self._start()
        assert child.stdin is not None and child.stdout is not None
        seconds = self.limits.seconds
        timer = None if seconds is None else threading.Timer(3 * seconds, child.kill)
        if timer is not None:
            timer.start()
        try:
            child.stdin.write(json.dumps(asked).encode() + b"\n")
            child.stdin.write(data)
            child.stdin.flush()
            answer, text = _answer(child.stdout, self.limits.answer)
        except (OSError, EOFError) as error:
            self._end()
            raise UserError(damaged) from error
        finally:
            if timer is not None:
                timer.cancel()
        if text:
            raise UserError(text)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        limits = json.dumps([self.limits.memory, self.limits.seconds])
        return subprocess.Popen(
            [sys.executable, "-c", _CHILD, limits],
            cwd=_ROOT,
            env={name: os.environ[name] for name in _INHERITED if name in os.environ}
            | _ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def call(
    function: Function,
    arguments: Sequence[Any] = (),
    data: bytes = b"",
    *,
    damaged: str,
    limits: Limits | None = None,
) -> bytes:
    """The answer of one file's reader, in a child of its own; two at a time.

    Raises:
        UserError: as `Reader.call`.
    """
    with _reader_slots, Reader(limits) as reader:
        return reader.call(function, arguments, data, damaged=damaged)


def _answer(stream: Any, limit: int) -> tuple[bytes, str]:
    """What the child answers, and its sentence, empty where it has none.

    Raises:
        EOFError: it ended, or answered more than `limit` bytes.
    """
    parts: list[bytes] = []
    left = limit
    while size := int.from_bytes(_exactly(stream, 4), "big"):
        if size > left:
            raise EOFError
        left -= size
        parts.append(_exactly(stream, size))
    said = stream.readline(_MAX_SENTENCE)
    if not said.endswith(b"\n"):
        raise EOFError
    return b"".join(parts), json.loads(said)


def _exactly(stream: BinaryIO, n: int) -> bytes:
    found = stream.read(n)
    if len(found) < n:
        raise EOFError
    return found


def serve() -> None:
    """What the child does: answer the requests on stdin one after the other."""
    requests = sys.stdin.buffer
    # A library that prints would break the answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    memory, seconds = json.loads(sys.argv[1])
    limited = False
    while line := requests.readline():
        asked = json.loads(line)
        data = requests.read(asked["bytes"])
        module, _, name = asked["function"].partition(":")
        function: Function = getattr(import_module(module), name)
        if not limited:
            _limit_this_process(memory)
            limited = True
        _limit_time(seconds)
        text = ""
        try:
            for part in function(data, *asked["arguments"]):
                for start in range(0, len(part), _PART):
                    piece = part[start : start + _PART]
                    answers.write(len(piece).to_bytes(4, "big") + piece)
        except UserError as error:
            text = str(error)
        answers.write(bytes(4) + json.dumps(text).encode() + b"\n")
        answers.flush()


def _limit_this_process(memory: int) -> None:
    """Limits on memory beyond what this process has, and on files: it writes none."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        memory += pages * resource.getpagesize()
    except OSError:  # not on macOS, where the limit is the whole
        memory += 2 << 30
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _limit_time(seconds: float | None) -> None:
    """A limit on what the next file may take: a parent that ended kills no child."""
    if seconds is None:
        return
    try:
        import resource
    except ImportError:  # not on Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, hard))

"""Reads untrusted files in a separate process.

One wrong byte in a file can abort the process that reads it (an Arrow assertion), and a small file
can request all memory or take hours. Here this ends only a child process, whose memory and time are
limited. The parent accepts a limited number of bytes from it and reports one sentence. The child's
environment contains none of this process's settings or secrets.

A reader is a function of a module, `function(data, *arguments)`, that yields its result as bytes,
in parts. A UserError that it raises is raised again in the parent.
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

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

Function = Callable[..., Iterable[bytes]]

# The folder that contains the package `poslens`, in a checkout or an installation.
_ROOT = Path(sys.modules[__name__.partition(".")[0]].__file__ or "").resolve().parents[1]
_CHILD = f"from {__name__} import serve; serve()"
# What Python needs to start in the same way, without anything that could be a secret.
_INHERITED = tuple(
    "DYLD_LIBRARY_PATH HOME LANG LC_ALL LC_CTYPE LD_LIBRARY_PATH PATH "
    "PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH PYTHONUTF8 SYSTEMROOT TEMP TMP TMPDIR".split()
)
# One thread, and an allocator that requests memory on demand, so the limit applies to the file.
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
"""Maximum number of uploads read at the same time: each may use its full memory limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for reading one file: `memory` in bytes beyond what the child needs to start,
    `seconds` of processor time (None for no limit; the parent waits three times as long, because
    other processes use the processor too), and `answer`, the maximum size of the result in
    bytes."""

    memory: int = 1 << 30
    seconds: float | None = 60
    answer: int = 1 << 20


class Reader:
    """A child process that reads several files in succession, because starting one takes longer
    than reading most files; it is replaced if a file crashes it. A context manager."""

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
        """The result of `function(data, *arguments)`, joined; arguments are sent as JSON.

        Raises:
            UserError: the function raised it, or, with the message `damaged`, the child ended or
                returned more than the limit.
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
    """The result of reading one file in a separate child process; at most two run at a time.

    Raises:
        UserError: as for `Reader.call`.
    """
    with _reader_slots, Reader(limits) as reader:
        return reader.call(function, arguments, data, damaged=damaged)


def _answer(stream: Any, limit: int) -> tuple[bytes, str]:
    """The child's result, and its error message or an empty string.

    Raises:
        EOFError: the child ended, or returned more than `limit` bytes.
    """
    parts: list[bytes] = []
    left = limit
    while size := int.from_bytes(_exactly(stream, 4), "big"):
        if size > left:
            raise EOFError
        left -= size
        parts.append(_exactly(stream, size))
    head = stream.readline(_MAX_SENTENCE)
    if not head.endswith(b"\n"):
        raise EOFError
    return b"".join(parts), json.loads(head)


def _exactly(stream: BinaryIO, n: int) -> bytes:
    part = stream.read(n)
    if len(part) < n:
        raise EOFError
    return part


def serve() -> None:
    """The child's main loop: answers the requests on stdin in order."""
    requests = sys.stdin.buffer
    # Output that a library prints would corrupt the answer.
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
    """Limit memory to what this process already has plus the limit, and forbid writing files."""
    if resource is None:
        return
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        memory += pages * resource.getpagesize()
    except OSError:  # not on macOS
        memory += 2 << 30
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _limit_time(seconds: float | None) -> None:
    """Limit the processor time of the next file: if the parent was killed, the child still ends."""
    if seconds is None or resource is None:
        return
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, hard))

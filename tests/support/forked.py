"""Python in processes forked from one that has loaded the large libraries.

A new process takes seconds to import them; a fork takes none. Its output, exit status and files are
separate as usual. Messages of an interpreter's startup and shutdown are not covered; tests of those
start a real one.

All workers of a run share the loaded process, which forks once for each of them. It ends once
nobody holds the lock of its folder, like the dashboards of tests/e2e/servers.py.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).parents[2]
SECONDS = 300
STEP = 0.3
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Forked:
    """A fork of the loaded process, which forks for each `start`. The loaded process is that of the
    folder `shared`, started unless it is already running; files of output are in `folder`."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self._folder, self._number = folder, count()
        shared.mkdir(exist_ok=True)
        with (shared / "starting").open("wb") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            self._lock = (shared / "held").open("wb")
            # Wait for a loaded process that is just ending.
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if not (shared / "socket").exists():
                _load(shared)
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(str(shared / "socket"))
        self._stream = self._socket.makefile("rw", encoding="utf-8")

    def start(
        self,
        *arguments: str,
        code: str | None = None,
        env: Mapping[str, str] | None = None,
        seconds: int = SECONDS,
        **streams: str | None,
    ) -> Child:
        """`python -m poslens *arguments`, or `python -c code *arguments`. `stdin`, `stdout` and
        `stderr` are paths, or None for a closed one; by default stdin is empty and the others are
        separate files. It is ended after `seconds`, or for 0 together with the loaded process."""
        own = self._folder / str(next(self._number))
        out, err = (Path(f"{own}.{name}") for name in ("out", "err"))
        files = {"stdin": os.devnull, "stdout": str(out), "stderr": str(err)} | streams
        asked = {
            "arguments": arguments,
            "code": code,
            "env": {**os.environ, **(env or {})},
            "files": files,
            "seconds": seconds,
        }
        return Child(self, int(self.ask({"start": asked})), out, err)

    def run(
        self,
        *arguments: str,
        code: str | None = None,
        env: Mapping[str, str] | None = None,
        **streams: str | None,
    ) -> tuple[int, str, str]:
        """`start`, and wait: the exit status (negative for a signal) and what it wrote to standard
        output and error, unless these were redirected."""
        child = self.start(*arguments, code=code, env=env, **streams)
        return child.wait(), *(
            file.read_text("utf-8") if file.exists() else "" for file in (child.out, child.err)
        )

    def ask(self, question: dict[str, object]) -> str:
        """The loaded process's answer of one line."""
        self._stream.write(json.dumps(question) + "\n")
        self._stream.flush()
        answer = self._stream.readline()
        assert answer, "the loaded process has ended"
        return answer.strip()

    def close(self) -> None:
        """End the running forks."""
        self._socket.shutdown(socket.SHUT_WR)
        self._stream.read()
        self._stream.close()
        self._socket.close()
        self._lock.close()


class Child:
    """A fork: its process id, and the files of its output and errors."""

    def __init__(self, forked: Forked, pid: int, out: Path, err: Path) -> None:
        self._forked, self.pid, self.out, self.err = forked, pid, out, err
        self._status: int | None = None

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        return self._ended({"ended": self.pid})

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        status = self._ended({"wait": self.pid})
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _ended(self, question: dict[str, object]) -> int | None:
        if self._status is None:
            answer = self._forked.ask(question)
            self._status = int(answer) if answer else None
        return self._status


def _load(shared: Path) -> None:
    """Start the loaded process of a folder."""
    with (shared / "log").open("wb") as log:
        loading = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked", str(shared)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is meant for the tests; it notices their end
        )
    end = time.monotonic() + SECONDS
    while not (shared / "socket").exists():
        if loading.poll() is not None or time.monotonic() > end:
            loading.kill()
            raise RuntimeError((shared / "log").read_text())
        time.sleep(STEP)


def is_free(lock: IO[bytes]) -> bool:
    """Whether nobody holds the lock any longer; then it is taken."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _main(shared: Path) -> None:
    """Load the libraries, and fork for each connection until nobody holds the lock."""
    gc.disable()  # loaded modules stay anyway; searching them for garbage takes a fifth of the time
    import captum.attr  # noqa: F401
    import sentence_transformers  # noqa: F401
    import streamlit.web.bootstrap  # noqa: F401
    import typer._adapters  # noqa: F401

    import poslens.dashboard.__main__
    import poslens.dashboard.server.streamlit_app
    import poslens.export.files
    import poslens.results  # noqa: F401
    from poslens.attribution.retrievers.lexical import library_index
    from poslens.studies import declared

    for study in declared().values():
        study.load()
    library_index([["load", "bm25s"]], 1.2, 0.75)
    del sys.modules["poslens.dashboard.__main__"]  # each child runs it again
    gc.collect()
    gc.freeze()  # garbage collection in a child would copy every memory page
    gc.enable()
    with socket.socket(socket.AF_UNIX) as listener, (shared / "held").open("wb") as lock:
        listener.bind(str(shared / "new"))
        listener.listen()
        listener.settimeout(STEP)
        (shared / "new").rename(shared / "socket")
        while not is_free(lock):
            with suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            try:
                asking, _ = listener.accept()
            except TimeoutError:
                continue
            if not os.fork():
                listener.close()
                lock.close()
                _answer(asking)
            asking.close()
        (shared / "socket").unlink()


def _answer(asking: socket.socket) -> NoReturn:
    """Fork as asked, and end the forks once nobody asks."""
    asking.settimeout(None)
    stream = asking.makefile("rw", encoding="utf-8")
    working: set[int] = set()
    for line in stream:
        ((what, asked),) = json.loads(line).items()
        if what == "start":
            child = os.fork()
            if not child:
                os.close(asking.fileno())
                _run(**asked)
            working.add(child)
            answer = str(child)
        else:
            ended, status = os.waitpid(asked, 0 if what == "wait" else os.WNOHANG)
            working.discard(ended)
            answer = str(os.waitstatus_to_exitcode(status)) if ended else ""
        stream.write(answer + "\n")
        stream.flush()
    for child in working:
        os.kill(child, signal.SIGKILL)
    os._exit(0)


def _run(
    arguments: list[str],
    code: str | None,
    env: dict[str, str],
    files: dict[str, str | None],
    seconds: int,
) -> NoReturn:
    signal.alarm(seconds)
    os.environ.clear()
    os.environ.update(env)
    _open_streams(files, env.get("PYTHONIOENCODING", "utf-8"))
    try:
        if code is not None:
            sys.argv = ["-c", *arguments]
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = ["dashboard", *arguments]
            runpy.run_module("dashboard", run_name="__main__", alter_sys=True)
        status: object = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    if not isinstance(status, int):
        print(status, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    # Like the end of an interpreter, but without tearing down the libraries.
    os._exit(status if isinstance(status, int) else 1)


def _open_streams(files: dict[str, str | None], encoding: str) -> None:
    """The streams that an interpreter with these files would begin with."""
    modes = (("stdin", os.O_RDONLY), ("stdout", _WRITE), ("stderr", _WRITE))
    opened = [
        None if (file := files[name]) is None else os.open(file, mode, 0o666)
        for name, mode in modes
    ]
    for number, (name, mode) in enumerate(modes):
        if (file := opened[number]) is None:
            os.close(number)
            setattr(sys, name, None)
            continue
        os.dup2(file, number)
        os.close(file)
        errors = "backslashreplace" if name == "stderr" else "strict"
        kind = "r" if mode == os.O_RDONLY else "w"
        # Open for as long as the process runs.
        made = open(number, kind, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, made)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))

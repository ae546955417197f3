"""Dashboards that browser tests ask, each for as long as some process holds it.

A server has a keeper: a process that ends it once nobody holds the lock of its folder. The kernel
takes locks from processes however they end, so an interrupted or killed run leaves no server
behind; and a server that several test workers use ends with the last of them.

One that a single worker uses is forked from its loaded process (`forked_app`), which spares the
libraries' import, and ends with it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.support.forked import Forked
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
SECONDS = 300  # for a start on a busy machine
STEP = 0.3
DASHBOARD = (sys.executable, "-m", "dashboard", "run")


@dataclass
class App:
    """A running dashboard, its log and its data folder, held until `release`."""

    url: str
    log: Path
    home: Path
    release: Callable[[], None] = field(repr=False)
    """Hold it no longer."""


def app_in(
    folder: Path,
    arguments: Callable[[], Sequence[str]],
    environment: Mapping[str, str] = os.environ,
    start: Sequence[str] = DASHBOARD,
) -> App:
    """The dashboard of this folder, started with `arguments()` unless it is there already. `start`
    is what else to start: it gets `--port` and the number too.

    Raises:
        RuntimeError: it does not start; holds its log.
    """
    home, log, url = folder / "home", folder / "server.log", folder / "url"
    home.mkdir(parents=True, exist_ok=True)
    with (folder / "starting").open("wb") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        lock = (folder / "held").open("wb")
        # Waits for a keeper that is just ending the server.
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not url.exists():
            _start(folder, (*start, *arguments()), {**environment, "POSLENS_HOME": str(home)})
    return App(url.read_text(), log, home, lock.close)


def forked_app(
    forked: Forked, folder: Path, arguments: Sequence[str], variables: Mapping[str, str]
) -> App:
    """A dashboard of this process alone, as `python -m poslens run` with `arguments`, but for the
    import of libraries; `variables` of its environment are none that these read.

    Raises:
        RuntimeError: it does not start; holds its log.
    """
    log, home, port = folder / "server.log", folder / "home", free_port()
    # Both streams append to one file, as a terminal shows them.
    server = forked.start(
        *("run", "--port", str(port), *arguments),
        env={"POSLENS_HOME": str(home), **variables},
        seconds=0,
        stdout=str(log),
        stderr=str(log),
    )

    def release() -> None:
        server.send_signal(signal.SIGTERM)
        end = time.monotonic() + 60
        while server.poll() is None and time.monotonic() < end:
            time.sleep(STEP)
        server.send_signal(signal.SIGKILL)
        server.wait()

    end = time.monotonic() + SECONDS
    while not _answers(f"http://127.0.0.1:{port}"):
        if server.poll() is not None or time.monotonic() > end:
            release()
            raise RuntimeError(log.read_text())
        time.sleep(STEP)
    return App(f"http://127.0.0.1:{port}", log, home, release)


def _start(folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.servers", str(folder), *command],
        cwd=ROOT,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the tests; the keeper sees them go
    )
    end = time.monotonic() + SECONDS
    while not (folder / "url").exists():
        if keeper.poll() is not None or time.monotonic() > end:
            keeper.terminate()  # ends its dashboard too
            log = folder / "server.log"
            raise RuntimeError(log.read_text() if log.exists() else "the keeper has ended")
        time.sleep(STEP)


def keep(folder: Path, command: Sequence[str]) -> None:
    """Run the server of a folder until nobody holds it."""
    port = free_port()
    url = folder / "url"
    with (folder / "server.log").open("wb") as out, (folder / "held").open("wb") as lock:
        asked = [*command, "--port", str(port)]
        server = subprocess.Popen(asked, cwd=ROOT, stdout=out, stderr=out)
        try:
            while server.poll() is None and not _is_free(lock):
                if not url.exists() and _answers(f"http://127.0.0.1:{port}"):
                    written = folder / "url.new"
                    written.write_text(f"http://127.0.0.1:{port}")
                    written.replace(url)
                time.sleep(STEP)
        finally:
            url.unlink(missing_ok=True)
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _is_free(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # through `finally`, the server with it
    keep(Path(sys.argv[1]), sys.argv[2:])

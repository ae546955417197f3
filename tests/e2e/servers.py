"""Dashboards for browser tests, each running as long as some process holds it.

A server has a keeper: a process that ends it once nobody holds the lock of its folder. The kernel
releases locks however a process ends, so an interrupted or killed run leaves no server running, and
a server that several test workers use ends with the last of them.

A server of a single worker (`forked_app`) ends with it. Both kinds are forked from the process that
has loaded the libraries, unless they need other settings of these.
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

from tests.support.forked import Child, Forked, is_free
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
    """Release it."""


def app_in(
    folder: Path,
    arguments: Callable[[], Sequence[str]],
    environment: Mapping[str, str] = os.environ,
    start: Sequence[str] = DASHBOARD,
    loaded: Path | None = None,
) -> App:
    """The dashboard of this folder, started with `arguments()` unless it is already running.
    `start` is another command to start, which also gets `--port` and the number. With `loaded`, the
    folder of a loaded process, it is forked from that, so `environment` can't include variables
    that libraries read.

    Raises:
        RuntimeError: it does not start; the message contains its log.
    """
    home, log, url = folder / "home", folder / "server.log", folder / "url"
    home.mkdir(parents=True, exist_ok=True)
    with (folder / "starting").open("wb") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        lock = (folder / "held").open("wb")
        # Wait for a keeper that is just ending the server.
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not url.exists():
            own = {**environment, "POSLENS_HOME": str(home)}
            _start(folder, [str(loaded or ""), *start, *arguments()], own)
    return App(url.read_text(), log, home, lock.close)


def forked_app(
    forked: Forked, folder: Path, arguments: Sequence[str], variables: Mapping[str, str]
) -> App:
    """A dashboard for this process only, like `python -m poslens run` with `arguments` but without
    importing libraries, so `variables` can't include any that these read.

    Raises:
        RuntimeError: it does not start; the message contains its log.
    """
    log, home, port = folder / "server.log", folder / "home", free_port()
    # Both streams append to one file, as in a terminal.
    server = forked.start(
        *("run", "--port", str(port), *arguments),
        env={"POSLENS_HOME": str(home), **variables},
        seconds=0,
        stdout=str(log),
        stderr=str(log),
    )

    end = time.monotonic() + SECONDS
    while not _answers(f"http://127.0.0.1:{port}"):
        if server.poll() is not None or time.monotonic() > end:
            _end(server)
            raise RuntimeError(log.read_text())
        time.sleep(STEP)
    return App(f"http://127.0.0.1:{port}", log, home, lambda: _end(server))


def _end(server: Child | subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGTERM)
    end = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < end:
        time.sleep(STEP)
    server.send_signal(signal.SIGKILL)
    server.wait()


def _start(folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.servers", str(folder), *command],
        cwd=ROOT,
        env={**environment, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is meant for the tests; the keeper notices their end
    )
    end = time.monotonic() + SECONDS
    while not (folder / "url").exists():
        if keeper.poll() is not None or time.monotonic() > end:
            keeper.terminate()  # also ends its dashboard
            log = folder / "server.log"
            raise RuntimeError(log.read_text() if log.exists() else "the keeper has ended")
        time.sleep(STEP)


def keep(folder: Path, loaded: Path | None, command: Sequence[str]) -> None:
    """Run the server of a folder until nobody holds it; with `loaded`, a dashboard."""
    port = free_port()
    url, log = folder / "url", folder / "server.log"
    with (folder / "held").open("wb") as lock:
        asked = [*command, "--port", str(port)]
        server: Child | subprocess.Popen[bytes]
        if loaded:
            arguments, out = asked[len(DASHBOARD) - 1 :], str(log)
            server = Forked(folder, loaded).start(*arguments, seconds=0, stdout=out, stderr=out)
        else:
            with log.open("wb") as file:
                server = subprocess.Popen(asked, cwd=ROOT, stdout=file, stderr=file)
        try:
            while server.poll() is None and not is_free(lock):
                if not url.exists() and _answers(f"http://127.0.0.1:{port}"):
                    written = folder / "url.new"
                    written.write_text(f"http://127.0.0.1:{port}")
                    written.replace(url)
                time.sleep(STEP)
        finally:
            url.unlink(missing_ok=True)
            _end(server)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # runs `finally`, which ends the server
    keep(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None, sys.argv[3:])

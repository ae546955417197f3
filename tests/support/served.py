"""A dashboard for tests of the server itself: its address, access to it, and its shutdown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.forked import Child, Forked
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
SECONDS = 300  # for a start on a busy machine


@dataclass(frozen=True)
class Served:
    """A running dashboard: `port` of the loopback address, its process, its log and data folder."""

    port: int
    process: Child | subprocess.Popen[bytes]
    log: Path
    home: Path

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")


@contextmanager
def served(
    folder: Path,
    *arguments: str,
    port: int = 0,
    base_path: str = "",
    environment: Mapping[str, str] | None = None,
    instead: Sequence[str] = (),
    forked: Forked | None = None,
) -> Iterator[Served]:
    """`run` with these options until the block ends; `instead` is another command to start, on
    `port`. With `forked` it doesn't import the libraries, so `environment` can't contain their
    settings."""
    port = port or free_port()
    home, log = folder / "home", folder / "server.log"
    command = ["run", f"--port={port}", *arguments]
    if base_path:
        command.append(f"--base-url-path={base_path}")
    own = {"OMP_NUM_THREADS": "1", "POSLENS_HOME": str(home), **(environment or {})}
    process: Child | subprocess.Popen[bytes]
    if forked is not None:
        process = forked.start(*command, env=own, seconds=0, stdout=str(log), stderr=str(log))
    else:
        with log.open("wb") as out:
            process = subprocess.Popen(
                instead or [sys.executable, "-m", "poslens", *command],
                cwd=ROOT,
                stdout=out,
                stderr=out,
                env={**os.environ, **own},
            )
    found = Served(port, process, log, home)
    health = f"http://127.0.0.1:{port}/{base_path}/_stcore/health".replace(f"{port}//", f"{port}/")
    try:
        end = time.monotonic() + SECONDS
        while not answers(health):
            assert process.poll() is None and time.monotonic() < end, found.said()
            time.sleep(0.3)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        ended = process.poll() is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert ended, "it does not stop"


def answers(url: str, **headers: str) -> bool:
    """Whether a healthy server answers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5):
            return True
    except OSError:
        return False

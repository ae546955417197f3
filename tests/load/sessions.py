"""Sessions without a browser on a real dashboard that computes a data set meanwhile.

    python -m tests.load.sessions [--sessions 50] [--minutes 10] [--every 5] [--processes 1]
                                  [--idle]

Each session speaks Streamlit's websocket protocol: it opens Explain or Curves on pairs that are
stored, clicks every few seconds, and times each click until its script has run. One more session
has runs of three models over another data set going in the server, unless it is idle. With several
processes on one cache each session keeps to one of them, as behind a proxy. Printed: clicks,
errors, the median and 95th percentile of a click, the servers' memory after the first minute and
at the end, and how many pairs were computed meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from cache.storage.files import Files
from cache.storage.maintenance import listing
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
WORDS = "the harbour light turns slowly above grey water while boats return with the tide"
STORED = 12  # pairs of the data set that sessions look at
MODELS = ("MiniLM-recency", "MiniLM-primacy", "MiniLM")
START = "start"  # key of the button that computes the other data set
TURN = 8  # clicks before a session goes back the way it came


@dataclass
class Figures:
    """What was seen: seconds of each click, sentences of errors, resident bytes by time."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    after_a_minute: int = 0
    at_the_end: int = 0
    computed: int = 0

    def lines(self) -> Iterator[str]:
        """In words."""
        ordered = sorted(self.seconds)
        p95 = ordered[int(0.95 * (len(ordered) - 1))]
        growth = self.at_the_end / self.after_a_minute - 1
        yield f"{len(ordered)} clicks, {len(self.errors)} errors {self.errors[:3]}"
        yield f"click: median {statistics.median(ordered):.3f} s, 95th percentile {p95:.3f} s"
        yield (
            f"memory: {self.after_a_minute / 2**20:.0f} MiB early, "
            f"{self.at_the_end / 2**20:.0f} MiB at the end ({growth:+.1%})"
        )
        yield f"{self.computed} pairs were computed meanwhile"


class Session:
    """One visitor: the page's address, and the buttons it was shown."""

    def __init__(self, port: int, page: str, query: str) -> None:
        self._url = f"ws://127.0.0.1:{port}/_stcore/stream"
        self._page, self.query = page, query
        self._page_hash = ""
        self.buttons: dict[str, str] = {}
        self.errors: list[str] = []

    async def __aenter__(self) -> Session:
        self._socket = await websockets.connect(
            self._url, subprotocols=["streamlit"], max_size=None, open_timeout=60
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._socket.close()

    async def run(self, clicked: str = "") -> float:
        """Run the page, as if the button with this key had been pressed; seconds until it ran."""
        message = BackMsg()
        message.rerun_script.query_string = self.query
        message.rerun_script.page_name = self._page
        message.rerun_script.page_script_hash = self._page_hash
        if clicked:
            state = message.rerun_script.widget_states.widgets.add()
            state.id, state.trigger_value = self.buttons[clicked], True
        started = time.perf_counter()
        await self._socket.send(message.SerializeToString())
        ran = False
        async for data in self._socket:
            answer = ForwardMsg.FromString(data)
            kind = answer.WhichOneof("type")
            if kind == "new_session":
                ran = True
            elif kind == "navigation":
                # Which page it is; the session's own message names the entry script at first.
                self._page_hash = answer.navigation.page_script_hash
            elif kind == "page_info_changed":
                self.query = answer.page_info_changed.query_string
            elif kind == "delta":
                self._look(answer)
            elif kind == "script_finished" and ran:
                status = answer.script_finished
                if status == ForwardMsg.FINISHED_SUCCESSFULLY:
                    return time.perf_counter() - started
                if status == ForwardMsg.FINISHED_WITH_COMPILE_ERROR:
                    self.errors.append("the script did not compile")
                    return time.perf_counter() - started
                ran = False  # it ended for a rerun of its own, which comes next
        self.errors.append("the connection was closed")
        return time.perf_counter() - started

    def _look(self, answer: ForwardMsg) -> None:
        element = answer.delta.new_element
        kind = element.WhichOneof("type")
        if kind == "button":
            # An element's id ends in the key that the page gave it.
            for key in ("next", "previous", START):
                if element.button.id.endswith(f"-{key}"):
                    self.buttons[key] = element.button.id
        elif kind == "exception":
            self.errors.append(f"{element.exception.type}: {element.exception.message}"[:200])
        elif kind == "alert" and element.alert.format == element.alert.ERROR:
            self.errors.append(element.alert.body[:200])


def environment(home: Path) -> dict[str, str]:
    # Without the results that ship: there would be nothing to compute.
    own = {"POSLENS_HOME": str(home), "POSLENS_SHIPPED": "no", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


def write_pairs(path: Path) -> None:
    """A small data set of the user's own."""
    chance, words = random.Random(7), WORDS.split()
    with path.open("w", encoding="utf-8") as file:
        for number in range(STORED):
            text = " ".join(chance.choices(words, k=60))
            file.write(
                json.dumps({"pair_id": f"p{number}", "query": "grey water", "document": text})
                + "\n"
            )


@contextmanager
def dashboards(home: Path, data: Path, processes: int) -> Iterator[dict[int, psutil.Process]]:
    """Running dashboards on one cache in which a small data set is stored: processes by port."""
    command = [sys.executable, "-m", "dashboard"]
    subprocess.run(
        [*command, "precompute", "--dataset", str(data)],
        cwd=ROOT,
        env=environment(home),
        check=True,
        capture_output=True,
    )
    command += ["run", "--data", f"{data.name}={data}"]
    running: dict[int, psutil.Process] = {}
    try:
        for _ in range(processes):
            port = free_port()
            with (home / f"server-{port}.log").open("wb") as log:
                running[port] = psutil.Popen(
                    [*command, "--port", str(port)],
                    cwd=ROOT,
                    env=environment(home),
                    stdout=log,
                    stderr=log,
                )
            _until_it_answers(port, running[port], home / f"server-{port}.log")
        yield running
    finally:
        for server in running.values():
            server.terminate()
        psutil.wait_procs(list(running.values()), 60)


def _until_it_answers(port: int, server: psutil.Process, log: Path) -> None:
    for _ in range(600):
        if not server.is_running() or server.status() == psutil.STATUS_ZOMBIE:
            raise RuntimeError(log.read_text())
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=2)
            return
        except OSError:
            time.sleep(0.4)


async def visit(port: int, number: int, name: str, every: float, end: float, seen: Figures) -> None:
    """One session's clicks, until `end` on the event loop's clock."""
    clock = asyncio.get_running_loop().time
    chance = random.Random(number)
    curves = number % 5 == 4
    page = "curves" if curves else ""
    query = f"dataset={name}&models=MiniLM" + ("" if curves else f"&pair=p{number % 4}")
    await asyncio.sleep(chance.random() * every)
    async with Session(port, page, query) as session:
        await session.run()  # opening is no click
        clicks = 0
        while clock() + every < end:
            await asyncio.sleep(every * (0.75 + chance.random() / 2))
            way = "next" if clicks // TURN % 2 == 0 else "previous"
            before = session.query
            seen.seconds.append(await session.run("" if curves else way))
            if not curves and session.query == before:
                seen.errors.append("a click on the next pair changed nothing")
            clicks += 1
        seen.errors += session.errors


async def load(
    servers: dict[int, psutil.Process],
    name: str,
    sessions: int,
    seconds: float,
    every: float,
    idle: bool,
) -> Figures:
    """All sessions together, and the run."""
    seen, ports = Figures(), list(servers)
    clock = asyncio.get_running_loop().time

    def memory() -> int:
        return sum(server.memory_info().rss for server in servers.values())

    async with Session(
        ports[0], "curves", "dataset=sample" + "".join(f"&models={name}" for name in MODELS)
    ) as runner:
        await runner.run()
        if not idle:
            await runner.run(START)
        end = clock() + seconds

        async def watch() -> None:
            await asyncio.sleep(min(60.0, seconds / 2))
            seen.after_a_minute = memory()

        await asyncio.gather(
            watch(),
            *(visit(ports[n % len(ports)], n, name, every, end, seen) for n in range(sessions)),
        )
        seen.at_the_end = memory()
        seen.errors += runner.errors
    return seen


def measure(
    sessions: int, seconds: float, every: float, processes: int = 1, idle: bool = False
) -> Figures:
    """Start everything, load it, and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        data = home / "small.jsonl"
        write_pairs(data)
        with dashboards(home, data, processes) as servers:
            seen = asyncio.run(load(servers, data.name, sessions, seconds, every, idle))
        seen.computed = sum(file.results for file in listing(Files(home / "cache"))) - STORED
        return seen


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Load a dashboard with sessions.")
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=5, help="seconds between clicks")
    parser.add_argument("--processes", type=int, default=1, help="servers on one cache")
    parser.add_argument("--idle", action="store_true", help="without runs beside the clicks")
    given = parser.parse_args()
    found = measure(given.sessions, given.minutes * 60, given.every, given.processes, given.idle)
    for line in found.lines():
        print(line)


if __name__ == "__main__":
    main()

"""Sessions without a browser on a real dashboard that meanwhile computes a data set.

    python -m tests.load.sessions [--sessions 50] [--minutes 10] [--every 5] [--processes 1]
                                  [--idle]

Each session speaks Streamlit's websocket protocol as a browser does. It opens Explain (four of
five) or Curves on pairs that are stored. When all have opened their page, it clicks every few
seconds: on Next, which runs its part of the page again, or on Curves as after a choice in the
sidebar, which runs the page again. Parts that a page asks to be run every few seconds are run. One
more session has runs of three models over another data set going in the server, unless it is idle.
With several processes on one cache each session keeps to one of them, as behind a proxy.

A click is timed until its text (on Curves: its figure) is there, and until all of it is; an opening
likewise, and apart from clicks. Printed too: the processor time of the servers and of these
sessions, which share the machine, memory after the first minute and at the end, and how many pairs
were computed meanwhile.
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
from asyncio import Barrier
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.typing import Subprotocol

from poslens.cache.storage.files import Files
from poslens.cache.storage.maintenance import listing
from tests.support.forked import Forked
from tests.support.served import served

ROOT = Path(__file__).parents[2]
WORDS = "the harbour light turns slowly above grey water while boats return with the tide"
STORED = 12  # pairs of the data set that sessions look at
MODELS = ("MiniLM-recency", "MiniLM-primacy", "MiniLM")
START = "start"  # key of the button that computes the other data set
TURN = 8  # clicks before a session goes back the way it came


# The main content of a page: its text on Explain, its figure on Curves.
SHOWN = {"": "bidi_component", "curves": "plotly_chart"}


@dataclass(frozen=True, slots=True)
class Ran:
    """Seconds until the page's main content was there, and until all of it was."""

    shown: float
    whole: float


@dataclass
class Figures:
    """Measurements: duration of openings and clicks, error messages, CPU seconds, resident bytes
    over time."""

    openings: list[Ran] = field(default_factory=list)
    clicks: list[Ran] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0
    servers_busy: float = 0.0
    sessions_busy: float = 0.0
    after_a_minute: int = 0
    at_the_end: int = 0
    computed: int = 0

    def lines(self) -> Iterator[str]:
        """The measurements in words."""
        yield (
            f"{len(self.openings)} openings, {len(self.clicks)} clicks, {len(self.errors)} errors "
            f"{self.errors[:3]}"
        )
        for name, all_ran in (("opening", self.openings), ("click", self.clicks)):
            shown = _spread([one.shown for one in all_ran])
            yield f"{name}: text or figure {shown}, whole {_spread([r.whole for r in all_ran])}"
        yield (
            f"of one core: servers {self.servers_busy / self.seconds:.0%}, these sessions "
            f"{self.sessions_busy / self.seconds:.0%}"
        )
        growth = self.at_the_end / self.after_a_minute - 1
        yield (
            f"memory: {self.after_a_minute / 2**20:.0f} MiB early, "
            f"{self.at_the_end / 2**20:.0f} MiB at the end ({growth:+.1%})"
        )
        yield f"{self.computed} pairs were computed meanwhile"


def _spread(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    return f"median {statistics.median(ordered):.3f} s, 95th percentile {p95:.3f} s"


class Session:
    """One visitor: the page's address, its buttons, and the fragments that it reruns every few
    seconds."""

    def __init__(self, port: int, page: str, query: str) -> None:
        self._url = f"ws://127.0.0.1:{port}/_stcore/stream"
        self._page, self.query = page, query
        self._page_hash = ""
        self._every: dict[str, float] = {}  # seconds, by the part of the page
        self.buttons: dict[str, tuple[str, str]] = {}  # id and part of the page, by key
        self.errors: list[str] = []

    async def __aenter__(self) -> Session:
        self._socket = await websockets.connect(
            self._url, subprotocols=[Subprotocol("streamlit")], max_size=None, open_timeout=60
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._socket.close()

    async def click(self, key: str) -> Ran:
        """Press the button with this key: the part of the page that it stands in runs again."""
        button, part = self.buttons[key]
        return await self.run(button, part)

    async def wait(self, seconds: float) -> None:
        """Stay on the page, and run only what it reruns automatically."""
        clock = asyncio.get_running_loop().time
        end, ran = clock() + seconds, dict.fromkeys(self._every, clock())
        while True:
            due = {part: ran.setdefault(part, clock()) + s for part, s in self._every.items()}
            part = min(due, key=due.__getitem__, default="")
            if not part or due[part] >= end:
                await asyncio.sleep(max(0.0, end - clock()))
                return
            await asyncio.sleep(max(0.0, due[part] - clock()))
            ran[part] = clock()
            await self.run(part=part, by_itself=True)

    async def run(self, button: str = "", part: str = "", *, by_itself: bool = False) -> Ran:
        """Run a part of the page, or all of it, as if this button had been pressed."""
        message = BackMsg()
        message.rerun_script.query_string = self.query
        message.rerun_script.page_name = self._page
        message.rerun_script.page_script_hash = self._page_hash
        message.rerun_script.fragment_id = part
        message.rerun_script.is_auto_rerun = by_itself
        if button:
            state = message.rerun_script.widget_states.widgets.add()
            state.id, state.trigger_value = button, True
        started = time.perf_counter()
        await self._socket.send(message.SerializeToString())
        ran, shown = False, 0.0
        async for data in self._socket:
            answer = ForwardMsg.FromString(data)
            kind = answer.WhichOneof("type")
            if kind == "new_session":
                ran = True
                if not answer.metadata.run.fragment_ids:
                    self._every.clear()
            elif kind == "navigation":
                # The page's script; the first message of a session names the entry script.
                self._page_hash = answer.navigation.page_script_hash
            elif kind == "page_info_changed":
                self.query = answer.page_info_changed.query_string
            elif kind == "auto_rerun":
                self._every[answer.auto_rerun.fragment_id] = answer.auto_rerun.interval
            elif kind == "stop_auto_rerun":
                for gone in answer.stop_auto_rerun.fragment_ids:
                    self._every.pop(gone, None)
            elif kind == "delta":
                if answer.delta.new_element.WhichOneof("type") == SHOWN[self._page]:
                    shown = shown or time.perf_counter() - started
                self._look(answer)
            elif kind == "script_finished" and ran:
                status = answer.script_finished
                whole = time.perf_counter() - started
                if status != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                    if status == ForwardMsg.FINISHED_WITH_COMPILE_ERROR:
                        self.errors.append("the script did not compile")
                    return Ran(shown or whole, whole)
                ran = False  # it ended because of an automatic rerun, which comes next
        self.errors.append("the connection was closed")
        return Ran(0.0, time.perf_counter() - started)

    def _look(self, answer: ForwardMsg) -> None:
        element = answer.delta.new_element
        kind = element.WhichOneof("type")
        if kind == "button":
            # An element's id ends with the key that the page gave it.
            for key in ("next", "previous", START):
                if element.button.id.endswith(f"-{key}"):
                    self.buttons[key] = (element.button.id, answer.delta.fragment_id)
        elif kind == "exception":
            self.errors.append(f"{element.exception.type}: {element.exception.message}"[:200])
        elif kind == "alert" and element.alert.format == element.alert.ERROR:
            self.errors.append(element.alert.body[:200])


def environment(home: Path) -> dict[str, str]:
    # Without shipped results, or there would be nothing to compute.
    own = {"POSLENS_HOME": str(home), "POSLENS_SHIPPED": "no", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


def write_pairs(path: Path) -> None:
    """A small user data set."""
    chance, words = random.Random(7), WORDS.split()
    with path.open("w", encoding="utf-8") as file:
        for number in range(STORED):
            text = " ".join(chance.choices(words, k=60))
            file.write(
                json.dumps({"pair_id": f"p{number}", "query": "grey water", "document": text})
                + "\n"
            )


@contextmanager
def dashboards(
    home: Path, data: Path, processes: int, forked: Forked | None = None
) -> Iterator[dict[int, psutil.Process]]:
    """Running dashboards on one cache that contains results of a small data set: processes by
    port. With `forked` they don't import the libraries."""
    command, own = ["precompute", "--dataset", str(data)], environment(home)
    if forked is not None:
        status, _, errors = forked.run(*command, env=own)
        assert status == 0, errors
    else:
        program = [sys.executable, "-m", "poslens", *command]
        subprocess.run(program, cwd=ROOT, env=own, check=True, capture_output=True)
    with ExitStack() as stack:
        running: dict[int, psutil.Process] = {}
        for number in range(processes):
            (folder := home / f"server-{number}").mkdir()
            options = ("--data", f"{data.name}={data}")
            server = stack.enter_context(served(folder, *options, environment=own, forked=forked))
            running[server.port] = psutil.Process(server.process.pid)
        yield running


async def visit(
    port: int, number: int, name: str, every: float, seconds: float, all_in: Barrier, seen: Figures
) -> None:
    """One session: it opens its page, waits for the others, and clicks for the given time."""
    clock = asyncio.get_running_loop().time
    chance = random.Random(number)
    curves = number % 5 == 4
    page = "curves" if curves else ""
    query = f"dataset={name}&models=MiniLM" + ("" if curves else f"&pair=p{number % 4}")
    await asyncio.sleep(chance.random() * every)
    async with Session(port, page, query) as session:
        seen.openings.append(await session.run())
        await all_in.wait()
        end, clicks = clock() + seconds, 0
        await session.wait(chance.random() * every)
        while clock() < end:
            way = "next" if clicks // TURN % 2 == 0 else "previous"
            before = session.query
            seen.clicks.append(await (session.run() if curves else session.click(way)))
            if not curves and session.query == before:
                seen.errors.append("a click on the next pair changed nothing")
            clicks += 1
            await session.wait(every * (0.75 + chance.random() / 2))
        seen.errors += session.errors


def busy(servers: dict[int, psutil.Process]) -> float:
    """CPU seconds of the servers."""
    times = [one.cpu_times() for one in servers.values()]
    return float(sum(one.user + one.system for one in times))


async def until_quiet(servers: dict[int, psutil.Process]) -> None:
    """Wait for a server's background work after its first page, such as loading a model."""
    for _ in range(120):
        before = busy(servers)
        await asyncio.sleep(2)
        if busy(servers) - before < 0.2:
            return


async def load(
    servers: dict[int, psutil.Process],
    name: str,
    sessions: int,
    seconds: float,
    every: float,
    idle: bool,
) -> Figures:
    """Run all sessions together, with the background run."""
    seen, ports = Figures(), list(servers)
    clock = asyncio.get_running_loop().time
    all_in = Barrier(sessions + 1)

    def memory() -> int:
        return sum(server.memory_info().rss for server in servers.values())

    async def watch() -> None:
        await all_in.wait()
        began, here, there = clock(), time.process_time(), busy(servers)
        await asyncio.sleep(min(60.0, seconds / 2))
        seen.after_a_minute = memory()
        await asyncio.sleep(max(0.0, began + seconds - clock()))
        seen.seconds = clock() - began
        seen.servers_busy, seen.sessions_busy = busy(servers) - there, time.process_time() - here

    for port in ports:  # each server's first page, which is not measured
        async with Session(port, "curves", f"dataset={name}&models=MiniLM") as first:
            await first.run()
    await until_quiet(servers)
    async with Session(
        ports[0], "curves", "dataset=sample" + "".join(f"&models={name}" for name in MODELS)
    ) as runner:
        await runner.run()
        if not idle:
            await runner.click(START)
        await asyncio.gather(
            watch(),
            *(
                visit(ports[n % len(ports)], n, name, every, seconds, all_in, seen)
                for n in range(sessions)
            ),
        )
        seen.at_the_end = memory()
        seen.errors += runner.errors
    return seen


def measure(
    sessions: int,
    seconds: float,
    every: float,
    processes: int = 1,
    idle: bool = False,
    forked: Forked | None = None,
) -> Figures:
    """Start everything, load it, and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        data = home / "small.jsonl"
        write_pairs(data)
        with dashboards(home, data, processes, forked) as servers:
            seen = asyncio.run(load(servers, data.name, sessions, seconds, every, idle))
        seen.computed = sum(file.results for file in listing(Files(home / "cache"))) - STORED
        return seen


def main() -> None:
    """Print the measurements."""
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

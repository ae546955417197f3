"""Time from the dashboard's start to its first heatmap, and from a click to the next pair on
screen, in Chromium.

    python -m bench.page [--clicks 15] [--starts 5] [--rounds 1] [--against CHECKOUT]
    python -m bench.page --stored N [--home FOLDER] [--against CHECKOUT]
    python -m bench.page --traffic [--clicks 15] [--against CHECKOUT]
    python -m bench.page --visits explain,compare [--rounds 5] [--against CHECKOUT]

Starts the dashboard with an empty cache and the included results, and waits for the port and for
the first heatmap in an open browser. Then starts it without included results, steps through pairs
with documents of 160 to 300 tokens with the Next button, and measures in the page from the click
event to the frame after the heatmap has the new document: first while MiniLM computes each pair,
then from the cache. The limit is the same click in a Streamlit page with only a button and a line
of text.

The first visit of every page is timed twice: by its URL in a browser that has not loaded PosLens
before, until the first heatmap, chart or table (visit) and until the first chart (chart), compared
with the empty page; and by a click in the navigation (page).

Everything is repeated --rounds times, and alternately for an earlier checkout of PosLens if
--against names one.

With --stored N it steps through a data set of N pairs with stored results instead (random words and
numbers, which take about 0.2 ms each to create and are kept in --home if given), and times the
first pair, whose chart waits for the mean of all, and the next ones, and prints the server's
memory. The first run also writes the index of the data set and computes the mean, so run it twice.
With --visits it only visits these pages, alternately for both checkouts, with a browser that has
loaded nothing and a server that has drawn them before.

With --traffic it only counts what the server sends for a click. Both measure the checkout of
--against if given.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.browser import chromium, new_page, open_page
from bench.options import run
from bench.processes import HERE, checkouts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Returns the milliseconds from the click to two frames after a text of the heatmap has changed:
# consecutive pairs can share a document.
CLICK = """
(button) => new Promise((resolve) => {
  const text = (root) => [...root.querySelectorAll("*")].map((element) =>
    element.matches(".hm-pane") ? element.textContent
      : element.shadowRoot ? text(element.shadowRoot) : "").join("");
  const before = text(document);
  const started = performance.now();
  const look = () => {
    const now = text(document);
    if (now && now !== before)
      requestAnimationFrame(() =>
        requestAnimationFrame(() => resolve(performance.now() - started)));
    else requestAnimationFrame(look);
  };
  button.click();
  look();
})
"""


HEATMAP = ".hm-pane[data-side=document]"
CHART = ".js-plotly-plot .main-svg"
PLOT = "[data-testid=stPlotlyChart]"
SHOWN = f"{HEATMAP}, .js-plotly-plot, [data-testid=stDataFrame]"
# Whether the page with this name shows an element that was not there before.
NEW = """
([name, all]) => location.pathname.endsWith(name) && [...document.querySelectorAll(all)].some(
  (element) => !element.old && element.checkVisibility() && element.clientHeight)
"""
POSLENS = (sys.executable, "-m", "poslens", "run", "--port")
BARE = """
import streamlit as st

@st.fragment
def whole():
    clicks = st.session_state.setdefault("clicks", [])
    st.button("Next", key="next", on_click=clicks.append, args=(1,))
    st.html(f'<p class="hm-pane" data-side="document">{len(clicks)}</p>')

whole()
"""
"""A minimal Streamlit page: one fragment with a button and a line of text."""


@contextmanager
def served(
    *options: str,
    home: Path | None = None,
    shipped: bool = False,
    command: Sequence[str] = POSLENS,
    checkout: Path = HERE,
) -> Iterator[str]:
    """Run a dashboard with an empty cache, or that of `home`: its URL, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as temporary:
        server = subprocess.Popen(
            [*command, str(port), *options],
            cwd=checkout,
            env={
                **os.environ,
                "POSLENS_HOME": str(home or temporary),
                "POSLENS_SHIPPED": "yes" if shipped else "no",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            while True:
                try:
                    urllib.request.urlopen(f"{url}/_stcore/health", timeout=2)
                    break
                except OSError:
                    time.sleep(0.05)
            yield url
        finally:
            server.terminate()
            server.wait(30)


@contextmanager
def dashboard(*options: str, **how: Any) -> Iterator[tuple[str, Browser, float]]:
    """As `served`: its URL, a Chromium, and the time of its start by `time.perf_counter`."""
    with chromium() as browser:
        started = time.perf_counter()
        with served(*options, **how) as url:
            yield url, browser, started


def steps(page: Page, n: int) -> list[float]:
    """Milliseconds of each of `n` clicks on Next."""
    button = page.locator(".st-key-next button").first
    times = []
    for _ in range(n):
        times.append(button.evaluate(CLICK))
        time.sleep(1.5)
    return times


def since(began: float) -> float:
    """Milliseconds since a time by `time.perf_counter`."""
    return 1000 * (time.perf_counter() - began)


def of_start(checkout: Path) -> dict[str, float]:
    """Milliseconds from the start until the port answers and until the first heatmap."""
    with dashboard(shipped=True, checkout=checkout) as (url, browser, started):
        port = since(started)
        open_page(new_page(browser), url, HEATMAP)
        return {"port answers": port, "first heatmap": since(started)}


def of_clicks(n: int, checkout: Path) -> dict[str, list[float]]:
    """Milliseconds of `n` clicks to pairs that are computed, and to the same pairs when cached."""
    times = {}
    with dashboard(checkout=checkout) as (url, browser, _):
        address = f"{url}/?bucket=Q1&language=eng&evidence=0&evidence=35"
        page = open_page(new_page(browser), address, PLOT)
        time.sleep(5)
        start = page.url
        for label in ("computed", "cached"):
            open_page(page, start, PLOT)
            time.sleep(3)
            times[label] = steps(page, n)
    return times


def of_traffic(clicks: int, checkout: Path) -> None:
    """Print the kilobytes that the server sends per click on Next, for stored pairs."""
    received: list[int] = []
    with dashboard(shipped=True, checkout=checkout) as (url, browser, _):
        page = new_page(browser)
        page.on(
            "websocket",
            lambda socket: socket.on("framereceived", lambda frame: received.append(len(frame))),
        )
        open_page(page, url, PLOT)
        time.sleep(5)
        received.clear()
        steps(page, clicks)
    print(f"a click brings {sum(received) / clicks / 1000:.1f} kB, n={clicks}")


def of_visits(checkout: Path) -> dict[str, float]:
    """Milliseconds from opening each page's URL to its first heatmap, chart or table, and to its
    first chart if it has one, at the very first visit, when included results are read and figures
    are drawn."""
    times: dict[str, float] = {}
    with dashboard(shipped=True, checkout=checkout) as (url, browser, _):
        page = open_page(new_page(browser), url, HEATMAP)
        links = page.get_by_role("navigation", name="App pages").get_by_role("link")
        addresses = [link.get_attribute("href") for link in links.all()]
        time.sleep(10)  # for background work of the first page
        for address in addresses:
            times |= of_visit(browser, f"{url}/{(address or '').split('/')[-1]}")
    return times


def of_visit(browser: Browser, url: str) -> dict[str, float]:
    """The same for one page in a browser that has loaded nothing."""
    page = new_page(browser)
    began = time.perf_counter()
    open_page(page, url, SHOWN)
    name = page.url.split("?")[0].split("/")[-1] or "explain"
    times = {f"visit {name}": since(began)}
    if name != "storage":
        page.locator(CHART).first.wait_for(timeout=120_000)
        times[f"chart {name}"] = since(began)
    page.close()
    return times


def of_later_visits(
    pages: Sequence[str], rounds: int, compared: Mapping[str, Path]
) -> Iterator[tuple[str, dict[str, float]]]:
    """The same for some pages that the server has drawn before, which takes no part of the first
    visit's time then; the checkouts run next to each other and take turns."""
    with chromium() as browser, ExitStack() as running:
        urls = {
            name: running.enter_context(served(shipped=True, checkout=checkout))
            for name, checkout in compared.items()
        }
        for number in range(rounds + 1):
            for page in pages:
                for name, url in urls.items():
                    times = of_visit(browser, f"{url}/{page}")
                    if number:
                        yield name, times


def of_pages(checkout: Path) -> dict[str, float]:
    """Milliseconds from a click in the navigation to each page's first heatmap, chart or table, at
    the first visit, after Explain was open."""
    times = {}
    with dashboard(shipped=True, checkout=checkout) as (url, browser, _):
        page = open_page(new_page(browser), url, HEATMAP)
        links = page.get_by_role("navigation", name="App pages").get_by_role("link")
        time.sleep(10)
        for link in links.all()[1:]:
            page.evaluate(
                "(all) => document.querySelectorAll(all).forEach((e) => e.old = 1)", SHOWN
            )
            name = (link.get_attribute("href") or "").split("?")[0].split("/")[-1]
            began = time.perf_counter()
            link.click()
            page.wait_for_function(NEW, arg=[name, SHOWN], timeout=120_000)
            times[f"page {name}"] = since(began)
            time.sleep(3)
    return times


def of_bare(n: int) -> tuple[float, list[float]]:
    """Milliseconds of a visit of the minimal Streamlit page, and of `n` clicks in it."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE)
        options = ("--server.headless", "true", "--browser.gatherUsageStats", "false")
        command = (sys.executable, "-m", "streamlit", "run", str(script), *options, "--server.port")
        with dashboard(command=command) as (url, browser, _):
            open_page(new_page(browser), url, HEATMAP)
            page = new_page(browser)
            began = time.perf_counter()
            open_page(page, url, HEATMAP)
            visit = since(began)
            time.sleep(3)
            return visit, steps(page, n)


def of_many(n: int, clicks: int, home: Path, checkout: Path) -> None:
    """Print the time from the start to the port, to the first pair of a data set of `n` stored
    pairs, and to the next ones, and the CPU time and memory that the server has used by then."""
    import psutil

    from bench.curves import fill

    data = fill(home.absolute(), n)
    options = f"--data=bench={data}"
    with dashboard(options, home=home, checkout=checkout) as (url, browser, started):
        print(f"port answers: {since(started) / 1000:.1f} s")
        (server,) = (p for p in psutil.Process().children() if options in p.cmdline())
        page = open_page(new_page(browser), url, PLOT)
        time.sleep(5)
        began = time.perf_counter()
        open_page(page, f"{url}/?dataset=bench&models=MiniLM", HEATMAP, minutes=10)
        print(f"first pair of {n:,} stored ones: {since(began) / 1000:.1f} s")
        time.sleep(5)
        print(f"next: p50 {statistics.median(steps(page, clicks)):.0f} ms, n={clicks}")
        used, memory = server.cpu_times(), server.memory_info().rss
        print(f"server: {used.user + used.system:.1f} s of CPU time, {memory / 2**20:,.0f} MiB")


def main(
    clicks: int = 15,
    starts: int = 5,
    rounds: int = 1,
    against: Path | None = None,
    stored: int = 0,
    home: Path | None = None,
    traffic: bool = False,
    visits: str = "",
) -> None:
    """Print medians."""
    if traffic:
        of_traffic(clicks, against or HERE)
        return
    if stored:
        with tempfile.TemporaryDirectory() as temporary:
            of_many(stored, clicks, home or Path(temporary), against or HERE)
        return
    compared = checkouts(against)
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    if visits:
        for name, measured in of_later_visits(visits.split(","), rounds, compared):
            for label, milliseconds in measured.items():
                times[label, name].append(milliseconds)
        rounds = 0
    for _ in range(rounds):
        for measure, repeats in ((of_start, starts), (of_visits, 1), (of_pages, 1)):
            for name, checkout in [*compared.items()] * repeats:
                for label, milliseconds in measure(checkout).items():
                    times[label, name].append(milliseconds)
        for name, checkout in compared.items():
            for label, several in of_clicks(clicks, checkout).items():
                times[label, name] += several
        bare_visit, bare_clicks = of_bare(clicks)
        times["visit", "limit"].append(bare_visit)
        times["click", "limit"] += bare_clicks
    for (label, name), every in times.items():
        print(
            f"{label:18}{name:6} p50 {statistics.median(every):7,.0f} ms   "
            f"{min(every):7,.0f} to {max(every):7,.0f}   n={len(every)}"
        )


if __name__ == "__main__":
    run(main)

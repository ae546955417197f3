"""Time from the start of the dashboard to its first heatmap, and from the click to the pair on
screen, in Chromium: cached, and computed by MiniLM.

    python -m bench.page [--clicks 15] [--starts 5] [--rounds 1] [--against CHECKOUT]
    python -m bench.page --stored N [--home FOLDER]

Starts the dashboard with an empty cache above what ships, and waits for the port and for the first
heatmap in a browser that is open. Then starts it without what ships, steps through pairs of
documents of 160 to 300 tokens with the Next button, and measures in the page itself, from the click
event to the frame after the heatmap holds the new document. The first time round every pair is
computed, the second time it comes from the cache. Beside both stands the limit: the same click in
a Streamlit page that has nothing but a button and a line of text.

The first visits of all pages are timed twice: by address in a browser that has nothing of PosLens
yet (visit), beside the empty page's, and by a click in the navigation of the first page (page).

All of it is done --rounds times, and where --against names an earlier checkout of PosLens, each
time there too, in turns.

With --stored N it steps through a data set of N pairs instead, each with a stored result (of random
words and numbers; some 4 ms each to make, kept in --home where one is named): the first pair, whose
rail waits for the mean of all, and the next ones.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Resolves with milliseconds from the click to two frames after the document pane has changed.
CLICK = """
(button) => new Promise((resolve) => {
  const find = (root) => {
    for (const element of root.querySelectorAll("*")) {
      if (element.matches(".hm-pane[data-side=document]")) return element;
      const inside = element.shadowRoot && find(element.shadowRoot);
      if (inside) return inside;
    }
    return null;
  };
  const before = find(document).textContent;
  const started = performance.now();
  const look = () => {
    const pane = find(document);
    if (pane && pane.textContent !== before)
      requestAnimationFrame(() =>
        requestAnimationFrame(() => resolve(performance.now() - started)));
    else requestAnimationFrame(look);
  };
  button.click();
  look();
})
"""


HEATMAP = ".hm-pane[data-side=document]"
SHOWN = f"{HEATMAP}, .js-plotly-plot, [data-testid=stDataFrame]"
# Whether the page of this name shows something that was not there before.
NEW = """
([name, all]) => location.pathname.endsWith(name) && [...document.querySelectorAll(all)].some(
  (element) => !element.old && element.checkVisibility() && element.clientHeight)
"""
HERE = Path(__file__).parents[1]
POSLENS = (sys.executable, "-m", "dashboard", "run", "--port")
BARE = """
import streamlit as st

@st.fragment
def whole():
    clicks = st.session_state.setdefault("clicks", [])
    st.button("Next", key="next", on_click=clicks.append, args=(1,))
    st.html(f'<p class="hm-pane" data-side="document">{len(clicks)}</p>')

whole()
"""
"""The least that a click on Streamlit's button can be: one part of a page, one line of text."""


@contextmanager
def dashboard(
    *options: str,
    home: Path | None = None,
    shipped: bool = False,
    command: Sequence[str] = POSLENS,
    checkout: Path = HERE,
) -> Iterator[tuple[str, Browser, float]]:
    """A running dashboard with a cache of its own, by its address, a Chromium to look at it, and
    when it was started by `time.perf_counter`."""
    from playwright.sync_api import sync_playwright

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as own, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        started = time.perf_counter()
        server = subprocess.Popen(
            [*command, str(port), *options],
            cwd=checkout,
            env={
                **os.environ,
                "POSLENS_HOME": str(home or own),
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
            yield url, browser, started
        finally:
            server.terminate()
            server.wait(30)


def stored(folder: Path, n: int) -> Path:
    """Results of MiniLM for n pairs in a data folder, where they are not there yet; their file."""
    from bench.store import fill, result
    from poslens.attribution.retrievers import resolve
    from poslens.compute.compute import Compute

    data = folder / f"{n}.jsonl"
    if not data.exists():
        place = Compute(folder)
        fill(place.store, n, model=place.identify(resolve.resolve("MiniLM")).key)
        with data.open("w") as rows:
            for pair in (result(k)[0] for k in range(n)):
                row = {"pair_id": pair.pair_id, "query": pair.query, "document": pair.document}
                rows.write(json.dumps(row | {"language": pair.language}) + "\n")
    return data


def steps(page: Page, n: int) -> list[float]:
    """Milliseconds of n clicks on Next."""
    button = page.locator(".st-key-next button").first
    times = []
    for _ in range(n):
        times.append(button.evaluate(CLICK))
        time.sleep(1.5)
    return times


def of_start(checkout: Path) -> dict[str, float]:
    """Milliseconds from the start to the port's answer and to the first heatmap."""
    with dashboard(shipped=True, checkout=checkout) as (url, browser, started):
        port = time.perf_counter() - started
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(url)
        page.locator(HEATMAP).first.wait_for(timeout=120_000)
        return {
            "port answers": 1000 * port,
            "first heatmap": 1000 * (time.perf_counter() - started),
        }


def of_clicks(n: int, checkout: Path) -> dict[str, list[float]]:
    """Milliseconds of n clicks, computed and then cached."""
    found = {}
    with dashboard(checkout=checkout) as (url, browser, _):
        # Consecutive pairs of one document would look the same, so a filter spreads them.
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(f"{url}/?bucket=Q1&language=eng&evidence=0&evidence=35")
        page.get_by_test_id("stPlotlyChart").wait_for(timeout=120_000)
        time.sleep(5)
        start = page.url
        for label in ("computed", "cached"):
            page.goto(start)
            page.get_by_test_id("stPlotlyChart").wait_for(timeout=60_000)
            time.sleep(3)
            found[label] = steps(page, n)
    return found


def of_visits() -> dict[str, float]:
    """Milliseconds from each page's address to its first text, chart or table, at the first visit
    of all: what ships is read, drawn and kept then."""
    found = {}
    with dashboard(shipped=True) as (url, browser, _):
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(url)
        page.locator(HEATMAP).first.wait_for(timeout=120_000)
        links = page.get_by_role("navigation", name="App pages").get_by_role("link")
        addresses = [link.get_attribute("href") for link in links.all()]
        time.sleep(10)  # what is done beside the first page
        for address in addresses:
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            began = time.perf_counter()
            page.goto(f"{url}/{(address or '').split('/')[-1]}")
            page.locator(SHOWN).filter(visible=True).first.wait_for(timeout=120_000)
            found[f"visit {page.url.split('?')[0].split('/')[-1] or 'explain'}"] = 1000 * (
                time.perf_counter() - began
            )
            page.close()
    return found


def of_pages() -> dict[str, float]:
    """Milliseconds from a click in the navigation to a page's first text, chart or table, at the
    first visit of all, by whoever has seen Explain."""
    found = {}
    with dashboard(shipped=True) as (url, browser, _):
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(url)
        page.locator(HEATMAP).first.wait_for(timeout=120_000)
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
            found[f"page {name}"] = 1000 * (time.perf_counter() - began)
            time.sleep(3)
    return found


def of_bare(n: int) -> tuple[float, list[float]]:
    """Milliseconds of the visit of a page of Streamlit's with nothing else, and of n clicks."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE)
        options = ("--server.headless", "true", "--browser.gatherUsageStats", "false")
        command = (sys.executable, "-m", "streamlit", "run", str(script), *options, "--server.port")
        with dashboard(command=command) as (url, browser, _):
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.goto(url)
            page.locator(HEATMAP).wait_for(timeout=60_000)
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            began = time.perf_counter()
            page.goto(url)
            page.locator(HEATMAP).wait_for(timeout=60_000)
            visit = 1000 * (time.perf_counter() - began)
            time.sleep(3)
            return visit, steps(page, n)


def of_many(n: int, clicks: int, home: Path) -> None:
    """The first pair of a data set of n stored pairs, and the next ones."""
    data = stored(home, n)
    with dashboard(f"--data=bench={data}", home=home) as (url, browser, _):
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        page.goto(url)
        page.get_by_test_id("stPlotlyChart").wait_for(timeout=120_000)
        time.sleep(5)
        started = time.perf_counter()
        page.goto(f"{url}/?dataset=bench&models=MiniLM")
        page.locator(HEATMAP).first.wait_for(timeout=600_000)
        print(f"first pair of {n:,} stored ones: {time.perf_counter() - started:.1f} s")
        time.sleep(5)
        print(f"next: p50 {statistics.median(steps(page, clicks)):.0f} ms, n={clicks}")


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clicks", type=int, default=15)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--stored", type=int, default=0)
    parser.add_argument("--home", type=Path)
    given = parser.parse_args()
    if given.stored:
        with tempfile.TemporaryDirectory() as own:
            of_many(given.stored, given.clicks, given.home or Path(own))
        return
    checkouts = {"here": HERE} | ({"there": given.against} if given.against else {})
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(given.rounds):
        for _ in range(given.starts):
            for name, checkout in checkouts.items():
                for label, found in of_start(checkout).items():
                    times[label, name].append(found)
        for name, checkout in checkouts.items():
            for label, several in of_clicks(given.clicks, checkout).items():
                times[label, name] += several
        for label, found in (of_visits() | of_pages()).items():
            times[label, "here"].append(found)
        visit, clicks = of_bare(given.clicks)
        times["visit", "limit"].append(visit)
        times["click", "limit"] += clicks
    for (label, name), every in times.items():
        print(
            f"{label:18}{name:6} p50 {statistics.median(every):7,.0f} ms   "
            f"{min(every):7,.0f} to {max(every):7,.0f}   n={len(every)}"
        )


if __name__ == "__main__":
    main()

"""The real dashboard, started as `python -m poslens run`, in a real browser."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Locator,
    Page,
    TimeoutError,
    sync_playwright,
)

from poslens.figures.palettes import Style
from poslens.heatmap.data import Pane, View
from poslens.heatmap.standalone import to_html
from tests.e2e.servers import App as App
from tests.e2e.servers import app_in, forked_app
from tests.e2e.waiting import TIMEOUT_MS as TIMEOUT_MS
from tests.e2e.waiting import expect
from tests.support.chromium import chromium
from tests.support.forked import Forked

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
Visit = Callable[..., Page]
Show = Callable[..., Page]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run browser tests first, so that those of a worker are consecutive and share a browser.

    Retry a failed one once: a click on a page that is just being redrawn is lost, and a person
    would click again. The report counts retries."""
    items.sort(key=lambda item: not item.path.is_relative_to(HERE))
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="module")
def start_app(
    tmp_path_factory: pytest.TempPathFactory, forked: Forked
) -> Iterator[Callable[..., App]]:
    """`start_app("--data", "name=folder")`: a dashboard with a separate data folder, for tests that
    change what others would see. `variables` are added to its environment. With an `environment`
    instead of this process's, it runs in a separate interpreter, because libraries read their
    settings when imported."""
    running: list[App] = []

    def start(
        *arguments: str, environment: Mapping[str, str] | None = None, **variables: str
    ) -> App:
        folder = tmp_path_factory.mktemp("app")
        running.append(
            forked_app(forked, folder, arguments, variables)
            if environment is None
            else app_in(folder, lambda: arguments, environment)
        )
        return running[-1]

    yield start
    for app in running:
        app.release()


@pytest.fixture(scope="session")
def app(of_all_workers: Path) -> Iterator[App]:
    """One dashboard for all tests of all workers that start no run; each of their results is stored
    under a separate key."""
    found = app_in(of_all_workers / "shared_app", list, loaded=of_all_workers / "forked")
    yield found
    found.release()


@pytest.fixture(scope="session")
def shipped_app(of_all_workers: Path) -> Iterator[App]:
    """One dashboard for all tests that only read shipped results and compute nothing."""
    shipped = {**os.environ, "POSLENS_SHIPPED": "yes"}
    found = app_in(of_all_workers / "shipped_app", list, shipped, loaded=of_all_workers / "forked")
    yield found
    found.release()


@pytest.fixture(scope="session")
def first_run_app(tmp_path_factory: pytest.TempPathFactory, forked: Forked) -> Iterator[App]:
    """This worker's dashboard for tests that start runs, used by `run_app`."""
    root = tmp_path_factory.mktemp("run_app")
    found = forked_app(forked, root, _small_data(root), {})
    yield found
    found.release()


@pytest.fixture
def run_app(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> App:
    """This worker's dashboard for tests that start runs, which show on every page. Each run
    computes results that no other test uses. A retry would find the results of the first try, so it
    gets a new dashboard."""
    if getattr(request.node, "execution_count", 1) == 1:
        found: App = request.getfixturevalue("first_run_app")
        return found
    start: Callable[..., App] = request.getfixturevalue("start_app")
    return start(*_small_data(tmp_path_factory.mktemp("again")))


WORDS = "fog ice tide rust moss clay salt dew amber flint chalk peat".split()
MANY = 4_000


def _small_data(folder: Path) -> list[str]:
    """Small data sets and published curves, as options of the dashboard: `small` has twelve short
    documents, `mine` four, and `many` the given number of shorter ones."""
    rows = [
        f"what is {word},The {word} is grey at dawn. Nobody saw more of {word} than of {other}.,"
        f"The {word} is grey at dawn."
        for word, other in zip(WORDS, WORDS[1:] + WORDS[:1], strict=True)
    ]
    (folder / "small.csv").write_text("\n".join(["query,document,evidence", *rows]) + "\n")
    rows = [
        f"what is {word},Filler stands here. The {word} is {word}.,The {word} is {word}."
        for word in ("ice", "stone", "fog", "snow")
    ]
    (folder / "mine.csv").write_text("\n".join(["query,document,evidence", *rows]) + "\n")
    (folder / "published").mkdir()
    generator = np.random.default_rng(0)
    for model in ("Qwen3-Embedding-8B", "NV-Embed-v2"):
        file = folder / "published" / f"posir_saliency_{model}.npz"
        np.savez(file, curves=generator.random((20, 100)))
    data = [f"--data={name}={folder / name}.csv" for name in ("small", "mine")]
    data.append("--dataset=sample")
    # A run over `raced` that finds only the first query's document.
    rows = [f"what is {word},The {word} is grey.,{word}" for word in WORDS[:4]]
    (folder / "raced.csv").write_text("\n".join(["query,document,pair_id", *rows]) + "\n")
    results = (f"{WORDS[0]} Q0 {WORDS[0]} 1 1 other", f"{WORDS[1]} Q0 {WORDS[0]} 1 1 other")
    (folder / "other.run").write_text("\n".join(results) + "\n")
    # Enough documents that a run doesn't finish before it is stopped.
    rows = [f"what is {n},Line {n} of the log. The {WORDS[n % 12]} is grey." for n in range(MANY)]
    (folder / "many.csv").write_text("\n".join(["query,document", *rows]) + "\n")
    return [
        *data,
        f"--data=raced={folder / 'raced.csv'}",
        f"--data=many={folder / 'many.csv'}",
        "--dataset=sample",
        f"--published={folder / 'published'}",
        f"--run=other engine={folder / 'other.run'}",
    ]


DISABLED = (
    # Disabled: it parses each script on another thread before looking for the compiled one, which
    # takes a quarter of the CPU time of opening a page.
    "ScriptStreaming",
    # Features that playwright disables; Chromium reads only the last list.
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "ThirdPartyStoragePartitioning",
)


class Shared:
    """The browser shared by consecutive browser tests, whatever their files."""

    def __init__(self) -> None:
        self._playwright = sync_playwright().start()
        self.browser = self._playwright.chromium.launch(
            executable_path=chromium(),
            args=[
                "--no-sandbox",
                "--disable-background-networking",
                # Pages are open for seconds, too short for optimized code to save the CPU time of
                # optimizing it.
                "--js-flags=--no-opt --no-maglev",
                # All tabs of a context use one process, which compiles the pages' scripts once.
                "--process-per-site",
                f"--disable-features={','.join(DISABLED)}",
            ],
        )
        self.context = self.browser.new_context(accept_downloads=True)
        self.context.set_default_timeout(TIMEOUT_MS)
        # That process lives as long as any of its tabs. All ports count as one site.
        tab = self.context.new_page()
        tab.route("**", lambda route: route.fulfill(body=""))
        tab.goto("http://127.0.0.1/")

    def close(self) -> None:
        self.browser.close()
        self._playwright.stop()


_shared: list[Shared] = []


class _Closing:
    """Closes the browser before tests of other folders, because no other event loop can run beside
    it. Closing it after each test would be too early, since a failed test may be retried at
    once."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if not item.path.is_relative_to(HERE):
            self.pytest_sessionfinish()

    def pytest_sessionfinish(self) -> None:
        while _shared:
            _shared.pop().close()


def pytest_configure(config: pytest.Config) -> None:
    # A separate plugin, because hooks in this file only see this folder's tests.
    config.pluginmanager.register(_Closing())


def _started() -> Shared:
    if not _shared:
        _shared.append(Shared())
    return _shared[0]


@pytest.fixture(scope="module")
def browser() -> Browser:
    """Chromium, started by the first test that uses it."""
    return _started().browser


@pytest.fixture(scope="module")
def context() -> BrowserContext:
    """The context that pages share, so that a script of nine megabytes is read and compiled
    once."""
    return _started().context


def opened(context: BrowserContext, faults: list[str], width: int, theme: str) -> Page:
    """An empty tab, whose dialogs and script errors are collected in `faults`."""
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": 1000})
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
    page.on("pageerror", lambda error: faults.append(str(error)))
    return page


def until(page: Page, holds: Callable[[], bool]) -> None:
    """Wait until a condition holds that `expect` can't express."""
    end = time.monotonic() + TIMEOUT_MS / 1000
    while not holds():
        assert time.monotonic() < end, "it does not come to hold"
        page.wait_for_timeout(50)


def contents(folder: Path) -> dict[Path, bytes]:
    """Contents of every file in the folder of a running server; files that are deleted meanwhile
    are skipped."""
    found = dict[Path, bytes]()
    for place, _, names in os.walk(folder):  # skips folders that are deleted
        for path in (Path(place, name) for name in names):
            with suppress(FileNotFoundError):
                if path.is_file():
                    found[path] = path.read_bytes()
    return found


def idle(page: Page) -> Page:
    """Wait until no script of the page is running: a click on a page that is being drawn can be
    lost, and its contents can be those of the previous page."""
    expect(page.locator("[data-test-script-state=notRunning]")).to_be_attached()
    return page


def press(button: Locator, then: Callable[[], bool], **click: Any) -> None:
    """Click until `then` holds, which must follow a click immediately; `click` are playwright's
    options. A click on a page that is just being redrawn is lost."""
    for _ in range(5):
        idle(button.page)
        button.click(**click)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if then():
                return
            button.page.wait_for_timeout(50)
        # A slow response is not a lost click, and a second click would undo the first.
        idle(button.page)
        if then():
            return
    raise AssertionError(f"a click on {button} does nothing")


def unfold(page: Page, label: str) -> None:
    """Open an expander, and wait until it is unfolded: until then, a click on its contents can be
    lost."""
    summary = page.get_by_test_id("stExpander").locator("summary").filter(has_text=label)
    summary.click()
    summary.locator("..").evaluate(
        "part => Promise.all(part.getAnimations().map(moving => moving.finished)).then(() => 0)"
    )


def start_run(button: Locator, result: Locator) -> None:
    """Click until a run has started, and wait for what it draws. A short run can end before it is
    seen."""
    stop = button.page.get_by_role("button", name="Stop", exact=True).first
    press(button, lambda: stop.is_visible() or result.is_visible())
    expect(result).to_be_visible()


def select(page: Page, label: str, value: str) -> None:
    """Select a value of a select box by typing it; retry if a rerun of the page closed the list."""
    box = page.get_by_role("combobox", name=label, exact=True)
    option = page.get_by_role("option", name=value, exact=True)
    for attempt in range(5):
        idle(page)
        box.click()
        box.press("Control+a")
        box.press_sequentially(value)
        try:
            option.click(timeout=10_000)
            return
        except TimeoutError:
            assert attempt < 4, f"{label} offers no {value}"
            box.press("Escape")


def pick_row(grid: Locator, row: int, then: Callable[[], bool]) -> None:
    """Select a table's row, counted from 1, until `then` holds. The grid is a canvas, so rows are
    located by their height."""
    expect(grid).to_be_visible()
    grid.scroll_into_view_if_needed()
    press(grid, then, position={"x": 15, "y": 35 * row + 17})


@pytest.fixture
def visit(context: BrowserContext) -> Iterator[Visit]:
    """`visit(url, width=800, theme="dark")`: a page in a separate tab and session.

    No dialog may open and no script error may occur on any of them.
    """
    faults: list[str] = []
    pages: list[Page] = []

    def open_page(url: str, width: int = 1440, theme: str = "light") -> Page:
        pages.append(opened(context, faults, width, theme))
        pages[-1].goto(url)
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()
    assert faults == []


@pytest.fixture(scope="module")
def tab(context: BrowserContext) -> Iterator[tuple[Page, list[str]]]:
    faults = list[str]()
    page = opened(context, faults, 1440, "light")
    yield page, faults
    page.close()


@pytest.fixture
def go(tab: tuple[Page, list[str]]) -> Iterator[Visit]:
    """`go(url)`: the module's single tab at another address, for tests that only read. It takes a
    third of the time of a new tab. Dialogs and script errors are faults, as for `visit`."""
    page, faults = tab
    faults.clear()

    def to(url: str) -> Page:
        page.goto(url)
        return page

    yield to
    assert faults == []


@pytest.fixture(scope="module")
def heatmap_tabs(context: BrowserContext) -> Iterator[tuple[list[Page], list[str]]]:
    """The tabs of `show`, and the dialogs and errors of their pages."""
    pages = list[Page]()
    yield pages, []
    for page in pages:
        page.close()


@pytest.fixture
def show(
    context: BrowserContext, heatmap_tabs: tuple[list[Page], list[str]], tmp_path: Path
) -> Iterator[Show]:
    """`show(panes, view, width=800, theme="dark")`: the heatmap's standalone page, each of a test
    in a separate tab. The module's tests share their tabs: opening one takes as long as the page.

    No dialog may open, and no error may occur on any of them.
    """
    tabs, faults = heatmap_tabs
    faults.clear()
    number = count()

    def open_page(
        panes: Sequence[Pane], view: View | None = None, width: int = 1440, **options: Any
    ) -> Page:
        tab = next(number)
        path = tmp_path / f"{tab}.html"
        html = to_html(panes, view or View(), [{"method": "m"}], Style(font_size=16, **options))
        path.write_text(html, encoding="utf-8")
        if tab == len(tabs):
            page = opened(context, faults, width, "light")
            page.on(
                "console", lambda line: faults.append(line.text) if line.type == "error" else None
            )
            tabs.append(page)
        page = tabs[tab]
        page.set_viewport_size({"width": width, "height": 900})
        page.mouse.move(0, 0)  # where the previous test left it, it could be over a word
        page.goto(path.as_uri())
        return page

    yield open_page
    assert not faults

"""A headless browser that stays open to render figures (through kaleido) and pages (in tabs).

Both use choreographer, a dependency of kaleido.

Not `kaleido.start_sync_server`: measured with kaleido 1.5.0, its queue can return another thread's
image, and without a browser the caller waits forever.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import concurrent.futures
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import kaleido
from choreographer import Tab, errors
from choreographer.browsers import Chromium
from choreographer.channels import JSONError
from choreographer.utils import TmpDirectory

from poslens.attribution.errors import UserError
from poslens.figures.palettes import CSS_DPI

T = TypeVar("T")

TIMEOUT_S = 60.0
"""Maximum seconds for a picture, including the browser's start, and for waiting until others are
rendered."""

MAX_PIXELS = 16384
"""Maximum width and height of a screenshot in dots; Chromium repeats or drops the rest."""

_MAX_INCHES = 199.0
"""Maximum width and height of a PDF page; the format allows 200 inches."""

_REMEDY = (
    "install Chrome or Chromium (on Debian: apt install chromium) or set BROWSER_PATH to it, "
    "or export HTML."
)

_READY = (
    "location.protocol === 'file:' && document.readyState === 'complete' "
    "&& document.fonts.status === 'loaded'"
)

# kaleido 1.5.0 prints with margins on a page of the figure's own size: a PDF would be shifted by
# a quarter inch and cut off at the foot.
_PAGE_STYLE = "<style>@page{margin:0} body{margin:0} img{display:block}</style>"

# Raised after the browser has exited: choreographer cancels pending requests, or parses a truncated
# message as JSON.
_GONE = (
    errors.BrowserClosedError,
    errors.BrowserFailedError,
    errors.ChannelClosedError,
    JSONError,
    concurrent.futures.CancelledError,
)


class _Chromium(Chromium):
    """Chromium as choreographer starts it, with another flag and temporary folder."""

    def get_cli(self) -> Sequence[str]:
        # Whole-pixel hinting would shift letters out of their cells at other scales.
        return [*super().get_cli(), "--font-render-hinting=none"]

    def get_env(self) -> MutableMapping[str, str]:
        # Put Chromium's temporary files where choreographer removes them. Chromium creates a socket
        # there, and a socket's path is limited to about 100 characters.
        folder = str(self.tmp_dir.path)
        variables = {"TMPDIR": folder} if len(os.fsencode(folder)) < 56 else {}
        return {**super().get_env(), **variables}


class _FigurePage:
    """kaleido's page with plotly.js, which needs no internet."""

    def generate_index(self) -> str:
        # Without mathjax=False every page would ask a server on the internet for it.
        page: str = kaleido.PageGenerator(mathjax=False).generate_index()
        return page.replace("</head>", f"{_PAGE_STYLE}</head>", 1)


class Page:
    """A tab of the browser. Sizes are in CSS pixels."""

    def __init__(self, tab: Tab, folder: Path) -> None:
        self._tab = tab
        self._path = folder / "page.html"

    async def show(self, source: str, width: int, height: int, scale: float = 1.0) -> None:
        """Load the HTML `source` into a window of this size, at `scale` dots per pixel."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        await self._send("Emulation.setDeviceMetricsOverride", **size)
        await self._send("Emulation.setScrollbarsHidden", hidden=True)
        await self._send("Page.navigate", url="about:blank")
        self._path.write_text(source, encoding="utf-8")
        await self._send("Page.navigate", url=self._path.as_uri())
        while not await self.evaluate(_READY):
            await asyncio.sleep(0.02)

    async def evaluate(self, expression: str) -> object:
        """The value of a JavaScript expression in the page."""
        answer = await self._send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"the page failed: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def screenshot(self, width: int, height: int) -> bytes:
        """A PNG of the page's upper left part."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = await self._send("Page.captureScreenshot", format="png", clip=clip)
        return base64.b64decode(answer["data"])

    async def pdf(self, width: int, height: int) -> bytes:
        """A PDF of one page of this size, scaled down if PDF does not allow it."""
        scale = min(1.0, _MAX_INCHES * CSS_DPI / max(width, height))
        answer = await self._send(
            "Page.printToPDF",
            # slightly larger than the picture, because rounding could add an empty page
            paperWidth=(width * scale + 1) / CSS_DPI,
            paperHeight=(height * scale + 1) / CSS_DPI,
            scale=scale,
            printBackground=True,
            **{f"margin{side}": 0 for side in ("Top", "Bottom", "Left", "Right")},
        )
        return base64.b64decode(answer["data"])

    async def paged_pdf(self) -> bytes:
        """A PDF with pages of the size in the page's own `@page` rule."""
        answer = await self._send("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        return base64.b64decode(answer["data"])

    # Parameters and results are JSON.
    async def _send(self, method: str, **params: Any) -> dict[str, Any]:
        answer = await self._tab.send_command(method, params)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer.get("result", {})
        return result


class _Process:
    """A running browser and its event loop."""

    def __init__(self) -> None:
        """Raises `ChromeNotFoundError` if no browser is installed."""
        self.kaleido = kaleido.Kaleido(
            page_generator=_FigurePage(), timeout=TIMEOUT_S, browser_cls=_Chromium
        )
        self._loop = asyncio.new_event_loop()
        # Errors of a browser that exits reach the caller, so nobody needs their tracebacks.
        self._loop.set_exception_handler(lambda loop, context: None)
        logging.getLogger("choreographer").setLevel(logging.CRITICAL)
        # Threads started by a daemon thread are daemons too. choreographer starts threads that end
        # only with the browser, and would prevent Python from exiting if it hangs.
        threading.Thread(target=self._loop.run_forever, name="chrome", daemon=True).start()
        self._opened = asyncio.run_coroutine_threadsafe(self.kaleido.open(), self._loop)

    def run(self, work: Callable[[kaleido.Kaleido], Awaitable[T]], seconds: float) -> T:
        """The result of `work`. Raises an exception of `_GONE`, or TimeoutError."""

        async def started() -> T:
            await asyncio.wrap_future(self._opened)
            return await work(self.kaleido)

        future = asyncio.run_coroutine_threadsafe(started(), self._loop)
        try:
            return future.result(seconds)
        finally:
            future.cancel()

    def close(self) -> concurrent.futures.Future[None]:
        """Make the browser exit normally, which removes its files."""
        closed = asyncio.run_coroutine_threadsafe(self.kaleido.close(), self._loop)
        closed.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        return closed

    def kill(self) -> None:
        """Kill the browser and all its processes; its files are removed soon after."""
        with suppress(AttributeError, ProcessLookupError):  # never started, already gone
            os.killpg(self.kaleido.subprocess.pid, signal.SIGKILL)
        self.close()


class _Browser:
    """The browser shared by all threads: started on first use, and restarted after it exits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def run(self, work: Callable[[kaleido.Kaleido], Awaitable[T]]) -> T:
        """The result of `work`, run in the browser; if the browser exits, `work` runs a second
        time.

        Raises:
            UserError: there is no browser, it exited twice, or it did not answer in `TIMEOUT_S`.
        """
        # One lock for start, use and restart: rendering uses all cores by itself.
        if not self._lock.acquire(timeout=TIMEOUT_S):
            raise UserError("The browser is busy with other exports: try again, or export HTML.")
        try:
            for _ in range(2):
                try:
                    if self._process is None:
                        self._process = _Process()
                    return self._process.run(work, TIMEOUT_S)
                except errors.ChromeNotFoundError as problem:
                    raise UserError(f"PNG, SVG and PDF need a browser: {_REMEDY}") from problem
                except _GONE:
                    self._kill()
                except TimeoutError as problem:
                    self._kill()
                    raise UserError(
                        f"The browser returned no image within {TIMEOUT_S:g} seconds: choose fewer "
                        "or shorter documents, or export HTML."
                    ) from problem
        finally:
            self._lock.release()
        raise UserError(f"The browser that draws images stops unexpectedly: {_REMEDY}")

    def close(self) -> None:
        # If a thread is still rendering, the browser exits when this process's pipe to it closes.
        if self._lock.acquire(timeout=5):
            try:
                if self._process is not None:
                    try:
                        self._process.close().result(10)
                    except Exception:
                        self._process.kill()
                    self._process = None
            finally:
                self._lock.release()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


_browser = _Browser()
atexit.register(_browser.close)


# plotly's figures are untyped.
def render(figure: dict[str, Any], fmt: str, width: int, height: int, scale: float) -> bytes:
    """A figure's dict as a png, svg or pdf file of `width` x `height` px, at `scale` dots per
    pixel.

    The first call starts the browser (seconds), later ones reuse it. Thread-safe, one at a time.

    Raises:
        UserError: there is no browser, or it does not answer.
    """
    options = {"format": fmt, "width": width, "height": height, "scale": scale}

    async def draw(browser: kaleido.Kaleido) -> bytes:
        image: bytes = await browser.calc_fig(figure, opts=options)
        return image

    return _browser.run(draw)


def in_page(work: Callable[[Page], Awaitable[T]]) -> T:
    """The result of `work` in a new page. Thread-safe, one at a time, like `render`.

    Raises:
        UserError: there is no browser, or it does not answer.
    """

    async def draw(browser: kaleido.Kaleido) -> T:
        folder = TmpDirectory(sneak=browser.is_isolated())
        try:
            tab = await browser.create_tab()
            try:
                return await work(Page(tab, folder.path))
            finally:
                await tab.close()
        finally:
            folder.clean()

    return _browser.run(draw)

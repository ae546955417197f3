"""One warm headless browser that turns Plotly figures into images.

Not `kaleido.start_sync_server`: measured with kaleido 1.5.0, its queue gives one thread another
thread's image, and a browser that is missing leaves the caller waiting for good.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from attribution.errors import UserError

TIMEOUT_S = 60
"""A browser that has not answered by then is replaced, once, then given up."""

_REMEDY = (
    "install Chrome or Chromium (on Debian: apt install chromium) or set BROWSER_PATH to it, "
    "or export as HTML or JSON."
)

# kaleido 1.5.0 prints with margins on a page of the figure's own size: a PDF would be shifted by
# a quarter inch and cut off at the foot.
_PAGE_STYLE = "<style>@page{margin:0} body{margin:0} img{display:block}</style>"


class _Browser:
    """A browser and the event loop it lives in, started on first use, for callers in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kaleido: Any = None

    def render(self, figure: dict[str, Any], options: dict[str, Any]) -> bytes:
        # One lock over start, use and replacement: there is one tab, so nothing is lost by it.
        with self._lock:
            for last in (False, True):
                try:
                    browser = self._kaleido or self._start()
                    return self._wait(browser.calc_fig(figure, opts=options))
                except UserError:
                    raise
                except _lost() as problem:
                    self._stop()
                    if last:
                        raise UserError(
                            f"The browser that draws images does not answer: {_REMEDY}"
                        ) from problem
        raise AssertionError("unreachable")

    def close(self) -> None:
        # At exit a thread may still be drawing: the browser ends with our pipe to it anyway.
        if self._lock.acquire(timeout=5):
            try:
                self._stop()
            finally:
                self._lock.release()

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def _start(self) -> Any:
        try:
            import kaleido
            from kaleido.errors import ChromeNotFoundError
        except ImportError as problem:
            raise UserError("PNG, SVG and PDF need the package kaleido: install it.") from problem
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="chrome", daemon=True).start()

        class Page(kaleido.PageGenerator):
            def generate_index(self) -> str:
                return super().generate_index().replace("</head>", f"{_PAGE_STYLE}</head>", 1)

        async def opened() -> Any:
            # Without mathjax=False every page would ask a server on the internet for it.
            page = Page(mathjax=False)
            browser = kaleido.Kaleido(page_generator=page, timeout=TIMEOUT_S)
            await browser.open()
            return browser

        try:
            self._kaleido = self._wait(opened())
        except ChromeNotFoundError as problem:
            self._stop()
            raise UserError(f"PNG, SVG and PDF need a browser: {_REMEDY}") from problem
        return self._kaleido

    def _stop(self) -> None:
        if self._loop is None:
            return
        if self._kaleido is not None:
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(self._kaleido.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop = self._kaleido = None


def _lost() -> tuple[type[BaseException], ...]:
    """What is raised when the browser has gone away or hangs."""
    from choreographer import errors

    gone = (errors.BrowserClosedError, errors.BrowserFailedError, errors.ChannelClosedError)
    return (*gone, concurrent.futures.TimeoutError, TimeoutError)


_browser = _Browser()
atexit.register(_browser.close)


def render(figure: dict[str, Any], fmt: str, width: int, height: int, scale: float) -> bytes:
    """A figure's dict as png, svg or pdf of `width` x `height` layout px, `scale` dots to each.

    The first call starts the browser (seconds), later ones reuse it. Thread-safe, one at a time.

    Raises:
        UserError: there is no browser, or it does not answer.
    """
    options = {"format": fmt, "width": width, "height": height, "scale": scale}
    return _browser.render(figure, options)

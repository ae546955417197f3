"""The system's Chromium as a drawing machine: a page in, text or a picture out.

Driven over the DevTools protocol by choreographer, which kaleido brings along. Each call starts a
browser of its own and ends it, and leaves no file behind.
"""

from __future__ import annotations

import asyncio
import base64
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from choreographer import Browser
from choreographer.browsers.chromium import ChromeNotFoundError
from choreographer.errors import BrowserClosedError, BrowserFailedError

from attribution.errors import UserError

Result = TypeVar("Result")
Send = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

SECONDS = 60.0
"""Time limit of one call, the browser's start included."""

MAX_PIXELS = 16384
"""Longest side of a screenshot; Chromium repeats or drops what lies beyond."""

_MAX_INCHES = 199.0
"""Longest side of a PDF page: its format ends at 200 inches."""

_CSS_DPI = 96

_READY = (
    "location.protocol === 'file:' && document.readyState === 'complete' "
    "&& document.fonts.status === 'loaded'"
)


def run_script(page: str, expression: str, width: int) -> str:
    """The text that a JavaScript expression gives in `page`, laid out `width` CSS pixels wide.

    Raises:
        UserError: no Chromium, or no result within `SECONDS`.
    """

    async def work(send: Send) -> str:
        return str(await _evaluate(send, expression))

    return _in_browser(page, width, 900, 1.0, work)


def take_screenshot(page: str, width: int, height: int, scale: float) -> bytes:
    """A PNG of the page's upper left `width` x `height` CSS pixels, `scale` dots to each.

    Raises:
        UserError: as `run_script`.
    """

    async def work(send: Send) -> bytes:
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = await send(
            "Page.captureScreenshot",
            {"format": "png", "clip": clip, "captureBeyondViewport": True},
        )
        return base64.b64decode(answer["data"])

    return _in_browser(page, width, height, scale, work)


def print_pdf(page: str, width: int, height: int) -> bytes:
    """A PDF of one page of `width` x `height` CSS pixels, smaller where the format ends.

    Raises:
        UserError: as `run_script`.
    """

    async def work(send: Send) -> bytes:
        scale = min(1.0, _MAX_INCHES * _CSS_DPI / max(width, height))
        answer = await send(
            "Page.printToPDF",
            {
                # a hair more than the picture, or rounding makes a second, empty page
                "paperWidth": (width * scale + 1) / _CSS_DPI,
                "paperHeight": (height * scale + 1) / _CSS_DPI,
                "scale": scale,
                "printBackground": True,
                **{f"margin{side}": 0 for side in ("Top", "Bottom", "Left", "Right")},
            },
        )
        return base64.b64decode(answer["data"])

    return _in_browser(page, width, height, 1.0, work)


def _in_browser(
    page: str,
    width: int,
    height: int,
    scale: float,
    work: Callable[[Send], Awaitable[Result]],
) -> Result:
    async def session() -> Result:
        with tempfile.TemporaryDirectory(prefix="poslens-") as folder:
            path = Path(folder, "page.html")
            path.write_text(page, encoding="utf-8")
            async with Browser(headless=True) as browser:
                return await _draw(browser, path.as_uri())

    async def _draw(browser: Browser, url: str) -> Result:
        tab = await browser.create_tab("about:blank")

        async def send(command: str, parameters: dict[str, Any]) -> dict[str, Any]:
            answer = await tab.send_command(command, parameters)
            if "error" in answer:
                raise RuntimeError(f"{command}: {answer['error']}")
            return answer.get("result", {})

        await send(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False},
        )
        await send("Emulation.setScrollbarsHidden", {"hidden": True})
        await send("Page.navigate", {"url": url})
        while not await _evaluate(send, _READY):
            await asyncio.sleep(0.05)
        return await work(send)

    async def limited() -> Result:
        return await asyncio.wait_for(session(), SECONDS)

    try:
        return asyncio.run(limited())
    except ChromeNotFoundError as error:
        raise UserError(
            "There is no Chromium to draw the picture with: install Chromium or Chrome on the "
            "machine that runs PosLens, or export HTML."
        ) from error
    except TimeoutError as error:
        raise UserError(
            f"Chromium gave no picture within {SECONDS:.0f} seconds: choose a shorter document, "
            "or export HTML."
        ) from error
    except (BrowserClosedError, BrowserFailedError) as error:
        raise UserError(
            "Chromium did not start: check that it runs on this machine, or export HTML."
        ) from error


async def _evaluate(send: Send, expression: str) -> Any:
    answer = await send("Runtime.evaluate", {"expression": expression, "returnByValue": True})
    if "exceptionDetails" in answer:
        raise RuntimeError(f"the page failed: {answer['exceptionDetails']}")
    return answer["result"].get("value")

"""The system's Chromium as a drawing machine: a page in, text or a picture out.

It is spoken to over the DevTools protocol's pipe, synchronously: a timer kills its process group,
which ends the reading. choreographer, kaleido's asyncio client of the same protocol, finds the
browser; cancelled while the browser starts, it leaves a thread that keeps Python from exiting.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from choreographer.browsers import Chromium

from attribution.errors import UserError

SECONDS = 60.0
"""Time limit of one call, the browser's start included."""

MAX_PIXELS = 16384
"""Longest side of a screenshot in dots; Chromium repeats or drops what lies beyond."""

_MAX_INCHES = 199.0
"""Longest side of a PDF page: its format ends at 200 inches."""

_CSS_DPI = 96

_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    # as kaleido starts it: containers rarely allow a sandbox. The pages are this package's own,
    # and their policy runs no script but its own.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-extensions",
    "--no-first-run",
    # whole-pixel hinting would move letters out of their cells at another scale
    "--font-render-hinting=none",
)

# Chromium reads commands at descriptor 3 and answers at 4: the shell moves its own there.
_SHELL = 'exec "$@" 3<&0 4>&1 0</dev/null 1>&2'

_READY = (
    "location.protocol === 'file:' && document.readyState === 'complete' "
    "&& document.fonts.status === 'loaded'"
)


class Tab:
    """One page of a running browser. Sizes are in CSS pixels."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._path = folder / "page.html"
        assert process.stdin is not None and process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self._count = 0
        self._rest = b""
        self._session: str | None = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command; events that come before it are passed over.

        Raises:
            EOFError, BrokenPipeError: the browser has ended.
        """
        self._count += 1
        command: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            command["sessionId"] = self._session
        self._input.write(json.dumps(command).encode() + b"\0")
        self._input.flush()
        while True:
            answer = json.loads(self._read())
            if answer.get("id") != self._count:
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            return answer.get("result", {})

    def _read(self) -> bytes:
        # parts are joined once: a picture comes in many
        parts = [self._rest]
        while b"\0" not in parts[-1]:
            part = os.read(self._output.fileno(), 1 << 16)
            if not part:
                raise EOFError
            parts.append(part)
        message, _, self._rest = b"".join(parts).partition(b"\0")
        return message

    def show(self, page: str, width: int, height: int, scale: float = 1.0) -> None:
        """Load the HTML `page` into a window of that size, `scale` dots to the pixel."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        self.send("Emulation.setScrollbarsHidden", hidden=True)
        self.send("Page.navigate", url="about:blank")
        self._path.write_text(page, encoding="utf-8")
        self.send("Page.navigate", url=self._path.as_uri())
        while not self.evaluate(_READY):
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"the page failed: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def screenshot(self, width: int, height: int) -> bytes:
        """A PNG of the page's upper left part."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        return base64.b64decode(
            self.send("Page.captureScreenshot", format="png", clip=clip)["data"]
        )

    def pdf(self, width: int, height: int) -> bytes:
        """A PDF of one page of that size, smaller where the format ends."""
        scale = min(1.0, _MAX_INCHES * _CSS_DPI / max(width, height))
        answer = self.send(
            "Page.printToPDF",
            # a hair more than the picture, or rounding makes a second, empty page
            paperWidth=(width * scale + 1) / _CSS_DPI,
            paperHeight=(height * scale + 1) / _CSS_DPI,
            scale=scale,
            printBackground=True,
            **{f"margin{side}": 0 for side in ("Top", "Bottom", "Left", "Right")},
        )
        return base64.b64decode(answer["data"])


@contextmanager
def open_tab() -> Iterator[Tab]:
    """A page of a browser of its own; the browser and all its files are gone afterwards.

    Raises:
        UserError: no Chromium, one that ends early, or more than `SECONDS` in this context.
    """
    executable = Chromium.find_browser(skip_local=False)
    if executable is None:
        raise UserError(
            "There is no Chromium to draw the picture with: install Chromium or Chrome on the "
            "machine that runs PosLens, or export HTML."
        )
    with tempfile.TemporaryDirectory(prefix="poslens-", ignore_cleanup_errors=True) as folder:
        command = [executable, *_FLAGS, f"--user-data-dir={Path(folder, 'profile')}"]
        process = subprocess.Popen(
            ["/bin/sh", "-c", _SHELL, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(folder),
            start_new_session=True,
        )
        late = threading.Event()

        def expire() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(SECONDS, expire)
        timer.daemon = True
        timer.start()
        try:
            yield Tab(process, Path(folder))
        except (EOFError, BrokenPipeError) as error:
            reason = (
                f"Chromium gave no picture within {SECONDS:g} seconds: choose a shorter document"
                if late.is_set()
                else "Chromium ended early: check that it runs on this machine"
            )
            raise UserError(f"{reason}, or export HTML.") from error
        finally:
            timer.cancel()
            if not late.is_set():
                _close(process)
            _kill(process)
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    if stream is not None:
                        stream.close()


def _environment(folder: str) -> dict[str, str]:
    """This process's, with Chromium's own temporary files in `folder` where it can have them.

    It makes a socket there, and a socket's path has at most some 100 characters.
    """
    own = {"TMPDIR": folder} if len(os.fsencode(folder)) < 56 else {}
    return {**os.environ, **own}


def _close(process: subprocess.Popen[bytes]) -> None:
    """Ask the browser to end by itself, which removes what it has written elsewhere."""
    assert process.stdin is not None
    with suppress(OSError, subprocess.TimeoutExpired):
        process.stdin.write(b'{"id":0,"method":"Browser.close"}\0')
        process.stdin.flush()
        process.wait(5)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the browser with all its processes; a second time does nothing."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

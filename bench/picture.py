"""Take the screenshots of README and the tour from the current dashboard.

    python -m bench.picture [PAGE ...] [--out docs/pictures]

Starts the dashboard with an empty cache and the included results, and takes a screenshot of the
named pages, or of all, in Chromium: the contents of a large window, in light and in dark.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from bench.options import run
from bench.page import dashboard

if TYPE_CHECKING:
    from playwright.sync_api import Browser

OUT = Path(__file__).parents[1] / "docs" / "pictures"
BOTH = "models=MiniLM-primacy&models=MiniLM-recency"
ADDRESSES = {
    "explain": f"explain?pair=food-sourdough-q2&{BOTH}",
    "compare": "compare?pair=food-sourdough-q2",
    "why": "why?models=MiniLM&models=BM25&query=eng/meteorology/meteorology-thunderstorms-q6",
    "cause": "cause?models=MiniLM-recency",
    "curves": f"curves?{BOTH}",
    "ranking": f"ranking?{BOTH}&models=BM25",
    "debias": "debias",
    "audit": "audit",
    "passport": "passport?models=MiniLM-primacy",
    "map": "map",
    "methods": "methods",
    "storage": "storage",
}
"""Path and query with which each page opens, by its name."""

THEMES = ("light", "dark")
WIDTH, HEIGHT = 1440, 1100
COLORS = 256
"""Number of colors of a picture, enough for sharp letters and smooth scales. Pictures with all
colors would be twice as large."""

STILL = """
() => !document.querySelector("[data-testid=stStatusWidget], [data-testid=stSpinner]") &&
  ![...document.querySelectorAll("button")].some((button) => button.innerText.trim() === "Stop")
"""


def picture(browser: Browser, url: str, theme: str) -> bytes:
    """A screenshot of a page once nothing changes any more, as PNG."""
    with browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT},
        color_scheme="dark" if theme == "dark" else "light",
    ) as context:
        page = context.new_page()
        page.goto(url)
        page.mouse.move(WIDTH - 1, 1)
        for _ in range(2):  # fragments that refresh themselves start a little later
            page.locator("[data-test-script-state=notRunning]").wait_for(
                state="attached", timeout=120_000
            )
            page.wait_for_function(STILL, timeout=120_000)
            page.wait_for_timeout(3000)
        return page.screenshot()


def main(*pages: str, out: Path = OUT) -> None:
    """Take the screenshots of these pages, or of all, and write them as WebP."""
    from PIL import Image

    if unknown := sorted(set(pages) - set(ADDRESSES)):
        raise SystemExit(f"no page {', '.join(unknown)}; there are {', '.join(ADDRESSES)}")
    out.mkdir(parents=True, exist_ok=True)
    with dashboard(shipped=True) as (url, browser, _):
        for name in pages or ADDRESSES:
            for theme in THEMES:
                path = out / f"{name}-{theme}.webp"
                taken = Image.open(io.BytesIO(picture(browser, f"{url}/{ADDRESSES[name]}", theme)))
                few = taken.convert("RGB").quantize(COLORS, Image.Quantize.MAXCOVERAGE)
                few.convert("RGB").save(path, lossless=True, method=6)
                print(f"{path} {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    run(main)

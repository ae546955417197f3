"""README's picture, taken of the dashboard as it is now.

    python -m bench.picture [--out docs/explain.png] [--address "/?..."]

Starts the dashboard with a cache of its own and takes a page of it, whole, in Chromium.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from bench.page import dashboard

OUT = Path(__file__).parents[1] / "docs" / "explain.png"
ADDRESS = "/?pair=food-sourdough-q2&models=MiniLM-primacy&models=MiniLM-recency"
WIDTH = 1440
HEIGHT = "document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight"


def main() -> None:
    """Take it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--address", default=ADDRESS, help="what stands behind the server's name")
    asked = parser.parse_args()
    with dashboard(shipped=True) as (url, browser, _):
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000})
        page.goto(f"{url}{asked.address}")
        page.get_by_test_id("stPlotlyChart").first.wait_for(timeout=120_000)
        time.sleep(5)  # captions stand below the chart
        page.set_viewport_size({"width": WIDTH, "height": int(page.evaluate(HEIGHT)) + 140})
        page.mouse.move(WIDTH - 1, 1)
        time.sleep(3)
        page.screenshot(path=asked.out)
    print(asked.out)


if __name__ == "__main__":
    main()

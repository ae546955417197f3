"""Frames per second of panning a map of 10,000 points, in Chromium.

    python -m bench.map [--points 10000] [--seconds 5]

Draws the product's own figure with WebGL in a page of its own and pans it by dragging the mouse,
counting animation frames. Without a GPU, Chromium rasterises in software: a lower bound.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from dashboard.map_figure import point_map
from dashboard.palettes import Style


def main() -> None:
    """Print frames per second."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    chance = np.random.default_rng(7)
    words = [f"domain {i % 12}" for i in range(options.points)]
    figure = point_map(
        chance.normal(size=(options.points, 2)), words, words, "Domain",
        Style(height_px=560), webgl=True,
    )  # fmt: skip
    figure.update_layout(dragmode="pan")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "map.html"
        figure.write_html(file, include_plotlyjs=True)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(file.as_uri())
        page.locator(".nsewdrag").first.wait_for()
        time.sleep(2)
        page.evaluate(
            "() => { window.frames_ = 0; const tick = () => { window.frames_++;"
            " requestAnimationFrame(tick); }; requestAnimationFrame(tick); }"
        )
        page.mouse.move(500, 300)
        page.mouse.down()
        page.evaluate("window.frames_ = 0")
        started, step = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - started) < options.seconds:
            step += 1
            page.mouse.move(500 + 100 * np.sin(step / 9), 300 + 60 * np.cos(step / 7))
        frames = page.evaluate("window.frames_")
        page.mouse.up()
        print(f"{options.points:,} points: {frames / elapsed:.0f} frames per second while panning "
              f"({step / elapsed:.0f} mouse moves per second)")  # fmt: skip
        browser.close()


if __name__ == "__main__":
    main()

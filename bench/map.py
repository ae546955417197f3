"""Frames per second of panning a map of 10,000 points, in Chromium.

    python -m bench.map [--points 10000] [--seconds 3] [--rounds 5]

Draws PosLens' figure with WebGL in a separate page, pans it by dragging the mouse, and counts
animation frames. Compared with the same points with a symbol for each color, the same as SVG, and
a WebGL figure of one point, which is the machine's limit. Contenders alternate, so that other load
affects all of them equally. Without a GPU, Chromium renders in software, which gives a lower bound.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from bench.browser import chromium, new_page, open_page
from bench.options import run
from bench.timing import ratio
from poslens.figures.palettes import Style
from poslens.studies.map import SYMBOLS, point_map

_COUNT = (
    "() => { window.frames_ = 0; const tick = () => { window.frames_++;"
    " requestAnimationFrame(tick); }; requestAnimationFrame(tick); }"
)


def figures(points: int) -> dict[str, go.Figure]:
    """The contenders by name; `drawn` is the figure that the page shows."""
    chance = np.random.default_rng(7)
    xy = chance.normal(size=(points, 2))
    words = [f"domain {i % 12}" for i in range(points)]

    def map_of(n: int, webgl: bool) -> go.Figure:
        figure = point_map(
            xy[:n], words[:n], words[:n], "Domain", Style(height_px=560), webgl=webgl
        )
        return figure.update_layout(dragmode="pan")

    symbols = map_of(points, True)
    for trace, symbol in zip(symbols.data, SYMBOLS, strict=False):
        trace.marker.update(symbol=symbol, size=4)
    return {
        "drawn": map_of(points, True),
        "a symbol each": symbols,
        "SVG": map_of(points, False),
        "one point": map_of(1, True),
    }


def pan(browser: Any, file: Path, seconds: float) -> float:
    """Seconds per frame while the mouse drags the map."""
    page = open_page(new_page(browser), file.as_uri(), ".nsewdrag")
    time.sleep(1)
    page.evaluate(_COUNT)
    page.mouse.move(500, 300)
    page.mouse.down()
    page.evaluate("window.frames_ = 0")
    started, step = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        step += 1
        page.mouse.move(500 + 100 * np.sin(step / 9), 300 + 60 * np.cos(step / 7))
    frames = page.evaluate("window.frames_")
    elapsed = time.perf_counter() - started
    page.close()
    per_frame: float = elapsed / max(frames, 1)
    return per_frame


def main(points: int = 10_000, seconds: float = 3.0, rounds: int = 5) -> None:
    """Print frames per second, and the time of a frame relative to that of the page's figure."""
    drawn = figures(points)
    spent: dict[str, list[float]] = {name: [] for name in drawn}
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for name, figure in drawn.items():
            figure.write_html(Path(folder) / f"{name}.html", include_plotlyjs="directory")
        for _ in range(rounds):
            for name in drawn:
                spent[name].append(pan(browser, Path(folder) / f"{name}.html", seconds))
    for name, taken in spent.items():
        rate, longer = 1 / statistics.median(taken), ratio(taken, spent["drawn"])
        print(
            f"{points:,} points, {name:14} {rate:3.0f} frames per second, "
            f"{longer:.1f} times as long a frame"
        )


if __name__ == "__main__":
    run(main)

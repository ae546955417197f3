"""Figures contain the given numbers, and text from data is shown as text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import regex

from poslens.attribution.curves.interactions import Interactions
from poslens.attribution.curves.positions import positions
from poslens.attribution.curves.text_axis import average, over_text
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.ablation import ablation_method
from poslens.attribution.interventions.relocation import relocation_method
from poslens.attribution.interventions.segments import segments_method
from poslens.attribution.methods import make_method
from poslens.attribution.types import Method, PositionCurve, Provenance
from poslens.export.files import figure_bytes
from poslens.figures import curves as curve_figures
from poslens.figures import figure_base
from poslens.figures.matrix import interaction_matrix, unit_rails
from poslens.figures.palettes import (
    PALETTES,
    PRESETS,
    SYMBOLS,
    THEMES,
    Style,
    escape,
    shorten,
    text_width,
    wrap,
)
from poslens.figures.scatter import rank_scatter
from poslens.figures.stacked import stacked
from poslens.studies.map import point_map

STYLE = Style()
PHONE_PX = 310
"""Width for an axis title on a phone: its 390 px without the page's margins and the y axis."""
CENTERS = np.arange(100) + 0.5
HOSTILE = (
    "<b>bold</b>",
    "<a href=javascript:alert(1)>x</a>",
    "one<br>two",
    "&lt;i&gt;",
    "%{meta.figure}",
    "$\\alpha$ and $x$",
    "\x01control",
)


def units(text: str) -> Interactions:
    return Interactions(np.ones((1, 1)), (text,), (text,), (0,), 0.0, 1.0)


def provenance(model: str = "m") -> Provenance:
    return Provenance(
        poslens="0.1.0",
        model=model,
        model_source="here",
        weights="sha256:00",
        method="saliency(norm=l2)",
        dataset="data <b>set</b>",
        n_pairs=3,
        max_length=512,
        truncated=1,
        precision="float32",
        prompts="query: {query}",
    )


def curve(model: str = "m", seed: int = 0, **changes: object) -> PositionCurve:
    mean = np.random.default_rng(seed).random(100).astype(np.float32)
    fields = {
        "model": model,
        "dataset": "d",
        "method": Method("saliency", {"norm": "l2"}, {"normalization": "p99"}),
        "mean": mean,
        "std": np.full(100, 0.1),
        "ci_low": mean - 0.05,
        "ci_high": mean + 0.07,
        "positions": positions("bin_mean"),
        "n": 3,
        "n_documents": 3,
        "n_truncated": 1,
        "n_failed": 0,
    }
    return PositionCurve(**{**fields, **changes})  # type: ignore[arg-type]


def luminance(color: str) -> float:
    """Relative luminance of #RRGGBB, WCAG 2.2."""
    channels = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# -- text ---------------------------------------------------------------------------------------


def test_escape_leaves_no_markup() -> None:
    for text in HOSTILE:
        shown = escape(text)
        assert "<" not in shown and ">" not in shown and "$" not in shown and "%{" not in shown
    assert escape("a & b") == "a &amp; b"
    assert escape("a\nb") == "a b"
    assert escape("\ud800x\x00") == "�x�"


FIGURES: dict[str, Callable[[str], go.Figure]] = {
    "pair": lambda text: curve_figures.pair_curves(
        {text: np.ones(100)},
        {text: (0.2, 0.3)},
        STYLE,
        text,
        {text: 0.5},
        means={text: curve_figures.Mean(np.ones(100), CENTERS / 100, None, text)},
    ),
    "mean": lambda text: curve_figures.mean_curves(
        [curve(text), curve(text, dataset=text + text)], STYLE, y_title=text
    ),
    "difference": lambda text: curve_figures.difference(
        curve("a").mean, curve("b", 1).mean, (text, text), STYLE, y_title=text
    ),
    "scatter": lambda text: rank_scatter([1.0], [2.0], [text], (text, text), STYLE, y_title=text),
    "map": lambda text: point_map([[0.0, 1.0]], [text], [text], text, STYLE),
    "map of numbers": lambda text: point_map([[0.0, 1.0]], [1.0], [text], text, STYLE),
    "rails": lambda text: unit_rails(units(text), (0.2, 0.3), STYLE),
    "matrix": lambda text: interaction_matrix(units(text), STYLE),
}


def strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for key, one in value.items() if key != "meta" for text in strings(one)]
    if isinstance(value, (list, tuple)):
        return [text for one in value for text in strings(one)]
    return []


@pytest.mark.parametrize("name", FIGURES)
def test_no_figure_contains_unescaped_markup(name: str) -> None:
    """Every string of the figure, except PosLens's line breaks."""
    for hostile in HOSTILE[:4]:
        own = {"<extra></extra>", "<br>"}
        found = strings(FIGURES[name](hostile).to_dict())
        assert any("&" in text for text in found), "the label is nowhere in the figure"
        for text in found:
            for markup in own:
                text = text.replace(markup, "")
            assert "<" not in text and ">" not in text


@pytest.mark.parametrize("name", FIGURES)
def test_hostile_text_is_drawn_as_text(name: str) -> None:
    """The image contains the letters, but no element made of them."""
    text = "<a href='https://x.example'>q</a> %{meta.figure} &amp; $x$"
    svg = ET.fromstring(figure_bytes(FIGURES[name](text), "svg", STYLE, provenance()))
    for meta in svg.findall("{http://www.w3.org/2000/svg}metadata"):
        svg.remove(meta)
    drawn = " ".join("".join(svg.itertext()).replace("\xa0", " ").split())
    assert not [one for one in svg.iter() if one.tag.endswith("}a")]
    for part in (
        ("<a",)
        if name in ("matrix", "rails", "scatter", "map")
        else ("<a href=", "%{meta", "&amp;")
    ):
        assert part in drawn


# -- numbers ------------------------------------------------------------------------------------


def test_pair_curves_draw_the_given_arrays() -> None:
    values = {"a": np.linspace(0, 1, 100), "b": np.linspace(1, 0, 100)}
    evidence = {"a": (0.25, 0.5), "b": (0.25, 0.5)}
    figure: Any = curve_figures.pair_curves(values, evidence, STYLE, "Saliency (score units)")
    for trace, array in zip(figure.data, values.values(), strict=True):
        np.testing.assert_allclose(trace.x, CENTERS)
        np.testing.assert_array_equal(trace.y, array)
        np.testing.assert_array_equal(trace.customdata, np.arange(100))
    (shape,) = figure.layout.shapes
    assert (shape.x0, shape.x1) == (25, 50)
    assert [note.text for note in figure.layout.annotations] == ["evidence"]
    assert figure.layout.yaxis.title.text == "Saliency (score units)"
    assert "tokens read" in figure.layout.xaxis.title.text


def test_evidence_is_marked_at_each_models_tokens() -> None:
    ones = np.ones(100)
    evidence = {"a": (0.05, 0.1), "b": (0.1, 0.2)}
    figure: Any = curve_figures.pair_curves({"a": ones, "b": ones}, evidence, STYLE, "y")
    assert [(s.x0, s.x1) for s in figure.layout.shapes] == [(5, 10), (10, 20)]
    assert [note.text for note in figure.layout.annotations] == ["evidence"]


def test_a_pair_is_drawn_in_front_of_its_models_mean_and_band() -> None:
    values, mean, at = np.linspace(0, 1, 100), np.full(100, 0.5), np.linspace(0, 1, 100)
    against = curve_figures.Mean(mean, at, (mean - 0.1, mean + 0.2), "mean of 12 pairs")
    figure: Any = curve_figures.pair_curves(
        {"a": values}, {}, STYLE, "y", means={"a": against}, x=at
    )
    band, pair, line = figure.data
    np.testing.assert_allclose(band.y, [*(mean + 0.2), *(mean - 0.1)])
    np.testing.assert_array_equal(pair.y, values)
    np.testing.assert_array_equal(line.y, mean)
    np.testing.assert_allclose(pair.x, 100 * at)
    assert (pair.name, line.name) == ("a, this pair", "a, mean of the data set")
    alone: Any = curve_figures.pair_curves({}, {}, STYLE, "y", means={"a": against})
    assert [trace.name for trace in alone.data][1:] == ["a, mean of the data set"]


def test_a_difference_ends_where_one_model_truncates() -> None:
    a, b = np.ones(100), np.full(100, 2.0)
    b[40:] = np.nan
    figure: Any = curve_figures.difference(a, b, ("a", "b"), STYLE)
    for trace in figure.data:
        np.testing.assert_allclose(trace.x, CENTERS[:40])
        np.testing.assert_array_equal(trace.customdata, np.arange(40))
    assert (40, 100) in {(shape.x0, shape.x1) for shape in figure.layout.shapes}


def test_truncation_is_stated() -> None:
    figure: Any = curve_figures.pair_curves({"a": np.ones(100)}, {}, STYLE, "y", {"a": 0.4})
    np.testing.assert_allclose(figure.data[0].x, CENTERS)
    assert figure.data[0].name == "a (read 40% of the text)"


def test_mean_curves_contain_mean_band_and_bin() -> None:
    curves = [curve("a", 1), curve("b", 2)]
    figure: Any = curve_figures.mean_curves(curves, STYLE)
    bands, lines = figure.data[:2], figure.data[2:]
    for band, line, one in zip(bands, lines, curves, strict=True):
        np.testing.assert_array_equal(line.y, one.mean)
        np.testing.assert_array_equal(line.customdata, np.arange(100))
        assert len(band.x) == 200 and band.fill == "toself"
        np.testing.assert_array_equal(band.x[:100], band.x[100:][::-1])
        np.testing.assert_array_equal(band.y[:100], one.ci_high)
        np.testing.assert_array_equal(band.y[100:][::-1], one.ci_low)
        np.testing.assert_array_equal(band.customdata, [*range(100), *reversed(range(100))])
        assert band.legendgroup == line.legendgroup
    assert [line.name for line in lines] == ["a", "b"], "sample sizes are in the caption"
    assert figure.layout.yaxis.title.text == "Saliency (1 = document's 99th percentile)"


def test_mean_curves_use_their_positions_and_draw_no_missing_band() -> None:
    sampled = curve("a", positions=positions("point"), ci_low=None, ci_high=None)
    figure: Any = curve_figures.mean_curves([sampled, curve("b")], STYLE)
    band, first, second = figure.data
    assert band.legendgroup == second.legendgroup
    np.testing.assert_allclose(first.x, 100 * np.arange(100) / 99)
    np.testing.assert_allclose(second.x, np.arange(100) + 0.5)


def test_gray_bands_have_edges_that_differ_and_colored_ones_none() -> None:
    curves = [curve("a"), curve("b"), curve("c")]
    gray: Any = curve_figures.mean_curves(curves, replace(STYLE, palette="grey"))
    bands, lines = gray.data[:3], gray.data[3:]
    assert len({band.line.dash for band in bands}) == 3
    for band, line in zip(bands, lines, strict=True):
        assert band.line.color == line.line.color and 0 < band.line.width < line.line.width
    colored: Any = curve_figures.mean_curves(curves, STYLE)
    assert {band.line.width for band in colored.data[:3]} == {0}


def test_points_can_be_selected_by_a_click() -> None:
    """plotly.js selects nothing of a trace whose mode is 'lines'."""
    drawn: list[Any] = [
        curve_figures.mean_curves([curve()], STYLE),
        curve_figures.pair_curves({"a": np.ones(100)}, {}, STYLE, "y"),
    ]
    for figure in drawn:
        assert "markers" in figure.data[-1].mode
        assert figure.layout.clickmode == "event+select"


def test_curves_of_one_model_are_distinguished() -> None:
    other = Method("occlusion")
    curves = [curve(), curve(dataset="e"), curve(dataset="e", method=other), curve(dataset="e")]
    figure: Any = curve_figures.mean_curves(curves, STYLE)
    names = [trace.name for trace in figure.data[len(curves) :]]
    assert len(set(names)) == 4
    assert names[0] == "m, d" and "occlusion" in names[2]


def test_difference_is_a_minus_b() -> None:
    a, b = curve("a", 1), curve("b", 2)
    gap = a.mean.astype(float) - b.mean
    figure: Any = curve_figures.difference(a.mean, b.mean, ("a", "b"), STYLE)
    above, below, line = figure.data
    np.testing.assert_allclose(line.y, gap)
    for area, side in ((above, np.maximum), (below, np.minimum)):
        drawn = np.interp(line.x, area.x, area.y)
        np.testing.assert_allclose(drawn, side(gap, 0), atol=1e-12)
    assert above.name == "a higher" and below.name == "b higher"
    np.testing.assert_array_equal(line.customdata, np.arange(100))
    assert [shape.y0 for shape in figure.layout.shapes] == [0]
    ends = (gap - 0.1, gap + 0.1)
    at = np.linspace(0, 1, 100)
    banded: Any = curve_figures.difference(gap, 0 * gap, ("a", "b"), STYLE, at=at, interval=ends)
    (band,) = [trace for trace in banded.data if trace.fill == "toself"]
    np.testing.assert_allclose(band.y, [*ends[1], *ends[0][::-1]])
    np.testing.assert_allclose(banded.data[-1].x, 100 * at)
    assert "tokens read" in banded.layout.xaxis.title.text


def test_the_areas_of_a_difference_end_where_its_line_crosses_zero() -> None:
    gap = np.ones(100)
    gap[50:] = -3
    gap[70:80] = 0
    figure: Any = curve_figures.difference(gap, 0 * gap, ("a", "b"), STYLE)
    above, below, line = figure.data
    at = 49.75  # from 1 at 49.5 to -3 at 50.5
    for area in (above, below):
        assert len(area.x) == 101 and area.x[50] == at and area.y[50] == 0
        assert area.customdata[50] == 49
    np.testing.assert_allclose(above.y + below.y, np.interp(above.x, line.x, line.y), atol=1e-12)


def test_scatter_labels_points_with_their_words() -> None:
    words = ["one", "two", "<b>"]
    figure: Any = rank_scatter([1, 2, 3], [30, 20, 10], words, ("A", "B"), STYLE)
    (points,) = figure.data
    np.testing.assert_array_equal(points.x, [1, 2, 3])
    np.testing.assert_array_equal(points.y, [30, 20, 10])
    assert list(points.hovertext) == ["one", "two", "&lt;b&gt;"]
    assert figure.layout.xaxis.title.text == "Saliency, A"
    assert figure.layout.xaxis.range != figure.layout.yaxis.range
    rank_scatter([], [], [], ("A", "B"), STYLE)


def test_scatter_labels_do_not_overlap() -> None:
    same: Any = rank_scatter([1.0] * 9, [1.0] * 9, ["word"] * 9, ("A", "B"), STYLE)
    assert sum(bool(text) for text in same.data[0].text) <= 1


# -- many lines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [4, 5, 8])
def test_more_than_four_lines_get_panels_with_the_same_axes(n: int) -> None:
    curves = [curve(f"model {i} <b>", i) for i in range(n)]
    figure: Any = curve_figures.mean_curves(curves, STYLE)
    axes = [key for key in figure.layout.to_plotly_json() if key.startswith("yaxis")]
    if n == 4:
        assert axes == ["yaxis"] and figure.layout.showlegend
        return
    assert len(axes) == n and not figure.layout.showlegend
    single: Any = curve_figures.mean_curves(curves[:4], STYLE)
    assert figure.layout.template == single.layout.template
    lines = [trace for trace in figure.data if trace.fill is None]
    bands = [trace for trace in figure.data if trace.fill == "toself"]
    assert (
        [t.yaxis for t in lines]
        == [t.yaxis for t in bands]
        == ["y", *(f"y{i + 2}" for i in range(n - 1))]
    )
    for trace, one in zip(lines, curves, strict=True):
        np.testing.assert_array_equal(trace.y, one.mean)
        np.testing.assert_array_equal(trace.customdata, np.arange(100))
    assert all(figure.layout[key].matches == "y" for key in axes[1:])
    notes = [note.text for note in figure.layout.annotations]
    assert notes[:n] == [f"model {i} &lt;b&gt;" for i in range(n)]
    assert notes[n:] == [
        "Relative position in the tokens read (%)",
        "Saliency (1 = document's 99th percentile)",
    ]
    spans = sorted({figure.layout[key].domain for key in axes})
    assert all(low[1] < high[0] for low, high in pairwise(spans))
    assert spans[0][0] == pytest.approx(0) and spans[-1][1] == 1


def test_panels_have_the_share_of_texts_read_on_a_second_axis() -> None:
    n_read = np.linspace(12, 6, 100).astype(int)
    curves = [curve(f"model {i}", i, n=12, n_read=n_read) for i in range(5)]
    figure: Any = curve_figures.mean_curves(curves, STYLE)
    shares = [trace for trace in figure.data if trace.name == "read"]
    assert [trace.yaxis for trace in shares] == [f"y{number}" for number in range(6, 11)]
    assert [trace.xaxis for trace in shares] == ["x", "x2", "x3", "x4", "x5"]
    assert figure.layout.yaxis10.overlaying == "y5" and not figure.layout.yaxis6.showticklabels


def test_lines_of_a_panel_are_distinguished_without_color() -> None:
    means = {
        name: curve_figures.Mean(np.ones(100), CENTERS / 100, None, "mean of 12 pairs")
        for name in "abc"
    }
    values = dict.fromkeys("abc", np.zeros(100))
    figure: Any = curve_figures.pair_curves(values, {"a": (0.2, 0.3)}, STYLE, "y", means=means)
    legend = [trace for trace in figure.data if trace.showlegend is not False]
    assert [trace.name for trace in legend] == ["this pair", "mean of the data set"]
    assert {trace.line.color for trace in legend} == {STYLE.colors.ink}
    assert len({trace.line.width for trace in legend}) == 2
    assert [shape.xref for shape in figure.layout.shapes] == ["x", "x2", "x3"]


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([0.91, 0.98], [0.8, 1.03]),
        ([1.0, 1.0], [0.8, 1.03]),
        ([0.0, 0.0], [0.0, 0.2]),
        ([0.34, 0.76], [0.3, 0.8]),
        ([0.05, 0.97, None], [0.0, 1.03]),
    ],
)
def test_an_axis_of_shares_shows_small_differences(values: Any, ends: list[float]) -> None:
    figure = go.Figure(go.Scatter(y=values))
    assert figure_base.near_unit(figure)["range"] == pytest.approx(ends)


@pytest.mark.parametrize("n", [1, 5])
def test_axis_titles_fit_on_a_phone(n: int) -> None:
    """Figures on pages become as narrow as the window; their titles keep their lines."""
    title = "Cosine of each segment's vector with the vector of the whole text, minus its mean"
    curves = [curve(f"m{number}", number) for number in range(n)]
    figure: Any = curve_figures.mean_curves(curves, STYLE, y_title=title)
    figure = figure_base.canvas("any", STYLE, title, "y", ()) if n == 1 else figure
    texts = [note.text for note in figure.layout.annotations] + [figure.layout.xaxis.title.text]
    (lines,) = [text.split("<br>") for text in texts if str(text).startswith("Cosine")]
    assert len(lines) > 1 and " ".join(lines) == escape(title)
    assert max(text_width(line, STYLE.font_size) for line in lines) <= PHONE_PX


def drawn_in(figure: go.Figure, style: Style) -> ET.Element:
    return ET.fromstring(figure_bytes(figure, "svg", style, provenance()))


def test_the_evidence_label_is_not_read_as_an_entry_of_the_legend() -> None:
    names = ("MiniLM-primacy", "MiniLM-recency")
    evidence = dict.fromkeys(names, (0.0, 0.1))
    drawn = curve_figures.pair_curves(dict.fromkeys(names, CENTERS), evidence, STYLE, "y")
    svg = drawn_in(drawn, STYLE)

    def baseline(css_class: str) -> float:
        """The lowest baseline of the texts of this class."""
        found = list[float]()

        def visit(node: ET.Element, y: float) -> None:
            moved = re.match(r"translate\([^,]+,([^)]+)\)", node.get("transform", ""))
            y += float(moved[1]) if moved else 0
            if node.get("class") == css_class:
                found.append(y + float(node.get("y", 0)))
            for child in node:
                visit(child, y)

        visit(svg, 0)
        return max(found)

    assert baseline("annotation-text") - baseline("legendtext") > 1.5 * STYLE.small


@pytest.mark.parametrize("high", [0.13, 0.26, 0.52, 0.99, 3.1])
def test_a_single_column_has_room_for_its_curves(high: float) -> None:
    """The legend takes less than a third of the height, and the y axis has at least three ticks."""
    style = PRESETS["single column"]
    names = ("MiniLM-primacy", "MiniLM", "MiniLM-recency", "MiniLM@calibrated")
    curves = []
    for name in names:
        mean = np.linspace(0.3 * high, high, 100)
        curves.append(curve(name, mean=mean, ci_low=mean, ci_high=mean, n=304, n_documents=68))
    svg = drawn_in(curve_figures.mean_curves(curves, style), style)
    space = "{http://www.w3.org/2000/svg}"
    ticks = svg.findall(f".//{space}g[@class='ytick']")
    assert len(ticks) >= 3
    (legend,) = svg.findall(f".//{space}g[@class='legend']/{space}rect[@class='bg']")
    assert float(legend.get("height") or "inf") < float(svg.get("height") or 0) / 3
    assert not [
        line
        for line in svg.iter()
        if "stroke-dasharray" in line.get("style", "") and "0px" not in line.get("style", "")
    ]
    text = "".join(svg.itertext())
    assert "304" not in text.replace(svg.findtext(f"{space}metadata") or "", "")


def test_figures_below_each_other_have_their_own_axes_and_one_legend() -> None:
    """Small multiples above two lines of another quantity."""
    many = [replace(curve(), model=f"m{number}") for number in range(5)]
    figures = [
        curve_figures.mean_curves(many, STYLE, y_title="Score", provenance=[provenance("one")]),
        curve_figures.mean_curves(many[:2], STYLE, y_title="Loss", provenance=[provenance("two")]),
    ]
    both: Any = stacked(figures, STYLE)
    last = both.layout.yaxis6
    assert last.title.text == "Loss" and both.layout.xaxis6.anchor == "y6"
    panels = [getattr(both.layout, f"yaxis{number or ''}") for number in ("", 2, 3, 4, 5)]
    assert all(last.domain[1] < panel.domain[0] < panel.domain[1] <= 1 for panel in panels)
    assert last.domain[0] == pytest.approx(0) and panels[1].matches == "y"
    n = len(figures[0].data)
    assert {trace.yaxis for trace in both.data[n:]} == {"y6"}
    assert {trace.yaxis for trace in both.data[:n]} == {"y", "y2", "y3", "y4", "y5"}
    assert both.layout.showlegend and _entries(both) == ["m0", "m1"], "panels have titles instead"
    twice: Any = stacked([figures[1], figures[1]], STYLE)
    assert _entries(twice) == ["m0", "m1"]
    plots = [twice.layout[axis].domain for axis in ("yaxis", "yaxis2")]
    sizes = {round((high - low) * twice.layout.height, 6) for low, high in plots}
    assert len(sizes) == 1, "plots are as high as each other"
    assert [entry["model"] for entry in both.layout.meta["provenance"]] == ["one", "two"]


def _entries(figure: Any) -> list[str]:
    return [each.name for each in figure.data if each.name and each.showlegend is not False]


# -- provenance and style -----------------------------------------------------------------------


def test_provenance_is_in_the_figure_and_its_caption() -> None:
    both = [provenance("one"), provenance("two")]
    plain: Any = curve_figures.mean_curves([curve()], STYLE, provenance=both)
    assert [entry["model"] for entry in plain.layout.meta["provenance"]] == ["one", "two"]
    assert plain.layout.meta["figure"] == "mean_curves"
    assert not plain.layout.annotations and plain.layout.height == STYLE.height_px
    captioned: Any = curve_figures.mean_curves(
        [curve()], replace(STYLE, caption=True), provenance=both
    )
    (note,) = captioned.layout.annotations
    text = note.text.replace("<br>", " ")
    assert "<" not in text and "data &lt;b&gt;set&lt;/b&gt;" in text
    assert text.count("sha256:00") == 1, "what the models share is said once"
    assert "model: one" in text and "model: two" in text
    assert captioned.layout.height > STYLE.height_px
    assert captioned.layout.width == STYLE.width_px


@pytest.mark.parametrize("palette", PALETTES)
@pytest.mark.parametrize("theme", THEMES)
def test_lines_have_enough_contrast_and_differ(palette: str, theme: str) -> None:
    style = Style(palette=palette, theme=theme)  # type: ignore[arg-type]
    looks = [(style.line(i)["color"], style.symbol(i)) for i in range(30)]
    assert len(set(looks)) == 30
    assert len({style.symbol(i) for i in range(len(SYMBOLS))}) == len(SYMBOLS)
    assert not any("dash" in style.line(i) for i in range(30)), "dashes hide what noisy lines do"
    for color in PALETTES[palette][theme][:3]:
        assert contrast(color, style.colors.paper) >= 2.9
    for color in (style.colors.ink, style.colors.muted):
        assert contrast(color, style.colors.paper) >= 4.5
    shades = [contrast(color, style.colors.paper) for _, color in style.shades()]
    assert shades[0] >= 2.7 and shades == sorted(shades), "larger values stand out more"


@pytest.mark.parametrize("theme", THEMES)
def test_the_mode_bar_is_readable(theme: Any) -> None:
    """Pages have a transparent background, on which plotly.js would draw a gray bar with gray
    icons."""
    bar: Any = curve_figures.mean_curves([curve()], Style(theme=theme)).layout.modebar
    assert contrast(bar.color, bar.bgcolor) >= 4.5 and contrast(bar.activecolor, bar.bgcolor) >= 4.5


def test_presets_have_the_column_widths_of_journals() -> None:
    assert PRESETS["single column"].width_px * PRESETS["single column"].scale == 3.5 * 300
    assert PRESETS["double column"].width_px * PRESETS["double column"].scale == 7 * 300


@pytest.mark.parametrize(
    "wrong",
    [{"palette": "x"}, {"theme": "x"}, {"width_px": 0}, {"dpi": 10**6}, {"font_size": -1}],
)
def test_styles_that_cannot_be_drawn_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        Style(**wrong)  # type: ignore[arg-type]


def test_wrapping_keeps_every_letter() -> None:
    text = "a few words and " + "x" * 90 + " 長い日本語の文章がここにあります"
    lines = wrap(text, 100, 10)
    assert len(lines) > 3
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    name = "MiniLM-debiased@calibrated(strength=1)"
    assert wrap(name, 37 * 5.1, 10) == ["MiniLM-debiased@calibrated", "(strength=1)"]
    assert wrap(name, 38 * 5.1, 10) == [name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("हिन्दी भाषा", "हि…"),
        ("a👨\u200d👩\u200d👧b", "a…"),
        ("cafe\u0301s", "caf…"),
        ("กำลังดี", "กำลั…"),
        ("e\u0301\u0302\u0303\u0304\u0305", "e\u0301\u0302\u0303…"),
    ],
)
def test_labels_keep_marks_with_their_letters(text: str, expected: str) -> None:
    assert shorten(text, 5) == expected
    assert shorten(text, len(text)) == text
    assert "".join(wrap(text.replace(" ", ""), 5, 10)) == text.replace(" ", "")
    assert all(regex.match(r"[^\p{M}\u200d]", line) for line in wrap(text, 5, 10))
    assert text_width("cafe\u0301", 10) == text_width("café", 10)


# -- map ------------------------------------------------------------------------------------------


def test_every_point_of_a_map_is_drawn_once_and_knows_its_index() -> None:
    words = [f"domain {i % 9}" for i in range(30)]
    points = np.arange(60.0).reshape(30, 2)
    figure = point_map(points, words, words, "Domain", STYLE)
    drawn = {
        int(i): (x, y) for t in figure.data for i, x, y in zip(t.customdata, t.x, t.y, strict=True)
    }
    assert drawn == {i: (2.0 * i, 2.0 * i + 1) for i in range(30)}
    # The six most common ones and the others, distinguished by more than color.
    assert [t.name.split(" (")[0] for t in figure.data][-1] == "others"
    assert len({(t.marker.color, t.marker.symbol) for t in figure.data}) == 7


def test_a_map_in_webgl_uses_plain_discs() -> None:
    """Symbols and outlines would halve its frame rate; colors stay distinct, and SVG keeps both."""
    words = [f"domain {i % 9}" for i in range(30)]
    for colors in (words, np.arange(30.0), np.full(30, np.nan)):
        for trace in point_map(np.zeros((30, 2)), colors, words, "D", STYLE, webgl=True).data:
            assert trace.marker.symbol in (None, "circle") and not trace.marker.line.width
    figure = point_map(np.zeros((30, 2)), words, words, "D", STYLE, webgl=True)
    assert len({t.marker.color for t in figure.data}) == 7


def test_unknown_values_of_a_map_are_gray_and_zero_is_the_midpoint() -> None:
    values = np.array([np.nan, -2.0, 1.0])
    figure = point_map(np.zeros((3, 2)), values, list("abc"), "Index", STYLE, diverging=True)
    grey, known = figure.data
    assert list(grey.customdata) == [0] and list(known.customdata) == [1, 2]
    assert (known.marker.cmin, known.marker.cmax) == (-2, 2)


def test_a_map_of_many_points_uses_webgl_on_request() -> None:
    assert point_map(np.zeros((1, 2)), ["a"], ["a"], "D", STYLE, webgl=True).data[0].type == (
        "scattergl"
    )


def over_whole_texts(model: str, until: int) -> PositionCurve:
    """Of twenty documents, half are read up to the bin `until`."""
    rows = np.ones((20, 100))
    rows[10:, until:] = np.nan
    rows[9:10, 90:] = np.nan
    about: Any = {"model": model, "dataset": "d", "n_truncated": 10, "n_failed": 0}
    return average(rows, list(range(20)), method=over_text(make_method("saliency")), **about)


def test_means_over_whole_texts_end_where_few_were_read_and_state_the_number() -> None:
    found, whole = over_whole_texts("a", 50), over_whole_texts("b", 100)
    figure: Any = curve_figures.mean_curves([found], STYLE)
    band, line, read = figure.data
    # From bin 90 on, nine documents remain.
    assert np.isfinite(line.y).tolist() == [b < 90 for b in range(100)]
    assert len(band.x) == 180 and np.isfinite(band.y).all() and max(band.x) == 89.5
    assert read.yaxis == "y2" and read.y[[0, 49, 50, 89, 99]].tolist() == [100, 100, 50, 50, 45]
    assert figure.layout.xaxis.title.text.startswith("Position in the text")
    whole = replace(whole, n_read=np.full(100, 20), mean=np.ones(100))
    # Two bands and two lines; a model that read everything has no third.
    assert len(curve_figures.mean_curves([found, whole], STYLE).data) == 5
    assert len(curve_figures.mean_curves([whole], STYLE).data) == 2
    with pytest.raises(ValueError, match="common axis"):
        curve_figures.mean_curves([found, curve()], STYLE)


def test_figures_side_by_side_have_one_range_if_all_are_fixed() -> None:
    low, high, free = (go.Figure() for _ in range(3))
    low.update_yaxes(range=[0.7, 1.0])
    high.update_yaxes(range=[0.8, 1.03])
    figure_base.same_range([low, free])
    assert low.layout.yaxis.range == (0.7, 1.0) and free.layout.yaxis.range is None
    figure_base.same_range([low, high])
    assert low.layout.yaxis.range == high.layout.yaxis.range == (0.7, 1.03)


@pytest.mark.parametrize(
    ("methods", "title"),
    [
        ([relocation_method()], figure_base.READ_TITLE),
        ([ablation_method()], figure_base.POSITION_TITLE),
        ([segments_method("segments")], figure_base.POSITION_TITLE),
        ([segments_method("thirds")], figure_base.POSITION_TITLE),
        ([make_method("saliency"), relocation_method()], figure_base.POSITION_TITLE),
    ],
)
def test_only_positions_of_relocated_evidence_count_characters(
    methods: list[Method], title: str
) -> None:
    curves = [replace(curve(), method=method) for method in methods]
    assert curve_figures.mean_curves(curves, STYLE).layout.xaxis.title.text == title


@pytest.mark.parametrize(
    ("name", "normalization", "title"),
    [
        ("saliency", "none", "Saliency (‖∂s/∂e‖₂)"),
        ("profile", "none", "Profile (‖∂v/∂e‖F)"),
        ("decomposition", "none", "Contribution (share of the score)"),
        ("saliency", "max", "Saliency (1 = document's maximum)"),
    ],
)
def test_axis_titles_state_the_methods_unit(name: str, normalization: str, title: str) -> None:
    method = make_method(name, {"normalization": normalization})
    assert figure_base.quantity(method) == title

"""Every format can be read back, states its provenance, and executes nothing."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from plotly.offline import get_plotlyjs

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.positions import positions
from poslens.attribution.types import (
    Attribution,
    EvidenceSpan,
    Method,
    PositionCurve,
    Provenance,
    TextPair,
    Token,
    TokenizedText,
)
from poslens.export import files as export_files
from poslens.export.files import (
    attribution_frame,
    curve_frame,
    figure_bytes,
    file_name,
    table_bytes,
    table_files,
    zipped,
)
from poslens.export.inscription import inscribed
from poslens.figures.curves import mean_curves
from poslens.figures.palettes import PRESETS
from poslens.rows import Table
from poslens.studies.bias.tables import BiasRow
from poslens.studies.cause.agreement import MethodAgreementRow
from tests.support.chromium import chromium

STYLE = PRESETS["single column"]
PROVENANCE = Provenance(
    poslens="0.1.0",
    model="</script><b>Modell</b> 模型 \x01",
    model_source="here",
    weights="sha256:00",
    method="saliency(norm=l2)",
    dataset="a -- > b, =HYPERLINK(1)",
    n_pairs=3,
    max_length=512,
    truncated=1,
    precision="float32",
    prompts="Instruct: x\nQuery: {query} # not a comment",
)
ENTRY = PROVENANCE.entry()
FORMULAS = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "＝1"]
CURVE = PositionCurve(
    model="m",
    dataset="d",
    method=Method("saliency", {"norm": "l2"}),
    mean=np.linspace(0, 1, 100, dtype=np.float32),
    std=np.full(100, 0.1, dtype=np.float32),
    ci_low=np.linspace(-0.1, 0.9, 100, dtype=np.float32),
    ci_high=np.linspace(0.1, 1.1, 100, dtype=np.float32),
    positions=positions("bin_mean"),
    n=3,
    n_documents=2,
    n_truncated=1,
    n_failed=2,
)
FRAME = pd.DataFrame(
    {
        "token": ['"quoted", #1', "two\nlines", "crlf\r\n", "Ünïcödé 模型", "", "plain"],
        "score": [-1.5, 0.1, np.nan, np.inf, 3e-12, 2.0],
        "count": [-1, 2, 3, 4, 5, 6],
        "flag": pd.array([True, False, None, True, True, False], dtype="boolean"),
    }
)


@pytest.fixture(scope="module")
def figure() -> go.Figure:
    return mean_curves([CURVE], STYLE)


# -- figures ------------------------------------------------------------------------------------


def test_png_has_the_requested_resolution_and_its_provenance(figure: go.Figure) -> None:
    with Image.open(io.BytesIO(figure_bytes(figure, "png", STYLE, PROVENANCE))) as image:
        assert image.size == (1050, 750)
        assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
        assert json.loads(image.info["provenance"]) == [ENTRY]
        colors = image.convert("RGB").getcolors(1 << 20) or []
        assert len(colors) > 10, "something is drawn"


def test_svg_parses_and_contains_its_provenance(figure: go.Figure) -> None:
    svg = ET.fromstring(figure_bytes(figure, "svg", STYLE, PROVENANCE))
    space = "{http://www.w3.org/2000/svg}"
    assert (svg.get("width"), svg.get("height")) == ("336", "240")
    assert json.loads(svg.findtext(f"{space}metadata") or "") == [ENTRY]
    assert "Modell" in (svg.findtext(f"{space}desc") or "")
    points = svg.findall(f".//{space}g[@class='points']/*")
    assert 3 < len(points) < 10, "a symbol now and then, and no invisible markers"
    assert not [one for one in points if "opacity: 0;" in one.get("style", "")]


def pdf_information(data: bytes) -> dict[str, str]:
    """The information dictionary, found from the end like a PDF reader does."""
    start = int(re.findall(rb"startxref\s+(\d+)", data)[-1])
    assert data[start : start + 4] == b"xref"
    number = re.findall(rb"/Info (\d+) 0 R", data[start:])[-1]
    lines = data[start:].split(b"\n")
    assert lines[1:4] == [b"0 1", b"0000000000 65535 f ", number + b" 1"]
    at = int(lines[4].split()[0])
    assert data[at:].startswith(number + b" 0 obj")
    entries = re.findall(rb"/(\w+) <FEFF([0-9A-F]*)>", data[at:start])
    return {key.decode(): bytes.fromhex(text.decode()).decode("utf-16-be") for key, text in entries}


def unpacked(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


def test_pdf_has_the_requested_size_and_contains_its_provenance(figure: go.Figure) -> None:
    data = figure_bytes(figure, "pdf", STYLE, PROVENANCE)
    assert data.startswith(b"%PDF")
    assert b"/MediaBox [0 0 252 180]" in data, "3.5 in x 2.5 in in points"
    # The drawing fills the page; kaleido's margins would shift it and cut off the bottom.
    (drawing,) = [
        text
        for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL)
        if b" cm\n" in (text := unpacked(stream))
    ]
    scale = re.match(rb"([\d.]+) 0 0 -[\d.]+ 0 180 cm", drawing)
    clip = re.search(rb"([\d.]+) ([\d.]+) ([\d.]+) ([\d.]+) re\nW", drawing)
    assert scale and clip
    box = [float(scale[1]) * float(number) for number in clip.groups()]
    assert box == pytest.approx([0, 0, 252, 180], abs=0.01)
    information = pdf_information(data)
    assert json.loads(information["Keywords"]) == [ENTRY]
    assert "模型" in information["Title"]


def test_pdf_of_another_shape_is_refused(figure: go.Figure) -> None:
    with pytest.raises(RuntimeError, match="trailer"):
        inscribed(b"%PDF-1.7 no table", "pdf", "t", [ENTRY])


def test_html_is_self_contained(figure: go.Figure) -> None:
    page = figure_bytes(figure, "html", STYLE, PROVENANCE).decode()
    found = re.search(r'<script type="application/json" id="provenance">(.*?)</script>', page)
    assert found and json.loads(found[1]) == [ENTRY]
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", page)
    packed = re.search(r'<script type="application/gzip" id="plotly">(.*?)</script>', page)
    assert packed and gzip.decompress(base64.b64decode(packed[1])).decode() == get_plotlyjs()
    assert len(page) < 2_100_000, "plotly.js alone has 4.8 MB"
    assert "<b>Modell" not in page


def test_html_draws_without_a_network(figure: go.Figure, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    path = tmp_path / "figure.html"
    path.write_bytes(figure_bytes(figure, "html", STYLE, PROVENANCE))
    asked: list[str] = []
    errors: list[str] = []
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium())
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.goto(path.as_uri())
        page.wait_for_selector(".scatterlayer .js-line")
        # A click on the plot selects a point and names its bin.
        page.evaluate(
            "document.getElementById('figure').on('plotly_selected',"
            " e => window.picked = e && e.points.map(p => p.customdata))"
        )
        box = page.locator(".nsewdrag").first.bounding_box()
        for n in range(600):  # plotly only reacts to some of the moves
            y = box["y"] + box["height"] * 0.5 + n % 2
            page.mouse.move(box["x"] + box["width"] * 0.505, y)
            page.wait_for_timeout(100)
            if "50.5%" in (hovered := page.locator(".hoverlayer").text_content()):
                break
        page.mouse.down()
        page.mouse.up()
        page.wait_for_function("window.picked && window.picked.length", timeout=60_000)
        picked = page.evaluate("window.picked")
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []
    assert picked == [50]
    # The axis title says what the position refers to, which differs between figures.
    assert "50.5%" in hovered and "0.5051" in hovered
    assert "document" not in hovered and "bin" not in hovered


@pytest.mark.parametrize("touch", [False, True])
def test_the_toolbar_does_not_cover_the_legend(
    figure: go.Figure, tmp_path: Path, touch: bool
) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    path = tmp_path / "figure.html"
    path.write_bytes(figure_bytes(figure, "html", STYLE, PROVENANCE))
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium())
        page = browser.new_page(has_touch=touch, is_mobile=touch)
        page.goto(path.as_uri())
        page.wait_for_selector(".scatterlayer .js-line")
        toolbar = page.locator(".modebar")
        if touch:
            assert not toolbar.is_visible()
        else:
            page.mouse.move(700, 700)
            buttons = page.locator(".modebar-group").first
            playwright.expect(buttons).to_have_css("opacity", "0")
            page.locator(".nsewdrag").first.hover()
            playwright.expect(buttons).to_have_css("opacity", "1")
        page.emulate_media(media="print")
        assert not toolbar.is_visible()
        browser.close()


def test_json_is_plotly_json_with_provenance(figure: go.Figure) -> None:
    data = figure_bytes(figure, "json", STYLE, [PROVENANCE, replace(PROVENANCE, model="other")])
    back: Any = plotly.io.from_json(data.decode())
    models = [entry["model"] for entry in back.layout.meta["provenance"]]
    assert models == [PROVENANCE.model, "other"]
    assert back.layout.meta["figure"] == "mean_curves"
    drawn: Any = figure
    assert len(back.data) == len(drawn.data)


def test_exporting_changes_no_figure(figure: go.Figure) -> None:
    before = figure.to_json()
    for fmt in ("svg", "json", "html"):
        figure_bytes(figure, fmt, STYLE, PROVENANCE)
    assert figure.to_json() == before


def test_figures_without_provenance_or_of_another_width_are_refused(figure: go.Figure) -> None:
    with pytest.raises(ValueError):
        figure_bytes(figure, "json", STYLE, [])
    with pytest.raises(ValueError):
        figure_bytes(figure, "png", PRESETS["screen"], PROVENANCE)


# -- tables -------------------------------------------------------------------------------------


def test_csv_is_read_back_by_pandas() -> None:
    data = table_bytes(FRAME, "csv", PROVENANCE)
    assert list(pd.read_csv(io.BytesIO(data)).columns) == list(FRAME.columns), "no options needed"
    back = pd.read_csv(io.BytesIO(data), keep_default_na=False, na_values={"score": ""})
    assert back["token"].tolist() == FRAME["token"].tolist()
    expected = FRAME["score"].replace(np.inf, np.nan)
    np.testing.assert_array_equal(back["score"], expected)
    assert back["count"].tolist() == FRAME["count"].tolist()
    assert back["flag"].astype(str).tolist() == ["True", "False", "", "True", "True", "False"]


def test_provenance_of_a_csv_is_a_separate_file() -> None:
    both = [PROVENANCE, replace(PROVENANCE, model="other")]
    files = table_files(FRAME, "tide.csv", "csv", both)
    assert list(files) == ["tide.csv", "tide.provenance.json"]
    assert files["tide.csv"] == table_bytes(FRAME, "csv", both)
    assert json.loads(files["tide.provenance.json"]) == [ENTRY, {**ENTRY, "model": "other"}]
    assert list(table_files(FRAME, "tide.parquet", "parquet", both)) == ["tide.parquet"]
    packed = zipped(files)
    assert packed == zipped(dict(files))
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == files


def test_csv_contains_no_formulas() -> None:
    frame = pd.DataFrame({"=name": [*FORMULAS, "a=1"], "number": np.arange(9) - 4.5})
    frame["mixed"] = pd.Series(["=x", -1, None, 2.5, "ok", 1, 1, 1, 1], dtype=object)
    frame["kind"] = pd.Categorical(["=a", "b", "b", "b", "b", "b", "b", "b", "b"])
    data = table_bytes(frame, "csv", PROVENANCE)
    back = pd.read_csv(io.BytesIO(data))
    assert back["'=name"].tolist() == [f"'{text}" for text in FORMULAS] + ["a=1"]
    assert back["number"].tolist() == frame["number"].tolist(), "numbers are untouched"
    assert back["mixed"].tolist()[:2] == ["'=x", "-1"]
    assert back["kind"].tolist()[:2] == ["'=a", "b"]
    assert '"=' not in data.decode()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1))
def test_any_text_survives_csv_except_a_leading_quote(texts: list[str]) -> None:
    data = table_bytes(pd.DataFrame({"t": texts, "n": range(len(texts))}), "csv", PROVENANCE)
    # Read as text, since pandas would read "01" as the number 1.
    back = pd.read_csv(io.BytesIO(data), keep_default_na=False, dtype={"t": str})
    assert [text.removeprefix("'") for text in back["t"]] == [t.removeprefix("'") for t in texts]


def test_parquet_is_read_back_with_its_provenance() -> None:
    data = table_bytes(FRAME, "parquet", PROVENANCE)
    back = pd.read_parquet(io.BytesIO(data))
    pd.testing.assert_frame_equal(back, FRAME, check_dtype=False)
    assert back.attrs["provenance"] == [ENTRY]
    metadata = pq.read_schema(io.BytesIO(data)).metadata
    assert json.loads(metadata[b"provenance"]) == [ENTRY]
    assert FRAME.attrs == {}, "the caller's frame is untouched"


def test_json_has_rows_and_no_nan() -> None:
    data = table_bytes(FRAME, "json", PROVENANCE)
    parsed = json.loads(data, parse_constant=lambda name: pytest.fail(name))
    assert parsed["provenance"] == [ENTRY]
    assert [row["score"] for row in parsed["rows"]] == [-1.5, 0.1, None, None, 3e-12, 2.0]
    assert parsed["rows"][2] == {"token": "crlf\r\n", "score": None, "count": 3, "flag": None}


def test_latex_sets_intervals_in_one_cell_and_names_the_test_in_its_note() -> None:
    frame = pd.DataFrame(
        {
            "model": ["A_1 & 50%", "B\\{}"],
            "gain": [0.5, -0.1234],
            "gain_low": [0.4, None],
            "gain_high": [0.6, None],
            "verdict": ["higher", "too few documents"],
            "n": pd.array([12, None], dtype="Int64"),
        }
    )
    text = table_bytes(
        frame, "tex", replace(PROVENANCE, interval="95%, bootstrap over 9 documents")
    )
    lines = text.decode().splitlines()
    assert r"\begin{tabular}{lrlr}" in lines and r"model & gain & verdict & n \\" in lines
    assert r"A\_1 \& 50\% & 0.500 [0.400, 0.600] & higher & 12 \\" in lines
    assert r"B\textbackslash{}\{\} & $-$0.123 & too few documents &  \\" in lines
    (note,) = (line for line in lines if line.startswith(r"\footnotesize"))
    assert r"95\%, bootstrap over 9 documents" in note and "two one-sided tests" in note
    plain = table_bytes(frame.drop(columns="verdict"), "tex", PROVENANCE).decode()
    # A number that rounds to 0 has no minus sign; the end of an interval keeps it.
    small = pd.DataFrame({"gain": [-1e-5, 0.1], "gain_low": [-2e-4, -0.0], "gain_high": [0.01, 1]})
    cells = table_bytes(small, "tex", PROVENANCE).decode().splitlines()
    assert r"0.000 [$-$0.000, 0.010] \\" in cells and r"0.100 [0.000, 1.000] \\" in cells
    tiny = pd.DataFrame({"gain": [2e-5, 3e-4], "gain_low": [0.0, 0.0], "gain_high": [4e-5, 5e-4]})
    assert r"[0.000, 4.00$\cdot10^{-5}$] \\" in table_bytes(tiny, "tex", PROVENANCE).decode()
    assert "one-sided" not in plain and plain.count("{") == plain.count("}")


def test_latex_has_minus_signs_powers_and_words_instead_of_program_notation() -> None:
    frame = pd.DataFrame({"token": ["a -4.5e-08", "lr-2e-5"], "is_special": [True, False]})
    entry = replace(
        PROVENANCE, model="m", dataset="typed", method_preference="-0.06 [-0.12, +0.00]"
    )
    text = table_bytes(frame, "tex", entry).decode()
    assert r"a $-$4.5$\cdot10^{-8}$ & yes \\" in text and r"lr-2e-5 & no \\" in text
    assert "m on typed texts" in text and "$-$0.06 [$-$0.12, +0.00]" in text


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("é – “a” ± − < ≤ zażółć „x“", r" and \usepackage[T1]{fontenc}."),
        ("Ħal", ", XeLaTeX or LuaLaTeX, and a font for all scripts."),
        ("模型", ", XeLaTeX or LuaLaTeX, and a font for all scripts."),
        ("море", ", XeLaTeX or LuaLaTeX, and a font for all scripts."),
        ("a → b", ", XeLaTeX or LuaLaTeX, and a font for all scripts."),
        (
            "می\u200cخواهم",
            r", \usepackage[english,bidi=basic]{babel}, LuaLaTeX, and a font for all scripts.",
        ),
        (
            "שָׁלוֹם",
            r", \usepackage[english,bidi=basic]{babel}, LuaLaTeX, and a font for all scripts.",
        ),
    ],
)
def test_latex_names_the_engines_and_packages_that_its_characters_need(
    text: str, engine: str
) -> None:
    frame = pd.DataFrame({"token": [text, "b"], "x": [0.1, 0.2]})
    table = table_bytes(frame, "tex", replace(PROVENANCE, model="m")).decode()
    assert table.startswith(rf"% Needs \usepackage{{booktabs,adjustbox}}{engine}")
    assert table.count("\u200c") == text.count("\u200c"), "joiners change letters"


def test_a_long_table_in_latex_breaks_across_pages_and_repeats_no_constant() -> None:
    frame = pd.DataFrame({"method": ["saliency(version=1)"] * 60, "x": np.arange(60) / 1e4})
    frame["x_low"], frame["x_high"] = frame["x"] - 0.01, frame["x"] + 0.01
    lines = table_bytes(frame, "tex", PROVENANCE).decode().splitlines()
    assert lines[0].startswith(r"% Needs \usepackage{booktabs,longtable}")
    assert r"\onecolumn" in lines[1] and lines[2].startswith("% Provenance: poslens: ")
    assert r"\begin{longtable}{r}" in lines and r"\endhead" in lines
    assert lines[-1].startswith(
        r"\noindent\footnotesize\sloppy In every row, method: saliency(version=1)."
    )
    assert sum("saliency(version=1)" in line for line in lines if not line.startswith("%")) == 1
    # One format in a cell, although the value itself is small.
    assert r"0.000 [$-$0.010, 0.010] \\" in lines and r"0.001 [$-$0.009, 0.011] \\" in lines
    quoted = pd.DataFrame({"note": ['is "equivalent"', "no"]})
    assert "``equivalent''" in table_bytes(quoted, "tex", PROVENANCE).decode()


def test_latex_has_a_short_caption_its_own_label_and_only_columns_that_differ() -> None:
    rows = [
        BiasRow(
            model, "position", "Position", "", 12, 12, 1.5, 0.04, 0.08, Estimate(0.5, 0.4, 0.6),
            0.25, 0.5, 0.5, "d2", 0.75, 0.25, 0, 0, 0, None, 0, 0, "primacy", "pairs_1", "",
        )
        for model in ("A", "B")
    ]  # fmt: skip
    frame = Table(BiasRow, lambda row: [row], "Bias tests").frame(rows)
    entries = [
        replace(
            PROVENANCE, model=name, method="bias_scores", dataset="news", n_pairs=12, n_documents=7
        )
        for name in "AB"
    ]
    (text,) = table_files(frame, "bias_1.tex", "tex", entries).values()
    lines = text.decode().splitlines()
    caption = r"\caption{Bias tests: A and B on news (12 pairs, 7 documents).}\label{tab:bias-1}"
    assert caption in lines
    # Measured numbers are results even if they are the same in all rows; empty columns are left
    # out.
    heading = next(lines[at + 1] for at, line in enumerate(lines) if line == r"\toprule")
    for title in ("model & ", "p (Holm)", "mean difference", r"d\_z", "mean s(d1)"):
        assert title in heading
    stacked = r"\begin{tabular}[c]{@{}r@{}}+0.5000\\{}[+0.4000, +0.6000]\end{tabular}"
    assert any(line.startswith("A & ") and stacked in line for line in lines)
    assert r"\begin{table*}" in lines and r"\begin{adjustbox}{max width=\linewidth}" in lines
    (note,) = (line for line in lines if line.startswith(r"\footnotesize"))
    assert r"pairs: pairs\_1" in note and "n: 12" in note
    assert "variant" not in note and "remarks" not in note and r"12 pairs" in note
    (text,) = table_files(frame.head(1), "x.tex", "tex", entries).values()
    assert r" & d\_z & " in text.decode(), "a single row keeps its columns"


def test_a_table_of_any_ids_compiles(tmp_path: Path) -> None:
    """A row can begin with a bracket or a star, which line ends and rules take as arguments."""
    ids = ["[d0", "*d2", "q--1", "-5", "d{3}%", "a_b & ~^\\", "„zażółć«", "x" * 80 + " " + "y" * 80]
    frame = pd.DataFrame({"id": ids, "score": np.arange(8) / 1e5, "p": [0.5, 1e-9] * 4})
    frame["score_low"], frame["score_high"] = frame["score"] - 1e-4, frame["score"] + 1e-4
    frame["remark"] = "a long remark that wraps in a table which is too wide, 12 words"
    plain = replace(PROVENANCE, model="m", dataset="d")
    text = table_bytes(frame.assign(n=range(8)), "tex", plain).decode()
    lines = text.splitlines()
    assert any(line.startswith("{}[d0 & ") for line in lines)
    assert any(line.startswith("{}*d2 & ") for line in lines)
    assert "q-{}-1 & " in text and "$-$5 & " in text and r"\textless{} 0.001" in text
    assert r"7.00$\cdot10^{-5}$\\{}[$-$3.00$\cdot10^{-5}$, 1.70$\cdot10^{-4}$]" in text
    long = pd.concat([frame] * 9)
    wide = long.assign(**{f"x{n}": long["score"] for n in range(8)})
    tables = {"float": text}
    for name, each in (("long", long), ("wide", wide)):
        tables[name] = table_bytes(each, "tex", plain).decode()
    assert [r"\begin{landscape}" in table for table in tables.values()] == [False, False, True]
    if shutil.which("pdflatex") is None:
        pytest.skip("needs pdflatex with booktabs and adjustbox (Debian: texlive-latex-extra)")
    for name, table in tables.items():
        (tmp_path / f"{name}.tex").write_text(
            "\\documentclass{article}\\usepackage[T1]{fontenc}"
            "\\usepackage{booktabs,adjustbox,longtable,pdflscape}"
            f"\\begin{{document}}\n{table}\\end{{document}}\n",
            encoding="utf-8",
        )
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300)
        output = ended.stdout.decode("utf-8", "replace")
        assert ended.returncode == 0 and "Overfull" not in output, output[-2000:]


@pytest.mark.parametrize(
    ("columns", "header", "cell"),
    [
        (("mean", "std", "ci_low", "ci_high"), "mean & std", "1.000 [3.000, 4.000] & 2.000"),
        (("value", "low", "high", "n"), "value & n", "1.000 [2.000, 3.000] & 4.000"),
        (("nDCG@10", "nDCG@10 low", "nDCG@10 high"), "nDCG@10", "1.000 [2.000, 3.000]"),
        (("low", "high", "x_low"), "low & high & x low", "1.000 & 2.000 & 3.000"),
    ],
)
def test_latex_recognizes_all_names_of_interval_columns(
    columns: tuple[str, ...], header: str, cell: str
) -> None:
    frame = pd.DataFrame([[float(n) for n in range(1, len(columns) + 1)]], columns=list(columns))
    lines = table_bytes(frame, "tex", PROVENANCE).decode().splitlines()
    assert rf"{header} \\" in lines and rf"{cell} \\" in lines


def test_notes_in_latex_name_the_test_used() -> None:
    verdicts = pd.DataFrame({"gain": [0.5], "gain_verdict": ["higher"], "gain_p_holm": [0.01]})
    jackknife = replace(PROVENANCE, interval="95%, jackknife over 9 documents")
    text = table_bytes(verdicts, "tex", jackknife).decode()
    assert "Student's t" in text and "bootstrap" not in text
    assert "Student's t with the jackknife" in table_bytes(verdicts, "tex", PROVENANCE).decode()
    psi = pd.DataFrame({"PSI": [0.3], "PSI under permutation": [0.2], "p": [0.1]})
    text = table_bytes(psi, "tex", PROVENANCE).decode()
    assert "share of permutations" in text and "one-sided" not in text


@pytest.mark.parametrize("fmt", export_files.TABLE_FORMATS)
def test_lone_surrogates_break_no_table(fmt: export_files.TableFormat) -> None:
    # pandas refuses them in its text type, but an object column and its name may contain them.
    frame = pd.DataFrame({"x": pd.Series(["a\udfff", None], dtype=object)})
    frame.columns = pd.Index(["t\ud800"], dtype=object)
    assert "a\ufffd".encode() in table_bytes(frame, fmt, PROVENANCE)
    assert list(frame.columns) == ["t\ud800"], "the caller's frame is untouched"


@pytest.mark.parametrize("fmt", export_files.TABLE_FORMATS)
def test_empty_tables_can_be_written(fmt: export_files.TableFormat) -> None:
    assert table_bytes(FRAME.iloc[:0], fmt, PROVENANCE)


def test_tables_without_provenance_are_refused() -> None:
    with pytest.raises(ValueError):
        table_bytes(FRAME, "csv", [])


def tokens(*texts: tuple[str, int, int, bool]) -> TokenizedText:
    return TokenizedText.of(tuple(Token(*text) for text in texts), len(texts), 512)


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def test_attribution_frame_has_a_row_for_each_token() -> None:
    special = ("[CLS]", 0, 0, True)
    odd = tokens(("\ud800", 0, 1, False))
    broken = Attribution("m", Method("saliency"), "p", 0.5, odd, odd, floats(1), floats(1))
    assert attribution_frame(broken, TextPair("p", "x", "y"))["token"].tolist() == ["\ufffd"] * 2
    query = tokens(special, ("who", 0, 3, False))
    document = tokens(special, ("the", 0, 3, False), ("old", 4, 7, False), ("king", 8, 12, False))
    attribution = Attribution(
        "m", Method("saliency"), "p", 0.5, query, document, floats(0, 1), floats(0, 1, 2, 3)
    )
    pair = TextPair("p", "who", "the old king", EvidenceSpan(3, 8))
    frame = attribution_frame(attribution, pair)
    assert frame["side"].tolist() == ["query"] * 2 + ["document"] * 4
    assert frame["index"].tolist() == [0, 1, 0, 1, 2, 3]
    assert frame["token"].tolist() == ["[CLS]", "who", "[CLS]", "the", "old", "king"]
    assert frame["score"].tolist() == [0, 1, 0, 1, 2, 3]
    np.testing.assert_allclose(frame["position"], [np.nan] * 3 + [1 / 6, 3 / 6, 5 / 6])
    # [3, 8) starts at the end of "the" and ends at the start of "king", so only "old" is inside.
    assert frame["in_evidence"].tolist() == [False, False, False, False, True, False]
    without = attribution_frame(attribution, replace(pair, evidence=None))
    assert without["in_evidence"].isna().all()
    for fmt in export_files.TABLE_FORMATS:
        assert table_bytes(frame, fmt, PROVENANCE)


def test_curve_frame_has_a_row_for_each_bin() -> None:
    frame = curve_frame([CURVE, replace(CURVE, model="other")])
    assert list(frame.columns) == [
        *("model", "dataset", "method", "bin", "position", "mean", "std", "ci_low", "ci_high"),
        *("lower_quartile", "median", "upper_quartile", "magnitude"),
        *("n", "n_documents", "n_truncated", "n_failed", "n_read"),
    ]
    assert len(frame) == 200 and frame["bin"].tolist() == [*range(100)] * 2
    np.testing.assert_array_equal(frame["position"][:100], CURVE.positions)
    np.testing.assert_array_equal(frame["mean"][:100], CURVE.mean)
    np.testing.assert_array_equal(frame["ci_high"][100:], CURVE.ci_high)
    assert frame["method"].unique().tolist() == ["saliency(norm=l2)"]
    names = ["lower_quartile", "median", "upper_quartile"]
    assert frame[names].isna().all(axis=None)
    quartiles = np.arange(300, dtype=np.float32).reshape(3, 100)
    frame = curve_frame([replace(CURVE, quartiles=quartiles)])
    np.testing.assert_array_equal(frame[names].to_numpy().T, quartiles)


def test_curve_frame_has_the_positions_of_the_resampling_and_no_missing_band() -> None:
    sampled = replace(CURVE, positions=positions("point"), ci_low=None, ci_high=None)
    frame = curve_frame([sampled])
    np.testing.assert_allclose(frame["position"], np.arange(100) / 99)
    assert frame[["ci_low", "ci_high"]].isna().all(axis=None)
    assert b"nan" not in table_bytes(frame, "csv", PROVENANCE).lower()


# -- names --------------------------------------------------------------------------------------


@given(st.lists(st.text(), max_size=4), st.text(max_size=12))
def test_file_names_are_safe(parts: list[str], fmt: str) -> None:
    name = file_name(*parts, fmt=fmt)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.[a-z0-9]+", name)
    assert len(name) <= 80 and ".." not in name


def test_file_names_state_their_contents() -> None:
    assert file_name("Qwen/Qwen3", "PosIR/eng", fmt="csv") == "Qwen-Qwen3_PosIR-eng.csv"
    assert file_name("../../etc/passwd", fmt="png") == "etc-passwd.png"
    assert file_name("模型", fmt="svg") == "poslens.svg"
    assert file_name("con", fmt="csv") == "poslens_con.csv"
    assert file_name("x" * 500, fmt="parquet").endswith("x.parquet")


def test_long_file_names_are_distinct_and_state_what_the_file_contains() -> None:
    pair, models = "architecture-classical-orders-q1", ("MiniLM-primacy", "MiniLM-recency")
    contents = ("curves", "difference", "mean difference", "heatmap", "numbers", "mean numbers")
    names = [
        file_name(pair, *models, method, content, fmt="tex")
        for content in contents
        for method in ("decomposition(normalization=p99)", "decomposition(normalization=max)")
    ]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 80
    for name, content in zip(names, [each for each in contents for _ in range(2)], strict=True):
        assert name.startswith(pair) and name.endswith(f"_{content.replace(' ', '-')}.tex")


def test_latex_has_titles_of_methods_where_other_files_have_names() -> None:
    row = MethodAgreementRow("A", "saliency", "relocation", 30, 30, 0, None, Estimate(0.5))
    frame = Table(MethodAgreementRow, lambda row: [row], "Agreement").frame(
        [row, replace(row, method="occlusion", mean_over_pairs=Estimate(0.25))]
    )
    assert frame["method"].tolist() == ["saliency", "occlusion"]
    text = table_bytes(frame, "tex", PROVENANCE).decode()
    assert "Gradient saliency & " in text and r"Occlusion & " in text

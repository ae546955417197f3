"""All models on one page: the table compared with the cards, the chart, the HTML page in a
browser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.retrievers import resolve as resolving
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.compute.compute import Compute
from poslens.dashboard.__main__ import app
from poslens.dashboard.widgets.tables import column_settings
from poslens.figures.palettes import Style
from poslens.studies.passport import cohort
from poslens.studies.passport import service as passports
from poslens.studies.passport.document import document_bytes
from poslens.studies.passport.service import ModelPassport
from poslens.study_part import Number, Part
from tests.support.chromium import chromium
from tests.support.pages import open_page

NAMES = ["MiniLM", "MiniLM-primacy", "MiniLM-recency", "BM25"]


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> list[ModelPassport]:
    """Cards of the shipped models, from the shipped results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSLENS_SHIPPED", "yes")
        compute = Compute(tmp_path_factory.mktemp("cohort"))
    data = datasets.read("sample")
    only = ["position_effect", "ranking", "relocation"]
    specs = [
        with_corpus(resolve(name), "sample") if name == "BM25" else resolve(name) for name in NAMES
    ]
    return [passports.passport(compute, spec, data, only=only) for spec in specs]


def test_rows_equal_the_numbers_of_the_cards(cards: list[ModelPassport]) -> None:
    frame = cohort.TABLE.frame(cards).set_index("model")
    assert list(frame.index) == NAMES
    for card in cards:
        numbers = {n.key: n.estimate for part in card.parts for n in part.numbers}
        effect, own = numbers["first_minus_last"], frame.loc[card.name]
        assert own["ndcg_at_10"] == numbers["ndcg_at_10"].value
        assert own["position_effect"] == effect.value
        assert (own["position_effect_low"], own["position_effect_high"]) == effect.interval
        assert pd.isna(own["needles"]), "the card lacks this part"
    # The planted bias, with the sign that the column's description states.
    assert frame.loc["MiniLM-primacy", "position_effect"] > 0
    assert frame.loc["MiniLM-recency", "position_effect"] < 0


def test_the_chart_has_a_point_with_both_intervals_per_model(cards: list[ModelPassport]) -> None:
    figure = cohort.chart(cards, Style())
    assert len(figure.data) == len(cards)
    for card, trace in zip(cards, figure.data, strict=True):
        each = cohort.row(card)
        assert each.position_effect is not None and each.ndcg_at_10 is not None
        assert (trace.x[0], trace.y[0]) == (each.position_effect.value, each.ndcg_at_10.value)
        high, low = trace.error_x.array[0], trace.error_x.arrayminus[0]
        ends = (trace.x[0] - low, trace.x[0] + high)
        assert ends == pytest.approx(each.position_effect.interval)
        top = trace.y[0] + trace.error_y.array[0]
        assert top == pytest.approx(each.ndcg_at_10.high)
    # The differences of shares are in percentage points, on the chart and in the table.
    needles = Estimate(-0.25, -0.4, -0.1, n=20)
    part = Part("needles", "", "", "needles", numbers=(Number("late_minus_early", "", needles),))
    card = replace(cards[1], parts=(*cards[1].parts, part))
    (trace,) = cohort.chart([card], Style(), "needles").data
    assert trace.x[0] == -25 and trace.error_x.array[0] == pytest.approx(15)
    shown = cohort.page_frame([card]).iloc[0]
    title = cohort.TITLES["needles"]
    assert (shown[title], shown[f"{title}: 95% interval"]) == (-25, "[-40.0, -10.0]")
    settings = column_settings(cohort.TABLE, cohort.FORMS)
    assert settings[title]["type_config"]["format"] == "%+.1f points"
    assert ">-25.0 [-40.0, -10.0] points<" in cohort.overview_html([card], Style())
    # Plotly's own range is 0 to 2 if all values are 1.
    assert figure.layout.yaxis.autorangeoptions.clipmax == pytest.approx(1, abs=0.05)
    moved = cohort.chart(cards, Style(), "relocation")
    assert moved.data[1].x[0] == cohort.row(cards[1]).relocation.value  # type: ignore[union-attr]
    assert moved.data[1].x[0] != figure.data[1].x[0]


def test_traces_and_cards_correspond_if_a_number_is_missing(cards: list[ModelPassport]) -> None:
    empty = replace(cards[0], parts=())
    figure = cohort.chart([empty, cards[1]], Style())
    assert [len(trace.x) for trace in figure.data] == [0, 1]
    assert [trace.showlegend for trace in figure.data] == [False, True]


def test_the_page_table_sorts_by_number(cards: list[ModelPassport]) -> None:
    frame = cohort.page_frame(cards)
    title = cohort.TITLES["position_effect"]
    assert frame[title].dtype == float and list(frame)[:2] == ["model", "nDCG@10"]
    assert list(frame.sort_values(title)["model"])[::3] == ["MiniLM-recency", "MiniLM-primacy"]
    assert frame[f"{title}: 95% interval"].str.match(r"\[[-+]\d\.\d{3}, [-+]\d\.\d{3}\]").all()


def test_the_html_page_sorts_and_filters_without_a_network(
    cards: list[ModelPassport], tmp_path: Path
) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    file = tmp_path / "cohort.html"
    file.write_bytes(document_bytes(cards, "html"))
    wrong: list[str] = []
    asked: list[str] = []
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium())
        page = browser.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        points = page.locator("#cohort-chart .scatterlayer .point")
        playwright.expect(points).to_have_count(4, timeout=60_000)

        def order() -> list[str]:
            return page.locator("#cohort tbody tr:not([hidden]) td:first-child").all_inner_texts()

        assert order() == NAMES
        effect = page.get_by_role("button", name=cohort.TITLES["position_effect"], exact=True)
        effect.click()
        assert order() == ["MiniLM-recency", "BM25", "MiniLM", "MiniLM-primacy"]
        effect.click()
        assert order() == ["MiniLM-primacy", "MiniLM", "BM25", "MiniLM-recency"]
        page.get_by_role("searchbox").fill("lexical")
        assert order() == ["BM25"]
        playwright.expect(page.locator("article:visible h1")).to_have_text(["BM25"])
        playwright.expect(points).to_have_count(1)
        browser.close()
    assert wrong == []
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_one_card_has_no_overview(cards: list[ModelPassport]) -> None:
    assert 'id="cohort"' not in document_bytes(cards[:1], "html").decode()
    named = replace(cards[0], model=replace(cards[0].model, spec=resolve("MiniLM")))
    page = document_bytes([named, cards[1]], "html").decode()
    assert page.count('id="plotly"') == 1, "the library is in it once"


@pytest.mark.usefixtures("own_service")
def test_the_command_accepts_all_models(
    cards: list[ModelPassport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, chart = CliRunner(), tmp_path / "all.svg"
    command = ["passport", "--all", "--stored"]
    empty = run.invoke(app, [*command, "--part", "ranking", "--figure", str(chart)])
    assert empty.exit_code == 2 and "remove --stored" in empty.stderr
    resolving._registered.clear()  # models of other tests' modules
    by_name = {card.name: card for card in cards}
    monkeypatch.setattr(passports, "passport", lambda _, spec, *choice: by_name[spec.name])
    printed = run.invoke(app, [*command, "--figure", str(chart)])
    assert printed.exit_code == 0, printed.stderr
    assert [one["model"] for one in json.loads(printed.stdout)] == NAMES
    assert "nDCG@10" in chart.read_text(encoding="utf-8")
    both = run.invoke(app, [*command, "--model", "BM25"])
    assert both.exit_code == 2 and "--all selects every model: remove --model." in both.stderr


@pytest.mark.usefixtures("own_service")
def test_the_page_filters_models(
    cards: list[ModelPassport], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving._registered.clear()  # models of other tests' modules
    by_name = {card.name: card for card in cards}
    monkeypatch.setattr(passports, "passport", lambda compute, spec, data: by_name[spec.name])
    page = open_page("passport", tab="All models").run()
    assert not page.exception and not page.error
    (table,) = page.dataframe
    assert list(table.value["model"]) == NAMES
    page.text_input(key="passport.filter").set_value("minilm prim").run()
    (table,) = page.dataframe
    assert list(table.value["model"]) == ["MiniLM-primacy"]
    page.text_input(key="passport.filter").set_value("nothing like it").run()
    assert "No model matches the filter." in [one.value for one in page.info]

"""Debias: a grid ranked once, what is recommended of it, the page and the command."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.retrievers.resolve import resolve
from poslens.compute.compute import Compute
from poslens.dashboard.__main__ import app
from poslens.figures.palettes import Style
from poslens.studies.debias import service as debiasing
from poslens.studies.debias import tables
from poslens.studies.debias.figures import front
from poslens.studies.debias.service import DebiasResult
from poslens.studies.ranking import service as ranking_service
from poslens.studies.ranking.service import RankingSetup
from tests.support.nouns import NOUNS
from tests.support.pages import SECONDS, page_file

FILLER = "Filler stands here. " * 8
WORDS = [f"{colour} {noun}" for colour in ("red", "green", "blue") for noun in NOUNS]
WINDOWS = "blocks of 16 tokens, last half of layers"
ROWS = "query,document,evidence\n" + "".join(
    f"what is {word},{FILLER * (n % 3)}The {word} is {word}. {FILLER},The {word} is {word}.\n"
    for n, word in enumerate(WORDS)
)
MINILM = resolve("MiniLM")
SMALL = {"strengths": (0.5, 1.0), "blocks": (16,), "layers": ("half",)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> datasets.DataSet:
    return datasets.read_upload("mine.csv", ROWS.encode())


@pytest.fixture(scope="module")
def found(data: datasets.DataSet, tmp_path_factory: pytest.TempPathFactory) -> DebiasResult:
    compute = Compute(tmp_path_factory.mktemp("debias"))
    setup = RankingSetup(ranking_service.collection_of(data))
    points = debiasing.grid(MINILM, **SMALL)  # type: ignore[arg-type]
    assert debiasing.debias_result(compute, MINILM, points, setup) is None
    run = debiasing.job(compute, MINILM, points, setup).start()
    run.wait()
    assert run.error == ""
    made = debiasing.debias_result(compute, MINILM, points, setup)
    assert made is not None
    assert debiasing.debias_result(compute, MINILM, points, setup) is made
    return made


def test_a_grid_names_each_setting_once() -> None:
    names = [one.name for one in debiasing.grid(MINILM, (0.5, 1.0), (128,), ("half", "3", "all"))]
    assert names == [
        "MiniLM@calibrated",
        "MiniLM@calibrated(strength=1)",
        "MiniLM@calibrated(layers=6)",
        "MiniLM@calibrated(strength=1, layers=6)",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"strengths": ()}, "No setting is left"),
        ({"strengths": (1.5,)}, "from 0 to 1, not 1.5"),
        ({"blocks": (0,)}, "at least 1 token"),
        ({"layers": ("7",)}, "has 6 layers of attention, so 7 cannot"),
        ({"layers": ("deep",)}, "half, all or a whole number, not 'deep'"),
        ({"blocks": tuple(range(1, 40))}, "more than the 64"),
    ],
)
def test_a_bad_grid_is_one_sentence(changes: dict[str, tuple[object, ...]], said: str) -> None:
    with pytest.raises(UserError, match=said):
        debiasing.grid(MINILM, **{"layers": ("half",), **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["BM25", "MiniLM@calibrated"])
def test_what_cannot_be_calibrated_has_no_grid(name: str) -> None:
    with pytest.raises(UserError, match=r"no attention to calibrate|calibrated already"):
        debiasing.grid(resolve(name))


def test_every_setting_is_measured_against_the_plain_model(found: DebiasResult) -> None:
    assert [one.strength for one in found.points] == [0, 0.5, 1]
    assert not found.missing and found.plain.change is None
    before = found.plain.ranked.evaluation.per_query[NDCG]
    for one in found.points[1:]:
        after = one.ranked.evaluation.per_query[NDCG]
        assert one.change is not None
        difference = one.change.mean.difference
        assert difference.value == pytest.approx(float((after - before).mean()), abs=1e-6)
        assert one.ranked.model.key.fingerprint != found.plain.ranked.model.key.fingerprint


def test_a_point_is_chosen_on_one_half_and_judged_on_the_other(found: DebiasResult) -> None:
    judged = found.judgement
    assert judged is not None
    assert (
        judged.n_chosen + judged.before.n == len(WORDS) and len(found.chosen_on) == judged.n_chosen
    )
    rows = [n for n, q in enumerate(found.setup.queries) if q.query_id not in found.chosen_on]
    expected = found.plain.ranked.evaluation.per_query[NDCG][rows].mean()
    assert judged.before.mean.value == pytest.approx(float(expected))
    assert found.recommended is not None
    assert found.recommended.name in debiasing.verdict(found)


def test_nothing_is_recommended_before_all_is_ranked(found: DebiasResult) -> None:
    waiting = replace(found, judgement=None, missing=("MiniLM@calibrated",))
    assert debiasing.verdict(waiting).startswith("No recommendation yet")
    assert waiting.recommended is None


def planted(found: DebiasResult, *scores: np.ndarray) -> DebiasResult:
    """The grid judged again, with `scores` [queries] as the nDCG@10 of each of its points."""
    ranked = [
        replace(
            point.ranked,
            evaluation=replace(point.ranked.evaluation, per_query={NDCG: values}),
        )
        for point, values in zip(found.points, scores, strict=True)
    ]
    queries = [query for query in found.setup.queries if query.evidence is not None]
    return debiasing._evaluated(ranked, (), queries, found.setup)


def ringed(found: DebiasResult) -> bool:
    figure = front(found, "mean", Style(), provenance=found.provenance())
    return any(trace.name == "recommended" for trace in figure.data)


def test_a_setting_that_wins_on_one_half_and_loses_on_the_other_is_not_recommended(
    found: DebiasResult,
) -> None:
    places = np.array([query.evidence for query in found.setup.queries])
    chosen_on = np.array([query.query_id in found.chosen_on for query in found.setup.queries])
    plain = 0.9 - 0.3 * places
    # Better where it is selected, worse on both axes where it is tested.
    worse = np.where(chosen_on, plain + 0.02, plain - 0.3 * places)
    other = planted(found, plain, plain - 0.1, worse)
    assert other.judgement is not None and other.judgement.point is other.points[2]
    assert other.recommended is other.plain and not ringed(other)
    assert debiasing.verdict(other).startswith("No change recommended.")
    assert "On held-out documents, " in debiasing.verdict(other)
    assert "nDCG@10 is lower" in debiasing.verdict(other)
    assert tables.POINTS.frame([other])["recommended"].tolist() == [True, False, False]
    assert debiasing.summary(other, other.judgement)["recommended"] == "MiniLM"

    none = planted(found, plain, plain - 0.1, plain - 0.2)
    assert none.recommended is none.plain and not ringed(none)
    assert debiasing.verdict(none).startswith("No change recommended: on the ")


def test_a_setting_that_is_better_on_the_held_out_half_is_ringed(found: DebiasResult) -> None:
    places = np.array([query.evidence for query in found.setup.queries])
    plain = 0.9 - 0.3 * places
    better = planted(found, plain, plain - 0.1, np.full(len(places), 0.9))
    assert better.recommended is better.points[2] and ringed(better)
    assert debiasing.verdict(better).startswith("Recommended: MiniLM@calibrated(strength=1")
    frame = tables.POINTS.frame([better])
    assert frame["nDCG@10 change verdict"].tolist()[1:] == ["lower", "higher"]
    assert frame["PSI change verdict"].tolist()[2] == "lower"
    assert better.judgement is not None
    change = debiasing.summary(better, better.judgement)["change"]
    assert change is not None and change["ndcg_at_10"] is not None
    assert change["ndcg_at_10"]["verdict"] == "higher"


def test_nothing_is_recommended_that_is_worse_on_both_axes_over_all_queries(
    found: DebiasResult,
) -> None:
    """Better on the held-out half alone, and so much worse elsewhere that nobody should use it."""
    places = np.array([query.evidence for query in found.setup.queries])
    plain, even = 0.9 - 0.3 * places, np.full(len(places), 0.92)
    judged = planted(found, plain, plain - 0.1, even).judgement
    assert judged is not None and judged.change is not None
    steep = planted(found, plain, plain - 0.1, plain - 0.4 * places).points[2].quality
    advice = debiasing._advice(judged.change, found.plain.quality, found.plain.quality)
    assert advice.recommended
    own = planted(found, plain, plain, plain).plain.quality
    assert debiasing._advice(judged.change, own, steep).reason == (
        "Over all queries it is worse in both PSI and nDCG@10."
    )


def test_tables_and_the_front_show_every_setting(found: DebiasResult) -> None:
    frame = tables.POINTS.frame([found])
    assert frame["strength"].tolist() == [0, 0.5, 1] and frame["block"].tolist()[1:] == [16, 16]
    assert frame["recommended"].sum() == 1
    assert tables.POINTS.text_frame([found])["model"].tolist() == frame["model"].tolist()
    queries = tables.queries_frame(found, found.points[2])
    assert len(queries) == len(WORDS)
    assert (queries["change"].abs().diff().dropna() <= 0).all()
    np.testing.assert_allclose(queries["after"] - queries["before"], queries["change"])
    assert set(queries["half"]) == {"selection", "held out"}
    for measure in ("mean", "harmonic"):
        figure = front(found, measure, Style(), provenance=found.provenance())  # type: ignore[arg-type]
        (line,) = [t for t in figure.data if t.name.replace("<br>", " ") == WINDOWS]
        assert len(line.x) == 3
    said = dict(found.provenance()[0].items())
    assert "strength 0.5, 1" in str(said["method"]) and said["model"] == "MiniLM"


def test_a_data_set_without_places_is_one_sentence(tmp_path: Path) -> None:
    rows = b"query,document\nwhat is ice,Ice is water.\n"
    setup = RankingSetup(ranking_service.collection_of(datasets.read_upload("bare.csv", rows)))
    with pytest.raises(UserError, match="does not say where its evidence stands"):
        debiasing.job(Compute(tmp_path), MINILM, debiasing.grid(MINILM), setup)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.csv").write_text(ROWS)
    datasets.register("mine", tmp_path / "mine.csv")
    return "mine"


def test_an_existing_export_folder_is_refused_before_anything_is_computed(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*_: object) -> None:
        raise AssertionError("the grid was asked for")

    monkeypatch.setattr(debiasing, "debias_result", computed)
    asked = ["calibrate", "--dataset", mine, "--export", str(tmp_path)]
    refused = CliRunner().invoke(app, asked)
    assert refused.exit_code == 2 and "is there already: name a new folder" in refused.stderr


def test_the_command_and_then_the_page(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["calibrate", "--dataset", mine, "--strength", "0.5", "--block", "64"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["recommended"] in ("MiniLM", "MiniLM@calibrated(block=64)")
    assert len(printed["points"]) == 2 and printed["provenance"][0]["dataset"] == mine
    # Here the plain model is recommended, of which there is nothing to export.
    refused = CliRunner().invoke(app, [*asked, "--export", str(tmp_path / "none")])
    assert refused.exit_code == 2 and "no calibrated model to export" in refused.stderr
    assert json.loads(refused.stdout) == printed
    monkeypatch.setattr(debiasing, "export_point", lambda _, point, to: to.mkdir())
    figure, folder = tmp_path / "front.json", tmp_path / "calibrated"
    files = ["--figure", str(figure), "--export", str(folder)]
    table = CliRunner().invoke(app, [*asked, *files, "--table", "queries", "--format", "csv"])
    assert json.loads(figure.read_text())["data"] and folder.is_dir()
    assert str(figure) in table.stderr and str(folder) in table.stderr
    assert len(pd.read_csv(io.StringIO(table.stdout))) == len(WORDS)

    page = AppTest.from_file(str(page_file("debias")), default_timeout=SECONDS)
    for name, value in {
        "dataset": mine,
        "model": "MiniLM",
        "strength": "0.5",
        "block": "64",
    }.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception and not page.error
    assert any(one.value.startswith("No change recommended") for one in page.markdown)
    kinds = [chart.proto.spec for chart in page.get("plotly_chart")]
    assert sum("debias_front" in spec for spec in kinds) == 2
    assert any("rank after" in one.value.columns for one in page.dataframe)


def test_a_model_that_cannot_be_calibrated_leaves_the_page_whole() -> None:
    page = AppTest.from_file(str(page_file("debias")), default_timeout=SECONDS)
    page.query_params["model"] = "BM25"
    page.run()
    assert not page.exception
    assert "BM25 has no attention to calibrate" in page.error[0].value

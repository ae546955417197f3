"""Debias without training: a calibration grid is ranked once; its recommendation, page and
command."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

import poslens
from poslens.attribution import datasets
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import Compute
from poslens.dashboard.__main__ import app
from poslens.figures.palettes import Style
from poslens.paired import ItemMeasure
from poslens.studies.debias.debias_job import SALIENCY
from poslens.studies.debias.front import relocation_curves, saliency_curves
from poslens.studies.debias.points import DebiasPoint, grid
from poslens.studies.debias.study import DEBIAS
from poslens.studies.debias.summary import NO_CHANGES, DebiasSummary, HeldOutTest, setting_advice
from poslens.study_plan import stored
from tests.support.nouns import NOUNS
from tests.support.pages import SECONDS, page_file

FILLER = "Filler stands here. " * 4
WORDS = [f"{color} {noun}" for color in ("red", "green", "blue") for noun in NOUNS]
WINDOWS = "MiniLM, blocks of 16 tokens, last half of the layers"
ROWS = "query,document,evidence\n" + "".join(
    f"what is {word},{FILLER * (n % 3)}The {word} is {word}. {FILLER},The {word} is {word}.\n"
    for n, word in enumerate(WORDS)
)
MINILM = resolve("MiniLM")
SETTINGS = DEBIAS.parameters.settings({"steps": 0, "pairs": 0, "blocks": (16,)})
ASKED = ["debias", "--steps", "0", "--pairs", "0", "--strengths", "0.5", "--model", "MiniLM"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> datasets.DataSet:
    return datasets.read_upload("mine.csv", ROWS.encode())


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Compute:
    return Compute(tmp_path_factory.mktemp("debias"))


@pytest.fixture(scope="module")
def versions(data: datasets.DataSet, compute: Compute) -> list[DebiasPoint]:
    """The plain model and two calibrated ones, ranked."""
    versions = DEBIAS.subjects(compute, MINILM, DEBIAS.corpus(data, SETTINGS), SETTINGS)
    assert not stored(DEBIAS, compute, versions)
    for version in versions:
        run = DEBIAS.job(compute, version).start()
        run.wait()
        assert run.error == ""
    return versions


@pytest.fixture(scope="module")
def summaries(versions: list[DebiasPoint], compute: Compute) -> list[DebiasSummary]:
    return stored(DEBIAS, compute, versions)


def test_a_grid_names_each_setting_once() -> None:
    settings = grid(MINILM, (0.5, 1.0), (128,), ("half", "3", "all"))
    assert [setting.suffix for setting in settings] == [
        "@calibrated",
        "@calibrated(strength=1)",
        "@calibrated(layers=6)",
        "@calibrated(strength=1, layers=6)",
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"strengths": (1.5,)}, "must be 0 to 1, not 1.5"),
        ({"blocks": (0,)}, "at least 1 token"),
        ({"layers": ("7",)}, "has only 6 attention layers, so 7 can't"),
        ({"layers": ("deep",)}, "half, all or a whole number, not 'deep'"),
        ({"blocks": tuple(range(1, 70))}, "exceed the maximum of 64"),
    ],
)
def test_an_invalid_grid_is_refused_in_one_sentence(
    changes: dict[str, tuple[object, ...]], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        grid(MINILM, **{"strengths": (0.5,), "blocks": (16,), "layers": ("half",), **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["BM25", "MiniLM@calibrated"])
def test_models_that_cannot_be_calibrated_have_no_grid(name: str) -> None:
    with pytest.raises(UserError, match=r"is not a dense model|already calibrated"):
        grid(resolve(name), (0.5,), (128,), ("half",))


def test_every_setting_is_compared_with_the_plain_model(summaries: list[DebiasSummary]) -> None:
    plain, *calibrated = summaries
    assert [each.point.kind for each in summaries] == ["plain", "calibrated", "calibrated"]
    assert plain.changes == NO_CHANGES and plain.ranked is not None
    before = plain.ranked.evaluation.per_query[NDCG]
    for each in calibrated:
        assert each.ranked is not None and each.plain is not None
        after, change = each.ranked.evaluation.per_query[NDCG], each.changes.quality
        assert change is not None
        assert change.difference.value == pytest.approx(float((after - before).mean()), abs=1e-6)
        assert each.model.key.fingerprint != plain.model.key.fingerprint
        assert not each.unretrieved and each.effect is None


def test_a_calibration_that_changes_no_score_says_why(summaries: list[DebiasSummary]) -> None:
    plain, calibrated, *_ = summaries
    before, after = (
        ItemMeasure("difference", "pairs", 0.1, {"a": np.array([value])}, {"a": "text"})
        for value in (0.1, 0.2)
    )
    plain = replace(plain, differences=before)
    assert "it acts only on texts longer than a block" in DEBIAS.verdict(
        replace(calibrated, plain=plain, differences=before)
    )
    changed = replace(calibrated, plain=plain, differences=after)
    assert "a block (" not in DEBIAS.verdict(changed)


def test_curves_that_were_not_measured_are_not_drawn(summaries: list[DebiasSummary]) -> None:
    for curves in (relocation_curves, saliency_curves):
        with pytest.raises(UserError, match="set the number of pairs to more than 0"):
            curves(summaries, Style())


def test_a_setting_is_selected_on_one_half_and_tested_on_the_other(
    summaries: list[DebiasSummary],
) -> None:
    plain = summaries[0]
    test = plain.test
    assert test is not None and plain.ranked is not None
    assert len(test.selected_on) + test.before.n == len(WORDS)
    queries = plain.ranked.setup.queries
    rows = [n for n, query in enumerate(queries) if query.query_id not in test.selected_on]
    expected = plain.ranked.evaluation.per_query[NDCG][rows].mean()
    assert test.before.mean.value == pytest.approx(float(expected))
    assert "recommend" in DEBIAS.verdict(plain).lower()


def test_nothing_is_recommended_before_everything_is_ranked(
    versions: list[DebiasPoint], compute: Compute
) -> None:
    partial = stored(DEBIAS, compute, versions[:2])
    assert DEBIAS.verdict(partial[0]).endswith(
        "No recommendation yet: some settings are not ranked."
    )
    assert not any(each.recommended for each in partial)


def planted(summaries: Sequence[DebiasSummary], *scores: np.ndarray) -> list[DebiasSummary]:
    """The grid compared again, with `scores` [queries] as the nDCG@10 of each version."""
    changed: list[DebiasSummary] = []
    for summary, values in zip(summaries, scores, strict=True):
        assert summary.ranked is not None
        evaluation = replace(summary.ranked.evaluation, per_query={NDCG: values})
        ranked = replace(summary.ranked, evaluation=evaluation)
        summary = replace(summary, ranked=ranked, plain=changed[0] if changed else None)
        if summary.plain is not None:
            summary = replace(summary, changes=summary.against(summary.plain))
        changed.append(summary)
    return DEBIAS.together(changed)


def positions_of(summaries: Sequence[DebiasSummary]) -> np.ndarray:
    assert summaries[0].ranked is not None
    return np.array([query.evidence for query in summaries[0].ranked.setup.queries])


def held_out_test_of(summaries: Sequence[DebiasSummary]) -> HeldOutTest:
    assert summaries[0].test is not None
    return summaries[0].test


def ringed(summaries: Sequence[DebiasSummary]) -> bool:
    figure = DEBIAS.figures[1].draw(summaries, Style())
    return any(trace.name == "recommended" for trace in figure.data)


def test_a_setting_that_wins_on_one_half_and_loses_on_the_other_is_not_recommended(
    summaries: list[DebiasSummary],
) -> None:
    positions = positions_of(summaries)
    selected_on = held_out_test_of(summaries).selected_on
    assert summaries[0].ranked is not None
    queries = summaries[0].ranked.setup.queries
    half = np.array([query.query_id in selected_on for query in queries])
    plain = 0.9 - 0.3 * positions
    # Better on the half where it is selected, worse in both measures on the half where it is
    # tested.
    worse = np.where(half, plain + 0.02, plain - 0.3 * positions)
    other = planted(summaries, plain, plain - 0.1, worse)
    assert other[2].tested and not any(each.recommended for each in other) and not ringed(other)
    verdict = DEBIAS.verdict(other[0])
    assert "No change recommended. On held-out documents, " in verdict
    assert "nDCG@10 is lower" in verdict
    selection = DEBIAS.tables["selection"].frame(other)
    assert selection["recommended"].tolist() == [False]
    assert selection["tested"].tolist() == [other[2].name]
    sources = DEBIAS.provenances(other, "selection")
    assert [source.model for source in sources] == [other[0].name, other[2].name]
    assert {source.n_queries for source in sources} == set(selection["queries"])
    assert all("not used to select" in source.selection for source in sources)

    worst = planted(summaries, plain, plain - 0.1, plain - 0.2)
    assert not any(each.recommended for each in worst) and not ringed(worst)
    assert "No change recommended: on the " in DEBIAS.verdict(worst[0])


def test_a_setting_that_is_better_on_the_held_out_half_is_marked(
    summaries: list[DebiasSummary],
) -> None:
    positions = positions_of(summaries)
    plain = 0.9 - 0.3 * positions
    better = planted(summaries, plain, plain - 0.1, np.full(len(positions), 0.9))
    assert [each.recommended for each in better] == [False, False, True] and ringed(better)
    assert "Recommended: MiniLM@calibrated(strength=1" in DEBIAS.verdict(better[0])
    frame = DEBIAS.tables["points"].frame(better)
    assert frame["ndcg_change_verdict"].tolist()[1:] == ["lower", "higher"]
    assert frame["psi_change_verdict"].tolist()[2] == "lower"
    assert DEBIAS.tables["selection"].frame(better)["change_verdict"].tolist() == ["higher"]
    # p is adjusted for the three measures of both settings.
    parts = [part for each in better[1:] for part in vars(each.changes).values() if part]
    assert len(parts) == 6 and all(part.p is not None for part in parts)
    smallest = min(parts, key=lambda part: part.p or 0)
    assert smallest.p is not None and smallest.p_holm == pytest.approx(6 * smallest.p)


def test_a_setting_that_is_worse_on_both_axes_over_all_queries_is_not_recommended(
    summaries: list[DebiasSummary],
) -> None:
    """Better on the held-out half only, and too much worse elsewhere to be used."""
    positions = positions_of(summaries)
    plain, even = 0.9 - 0.3 * positions, np.full(len(positions), 0.92)
    changes = held_out_test_of(planted(summaries, plain, plain - 0.1, even)).changes
    own, _, steep = planted(summaries, plain, plain - 0.1, plain - 0.4 * positions)
    assert setting_advice(changes, own.ranking, own.ranking).recommended
    assert setting_advice(changes, own.ranking, steep.ranking).reason == (
        "Over all queries it is worse in both PSI and nDCG@10."
    )


def test_tables_and_figures_show_every_setting(summaries: list[DebiasSummary]) -> None:
    frame = DEBIAS.tables["points"].frame(summaries)
    assert frame["strength"].tolist() == [0, 0.5, 1] and frame["block"].tolist()[1:] == [16, 16]
    queries = DEBIAS.tables["queries"].frame(summaries[2:])
    assert len(queries) == len(WORDS)
    assert (queries["change"].abs().diff().dropna() <= 0).all()
    np.testing.assert_allclose(queries["after"] - queries["before"], queries["change"])
    assert set(queries["half"]) == {"selection", "held out"}
    for figure in DEBIAS.figures[:2]:
        drawn = figure.draw(summaries, Style())
        (line,) = [t for t in drawn.data if t.name.replace("<br>", " ") == WINDOWS]
        assert len(line.x) == 2 and line.marker.symbol[0] == "triangle-up"
        (start,) = [t for t in drawn.data if t.legendgroup == line.legendgroup and t != line]
        (plain,) = [t for t in drawn.data if t.name == "MiniLM"]
        assert (start.x[0], start.x[1]) == (plain.x[0], line.x[0])
        assert plain.marker.size[0] > 1.5 * line.marker.size[0], "hidden by strength 0"
        (permuted,) = [t for t in drawn.data if t.name == "PSI under permutation"]
        assert len(permuted.x) == 3


def test_no_chart_is_drawn_without_a_position_bias(
    summaries: list[DebiasSummary], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for evidence that is at the same position in every document, which has no PSI."""
    monkeypatch.setattr(DebiasSummary, "bias_and_quality", (None, 0.5))
    for figure in DEBIAS.figures[:2]:
        with pytest.raises(UserError, match="no position bias to draw"):
            figure.draw(summaries, Style())


def test_a_data_set_without_evidence_positions_is_refused_in_one_sentence() -> None:
    data = datasets.read_upload("bare.csv", b"query,document\nwhat is ice,Ice is water.\n")
    with pytest.raises(UserError, match="has no evidence positions"):
        DEBIAS.corpus(data, SETTINGS)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.csv").write_text(ROWS)
    datasets.register("mine", tmp_path / "mine.csv")
    return "mine"


def test_failed_items_are_listed_and_retried(
    data: datasets.DataSet, tmp_path: Path, tiny_folder: Callable[..., Path]
) -> None:
    compute = Compute(tmp_path)
    settings = DEBIAS.parameters.settings({"steps": 0, "pairs": 2, "blocks": (16,)})
    corpus = DEBIAS.corpus(data, settings)
    spec = RetrieverSpec("tiny", "tiny", "dense", f"folder:{tiny_folder('bert')}")
    plain = DEBIAS.subjects(compute, spec, corpus, settings)[0]
    job = DEBIAS.job(compute, plain)
    assert job.start().wait(SECONDS) and not job.error and job.failures() == {}
    pair = plain.corpus.pairs[0]
    compute.store.put_failures(compute.identify(plain.base).key, SALIENCY, [(pair, "No space.")])
    assert job.failures() == {f"{pair.pair_id} (Saliency)": "No space."}
    assert not job.counts_items, "its progress counts stages"
    assert job.start().wait(SECONDS) and job.failures()
    assert job.start(retry_failed=True).wait(SECONDS) and job.failures() == {}


def test_an_existing_folder_is_refused_before_anything_is_computed(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed(*_: object) -> None:
        raise AssertionError("the data set was read")

    monkeypatch.setattr(type(DEBIAS), "read", computed)
    refused = CliRunner().invoke(app, [*ASKED, "--dataset", mine, "--out", str(tmp_path)])
    assert refused.exit_code == 2 and "already exists: name a new folder" in refused.stderr


def test_the_page_shows_the_results_of_the_command(mine: str, tmp_path: Path) -> None:
    asked = [*ASKED, "--dataset", mine, "--blocks", "32"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [row["model"] for row in printed["rows"]] == ["MiniLM", "MiniLM@calibrated(block=32)"]
    assert printed["provenance"][0]["dataset"] == mine
    # Here the plain model is better.
    refused = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "none")])
    unwritten = "No calibrated model is recommended, so nothing is written."
    assert refused.exit_code == 2 and unwritten in refused.stderr
    assert json.loads(refused.stdout) == printed
    measured = poslens.debias(
        "MiniLM", mine, steps=0, pairs=0, strengths=(0.5,), blocks=(32,), out=tmp_path / "none"
    )
    assert len(measured.verdicts) == 2 and measured.remarks[-1] == unwritten
    assert not (tmp_path / "none").exists()
    figure = tmp_path / "front.json"
    more = ["--figure", str(figure), "--table", "queries", "--format", "csv"]
    table = CliRunner().invoke(app, [*asked, *more])
    assert json.loads(figure.read_text())["data"] and str(figure) in table.stderr
    assert len(pd.read_csv(io.StringIO(table.stdout))) == len(WORDS)

    page = AppTest.from_file(str(page_file("debias")), default_timeout=SECONDS)
    for name, value in {
        "dataset": mine,
        "models": "MiniLM",
        "steps": "0",
        "pairs": "0",
        "strengths": "0.5",
        "blocks": "32",
    }.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception and not page.error
    assert any("No change recommended" in each.value for each in page.markdown)
    specs = [chart.proto.spec for chart in page.get("plotly_chart")]
    assert len(specs) == sum("debias_front" in spec for spec in specs) == 2
    assert any("rank after" in each.value.columns for each in page.dataframe)


def test_the_recommended_model_is_written(
    summaries: list[DebiasSummary], compute: Compute, tmp_path: Path
) -> None:
    recommended = [*summaries[:2], replace(summaries[2], recommended=True)]
    DEBIAS.write_product(compute, recommended, tmp_path / "calibrated")
    written = json.loads((tmp_path / "calibrated" / "calibration.json").read_text())
    assert written["block"] == 16 and written["strength"] == 1


def test_a_model_that_cannot_be_calibrated_leaves_the_page_intact() -> None:
    page = AppTest.from_file(str(page_file("debias")), default_timeout=SECONDS)
    page.query_params["models"] = "BM25"
    page.query_params["steps"] = "0"
    page.run()
    assert not page.exception
    assert any("BM25 is not a dense model" in each.value for each in page.info)

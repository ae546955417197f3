"""Differences of models on the same items, over the shipped results of the sample."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from streamlit.testing.v1 import AppTest

import poslens
from poslens.attribution import datasets
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import holm
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.retrievers.resolve import resolve
from poslens.compute.compute import Compute
from poslens.figures.palettes import PRESETS, Style, text_width
from poslens.paired import DifferenceRow, difference_sentences
from poslens.studies.differences import DIFFERENCES, SALIENCY, MeasuredSummary
from poslens.studies.ranking import service as rankings
from poslens.study_plan import plan, stored
from tests.support import tiny_families
from tests.support.pages import SECONDS, page_file

MODELS = ("MiniLM-primacy", "MiniLM", "MiniLM-recency")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Compute:
    """A cache with the shipped results as its fallback, so that nothing has to be computed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSLENS_SHIPPED", "yes")
        return Compute(tmp_path_factory.mktemp("differences"))


@pytest.fixture(scope="module")
def summaries(shipped: Compute) -> list[MeasuredSummary]:
    settings = DIFFERENCES.parameters.settings()
    specs = [resolve(name) for name in MODELS]
    planned = plan(DIFFERENCES, shipped, specs, datasets.read("sample"), settings)
    assert all(job.n_done() == job.total for job in planned.jobs)
    return stored(DIFFERENCES, shipped, planned.subjects)


@pytest.fixture(scope="module")
def differences(summaries: list[MeasuredSummary]) -> list[DifferenceRow]:
    return DIFFERENCES.differences(summaries)


def of_models(differences: list[DifferenceRow], model: str, other: str) -> dict[str, DifferenceRow]:
    return {
        each.measure: each for each in differences if (each.model, each.against) == (model, other)
    }


def verdicts(differences: list[DifferenceRow], model: str, other: str) -> dict[str, str]:
    own = of_models(differences, model, other)
    return {title: each.difference.verdict for title, each in own.items()}


def test_every_pair_of_models_is_compared_on_every_measure(
    summaries: list[MeasuredSummary], differences: list[DifferenceRow]
) -> None:
    pairs = [(each.model, each.against) for each in differences]
    assert list(dict.fromkeys(pairs)) == [
        ("MiniLM", "MiniLM-primacy"),
        ("MiniLM-recency", "MiniLM-primacy"),
        ("MiniLM-recency", "MiniLM"),
    ]
    rows = DIFFERENCES.all_tables["differences"].frame(summaries)
    assert len(rows) == 15
    assert rows["measure"].tolist()[:5] == [
        "relocation difference (standard deviations)",
        "drop in nDCG@10 (first minus last)",
        NDCG,
        "unretrieved sentences per document",
        "saliency index",
    ]
    assert rows["n"].tolist()[:5] == [29, 30, 304, 66, 30]
    assert rows["documents"].tolist()[:5] == [29, 30, 68, 66, 30]


def test_saliency_indices_equal_those_of_the_models_mean_curves(
    summaries: list[MeasuredSummary], differences: list[DifferenceRow], shipped: Compute
) -> None:
    pairs = summaries[0].card.scope.moved
    index = [
        shipped.curve(resolve(name), SALIENCY, pairs, "sample").summary.primacy_recency_index
        for name in MODELS[:2]
    ]
    assert index[0] is not None and index[1] is not None
    each = of_models(differences, "MiniLM", "MiniLM-primacy")["saliency index"]
    assert (each.other_value, each.value) == pytest.approx((index[0].value, index[1].value))
    difference = each.difference.difference
    assert difference.value == pytest.approx(index[1].value - index[0].value)
    (saliency,) = (
        entry
        for entry in DIFFERENCES.provenances(summaries[:1])
        if entry.method.startswith("saliency")
    )
    assert saliency.n_documents == difference.n_resampled == 30
    assert saliency.interval == "95%, bootstrap over 30 documents"


def test_planted_biases_differ_in_relocation_and_rank(
    summaries: list[MeasuredSummary], differences: list[DifferenceRow]
) -> None:
    relocation, rank = (
        "relocation difference (standard deviations)",
        "drop in nDCG@10 (first minus last)",
    )
    found = verdicts(differences, "MiniLM-recency", "MiniLM-primacy")
    assert found[relocation] == "higher"
    # 30 queries show the effect on rank alone, but not among all comparisons.
    (of_rank,) = [
        each.difference
        for each in differences
        if (each.model, each.against, each.measure) == ("MiniLM-recency", "MiniLM-primacy", rank)
    ]
    assert of_rank.difference.value < -0.1 and (of_rank.p or 1) < 0.05
    assert found["unretrieved sentences per document"] == "equivalent"
    assert found["nDCG@10"] == "too few documents"
    assert verdicts(differences, "MiniLM", "MiniLM-primacy")[relocation] == "higher"
    sentence = difference_sentences(differences)[0]
    start = f"MiniLM compared with MiniLM-primacy: {re.escape(relocation)} over 29 pairs "
    assert re.match(start + r"is higher by 0\.\d+ \[0\.", sentence)
    assert (
        f"; too few documents to decide: {rank} over 30 queries, nDCG@10 over 304 queries"
        in sentence
    )
    assert DIFFERENCES.verdict(summaries[0]).startswith(f"MiniLM-primacy: {rank} ")


def test_a_difference_is_paired_by_query(
    differences: list[DifferenceRow], shipped: Compute
) -> None:
    setup = rankings.RankingSetup(rankings.collection_of(datasets.read("sample")))
    scores = []
    for name in MODELS[:2]:
        ranked = rankings.ranked(shipped, resolve(name), setup)
        assert ranked is not None
        scores.append(ranked.evaluation.per_query[NDCG].astype(np.float64))
    each = of_models(differences, "MiniLM", "MiniLM-primacy")["nDCG@10"]
    assert each.difference.difference.value == pytest.approx((scores[1] - scores[0]).mean())
    documents = np.array([query.document for query in setup.queries])
    apart = [(scores[1] - scores[0])[documents == name].mean() for name in dict.fromkeys(documents)]
    assert each.difference.p == pytest.approx(stats.ttest_1samp(apart, 0).pvalue, abs=0.1)


def test_the_chart_is_in_units_of_the_margin(summaries: list[MeasuredSummary]) -> None:
    provenance = DIFFERENCES.provenances(summaries)
    methods = [entry.method.partition("(")[0] for entry in provenance if entry.model == "MiniLM"]
    assert len(methods) == 5 and {"relocation", "saliency"} <= set(methods)
    (figure,) = DIFFERENCES.figures
    drawn = figure.draw(summaries, Style())
    traces = drawn.data
    assert len(traces) == 3 and len(traces[0].x) == 5
    assert traces[0].y[1] == "drop in nDCG@10<br>(first minus last)"
    narrow = figure.draw(summaries, PRESETS["single column"])
    small = PRESETS["single column"].small
    lines = [line for label in narrow.data[0].y for line in label.split("<br>")]
    assert max(text_width(line, small) for line in lines) < 0.4 * 336, "room for the plot"
    margin = narrow.layout.margin
    rows_px = (narrow.layout.height - margin.t - margin.b) / 5
    assert rows_px > max(2 * 1.3 * small, 3 * narrow.data[0].marker.size), "no overlap"
    rows = DIFFERENCES.all_tables["differences"].frame(summaries)
    expected = rows["difference"] / rows["difference_margin"]
    assert [x for trace in traces for x in trace.x] == pytest.approx(expected.tolist())


def test_p_is_adjusted_for_every_row(differences: list[DifferenceRow]) -> None:
    comparisons = [each.difference for each in differences]
    p = [each.p for each in comparisons]
    assert None not in p
    assert [each.p_holm for each in comparisons] == pytest.approx(holm(p).tolist())  # type: ignore[arg-type]


def test_a_model_does_not_differ_from_itself(shipped: Compute) -> None:
    settings, sample = DIFFERENCES.parameters.settings(), datasets.read("sample")
    (subject,) = DIFFERENCES.subjects(shipped, resolve("MiniLM"), sample, settings)
    first = DIFFERENCES.summarize(shipped, subject)
    assert first is not None
    differences = DIFFERENCES.differences([first, first])
    found = verdicts(differences, "MiniLM", "MiniLM")
    scores = {"relocation difference (standard deviations)", "saliency index"}
    assert {found[title] for title in scores} == {"equivalent"}
    # Equal ranks of 30 queries do not rule out that others differ.
    assert {found[title] for title in found if title not in scores} == {"too few documents"}
    assert all(each.difference.difference.value == 0 for each in differences)


def test_documents_without_queries_are_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "texts.jsonl").write_text('{"text": "Snow melts in spring."}\n')
    datasets.register("texts", folder / "texts.jsonl")
    settings, compute = DIFFERENCES.parameters.settings(), Compute(folder)
    (subject,) = DIFFERENCES.subjects(compute, resolve("BM25"), datasets.read("texts"), settings)
    with pytest.raises(UserError, match="BM25 has no measure to compare: "):
        DIFFERENCES.summarize(compute, subject)


@pytest.mark.usefixtures("own_service")
def test_a_reranker_is_compared_in_what_it_has(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    text = "Ice melts in spring. Stone stays. Fog lifts at noon."
    rows = [
        {"query": f"what melts {n}", "document": f"{text} {n}.", "evidence": "Ice melts in spring."}
        for n in range(4)
    ]
    cross = tiny_families.cross_encoder(tiny_folder("bert").parent / "raw", tmp_path)
    result = poslens.differences({"dense": str(tiny_folder("bert")), "cross": str(cross)}, rows)
    titles = "relocation difference (standard deviations) and saliency index"
    assert result.verdicts[0].startswith("dense: drop in nDCG@10 (first minus last) ")
    assert result.verdicts[1] == f"cross: compared only in {titles}."
    reasons = result.study.remarks(result.summaries)
    assert len(reasons) == 3 and all(reason.startswith("cross ") for reason in reasons)


@pytest.mark.usefixtures("own_service")
def test_the_page_shows_the_data_set_in_a_tab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    page = AppTest.from_file(str(page_file("compare")), default_timeout=SECONDS)
    page.query_params["tab"] = "Data set"
    page.run()
    assert not page.exception and not page.error
    assert any(
        "MiniLM\\-primacy compared with MiniLM\\-recency" in one.value for one in page.markdown
    ), "A minus B, as for one pair"
    (table,) = [one.value for one in page.dataframe if "difference" in one.value.columns]
    assert table.columns[0] == "difference", "a phone shows only the first columns"
    assert len(table) == 5 and table["verdict"].str.contains("higher|lower|few|equi").all()

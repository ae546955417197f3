"""Rankings of a data set: computed once, measured, filtered, compared with published ones."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.published import PublishedCurves, PublishedMeasures
from poslens.attribution.datasets.own import read_upload
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.evidence_profile import evidence_profile
from poslens.attribution.evaluation.ranking_measures import (
    NDCG,
    SUCCESS,
    SUCCESS_OF_PAIRS,
    SameLanguage,
)
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.jobs.loop import Progress
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute, run_key
from poslens.compute.runs import Job, Report, Run, in_turn
from poslens.dashboard.__main__ import app
from poslens.figures.curves import mean_curves
from poslens.figures.palettes import Style
from poslens.names import POSIR_PROMPT, posir_ranking_spec, posir_spec
from poslens.studies import published as published_service
from poslens.studies.ranking import service as ranking_service
from poslens.studies.ranking import tables
from poslens.studies.ranking.benchmarks import EvidencePositions
from poslens.studies.ranking.figures import evidence_bins, length_buckets
from poslens.studies.ranking.service import Ranked, RankingSetup
from poslens.studies.ranking.study import RANKING
from poslens.studies.ranking.tables import FAILED, LATE

BM25 = resolve("BM25")
ROWS = (
    "query,document,evidence,language\n"
    + "".join(
        f"what is {word},The {word} is {word}. Filler stands here.,The {word} is {word}.,eng\n"
        for word in ("ice", "stone", "fog")
    )
    + "qqqq,Nothing matches this. Stone.,Stone.,eng\n"
)


@pytest.fixture
def upload() -> RankingSetup:
    return RankingSetup(ranking_service.collection_of(read_upload("mine.csv", ROWS.encode())))


@pytest.fixture
def ranked(upload: RankingSetup, tmp_path: Path) -> Ranked:
    compute = Compute(tmp_path)
    assert ranking_service.ranked(compute, BM25, upload) is None
    run = ranking_service.job(compute, BM25, upload).start()
    run.wait()
    assert run.error == ""
    found = ranking_service.ranked(compute, BM25, upload)
    assert found is not None
    return found


def test_an_upload_is_ranked_and_stored(
    ranked: Ranked, upload: RankingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ranked.evaluation.n == 4 and ranked.evaluation.n_missing == 1
    assert ranked.evaluation.estimates[NDCG].value == 0.75
    restarted = Compute(tmp_path)
    monkeypatch.setattr(ranking_service, "_evaluations", LRUCache(8))
    again = ranking_service.ranked(restarted, BM25, upload)
    assert again is not None
    for actual, expected in zip(again.rankings, ranked.rankings, strict=True):
        assert actual.document_ids == expected.document_ids
        assert actual.scores.tolist() == expected.scores.tolist()
    provenance = ranked.provenance()
    assert provenance.n_queries == 4 and "corpus=whole" in provenance.method
    assert provenance.n_documents == 4 and provenance.truncated is None


def test_two_names_of_one_model_have_separate_rankings(
    ranked: Ranked, upload: RankingSetup, tmp_path: Path
) -> None:
    again = ranking_service.ranked(Compute(tmp_path), replace(BM25, name="again"), upload)
    assert again is not None
    assert (again.name, again.provenance().model) == ("again", "again")
    assert ranked.provenance().model == "BM25"


def test_tables_have_the_measures_and_queries(ranked: Ranked) -> None:
    measures = tables.TABLES["measures"].frame([ranked])
    assert measures.loc[0, "without a result"] == 1
    # Four queries are too few to resample; S@10 has a formula.
    assert pd.isna(measures.loc[0, f"{NDCG} low"]) and measures.loc[0, f"{SUCCESS} low"] < 0.75
    assert tables.TABLES["measures"].text_frame([ranked]).loc[0, NDCG] == "0.750"
    psi = tables.TABLES["psi"].frame([ranked])
    assert psi["length"].tolist() == [tables.OVERALL, tables.READ_WHOLE]
    assert psi["PSI"].tolist() == [1.0, 1.0] and psi["evidence read"].tolist() == [1.0, 1.0]
    bins = tables.TABLES["bins"].frame([ranked])
    assert len(bins) == 40 and bins["queries"].sum() == 8
    assert (bins["evidence read"].dropna() == 1).all()
    queries = tables.TABLES["queries"].frame([ranked])
    assert queries["rank"].fillna(0).tolist() == [1, 1, 1, 0]
    assert tables.filtered(queries, [FAILED])["query"].tolist() == ["qqqq"]
    assert tables.filtered(queries, [LATE])["query"].tolist() == ["qqqq"]
    assert len(tables.filtered(queries, [])) == 4


def test_the_share_of_the_querys_language_has_its_interval_in_files(ranked: Ranked) -> None:
    bias = SameLanguage(Estimate(0.95, 0.801, 0.99, n=20, n_resampled=20), 0.5)
    of_languages = replace(ranked, evaluation=replace(ranked.evaluation, language=bias))
    table, share = tables.TABLES["measures"], "same language in top 10"
    measures = table.frame([of_languages]).iloc[0]
    assert measures[[share, f"{share} low", f"{share} high"]].tolist() == [0.95, 0.801, 0.99]
    assert table.text_frame([of_languages]).loc[0, share] == "0.950 [0.801, 0.990]"


def test_evidence_positions_have_the_provenance_of_data_in_every_table(ranked: Ranked) -> None:
    alone = EvidencePositions(ranked.collection)
    for summaries in ([ranked], [alone]):
        (source,) = RANKING.provenances(summaries, "evidence")
        assert source == alone.provenance() and source.model == "none" and not source.interval
    (source,) = RANKING.provenances([ranked], "measures")
    assert source.model == "BM25"


@pytest.mark.parametrize(
    ("permuted", "p", "verdict"),
    [
        (
            0.05,
            0.01,
            "Rankings differ between positions of the evidence, which may also be because queries "
            "differ in difficulty: Position effect moves the evidence itself.",
        ),
        (
            0.05,
            0.1,
            "With 304 queries, this can't be distinguished from the PSI of a model that ignores "
            "position, which is no evidence that this model ignores it.",
        ),
        (
            1e-16,
            1.0,
            "nDCG@10 is the same for all queries, so PSI can't show an effect of position.",
        ),
    ],
)
def test_a_psi_that_is_not_significant_is_no_evidence_against_a_bias(
    permuted: float, p: float, verdict: str
) -> None:
    assert ranking_service.psi_verdict(permuted, p, 304) == verdict


def test_a_querys_top_k(ranked: Ranked) -> None:
    query = tables.query_of(ranked, "row-3")
    top = tables.top_frame(ranked, query)
    assert top.loc[0, "document"].startswith("The stone is stone.")
    assert top["relevant"].tolist()[0] is True and top.loc[0, "pair"] == "row-3"
    assert top["score"].is_monotonic_decreasing and set(top["pair"].tolist()[1:]) == {""}
    with pytest.raises(UserError, match="no query 'nope'"):
        tables.query_of(ranked, "nope")


def test_a_cross_encoder_cannot_be_its_own_first_stage(
    upload: RankingSetup, tmp_path: Path
) -> None:
    compute = Compute(tmp_path)
    spec = RetrieverSpec("ce", "ce", "cross_encoder", "folder:/nonexistent")
    for first, reason in ((None, "only reranks documents"), (spec, "as the first stage of ce")):
        with pytest.raises(UserError, match=reason):
            ranking_service.method_for(compute, spec, replace(upload, first_stage=first))
    method = ranking_service.method_for(compute, spec, replace(upload, first_stage=BM25))
    assert "first_stage=BM25@" in repr(method)


def test_the_sample_is_a_collection_with_a_corpus_per_language() -> None:
    found = ranking_service.collection_of(datasets.read("sample"))
    assert found.survey.n == 68 and len(found.queries) == 304 and len(found.parts) > 20
    assert datasets.collection("sample") is found


def test_figures_contain_the_numbers(ranked: Ranked) -> None:
    profile = evidence_profile(np.array([1.0, 0.5, 0.0]), [0.01, 0.5, 0.97], None)
    assert profile is not None
    evaluation = replace(ranked.evaluation, model="M", profile=profile, buckets={"Q1": profile})
    measured = replace(ranked, evaluation=evaluation)
    without = replace(ranked, evaluation=replace(evaluation, model="N", buckets={}))
    figure = evidence_bins([measured], Style())
    bars, line = figure.data
    assert bars.customdata[0] == 1 and line.y[0] == 1.0 and line.y[1] is None
    assert line.y[9] == 0.5
    buckets = length_buckets([measured, without], Style())
    assert buckets.layout.xaxis.ticktext == ("Q1<br>≤ 512",)
    bars = buckets.data
    assert bars[0].x == ("Q1",) and bars[0].y[0] == pytest.approx(0.5) and bars[1].y == (None,)
    assert bars[0].marker.pattern.shape != bars[1].marker.pattern.shape  # not only by color
    curves = np.random.default_rng(0).random((9, 100)).astype(np.float32)
    one = PublishedCurves("M", curves.mean(0), curves.std(0, ddof=1), len(curves), "f")
    band, mean = mean_curves([], Style(), published=published_service.means([one])).data
    assert np.allclose(mean.y, curves.mean(0), atol=1e-6) and mean.x[-1] == 100
    assert np.allclose(band.y[:100], curves.mean(0) + curves.std(0, ddof=1), atol=1e-6)
    assert np.allclose(band.y[100:], (curves.mean(0) - curves.std(0, ddof=1))[::-1], atol=1e-6)
    frame = published_service.curves_frame([one])
    assert len(frame) == 100 and frame["std"].tolist() == one.std.tolist()
    (alone,) = mean_curves([], Style(), published=published_service.means([one], band=False)).data
    assert alone.name == "M, published"


def test_published_measures_have_the_same_columns_as_computed_ones(ranked: Ranked) -> None:
    quarter = dict.fromkeys(("Q1", "Q2", "Q3", "Q4"), 0.25)
    frame = published_service.measures_frame(
        [PublishedMeasures("bge-m3", "eng-eng", 0.5, 0.3, quarter, quarter)]
    )
    assert len(frame) == 5 and frame.loc[0, "PSI"] == 0.3 and pd.isna(frame.loc[1, NDCG])
    assert set(frame.columns) - {"setting"} <= set(tables.TABLES["psi"].frame([ranked]).columns)


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_rank_prints_measures_and_queries(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(ROWS)
    found = json.loads(run("rank", "--model", "BM25", "--dataset", str(path)).stdout)
    assert found["rows"][0][NDCG] == 0.75 and found["rows"][0]["queries"] == 4
    assert found["provenance"][0]["method"].startswith("ranking(corpus=whole")
    table = run(
        "rank", "--model", "BM25", "--dataset", str(path), "--table", "queries", "--format", "csv"
    ).stdout
    frame = pd.read_csv(io.StringIO(table))
    assert len(frame) == 4 and set(frame["model"]) == {"BM25"}
    for option in (["--table", "psi"], ["--table", "bins"], ["--own-corpus"]):
        assert run("rank", "--model", "BM25", "--dataset", str(path), *option).exit_code == 0


def test_rank_accepts_posirs_prompt(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(ROWS)
    asked = ["rank", "--model", str(tiny_folder("bert")), "--dataset", str(path)]
    plain, posir = (json.loads(run(*asked, *extra).stdout) for extra in ([], ["--posir"]))
    prompt = "Given a web search query"
    assert prompt not in plain["provenance"][0]["prompts"]
    assert prompt in posir["provenance"][0]["prompts"]


def test_rank_states_what_is_excluded_from_a_beir_set(tmp_path: Path) -> None:
    root = tmp_path / "arguana"
    (root / "qrels").mkdir(parents=True)
    rows = {"a": "ice melts early", "b": "ice melts", "c": "stone"}
    lines = [json.dumps({"_id": one, "text": text}) + "\n" for one, text in rows.items()]
    (root / "corpus.jsonl").write_text("".join(lines))
    (root / "queries.jsonl").write_text(lines[0])
    (root / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\na\tb\t1\na\tz\t1\n")
    found = run("rank", "--model", "BM25", "--dataset", str(root))
    row = json.loads(found.stdout)["rows"][0]
    assert (row["own ids left out"], row["judged, not in corpus"]) == (1, 1)
    # The best possible value with two relevant documents, of which one can't be found: 1 / (1 + 1 /
    # log2(3)).
    assert row[NDCG] == pytest.approx(1 / (1 + 1 / np.log2(3)))
    assert "as in BEIR" in found.stderr and "as in trec_eval" in found.stderr


def test_rank_within_languages(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "query,document,language\nice one,pol ice one,pol\nice one,pol ice two,pol\n"
        "ice two,spa ice three,spa\nstone,spa stone,spa\n"
    )
    asked = ["rank", "--model", "BM25", "--dataset", str(path), "--table", "languages"]
    whole, within = (json.loads(run(*asked, *extra).stdout) for extra in ([], ["--monolingual"]))
    for table in (whole, within):
        rows = {row["language"]: row for row in table["rows"]}
        assert {k: (r["queries"], r["pairs"]) for k, r in rows.items()} == {
            "pol": (1, 2),
            "spa": (2, 2),
        }
        assert rows["pol"][SUCCESS_OF_PAIRS] == 1.0 and rows["pol"][SUCCESS] == 1.0
    # Among all documents, the Polish one with "ice two" ranks above the Spanish answer.
    assert rows["spa"][NDCG] == 1.0 > {r["language"]: r for r in whole["rows"]}["spa"][NDCG]
    assert "documents in the query's language" in within["provenance"][0]["selection"]


def test_the_posir_ranking_reads_8192_tokens_on_both_sides() -> None:
    """The limits of 512 and 2,048 are those of its saliency scripts."""
    long = RetrieverSpec("long", "long", "dense", "folder:/nonexistent", max_length=32768)
    for spec, lengths in (
        (posir_ranking_spec(long), (8192, 8192)),
        (posir_spec(long), (2048, 512)),
    ):
        assert (spec.max_length, spec.query_max_length) == lengths
        assert spec.query_prompt == POSIR_PROMPT
    assert posir_ranking_spec(replace(long, max_length=512)).max_length == 512


def test_published_curves_are_written_by_one_command(tmp_path: Path) -> None:
    curves = np.random.default_rng(0).random((9, 100))
    np.savez(tmp_path / "a.npz", curves=curves)
    source = f"A={tmp_path / 'a.npz'}"
    target = tmp_path / "five.csv"
    asked = ("curve", "--table", "published", "--published", source)
    assert run(*asked, "--out", str(target)).exit_code == 0
    frame = pd.read_csv(target)
    assert np.allclose(frame["mean"], curves.mean(0), atol=1e-6)
    assert np.allclose(frame["std"], curves.std(0, ddof=1), atol=1e-6)
    asked_numbers = (*asked[:2], "summary", *asked[3:], "--model", "BM25", "--method", "terms")
    data = ("--dataset", "sample-multilingual", "--pairs", "12", "--format", "json")
    shown = json.loads(run(*asked_numbers, *data).stdout)["rows"]
    assert [row["model"] for row in shown] == ["BM25", "A, published"]
    first, last = curves.mean(0)[:33].sum(), curves.mean(0)[-33:].sum()
    assert np.isclose(shown[1]["primacy_recency_index"], (last - first) / (last + first))
    assert shown[0]["pairs"] == 12 and shown[1]["pairs"] == 9 and shown[1]["documents"] is None
    assert shown[0]["primacy_recency_index_low"] < shown[0]["primacy_recency_index_high"]
    page = tmp_path / "five.html"
    assert run(*asked, "--figure", str(page), "--size", "screen").exit_code == 0
    assert "Normalized gradient L2 norm" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["curve", "--figure", "x.bmp", "--published", "a=b.npz"], "use .png"),
        (["curve", "--published", "a"], "--published must be NAME=FILE"),
        (["curve", "--published", "a=/nonexistent.npz"], "cannot be read"),
        (["curve", "--published", f"a={__file__}"], "use a .npz or .pkl"),
        (["curve", "--table", "published"], "give --published NAME=FILE"),
        (["curve", "--table", "summary", "--axis", "text"], "remove --axis text"),
        (
            ["curve", "--table", "differences", "--axis", "text", *("--model", "BM25") * 2],
            "remove --axis text",
        ),
        (["rank", "--dataset", "nope"], "no data set 'nope'"),
        (["rank", "--model", "nope"], "There is no model"),
        (["run", "--published", "/nonexistent"], "is not a folder"),
    ],
)
def test_invalid_input_is_refused_in_one_sentence(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_the_tiny_model_reranks_what_bm25_finds(
    tiny_folder: Callable[..., Path], upload: RankingSetup, tmp_path: Path
) -> None:
    from importlib import import_module

    families = import_module("tests.support.tiny_families")
    folder = families.cross_encoder(tiny_folder("bert"), tmp_path / "ce")
    spec = RetrieverSpec("ce", "ce", "cross_encoder", f"folder:{folder}")
    compute, setup = Compute(tmp_path / "home"), replace(upload, first_stage=BM25)
    running = ranking_service.job(compute, spec, setup).start()
    running.wait()
    assert running.error == ""
    first, second = (ranking_service.ranked(compute, one, setup) for one in (BM25, spec))
    assert first is not None and second is not None
    for actual, expected in zip(first.rankings, second.rankings, strict=True):
        assert sorted(actual.document_ids) == sorted(expected.document_ids)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Active models whenever a model starts; a model waits to be stopped, unless it is BM25."""
    at_work: list[str] = []
    begun: list[list[str]] = []

    def job(compute: Compute, spec: RetrieverSpec, setup: RankingSetup) -> Job:
        def work(run: Run, report: Report) -> Progress:
            at_work.append(spec.name)
            begun.append(list(at_work))
            while spec.name != "BM25" and not run.stopping:
                time.sleep(0.01)
            at_work.remove(spec.name)
            return run.progress

        model, method = compute.identify(spec), ranking_service.method_for(compute, spec, setup)
        key = run_key(model, method, setup.collection.name)
        return compute.job(key, spec.name, 4, work, n_done=lambda: 4 * (spec.name == "MiniLM"))

    monkeypatch.setattr(ranking_service, "job", job)
    return begun


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def all_models(compute: Compute, specs: Sequence[RetrieverSpec], setup: RankingSetup) -> Job:
    """A job that ranks with each model that has no rankings."""
    jobs = [(spec.name, ranking_service.job(compute, spec, setup)) for spec in specs]
    names = " ".join(sorted(spec.name for spec in specs))
    key = ("all models", names, "", setup.collection.name, "")
    parts = tuple(job for _, job in jobs)
    return compute.job(key, "All models", len(jobs), in_turn(jobs), parts=parts)


def test_all_models_rank_one_after_the_other(
    watched: list[list[str]], upload: RankingSetup, tmp_path: Path
) -> None:
    compute = Compute(tmp_path)
    specs = [resolve(name) for name in ("BM25", "MiniLM", "MiniLM-primacy", "MiniLM-recency")]
    chain = all_models(compute, specs, upload).start()
    until(lambda: len(watched) == 2)
    assert all_models(compute, specs[::-1], upload).run is chain
    assert (chain.progress.done, chain.progress.total) == (1, 3), "MiniLM is ranked already"
    third = ranking_service.job(compute, specs[2], upload)
    until(lambda: third.active)
    third.stop()
    chain_and_last = [["BM25"], ["MiniLM-primacy"], ["MiniLM-recency"]]
    until(lambda: watched == chain_and_last)
    assert chain.active and not chain.stopping, "one was stopped by itself, not all"
    all_models(compute, specs, upload).stop()
    chain.wait()
    assert chain.progress.stopped and watched == chain_and_last


def test_stopping_all_models_starts_no_further_one(
    watched: list[list[str]], upload: RankingSetup, tmp_path: Path
) -> None:
    compute = Compute(tmp_path)
    specs = [resolve(name) for name in ("MiniLM-primacy", "MiniLM-recency", "BM25")]
    chain = all_models(compute, specs, upload).start()
    until(lambda: bool(watched))
    all_models(compute, specs, upload).stop()
    chain.wait()
    assert chain.progress.stopped and watched == [["MiniLM-primacy"]]

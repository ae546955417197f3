"""Captions and files describe their numbers correctly and completely."""

from __future__ import annotations

import ast
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.evaluation.bias_pairs import pairs_for
from poslens.attribution.evaluation.ranking_measures import NDCG, SUCCESS, SUCCESS_OF_PAIRS
from poslens.attribution.methods import make_method
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.compute.compute import Compute, service
from poslens.compute.provenance import (
    of_controlled,
    of_published,
    resampled_of,
)
from poslens.dashboard.explain.subject import ExplainedSubject
from poslens.dashboard.explain.view import pair_figure
from poslens.dashboard.widgets import panels
from poslens.export.files import figure_bytes
from poslens.figures.captions import provenance_entries
from poslens.figures.figure_base import captioned
from poslens.figures.palettes import PRESETS, Style
from poslens.heatmap.data import View
from poslens.studies.bias.study import BIAS_STUDY, provenance_of
from poslens.studies.cause.figures import minus_null_curves
from poslens.studies.curves import null_controls
from poslens.studies.ranking import service as ranking_service
from poslens.study import Asked
from poslens.version import __version__
from tests.support.pages import open_page
from tests.test_imports import FILES, dotted, name_of, parse

OCCLUSION = make_method("occlusion")


pytestmark = pytest.mark.usefixtures("own_service")


@pytest.fixture(scope="module")
def compute(tmp_path_factory: pytest.TempPathFactory) -> Compute:
    return Compute(tmp_path_factory.mktemp("provenance"))


@pytest.fixture(scope="module")
def bm25() -> RetrieverSpec:
    return with_corpus(resolve("BM25"), "sample")


def test_provenance_is_created_in_one_place() -> None:
    made = [
        (name_of(path), node.lineno)
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] == "Provenance"
    ]
    assert made and {name for name, _ in made} == {"poslens/compute/provenance.py"}, made


def test_a_model_without_a_limit_states_none(compute: Compute, bm25, sample: DataSet) -> None:
    pairs = list(sample.pairs[:3])
    one = compute.explain(pairs[0], bm25, make_method("terms"))
    assert one.attribution.document.max_length > 0, "there is a number, but it is not the model's"
    said = one.provenance().entry()
    assert (
        "max_length" not in said
        and "precision" not in said
        and "n_pairs" not in said
        and "max length" not in str(one.provenance().caption())
    )
    compute.attribution_job(bm25, OCCLUSION, pairs, "x").start().wait()
    whole = compute.curve(bm25, OCCLUSION, pairs, "sample").provenance().entry()
    assert "max_length" not in whole and whole["n_pairs"] == 3
    assert whole["n_documents"] == len({pair.document for pair in pairs})
    assert "interval" not in whole, "three documents are too few to resample"


def test_minus_null_names_its_control_and_counts_its_own_pairs(
    compute: Compute, bm25, sample: DataSet
) -> None:
    pairs = [p for p in sample.pairs if p.language == "slk"]
    # One pair has no control, so the n of the plain curve would be wrong.
    nulls = null_controls.controls("unrelated", pairs, sample.pairs)[:-1]
    compute.attribution_job(bm25, OCCLUSION, pairs, "a").start().wait()
    compute.attribution_job(bm25, OCCLUSION, nulls, "b").start().wait()
    found = null_controls.controlled(compute, bm25, OCCLUSION, "unrelated", pairs, sample.pairs)
    found = replace(found, n_truncated=2)
    made = of_controlled(compute.identify(bm25), OCCLUSION, "sample", found, "Slovak")
    assert made.n_pairs == len(pairs) - 1 and made.control == "unrelated query, subtracted"
    assert made.truncated == 2
    assert "control: unrelated query, subtracted" in made.caption()
    figure = captioned(minus_null_curves([("BM25", found)], OCCLUSION, Style()), made, Style())
    axis = figure.layout.yaxis.title.text.replace("<br>", " ")
    assert axis.startswith("Score lost by occlusion") and axis.endswith("(unrelated query)")
    (entry,) = figure.layout.meta["provenance"]
    assert entry["control"] == "unrelated query, subtracted" and entry["n_pairs"] == len(pairs) - 1


def test_bias_tests_count_truncated_documents(compute: Compute, sample: DataSet) -> None:
    spec = resolve("MiniLM")
    tests = tuple(pairs_for(sample, name, "end", 6) for name in ("position", "brevity"))
    BIAS_STUDY.job(compute, Asked(spec, tests, BIAS_STUDY.parameters.settings())).start().wait()
    summary = BIAS_STUDY.summarize(compute, Asked(spec, tests, BIAS_STUDY.parameters.settings()))
    assert summary is not None
    moved, short = summary.tests
    cut = sum(scores.truncated for scores in short.scores.values())
    made = provenance_of(summary.model, [short])
    assert made.truncated == cut > 0 and made.n_pairs == 6 and made.max_length == 512
    # A pair whose evidence was moved past the context limit is not tested; this is stated, and it
    # is not counted.
    left = sum(scores.read < 1 for scores in moved.scores.values())
    made = provenance_of(summary.model, [moved])
    assert made.n_pairs == 6 - left < 6 and f"{left} pairs left out" in made.selection
    assert moved.result.lost is not None and "for each document" in made.method


def test_published_curves_state_no_limit_and_no_truncation() -> None:
    import numpy as np

    from poslens.attribution.curves.published import PublishedCurves

    curves = PublishedCurves("NV", np.ones(100), np.zeros(100), 4, "file nv.npz")
    said = of_published(curves).entry()
    assert said == {
        "poslens": __version__,
        "model": "NV",
        "model_source": "published",
        "method": "curves as published, mean and standard deviation (ddof=1)",
        "dataset": "file nv.npz",
        "n_pairs": 4,
    }


def test_a_picture_contains_the_provenance_of_every_model(compute: Compute, bm25) -> None:
    pair = TextPair("p", "ice melts", "The ice melts in spring. Stone stays.")
    one = compute.explain(pair, bm25, make_method("terms"))
    named = replace(one.model, spec=replace(one.model.spec, name="other"))
    other = replace(one, attribution=replace(one.attribution, model="other"), model=named)
    results = [one, other]
    plain = provenance_entries([each.provenance() for each in results])
    assert [entry["model"] for entry in plain] == ["BM25", "other"]
    wanted = [{**entry, "units": "words, the sum of their tokens"} for entry in plain]
    drawn, sources = panels.panes(results), [each.provenance() for each in results]
    made = panels.heatmap_bytes(drawn, sources, View(), "png", Style(width_px=400))
    with Image.open(io.BytesIO(made)) as image:
        assert json.loads(image.info["provenance"]) == wanted
        assert "BM25" in image.info["Description"] and "other" in image.info["Description"]
    page = panels.heatmap_bytes(drawn, sources, View(), "html", Style()).decode()
    embedded = page.split('id="provenance">')[1].split("</script>")[0]
    assert json.loads(embedded) == wanted
    style = PRESETS["single column"]
    subject = ExplainedSubject(results, results[0].attribution.method, None)
    figure = pair_figure(subject, style)
    with Image.open(
        io.BytesIO(figure_bytes(figure, "png", style, [r.provenance() for r in results]))
    ) as image:
        assert json.loads(image.info["provenance"]) == plain


def test_a_pair_without_a_shared_word_causes_no_error(tmp_path: Path) -> None:
    """BM25 scores it zero, with and without its words, so it is reported, counted and excluded."""
    rows = "query,document\nqqqq,The ice is white. Stone stays.\n" + "".join(
        f"what is {word},The {word} is grey. Filler stands here.\n" for word in ("fog", "stone")
    )
    (tmp_path / "mine.csv").write_text(rows)
    datasets.register("mine", tmp_path / "mine.csv")

    asked = {"dataset": "mine", "models": ["BM25"], "methods": ["terms"]}
    page = open_page("methods", **asked).run()
    assert not page.exception and not page.error and not page.info, "nothing is tested unasked"
    page.button(key="faithfulness.pair").click().run()
    assert not page.exception and not page.error
    assert any("nothing to test" in info.value for info in page.info)
    page = open_page("methods", tab="Data set", **asked).run()
    page.button(key="faithfulness.start").click().run()
    for run in list(service().runs._runs.values()):
        run.wait()
    page.run()
    assert not page.exception and not page.error
    (table,) = [one.value for one in page.dataframe if "left out (score unchanged)" in one.value]
    assert table["method"].tolist() == ["Term shares", "Front to back", "Back to front"]
    (compared,) = [one.value for one in page.dataframe if "compared with" in one.value]
    assert compared["n"].tolist() == [2] * 3
    assert table["n"].tolist() == [2] * 3 and table["documents"].tolist() == [2] * 3
    assert table["left out (score unchanged)"].tolist() == [1] * 3
    assert table["left out (score rises)"].tolist() == [0] * 3


def test_faithfulness_of_a_data_set_has_its_caption(tmp_path: Path) -> None:
    rows = "query,document,evidence\n" + "".join(
        f"what is {word},The {word} is {word}. Filler stands here.,The {word} is {word}.\n"
        for word in ("ice", "stone", "fog")
    )
    (tmp_path / "mine.csv").write_text(rows)
    datasets.register("mine", tmp_path / "mine.csv")
    asked = {"dataset": "mine", "models": ["BM25"], "methods": ["terms"]}
    page = open_page("methods", tab="Data set", **asked).run()
    assert not page.exception
    page.button(key="faithfulness.start").click().run()
    for run in list(service().runs._runs.values()):
        run.wait()
    page.run()
    assert not page.exception and not page.error
    said = [one.value.replace("\\", "") for one in page.caption if "poslens" in one.value]
    assert len(said) == 1
    assert "3 pairs · " in said[0] and "spread evenly" in said[0] and "pair 1" not in said[0]


@pytest.mark.parametrize("asked", [None, "sum"])
def test_compare_correlates_words_with_the_heatmaps_aggregation(asked: str | None) -> None:
    from poslens.attribution.curves.positions import rank_correlation, unit_scores
    from poslens.attribution.text import words

    data = datasets.read("sample")
    pair = next(p for p in data.pairs if p.language == "eng")
    address = {"dataset": "sample", "pair": pair.pair_id, "a": "MiniLM", "b": "MiniLM-recency"}
    page = open_page("compare", **address, **({"aggregate": asked} if asked else {})).run()
    assert not page.exception
    (said,) = [one for one in page.markdown if "Spearman correlation" in one.value]
    how = asked or "mean"
    results = [
        service().explain(pair, resolve(name), make_method("saliency"))
        for name in ("MiniLM", "MiniLM-recency")
    ]
    found = {
        each: rank_correlation(
            *(
                unit_scores(
                    r.attribution.document,
                    r.attribution.document_scores,
                    words(pair.document),
                    each,
                )
                for r in results
            )
        )
        for each in ("sum", "mean")
    }
    assert found["sum"] != found["mean"] and said.value.split("**")[1] == f"{found[how]:.3f}"
    assert f"the {how} over its tokens" in said.help


def test_a_ranking_names_the_intervals_of_its_numbers(bm25, compute: Compute) -> None:
    data = datasets.read("sample")
    setup = ranking_service.RankingSetup(ranking_service.collection_of(data))
    ranking_service.job(compute, bm25, setup).start().wait()
    ranked = ranking_service.ranked(compute, bm25, setup)
    assert ranked is not None
    n = ranked.evaluation.estimates[NDCG].n_resampled
    assert n == len({pair.document for pair in data.pairs if pair.query})
    said = ranked.provenance().interval
    assert said == (
        f"95%, bootstrap over {n:,} documents; {SUCCESS} and {SUCCESS_OF_PAIRS}: 95%, Agresti-Coull"
    )
    bare = {
        name: replace(number, low=None, high=None)
        for name, number in ranked.evaluation.estimates.items()
    }
    without = replace(ranked, evaluation=replace(ranked.evaluation, estimates=bare))
    assert without.provenance().interval == ""


def test_the_interval_of_rows_that_differ_is_stated_for_each_kind() -> None:
    """Numbers of documents as a range, a formula where it replaces the bootstrap."""
    wide, narrow = (Estimate(0.5, 0.4, 0.6, n, n) for n in (20, 12))
    all_right = Estimate(1.0, 0.8, 1.0, 16, 16, formula="Agresti-Coull")
    numbers = [("first", wide), ("first", narrow), ("first", all_right), ("last", wide)]
    assert resampled_of(numbers) == (
        "95%, bootstrap over 12 to 20 documents; "
        "first (some rows): 95%, Agresti-Coull for 16 documents; "
        "last: 95%, bootstrap over 20 documents"
    )
    assert resampled_of([("psi", wide), ("first", wide)], {"psi"}) == (
        "95%, bootstrap over 20 documents; psi: 95%, one-sided from 0, bootstrap over 20 documents"
    )
    assert resampled_of([("psi", Estimate(0.5))]) == ""


def test_bias_tests_without_an_interval_name_none(compute: Compute, bm25) -> None:
    data = datasets.read("sample-bias")
    tests = (pairs_for(data, "position", "end", 12),)
    BIAS_STUDY.job(compute, Asked(bm25, tests, BIAS_STUDY.parameters.settings())).start().wait()
    summary = BIAS_STUDY.summarize(compute, Asked(bm25, tests, BIAS_STUDY.parameters.settings()))
    assert summary is not None
    (tested,) = summary.tests
    assert tested.result.low is not None
    (source,) = BIAS_STUDY.provenances([summary])
    assert source.interval == f"95%, t interval for {tested.result.n_documents} documents"
    bare = replace(tested, result=replace(tested.result, low=None, high=None))
    (source,) = BIAS_STUDY.provenances([replace(summary, tests=(bare,))])
    assert source.interval == ""

"""Retrievers of every family on the pages, on the command line and in the cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from poslens.attribution import datasets
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.bias_pairs import pairs_for
from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers import resolve, specs
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.types import TextPair
from poslens.compute.compute import Compute, service
from poslens.dashboard.__main__ import app
from poslens.dashboard.widgets.choices import statistics_in_link
from poslens.dashboard.widgets.method_choice import unfit_methods
from poslens.studies.bias.study import BIAS_STUDY
from poslens.studies.explain.minus import contrasted, fitting
from poslens.studies.faithfulness import service as faithfulness_service
from poslens.study import Asked
from tests.support import tiny_families
from tests.support.pages import SECONDS, open_page, shown_scores

ROOT = Path(__file__).parents[3]
PAIR = TextPair("p", "what turns the tide", "The tide turns twice a day. The Moon pulls the water.")


pytestmark = pytest.mark.usefixtures("own_service")


def explain_page(model: str, method: str) -> AppTest:
    texts = {"text": "Own text", "q": PAIR.query, "d": PAIR.document}
    return open_page("explain", **texts, models=model, method=method).run()


def test_bm25_works_on_the_explain_page() -> None:
    page = explain_page("BM25", "terms")
    assert not page.exception and not page.error
    assert shown_scores(page)[0] > 0
    captions = " ".join(c.value for c in page.caption)
    assert "statistics of sample" in captions
    assert "Gradient saliency cannot be computed for BM25: this method needs" in captions.replace(
        "\\", ""
    )


def test_an_unfit_method_names_every_model_it_does_not_fit() -> None:
    unfit = unfit_methods(["MiniLM-primacy", "BM25", "MiniLM"])
    assert unfit["terms"].startswith("MiniLM-primacy and MiniLM: this method needs sparse")
    assert unfit["saliency"].startswith("BM25: this method needs")


def test_a_page_accepts_the_hub_id_of_packaged_weights() -> None:
    page = explain_page("sentence-transformers/all-MiniLM-L6-v2", "saliency")
    assert not page.exception and not page.error
    assert len(shown_scores(page)) == 1


def test_typed_texts_use_the_statistics_of_the_selected_data_set() -> None:
    """In statistics of two texts alone, every shared word occurs in both, so all weigh the same."""
    page = explain_page("BM25", "terms")
    first = shown_scores(page)[0]
    page.selectbox(key="statistics.corpus").select("sample-bias").run()
    assert not page.exception and not page.error
    captions = " ".join(c.value for c in page.caption).replace("\\", "")
    assert "statistics of sample-bias" in captions
    assert page.query_params["statistics"] in ("sample-bias", ["sample-bias"])
    assert shown_scores(page)[0] != first
    neural = explain_page("MiniLM", "saliency")
    assert not any(box.key == "statistics.corpus" for box in neural.selectbox)


def test_links_to_typed_texts_state_statistics_only_if_they_are_not_the_default() -> None:
    assert statistics_in_link(["MiniLM", "BM25"], "sample-bias") == {"statistics": "sample-bias"}
    assert statistics_in_link(["MiniLM"], "sample-bias") == {}
    assert statistics_in_link(["MiniLM", "BM25"], "sample") == {}


def test_typed_texts_use_statistics_on_the_command_line() -> None:
    asked = [
        "explain",
        "--model",
        "BM25",
        "--method",
        "terms",
        "--query",
        "the basalt",
        "--document",
        "the basalt and the sea",
    ]
    found = {}
    for name in ("sample", "sample-bias"):
        run = CliRunner().invoke(app, [*asked, "--statistics", name])
        assert run.exit_code == 0, run.output
        found[name] = json.loads(run.stdout)
        assert f"statistics of {name}" in str(found[name]["provenance"])
        the, basalt = found[name]["query_scores"]
        assert basalt > 3 * the, "how rare a word is counts"
    assert found["sample"]["score"] != found["sample-bias"]["score"]
    refused = CliRunner().invoke(app, [*asked, "--statistics", "nope"])
    assert refused.exit_code == 2 and "no data set 'nope'" in refused.output


def test_bm25_works_on_the_command_line() -> None:
    arguments = ["explain", "--model", "BM25", "--method", "terms"]
    found = CliRunner().invoke(
        app, [*arguments, "--query", PAIR.query, "--document", PAIR.document]
    )
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert sum(result["document_scores"]) == pytest.approx(result["score"], rel=1e-6)
    refused = CliRunner().invoke(
        app, ["explain", "--model", "BM25", "--query", "a", "--document", "b"]
    )
    assert refused.exit_code == 2 and "is unavailable for BM25" in refused.output
    assert refused.output.strip().endswith("Select terms or occlusion.")


def test_bm25_uses_the_statistics_of_its_data_set(sample: DataSet, tmp_path: Path) -> None:
    compute = Compute(tmp_path / "other")
    spec = with_corpus(resolve.resolve("BM25"), sample.name)
    method, pairs = make_method("terms"), sample.pairs[:6]
    run = compute.attribution_job(spec, method, pairs, sample.name).start()
    run.wait()
    assert not run.error and run.progress.failed == 0
    curve = compute.curve(spec, method, pairs, sample.name)
    assert curve.summary.curve.n == 6
    assert "statistics of sample" in curve.provenance().caption()
    assert "prompts: none" in curve.provenance().caption()
    place = faithfulness_service.ask(compute, pairs[0], spec, method, ErasureParameters())
    tested = place.result()
    assert tested.gain is not None and tested.gain.deletion_area > 0
    # Other statistics are another model, so no result comes from the wrong cache.
    plain = resolve.resolve("BM25")
    assert compute.identify(plain).key != compute.identify(spec).key
    assert not compute.explain(pairs[0], plain, method).from_cache
    assert compute.explain(pairs[0], spec, method).from_cache


def test_bm25_is_drawn_next_to_a_model_on_the_curves_page() -> None:
    page = AppTest.from_file(str(ROOT / "dashboard/curves/page.py"), default_timeout=SECONDS)
    page.query_params["models"] = ["MiniLM", "BM25"]
    page.query_params["method"] = "occlusion"
    page.run()
    assert not page.exception and not page.error
    assert [b.label for b in page.button if b.key == "start"] == ["Compute"]
    said = " ".join(element.value for element in (*page.markdown, *page.caption, *page.info))
    assert "all 304 pairs" in said, said


FAMILIES = {
    "late_interaction": ("bert", "maxsim"),
    "sparse": ("bert", "terms"),
    "cross_encoder": ("bert", "decomposition"),
    "generative": ("qwen3-left", "occlusion"),
}


@pytest.fixture(params=list(FAMILIES))
def neural(
    request: pytest.FixtureRequest, tiny_folder: Callable[..., Path], tmp_path: Path
) -> tuple[Path, str]:
    """A model folder of the family, and a method for it."""
    base, method = FAMILIES[request.param]
    make = getattr(tiny_families, request.param)
    return make(tiny_folder(base).parent / "raw", tmp_path / "tiny"), method


def test_a_folder_is_explained_without_naming_its_family(neural: tuple[Path, str]) -> None:
    folder, method = neural
    arguments = ["explain", "--model", str(folder), "--method", method]
    found = CliRunner().invoke(
        app, [*arguments, "--query", PAIR.query, "--document", PAIR.document]
    )
    assert found.exit_code == 0, found.output
    result = json.loads(found.stdout)
    assert any(result["document_scores"]) and len(result["curve"]) == 100
    assert result["provenance"]["model_source"] == f"folder {folder.name}"


def test_a_folder_works_on_the_page_in_the_cache_and_in_faithfulness(
    neural: tuple[Path, str],
) -> None:
    folder, method = neural
    spec = resolve.register_folder("mine", folder)
    page = explain_page("mine", method)
    assert not page.exception and not page.error
    captions = " ".join(c.value for c in page.caption).replace("\\", "")
    if spec.family != "cross_encoder":
        assert "Token decomposition cannot be computed for mine: this method needs" in captions
    assert "MaxSim shares cannot be computed for" in captions or spec.family == "late_interaction"
    chosen = make_method(method)
    assert service().explain(PAIR, spec, chosen).model.spec.family == spec.family != "dense"
    assert service().explain(PAIR, spec, chosen).from_cache
    checked = service().self_check(service().identify(spec))
    assert checked and "score equal to sentence-transformers" in checked.sentence()
    place = faithfulness_service.ask(service(), PAIR, spec, chosen, ErasureParameters())
    assert place.result().score != 0


def test_shared_terms_are_listed(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_families.sparse(tiny_folder("bert").parent / "raw", tmp_path / "tiny")
    resolve.register_folder("mine", folder)
    page = explain_page("mine", "terms")
    page.toggle(key="terms0.shown").set_value(True).run()
    assert not page.exception and not page.error
    frame = next(d.value for d in page.dataframe if "query weight" in d.value.columns)
    score = shown_scores(page)[0]
    assert frame["share"].sum() == pytest.approx(score, abs=1e-3)


def test_the_profile_is_offered_as_a_control_only_for_models_that_have_one(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_families.sparse(tiny_folder("bert").parent / "raw", tmp_path / "tiny")
    resolve.register_folder("mine", folder)
    for model, offered in (("MiniLM", True), ("mine", False)):
        asked = {"models": [model], "method": "saliency", "control": "query-free profile"}
        page = open_page("explain", **asked).run()
        assert not page.exception and not page.error
        assert ("profile" in str(page.button_group(key="control").options)) is offered


def test_every_method_states_its_families() -> None:
    for spec in specs.presets().values():
        assert any(entry.fits(family_of(spec)) for entry in METHODS.values())


def test_a_hub_model_that_is_not_dense_is_explained(
    tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its family is known only after its files are downloaded; nothing has to be selected twice."""
    folder = tiny_families.cross_encoder(tiny_folder("bert").parent / "raw", tmp_path)
    fetched = False

    def from_hub(name: str, hub_id: str, code: bool) -> Path:
        assert not code
        if hub_id != "organisation/reranker" or not fetched:
            raise UserError(f"{name} is not here yet")
        return folder

    monkeypatch.setattr(resolve, "_from_hub", from_hub)
    spec = resolve.resolve("organisation/reranker")
    pooled = resolve.resolve("organisation/reranker@cls")
    assert spec.family == "dense"
    with pytest.raises(UserError, match="organisation/reranker is not here yet"):
        Compute(tmp_path).explain(PAIR, spec, make_method("saliency"))
    fetched = True
    explained = Compute(tmp_path).explain(PAIR, spec, make_method("saliency"))
    assert explained.model.spec.family == "cross_encoder"
    assert explained.attribution.document_scores.any()
    assert explained.model.key == Compute(tmp_path).identify(resolve.resolve(spec.name)).key
    with pytest.raises(UserError, match="is a cross-encoder model, which has no pooling"):
        Compute(tmp_path).explain(PAIR, pooled, make_method("saliency"))


def test_bias_tests_and_contrasts_work_for_every_family(neural: tuple[Path, str]) -> None:
    folder, method = neural
    spec, compute = resolve.register_folder("mine", folder), service()
    pairs = pairs_for(datasets.read("sample-bias"), "repetition", limit=2)
    run = BIAS_STUDY.job(compute, Asked(spec, (pairs,), BIAS_STUDY.parameters.settings())).start()
    run.wait()
    assert not run.error
    summary = BIAS_STUDY.summarize(compute, Asked(spec, (pairs,), BIAS_STUDY.parameters.settings()))
    assert summary is not None
    (found,) = summary.tests
    assert found.result.n == 2 and not found.failed
    pair = pairs.pairs[0]
    for name in {method, fitting(compute, spec)[0]}:
        how = make_method(name)
        results = [compute.explain(one, spec, how) for one in (pair.first, pair.second)]
        shown = contrasted(*results)
        scores = [one.attribution.score for one in (shown.first, shown.second)]
        wanted = found.scores[pair.item_id]
        small = 1e-4 * max(1.0, *map(abs, scores))
        assert scores == pytest.approx([wanted.first, wanted.second], abs=small)
        parts = shown.contrast
        if parts is not None:
            total = parts.tokens + parts.query + parts.bias + parts.error
            assert total == pytest.approx(wanted.first - wanted.second, abs=small)
            if spec.family != "cross_encoder":
                assert parts.query == pytest.approx(0, abs=small)

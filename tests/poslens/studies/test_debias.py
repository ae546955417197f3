"""Debias: the study on a small model and corpus, from training to the written folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Router
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

import poslens
from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.curves.curve_summary import primacy_recency_index
from poslens.attribution.datasets import DataSet
from poslens.attribution.debiasing.folder import folder_of
from poslens.attribution.debiasing.recipe import TrainingRecipe
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import service
from poslens.dashboard.__main__ import app
from poslens.figures.captions import method_words
from poslens.figures.palettes import Style
from poslens.paired import ItemMeasure
from poslens.studies.debias import study as debias_study
from poslens.studies.debias.debias_job import training_job
from poslens.studies.debias.points import DebiasPoint, require_trainable
from poslens.studies.debias.study import DEBIAS
from poslens.study_plan import Plan, plan, stored
from tests.attribution.debiasing.debias_testing import judged_rows
from tests.support.pages import SECONDS, open_page, page_file

SETTINGS = DEBIAS.parameters.settings({"steps": 2, "pairs": 12, "strengths": (0.5,)})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("debias")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSLENS_HOME", str(folder))
        # The tiny model has so little position bias that it would not be trained.
        patch.setattr(debias_study, "TrainingRecipe", partial(TrainingRecipe, margin=-1.0))
        service.cache_clear()
        path = folder / "short.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in judged_rows(30)))
        datasets.register("short", path)
        yield folder
        service.cache_clear()


@pytest.fixture(scope="module")
def data(home: Path) -> DataSet:
    return datasets.read("short")


@pytest.fixture(scope="module")
def spec(home: Path, tiny_folder: Callable[..., Path]) -> RetrieverSpec:
    shutil.copytree(tiny_folder("bert"), home / "tiny")
    return resolve.register_folder("tiny", home / "tiny")


@pytest.fixture(scope="module")
def planned(data: DataSet, spec: RetrieverSpec) -> Plan[DebiasPoint]:
    """The plan of the study, computed."""
    found = plan(DEBIAS, service(), [spec], DEBIAS.corpus(data, SETTINGS), SETTINGS)
    assert not found.refused
    for job in found.jobs:
        run = job.start()
        assert run.wait(600) and not run.error, run.error
    return found


def test_both_halves_count_documents_by_id(home: Path) -> None:
    """A text with two ids is two documents, as in rankings, on the same side of the split."""
    rows = [row | {"document_id": f"d{n}"} for n, row in enumerate(judged_rows(30) * 2)]
    path = home / "twice.jsonl"
    path.write_text(
        "".join(json.dumps(row | {"pair_id": row["document_id"]}) + "\n" for row in rows)
    )
    datasets.register("twice", path)
    data = datasets.read("twice")
    (note,) = DEBIAS.notes(data, DEBIAS.corpus(data, SETTINGS))
    assert note.startswith("Training half: 30 documents (") and note.endswith(": 30 documents.")


def test_every_setting_is_evaluated_on_held_out_documents(planned: Plan[DebiasPoint]) -> None:
    summaries = stored(DEBIAS, service(), planned.subjects)
    kinds = ["plain", "debiased", "calibrated", "debiased and calibrated"]
    assert [one.point.kind for one in summaries] == kinds
    plain, debiased = summaries[:2]
    corpus = plain.point.corpus
    texts = {row["document"] for row in judged_rows(30)}
    held_out = {text for text in texts if corpus.training.held_out(text)}
    assert len(held_out) == 15
    assert set(debiased.differences.documents.values()) <= held_out
    assert debiased.ranked is not None and len(debiased.ranked.setup.queries) == 15
    assert len(debiased.unretrieved) == 15
    assert plain.recommendation is None and debiased.recommendation is not None
    changes = debiased.changes
    assert changes.quality is not None and changes.effect is not None
    assert plain.quality is not None and debiased.quality is not None
    assert changes.quality.difference.value == pytest.approx(
        debiased.quality.value - plain.quality.value
    )
    assert plain.effect is not None and debiased.effect is not None
    assert changes.effect.difference.value == pytest.approx(
        abs(debiased.effect.value) - abs(plain.effect.value)
    )
    assert changes.share is not None and debiased.share is not None and plain.share is not None
    assert changes.share.difference.value == pytest.approx(
        debiased.share.value - plain.share.value, abs=1e-12
    )
    assert changes.rank_effect is not None
    assert plain.rank_effect is not None and debiased.rank_effect is not None
    assert changes.rank_effect.difference.value == pytest.approx(
        abs(debiased.rank_effect.value) - abs(plain.rank_effect.value)
    )
    # The saliency index, from the curves themselves.
    assert changes.saliency_index is not None and debiased.saliency is not None
    assert plain.saliency is not None and len(debiased.saliency.stored.pair_ids) == 12
    indices = [
        primacy_recency_index(one.saliency.stored.magnitudes.astype(np.float64).mean(0))
        for one in (plain, debiased)
    ]
    assert changes.saliency_index.difference.value == pytest.approx(float(indices[1] - indices[0]))
    assert debiased.saliency_index is not None
    assert debiased.saliency_index.value == pytest.approx(float(indices[1]))
    # p is adjusted over all rows shown: three models, of which the calibrated ones have no shares.
    p = [
        (each.p, each.p_holm)
        for one in summaries
        for each in (
            one.changes.effect,
            one.changes.rank_effect,
            one.changes.quality,
            one.changes.share,
            one.changes.saliency_index,
        )
        if each is not None and each.p is not None
    ]
    smallest = min(p)
    assert smallest[1] == pytest.approx(min(1, len(p) * smallest[0]))
    assert sum(one.recommended for one in summaries) <= 1
    for one in summaries[1:]:
        verdict = DEBIAS.verdict(one)
        assert one.recommended or "No change recommended" in verdict or "first choice" in verdict
    quality, psi, *curves = DEBIAS.figures
    with pytest.raises(UserError, match="set the steps to 0"):
        psi.draw(summaries, Style())
    for figure in (quality, *curves):
        drawn = figure.draw(summaries, Style())
        assert len(drawn.data) >= 3
        if figure is quality:
            assert drawn.layout.yaxis.autorangeoptions.clipmax == pytest.approx(1, abs=0.05)
    rows = DEBIAS.tables["points"].frame(summaries)
    assert rows["kind"].tolist() == kinds and rows["steps"].tolist()[1] == 2
    assert rows["ndcg_change_verdict"].tolist()[1] == changes.quality.verdict
    assert rows["rank_effect_change_margin"].tolist()[1] == 0.02
    checks = DEBIAS.tables["checks"].frame(summaries)
    assert checks["step"].tolist() == [0, 2]
    effects = checks[["position_effect_low", "position_effect", "position_effect_high"]].to_numpy()
    assert np.isfinite(effects).all() and (np.diff(effects) > 0).all()


def test_each_table_and_figure_has_the_provenance_of_its_measurements(
    planned: Plan[DebiasPoint],
) -> None:
    summaries = stored(DEBIAS, service(), planned.subjects)
    names = [summary.name for summary in summaries]

    def found(shown: str) -> list[tuple[str, str]]:
        return [
            (source.model, method_words(source.method))
            for source in DEBIAS.provenances(summaries, shown)
        ]

    ranking, relocation, saliency = "ranking", "relocation", "Gradient saliency"
    measured = {method for model, method in found("points") if model == "tiny-debiased"}
    assert measured == {ranking, relocation, saliency, "position effect on rank", "audit"}
    assert {model for model, _ in found("points")} == set(names)
    assert found("queries") == [(name, ranking) for name in names]
    assert set(found("Quality against position bias")) == {
        (name, method) for name in names for method in (ranking, relocation)
    }
    curves = [name for name in names if name != "tiny-debiased@calibrated"]
    assert found("Score by position of the evidence") == [(name, relocation) for name in curves]
    assert found("Saliency by position") == [(name, saliency) for name in curves]
    for source in DEBIAS.provenances(summaries, "Saliency by position"):
        assert source.n_pairs == source.n_documents == 12
        assert source.selection.startswith("12 pairs of held-out documents")
    (training,) = DEBIAS.provenances(summaries, "checks")
    assert training.model == "tiny-debiased" and "training half" in training.selection
    assert training.method == "validation_effect(validation_texts=12, tokens_per_step=1600, seed=7)"
    assert training.interval.startswith("95%, bootstrap over ") and "texts" in training.interval
    for source in DEBIAS.provenances(summaries):
        trained = source.model.startswith("tiny-debiased")
        assert trained == ("tiny debiased in 2 steps on " in source.model_source)
        assert trained == ("seed=7, steps=2, " in source.model_source)
        assert source.max_length == 128 or not trained


def first_items(measure: ItemMeasure, n: int) -> ItemMeasure:
    rows = dict(list(measure.rows.items())[:n])
    return replace(measure, rows=rows, documents={item: measure.documents[item] for item in rows})


def test_a_measure_of_few_documents_says_of_how_many_and_why(planned: Plan[DebiasPoint]) -> None:
    """15 documents are held out, of which 5 have a relocation difference."""
    plain, debiased = stored(DEBIAS, service(), planned.subjects)[:2]
    assert debiased.cause is not None
    curve = debiased.cause.provenance()
    assert curve.interval == "95%, bootstrap over 12 documents"
    few = replace(
        debiased,
        differences=first_items(debiased.differences, 5),
        cause=replace(debiased.cause, last_minus_first=Estimate(0.1, n=5, n_resampled=5)),
    )
    verdict = DEBIAS.verdict(replace(few, changes=few.against(plain)))
    assert "the size of the relocation difference (measured on 5)" in verdict
    assert "about 10 would be needed for the size of the relocation difference" in verdict
    assert verdict.endswith(
        " In 12 of 15 held-out documents, evidence was moved; tiny-debiased reads it in full at "
        "two or more positions in 12 of them and in both the first and the last third in 5."
    )

    def intervals(shown: str) -> list[str]:
        sources = DEBIAS.provenances([few], shown)
        return [one.interval for one in sources if one.method == curve.method]

    # The difference of 5 documents has no interval, but the curve of 12 has.
    assert intervals("points") == [""]
    assert intervals("Score by position of the evidence") == [curve.interval]


def test_position_bias_that_was_not_measured_is_not_called_undecided(
    planned: Plan[DebiasPoint],
) -> None:
    plain, debiased = stored(DEBIAS, service(), planned.subjects)[:2]
    corpus = debiased.point.corpus
    assert (len(corpus.pairs), corpus.n_movable) == (12, 15)

    def reason(n_movable: int) -> str:
        unmoved = replace(corpus, pairs=(), n_movable=n_movable)
        point = replace(debiased.point, corpus=unmoved)
        none = first_items(debiased.differences, 0)
        unmeasured = {"differences": none, "positions": None, "cause": None, "saliency": None}
        without = replace(debiased, point=point, **unmeasured)  # type: ignore[arg-type]
        changes = without.against(replace(plain, differences=none, positions=None))
        assert changes.effect is None and changes.rank_effect is None
        same = replace(without, changes=replace(changes, quality=None))
        return DEBIAS.verdict(same).split(" No change recommended: ")[1]

    missing = "position bias was not measured."
    assert reason(0) == f"{missing} No held-out document has evidence that can be moved."
    assert reason(15) == f"{missing} The number of pairs whose evidence is moved is set to 0."


def test_a_model_without_a_position_effect_is_not_trained(
    data: DataSet, spec: RetrieverSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debias_study, "TrainingRecipe", TrainingRecipe)
    found = plan(DEBIAS, service(), [spec], DEBIAS.corpus(data, SETTINGS), SETTINGS)
    for job in found.jobs[:2]:
        run = job.start()
        assert run.wait(600) and not run.error, run.error
    _, debiased = stored(DEBIAS, service(), found.subjects[:2])
    assert debiased.manifest is not None and debiased.manifest.steps == 0
    assert [part.difference.value for part in vars(debiased.changes).values() if part] == [0] * 5
    verdict = DEBIAS.verdict(debiased)
    assert "Not trained: its position effect on validation texts, " in verdict
    assert "is within 0.005 of 0. No change recommended: " in verdict
    card = (folder_of(debiased.model.spec) / "README.md").read_text()
    assert "- Steps: 0 (the position effect was too small to remove" in card


def test_the_trained_model_opens_by_name_and_is_not_trained_again(
    planned: Plan[DebiasPoint],
) -> None:
    assert "tiny-debiased" in resolve.known()
    assert all(job.n_done() == job.total for job in planned.jobs)
    again = training_job(service(), planned.subjects[1])
    assert again.n_done() == again.total
    other = replace(planned.subjects[1], recipe=replace(planned.subjects[1].recipe, seed=8))  # type: ignore[type-var]
    assert other.spec(service()) is None
    assert not planned.subjects[1].checkpoint(service()).exists()


def test_the_folder_and_its_card_are_written(planned: Plan[DebiasPoint], tmp_path: Path) -> None:
    summaries = stored(DEBIAS, service(), planned.subjects)
    DEBIAS.write_product(service(), summaries, tmp_path / "out")
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert model.encode("The tide.").shape == (32,)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| nDCG@10 |" in card and "relocation difference" in card and "seed 7" in card
    assert "| saliency index (its change) |" in card
    assert "tiny-debiased: relocation difference" in card
    with pytest.raises(UserError, match="already exists"):
        DEBIAS.require_product(tmp_path / "out", 1)
    with pytest.raises(UserError, match="only one model: debias one at a time"):
        DEBIAS.require_product(tmp_path / "new", 2)
    assert DEBIAS.write_product(service(), summaries[:1], tmp_path / "other") == (
        "No model was debiased, so nothing is written."
    )
    assert not (tmp_path / "other").exists()


def test_the_call_writes_the_folder(planned: Plan[DebiasPoint], tmp_path: Path) -> None:
    settings = {"steps": 2, "pairs": 12, "strengths": (0.5,)}
    result = poslens.debias("tiny", "short", out=tmp_path / "out", **settings)
    assert len(result.verdicts) == 4 and (tmp_path / "out" / "model.safetensors").is_file()
    with pytest.raises(UserError, match="already exists"):
        poslens.debias("tiny", "short", out=tmp_path / "out", **settings)
    with pytest.raises(UserError, match="remove `out`"):
        poslens.needles("tiny", "short", out=tmp_path / "needles")


def test_stopped_training_is_resumed(data: DataSet, spec: RetrieverSpec, home: Path) -> None:
    settings = DEBIAS.parameters.settings({"steps": 40, "seed": 3})
    corpus = DEBIAS.corpus(data, settings)
    point = DEBIAS.subjects(service(), spec, corpus, settings)[1]
    seen: list[int] = []
    job = training_job(service(), point)
    run = job.start(lambda progress: (seen.append(progress.done), seen[-1] >= 2 and job.stop()))
    assert run.wait(600) and run.progress.stopped and not run.error
    assert point.checkpoint(service()).is_file() and point.spec(service()) is None
    done = run.progress.done
    again: list[int] = []
    job = training_job(service(), point)
    run = job.start(lambda progress: (again.append(progress.done), len(again) > 1 and job.stop()))
    assert run.wait(600) and again[0] == done


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("BM25", "BM25 is a lexical model, which cannot be trained"),
        ("MiniLM@calibrated", "is calibrated: debias MiniLM"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        require_trainable(resolve.resolve(name))


def test_endpoints_and_cross_encoders_are_refused() -> None:
    endpoint = RetrieverSpec("ours", "ours", "dense", "endpoint:http://localhost:1#m")
    with pytest.raises(UserError, match="ours is an endpoint, which cannot be trained"):
        require_trainable(endpoint)
    cross = RetrieverSpec("cross", "cross", "cross_encoder", "hub:a/b")
    with pytest.raises(UserError, match="which cannot be trained here"):
        require_trainable(cross)


def test_a_model_with_a_router_is_refused_before_anything_is_computed(
    tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    encoders = [SentenceTransformer(str(tiny_folder("bert")), device="cpu") for _ in range(2)]
    query, document = map(list, encoders)
    router = Router.for_query_document(query_modules=query, document_modules=document)
    SentenceTransformer(modules=[router, Normalize()]).save_pretrained(str(tmp_path / "router"))
    routed = resolve.register_folder("routed", tmp_path / "router")
    with pytest.raises(UserError, match="routed has separate encoders"):
        require_trainable(routed)
    require_trainable(resolve.register_folder("one", tiny_folder("bert")))


def test_a_corpus_that_is_too_small_is_refused_in_one_sentence(
    home: Path, spec: RetrieverSpec
) -> None:
    path = home / "small.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in judged_rows(5)))
    datasets.register("small", path)
    done = CliRunner().invoke(app, ["debias", "--model", spec.name, "--corpus", "small"])
    assert done.exit_code == 2 and "needs at least 8" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_shows_the_results(planned: Plan[DebiasPoint]) -> None:
    page = AppTest.from_file(str(page_file("debias")), default_timeout=SECONDS)
    for name, value in {
        "dataset": "short",
        "models": "tiny",
        "steps": "2",
        "pairs": "12",
        "strengths": "0.5",
    }.items():
        page.query_params[name] = value
    page.run()
    assert not page.exception and not page.error
    assert any("debiased\\: relocation difference" in one.value for one in page.markdown)
    assert any("nDCG@10 change" in one.value.columns for one in page.dataframe)
    assert any("debias_front" in chart.proto.spec for chart in page.get("plotly_chart"))
    exported = page.selectbox(key="debias.results.what").options
    assert "Position effect during training" in exported
    assert "Test of the selected setting" not in exported


@pytest.mark.parametrize(
    ("table", "steps", "reason"),
    [("selection", "2", "use --steps 0"), ("checks", "0", "nothing is trained")],
)
def test_a_table_that_the_settings_leave_empty_is_refused(
    home: Path, table: str, steps: str, reason: str
) -> None:
    asked = ["debias", "--model", "tiny", "--dataset", "short", "--table", table]
    done = CliRunner().invoke(app, [*asked, "--steps", steps])
    assert done.exit_code == 2 and reason in done.stderr and not done.stdout


def test_the_page_refuses_a_model_that_cannot_be_trained(home: Path) -> None:
    page = AppTest.from_file(str(page_file("debias")), default_timeout=SECONDS)
    page.query_params["models"] = "BM25"
    page.run()
    assert not page.exception
    assert any("cannot be trained here" in one.value for one in page.info)


@pytest.mark.usefixtures("own_service")
def test_a_first_visit_shows_the_bias_to_remove(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSLENS_SHIPPED", "yes")
    page = AppTest.from_file(str(page_file("debias")), default_timeout=SECONDS)
    page.run()
    assert not page.exception and not page.error
    assert any("position_effect" in chart.proto.spec for chart in page.get("plotly_chart"))
    sentences = [one.value.replace("\\", "") for one in page.markdown]
    assert any(sentence.startswith("MiniLM-primacy: nDCG@10 ") for sentence in sentences)


def test_data_without_evidence_announce_neither_a_chart_nor_results_before_debiasing(
    home: Path, spec: RetrieverSpec
) -> None:
    path = home / "unmarked.jsonl"
    rows = [{**row, "evidence": ""} for row in judged_rows(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.register("unmarked", path)
    asked = {"dataset": "unmarked", "models": "tiny", "steps": "2", "strengths": "0.5"}
    page = open_page("debias", **asked).run()
    assert not page.exception and not page.error
    assert not any("before debiasing" in one.value for one in page.markdown)

    corpus = DEBIAS.corpus(datasets.read("unmarked"), SETTINGS)
    unmarked = plan(DEBIAS, service(), [spec], corpus, SETTINGS)
    for job in unmarked.jobs:
        run = job.start()
        assert run.wait(600) and not run.error, run.error
    summaries = DEBIAS.together(stored(DEBIAS, service(), unmarked.subjects))
    assert [each.on_front for each in summaries] == [None] * 4
    page = open_page("debias", **asked, pairs="12").run()
    assert not page.exception and not page.error
    assert any("nDCG@10 change" in one.value.columns for one in page.dataframe)
    captions = " ".join(one.value for one in page.caption)
    assert "Brackets are 95%" in captions and "In the first chart" not in captions
    assert not any("debias_front" in chart.proto.spec for chart in page.get("plotly_chart"))


def test_training_on_an_uploaded_file_leaves_a_shared_model() -> None:
    def warned(page: AppTest) -> bool:
        return any("everyone with access to the server" in one.value for one in page.info)

    content = "".join(json.dumps(row) + "\n" for row in judged_rows(30)).encode()
    page = open_page("debias", models=["MiniLM"]).run()
    assert not warned(page)
    page.file_uploader(key="upload").upload("own.jsonl", content).run()
    assert not page.exception and not page.error and warned(page)
    page.number_input(key="number.steps").set_value(0).run()
    assert not warned(page)


def test_a_page_without_results_says_why_in_a_box() -> None:
    page = open_page("debias", models=["BM25"]).run()
    assert any("cannot be trained" in one.value for one in page.info)

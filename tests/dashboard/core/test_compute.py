"""Results are computed once and survive a restart, and a broken cache prevents nothing."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from poslens.attribution import datasets
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.methods import make_method, perturbation
from poslens.attribution.retrievers import lexical
from poslens.attribution.retrievers.base import LibraryCheck
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.self_check import SelfCheck
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.cache.exchange.part_files import PartFolder, PartWriter, ingest
from poslens.cache.jobs.loop import Progress
from poslens.compute import compute as compute_module
from poslens.compute import mean_curves
from poslens.compute.compute import Compute
from poslens.compute.queue import GRACE_S, DeviceQueue
from poslens.compute.runs import Run
from tests.attribution.datasets.test_corpus import write_beir
from tests.support.requests_of import n_requests

PAIR = TextPair("p", "what melts", "Ice melts. Stone stays.")
METHOD = make_method("saliency")


@pytest.fixture
def spec(tiny_folder: Callable[..., Path], tmp_path: Path) -> RetrieverSpec:
    """A tiny model in a folder that the test can change."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("bert"), folder)
    return RetrieverSpec("tiny", "tiny", "dense", f"folder:{folder}")


def test_a_result_survives_a_restart_without_loading_the_model(
    spec: RetrieverSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Compute(tmp_path / "home").explain(PAIR, spec, METHOD)
    assert not first.from_cache
    restarted = Compute(tmp_path / "home")
    monkeypatch.setattr(
        "poslens.compute.model_pool.load", lambda *_: pytest.fail("the model was loaded")
    )
    again = restarted.explain(PAIR, spec, METHOD)
    assert again.from_cache
    assert again.attribution.document_scores.tolist() == first.attribution.document_scores.tolist()


def test_a_model_changed_on_disk_under_its_name_is_a_miss(
    spec: RetrieverSpec, tmp_path: Path
) -> None:
    compute = Compute(tmp_path / "home")
    before = compute.explain(PAIR, spec, METHOD)
    weights = Path(spec.source.partition(":")[2]) / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-400:] = bytes(400)
    weights.write_bytes(bytes(raw))
    after = compute.explain(PAIR, spec, METHOD)
    assert not after.from_cache and after.model.weights != before.model.weights


def test_a_run_shows_that_it_counts_words_and_can_be_stopped_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = {f"d{n}": f"The tide turns {n} times." for n in range(8)}
    folder = write_beir(tmp_path / "beir", corpus, {"q": "tide"}, {"q": {"d1": "1", "d2": "1"}})
    datasets.register("tides", folder)
    monkeypatch.setattr(lexical, "_LARGE_BYTES", 10)
    monkeypatch.setattr(lexical, "_COUNTED_AT_A_TIME", 2)
    compute, pairs = Compute(tmp_path / "home"), datasets.read("tides").pairs
    job = compute.attribution_job(
        with_corpus(resolve("BM25"), "tides"), make_method("terms"), pairs, ""
    )
    stages: list[str] = []

    def stop(_: Progress) -> None:
        assert job.run is not None
        stages.append(job.run.stage)
        if job.run.stage.endswith("25%"):
            job.stop()

    stopped = job.start(stop)
    assert stopped.wait(60) and not stopped.error
    assert stopped.progress.stopped and stopped.progress.done == 0
    counting = [stage for stage in stages if stage]
    assert counting == [f"{lexical.COUNTING}, 0%", f"{lexical.COUNTING}, 25%"]
    again = job.start()
    assert again.wait(60) and not again.error and again.stage == ""
    assert again.progress.done == len(pairs) == 2 and not again.progress.stopped


def test_another_resampling_computes_no_gradient_again(spec: RetrieverSpec, tmp_path: Path) -> None:
    compute = Compute(tmp_path / "home")
    compute.explain(PAIR, spec, METHOD)
    other = make_method("saliency", {"resampling": "point", "normalization": "max"})
    found = compute.explain(PAIR, spec, other)
    assert found.from_cache and found.provenance().method == repr(other)


def test_a_cache_that_cannot_be_written_only_causes_a_notice(
    spec: RetrieverSpec, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "cache").write_text("a file where the folder should be")
    result = Compute(home).explain(PAIR, spec, METHOD)
    assert "cache can't be used" in result.notice and result.attribution.score != 0


def test_a_run_stops_resumes_and_is_not_started_twice(spec: RetrieverSpec, tmp_path: Path) -> None:
    compute = Compute(tmp_path / "home")
    pairs = [
        TextPair(f"p{i}", "what melts", f"Number {i}. Ice melts. " * 40, dataset="d")
        for i in range(60)
    ]
    reached = threading.Event()
    go_on = threading.Event()

    def report(progress) -> None:
        if progress.computed:
            reached.set()
            go_on.wait(300)

    run = compute.attribution_job(spec, METHOD, pairs, "d").start(report)
    assert reached.wait(60)
    assert compute.attribution_job(spec, METHOD, pairs, "d").start() is run
    run.stop()
    go_on.set()
    run.wait()
    assert run.progress.stopped and 0 < run.progress.done < 60
    with pytest.raises(UserError):
        compute.curve(spec, make_method("decomposition"), pairs, "d")
    stopped_at = run.progress.done
    resumed = compute.attribution_job(spec, METHOD, pairs, "d").start()
    resumed.wait()
    assert resumed.progress.done == 60 and resumed.progress.computed == 60 - stopped_at
    assert compute.curve(spec, METHOD, pairs, "d").summary.curve.n == 60


def test_twenty_requests_for_the_same_result_compute_it_once(
    spec: RetrieverSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = Compute(tmp_path / "home")
    computed = 0
    real = compute.explain

    def counting(*arguments):
        nonlocal computed
        computed += 1
        return real(*arguments)

    monkeypatch.setattr(compute, "explain", counting)
    with compute.queue.device_slot():  # no request is served before all are waiting
        places = [compute.ask(PAIR, spec, METHOD) for _ in range(20)]
        assert not places[0].wait(0.3) and n_requests(compute.queue) == 1
    results = [place.result() for place in places]
    assert computed == 1 and all(r is results[0] for r in results) and not results[0].from_cache
    again = compute.ask(PAIR, spec, METHOD)
    assert again.wait(0) and again.result().from_cache and computed == 1
    # Stored results are shown however many requests wait.
    monkeypatch.setenv("POSLENS_QUEUE_LIMIT", "1")
    with compute.queue.device_slot():
        compute.ask(replace(PAIR, pair_id="q"), spec, METHOD)
        assert compute.ask(PAIR, spec, METHOD).result().from_cache
        with pytest.raises(UserError, match="1 requests are already waiting"):
            compute.ask(replace(PAIR, pair_id="r"), spec, METHOD)


def test_a_slow_pair_that_nobody_waits_for_frees_the_device_after_the_current_pass(
    spec: RetrieverSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, seconds = Compute(tmp_path / "home"), [0.0]
    compute.queue = DeviceQueue(lambda: 8, lambda: seconds[0])
    compute.retriever(compute.identify(spec))
    passes: list[int] = []
    begun, go_on = threading.Event(), threading.Event()
    real = perturbation.checkpoint

    def slow() -> None:
        passes.append(1)
        begun.set()
        go_on.wait(60)
        real()

    monkeypatch.setattr(perturbation, "checkpoint", slow)
    occlusion = make_method("occlusion", {"level": "token"})
    pair = TextPair("long", "what melts", "Ice melts. Stone stays. " * 400, dataset="d")
    place = compute.ask(pair, spec, occlusion)
    assert begun.wait(60)
    place.leave()
    seconds[0] += GRACE_S + 0.1
    go_on.set()
    with compute.queue.device_slot():
        pass
    with pytest.raises(Stopped):
        place.result()
    assert len(passes) == 1 and n_requests(compute.queue) == 0
    assert compute.store.get(compute.identify(spec).key, occlusion, pair) is None
    assert compute.store.missing(compute.identify(spec).key, occlusion, [pair]) == [pair]


def test_a_run_passes_its_options_to_the_computation(spec: RetrieverSpec, tmp_path: Path) -> None:
    compute, told = Compute(tmp_path / "home"), list[Progress]()
    run = Run("", 1, retry_failed=True)
    options = compute.run_options(spec, run, told.append)
    assert options.retry_failed
    options.on_progress(run.progress)
    assert told == [run.progress]
    assert options.device_slot == compute.queue.device_slot
    elsewhere = replace(spec, source="endpoint:far")
    first_time = compute.run_options(elsewhere, Run("", 1), told.append)
    assert first_time.device_slot is nullcontext and not first_time.retry_failed


def test_the_least_recently_used_model_is_unloaded(
    tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSLENS_MODEL_MEMORY_GB", "0.000001")
    compute = Compute(tmp_path / "home")
    for name in ("bert", "distilbert"):
        spec = RetrieverSpec(name, name, "dense", f"folder:{tiny_folder(name)}")
        compute.retriever(compute.identify(spec))
    assert len(compute.models._loaded) == 1


def test_methods_that_do_not_fit_are_reported_and_refused(
    spec: RetrieverSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = Compute(tmp_path / "home")
    model = compute.identify(spec)
    assert "decomposition" not in compute.unfit(model)
    assert compute.self_check(model) is None
    unfit = SelfCheck(LibraryCheck(0.0, "score"), unfit={"decomposition": "because."})
    monkeypatch.setattr("poslens.compute.model_pool.check_retriever", lambda _: unfit)
    with pytest.raises(UserError, match="decomposition is unavailable for tiny: because"):
        compute.explain(PAIR, spec, make_method("decomposition"))
    assert compute.unfit(model)["decomposition"] == "because."
    assert compute.explain(PAIR, spec, METHOD).attribution.document_scores.any()
    assert compute.unfit(model)["maxsim"].startswith("this method needs late-interaction")


def test_a_run_publishes_parts_that_another_cache_ingests(
    spec: RetrieverSpec, tmp_path: Path
) -> None:
    compute, place = Compute(tmp_path / "home"), PartFolder(tmp_path / "parts")
    pairs = [replace(PAIR, pair_id=name) for name in ("p", "q")]

    def published() -> int:
        writer = PartWriter(place, compute.root, "1")
        run = compute.attribution_job(spec, METHOD, pairs, "typed", store=writer).start()
        run.wait()
        assert run.error == ""
        return run.progress.computed

    assert (published(), published()) == (2, 0)
    job = compute.attribution_job(spec, METHOD, pairs, "typed")
    assert job.total - job.n_done() == 2
    assert ingest(compute.store, place).taken.added == 2
    assert compute.explain(pairs[1], spec, METHOD).from_cache


def test_a_curve_is_averaged_once_and_again_after_a_new_result(
    spec: RetrieverSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = Compute(tmp_path / "home")
    pairs = [
        replace(PAIR, pair_id=f"p{n}", document=f"Ice melts. Stone {n} stays.") for n in range(3)
    ]
    averaged: list[int] = []
    real = mean_curves.summarize

    def counting(curves, groups, **about):
        averaged.append(len(curves))
        return real(curves, groups, **about)

    monkeypatch.setattr(mean_curves, "summarize", counting)
    for pair in pairs[:2]:
        compute.explain(pair, spec, METHOD)
    first = compute.curve(spec, METHOD, pairs, "typed")
    again = compute.curve(spec, METHOD, pairs, "typed")
    assert averaged == [2] and again.content == first.content
    compute.explain(pairs[2], spec, METHOD)
    later = compute.curve(spec, METHOD, pairs, "typed")
    assert averaged == [2, 3] and later.summary.curve.n == 3
    assert later.content != first.content


def test_pairs_that_share_a_document_are_resampled_together(
    spec: RetrieverSpec, tmp_path: Path
) -> None:
    """Two queries for each of ten documents, which is the minimum for an interval."""
    compute = Compute(tmp_path / "home")
    pairs = [
        replace(PAIR, pair_id=f"p{n}.{query}", query=query, document=f"Ice melts. Stone {n} stays.")
        for n in range(10)
        for query in ("melting ice", "a stone")
    ]
    for pair in pairs:
        compute.explain(pair, spec, METHOD)
    found = compute.curve(spec, METHOD, pairs, "typed").summary
    assert (found.curve.n, found.curve.n_documents) == (20, 10)
    assert found.curve.ci_low is not None
    assert found.primacy_recency_index is not None
    assert found.primacy_recency_index.n_resampled == 10
    few = compute.curve(spec, METHOD, pairs[:18], "typed").summary
    assert (few.curve.n, few.curve.n_documents) == (18, 9) and few.curve.ci_low is None


def test_bm25_follows_a_file_that_is_rewritten_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the half second for which a model's identity is cached."""
    monkeypatch.setattr(compute_module, "IDENTIFIED_S", 600)
    file = tmp_path / "own.jsonl"

    def rewritten(document: str) -> str:
        file.write_text(json.dumps({"query": "what melts", "document": document}) + "\n")
        (name,) = datasets.register("rewritten", file)
        datasets.reload_if_changed(name)
        spec = with_corpus(resolve("BM25"), name)
        return compute.identify(spec).key.fingerprint

    compute = Compute(tmp_path / "cache")
    first = rewritten("Ice melts.")
    assert rewritten("Ice melts in spring, and snow.") != first
    assert rewritten("Ice melts.") == first

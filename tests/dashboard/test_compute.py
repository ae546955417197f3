"""Results are computed once, survive a restart, and a broken cache spoils nothing."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attribution.errors import UserError
from attribution.methods import make_method
from attribution.proof import Proof
from attribution.retrievers.registry import RetrieverSpec
from attribution.types import TextPair
from dashboard.compute import Compute
from dashboard.runs import Turnstile

PAIR = TextPair("p", "what melts", "Ice melts. Stone stays.")
METHOD = make_method("saliency")


@pytest.fixture
def spec(tiny_folder: Callable[..., Path], tmp_path: Path) -> RetrieverSpec:
    """A tiny model in a folder of the test's own, so that it can be changed."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("bert"), folder)
    return RetrieverSpec("tiny", "tiny", "dense", f"folder:{folder}")


def test_a_result_survives_a_restart_without_loading_the_model(
    spec: RetrieverSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Compute(tmp_path / "home").explain(PAIR, spec, METHOD)
    assert not first.from_cache
    restarted = Compute(tmp_path / "home")
    monkeypatch.setattr("dashboard.compute.load", lambda *_: pytest.fail("the model was loaded"))
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


def test_another_resampling_computes_no_gradient_again(spec: RetrieverSpec, tmp_path: Path) -> None:
    compute = Compute(tmp_path / "home")
    compute.explain(PAIR, spec, METHOD)
    other = make_method("saliency", {"resampling": "point", "normalization": "max"})
    found = compute.explain(PAIR, spec, other)
    assert found.from_cache and found.provenance().method == repr(other)


def test_a_cache_that_cannot_be_written_only_leaves_a_notice(
    spec: RetrieverSpec, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "cache").write_text("a file where the folder should be")
    result = Compute(home).explain(PAIR, spec, METHOD)
    assert "cache could not be used" in result.notice and result.attribution.score != 0


def test_turns_come_in_the_order_of_asking() -> None:
    turnstile, order = Turnstile(), []
    threads = []
    with turnstile.turn():
        for name in "abc":

            def wait(name: str = name) -> None:
                with turnstile.turn():
                    order.append(name)

            threads.append(threading.Thread(target=wait))
            threads[-1].start()
            time.sleep(0.05)
    for thread in threads:
        thread.join(5)
    assert order == ["a", "b", "c"]


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
            go_on.wait(20)

    run = compute.start_run(spec, METHOD, pairs, "d", report)
    assert reached.wait(60)
    assert compute.start_run(spec, METHOD, pairs, "d") is run
    run.stop()
    go_on.set()
    run.wait()
    assert run.progress.stopped and 0 < run.progress.done < 60
    with pytest.raises(UserError):
        compute.curve(spec, make_method("decomposition"), pairs, "d")
    stopped_at = run.progress.done
    resumed = compute.start_run(spec, METHOD, pairs, "d")
    resumed.wait()
    assert resumed.progress.done == 60 and resumed.progress.computed == 60 - stopped_at
    assert compute.curve(spec, METHOD, pairs, "d").summary.curve.n == 60


def test_the_least_recently_used_model_makes_room(
    tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSLENS_MODEL_MEMORY_GB", "0.000001")
    compute = Compute(tmp_path / "home")
    for name in ("bert", "distilbert"):
        spec = RetrieverSpec(name, name, "dense", f"folder:{tiny_folder(name)}")
        compute.retriever(compute.identify(spec))
    assert len(compute._models) == 1


def test_what_does_not_fit_is_said_and_refused(
    spec: RetrieverSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = Compute(tmp_path / "home")
    assert not compute.unfit(spec, "decomposition")
    assert compute.proof(compute.identify(spec)) is None
    unfit = Proof(0.0, unfit={"decomposition": "because."})
    monkeypatch.setattr("dashboard.compute.prove", lambda _: unfit)
    with pytest.raises(UserError, match="decomposition does not fit tiny: because"):
        compute.explain(PAIR, spec, make_method("decomposition"))
    assert compute.unfit(spec, "decomposition") == "because."
    assert compute.explain(PAIR, spec, METHOD).attribution.document_scores.any()
    assert compute.unfit(replace(spec, family="lexical"), "saliency").startswith("it is for dense")

"""`bench.gpu` on the CPU: the same proof and measurements, on tiny models."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from bench import gpu, gpu_proof, gpu_speed
from bench.contenders import LOOP, SALIENCY, contenders, pairs
from bench.encoders import SIZES, Size, build
from bench.gpu_proof import halves, kernels, prove, spread
from bench.gpu_speed import PRODUCT, fitting, measure
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import TextPair
from tests.attribution.support_matrix import models

TINY = {
    "bert": Size(
        "tiny BERT",
        "bert",
        "mean",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
        },
    ),
    "qwen3": Size(
        "tiny Qwen3",
        "qwen3",
        "lasttoken",
        {
            "vocab_size": 30_522,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "intermediate_size": 64,
        },
    ),
}
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")
def test_a_missing_gpu_is_reported_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.main()
    said = capsys.readouterr().out
    assert said.startswith("bench.gpu needs a CUDA GPU") and said.count("\n") == 1
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert gpu.why_not() == "bench.gpu needs a CUDA GPU, and torch finds none on this machine."


# -- the proof ---------------------------------------------------------------------------------


def test_every_method_of_an_architecture_is_compared(one_thread: None, tmp_path: Path) -> None:
    cases = list(prove(tmp_path, "cpu", ["float32", "bfloat16"], ["bert"]))
    assert all(case.passed for case in cases), [c for c in cases if not c.passed]
    exact = [case for case in cases if case.precision == "float32"]
    assert all(case.distance == 0 and case.score == 0 for case in exact)
    tried = {case.method for case in exact}
    dense = {name for name in METHODS if name not in ("terms", "maxsim")}
    options = ("matrix=yes", "biases=decompx", "biases=absdot", "part=word")
    variants = {*(f"decomposition {v}" for v in options), "integrated_jacobians matrix=yes steps=8"}
    assert tried == dense | variants
    coarse = [case.distance for case in cases if case.precision == "bfloat16"]
    assert all(distance is not None and distance > 1e-4 for distance in coarse)
    lines = gpu.case_lines(cases)
    assert len(lines) == 2 + len(cases) and "NOT" not in "".join(lines)


@pytest.fixture
def two_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare only two methods."""
    few = [make_method("saliency"), make_method("occlusion")]
    monkeypatch.setattr(gpu_proof, "methods_of", lambda _: few)


@pytest.mark.usefixtures("one_thread", "two_methods")
def test_a_device_with_other_results_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model for the device, loaded after two for the CPU, has one weight that is off by a
    thousandth."""
    real, loaded = gpu_proof.load, []

    def load(*args: Any) -> Any:
        retriever: Any = real(*args)
        if len(loaded) == 2:
            with torch.no_grad():
                retriever.backbone.encoder.layer[0].attention.self.value.weight.mul_(1.001)
        loaded.append(retriever)
        return retriever

    monkeypatch.setattr(gpu_proof, "load", load)
    cases = {c.method: c for c in prove(tmp_path, "cpu", ["float32"], ["bert"])}
    assert cases["saliency"].passed is False
    assert "NOT as on the CPU" in gpu.case_lines([cases["saliency"]])[2]


@pytest.mark.usefixtures("one_thread", "two_methods")
def test_a_failed_method_does_not_affect_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = METHODS["occlusion"].compute, []

    def fails(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > 1:
            raise RuntimeError("CUDA error: no kernel image is available\nmore")
        return real(*args)

    broken = dataclasses.replace(METHODS["occlusion"], compute=fails)
    monkeypatch.setitem(METHODS, "occlusion", broken)
    cases = {c.method: c for c in prove(tmp_path, "cpu", ["float32"], ["bert"])}
    said = cases.pop("occlusion")
    assert said.passed is False and said.note == (
        "!RuntimeError: CUDA error: no kernel image is available"
    )
    assert cases["saliency"].passed


def test_verdicts_of_given_results(one_thread: None) -> None:
    retriever = build(TINY["bert"], "cpu", "float32")
    method = make_method("decomposition")
    expected = gpu_proof.results(retriever, [method])[method]
    assert not isinstance(expected, str)
    wrong = [dataclasses.replace(one, completeness_error=1.0) for one in expected]
    assert not gpu_proof.compare("m", method, "bfloat16", "", wrong, expected).passed
    assert gpu_proof.compare("m", method, "float32", "", expected, expected).passed
    # 16 bits may be insufficient, in one sentence; other errors fail.
    for said, precision, passed in (
        ("instead of float16", "float16", None),
        ("instead of float16", "float32", False),
        ("!RuntimeError: x", "float16", False),
    ):
        found = gpu_proof.compare("m", method, precision, "", said, expected)
        assert found.passed is passed and found.note == said


def test_a_difference_within_rounding_passes(one_thread: None, tmp_path: Path) -> None:
    """Scores of this model are near 1 and effects below 1e-3: float32 keeps three of their digits,
    which depend on the order of summation."""
    method = make_method("occlusion")
    ((_, spec),) = models(tmp_path, ["gte"])
    expected = gpu_proof.results(gpu_proof.load(spec, "cpu", "float32"), [method])[method]
    exact = gpu_proof.results(gpu_proof._wide(spec), [method])[method]
    own = gpu_proof.rounding(expected, exact)
    assert 1e-5 < own < 1e-2
    assert not isinstance(expected, str)

    def off(times: float) -> gpu_proof.Results:
        largest = (np.abs(one.document_scores).max() for one in expected)
        return [
            dataclasses.replace(one, document_scores=one.document_scores + times * own * most)
            for one, most in zip(expected, largest, strict=True)
        ]

    def passes(times: float, rounding: float) -> bool | None:
        case = gpu_proof.compare(
            spec.name, method, "float32", "", off(times), expected, rounding * own
        )
        return case.passed

    many = 1.5 * gpu_proof.LIMIT / own  # beyond the limit
    assert passes(many, 0) is False
    assert passes(many, many) is True
    assert passes(many, many / 5) is False


def test_attention_kernels_are_compared(one_thread: None, tmp_path: Path) -> None:
    cases = list(kernels(tmp_path, "cpu", ["float32"], ["qwen3-left"]))
    assert not any(case.passed is False for case in cases), cases
    shown = {case.how for case in cases if case.passed}
    assert {"math, one length", "math, padded", "flash, one length"} <= shown
    assert {case.method for case in cases} == {"saliency", "decomposition"}


@contextmanager
def room_for(retriever: DenseRetriever, tokens: int) -> Iterator[None]:
    """Simulates a device with memory for a limited number of tokens."""

    def check(_module: object, _args: object, output: torch.Tensor) -> None:
        if output.shape[0] * output.shape[1] > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    hook = retriever.embeddings.register_forward_hook(check)
    try:
        yield
    finally:
        hook.remove()


def test_a_batch_that_does_not_fit_is_halved_with_the_same_results(one_thread: None) -> None:
    retriever = build(TINY["bert"], "cpu", "float32")
    found = halves(
        retriever,
        pairs(8, 32),
        lambda: room_for(retriever, 3 * 32),
        lambda: room_for(retriever, 16),
    )
    assert found.attempts == (8, 4, 2, 2, 4, 2, 2) and found.passed
    assert found.distance < 1e-4
    roomy = halves(
        retriever, pairs(2, 32), lambda: room_for(retriever, 999), lambda: room_for(retriever, 16)
    )
    assert roomy.attempts == (2,) and not roomy.passed, "nothing was halved, so nothing is shown"


@pytest.mark.usefixtures("one_thread", "two_methods")
def test_a_model_spread_over_devices_is_compared(tmp_path: Path) -> None:
    """Through the same placement, here with all layers on the CPU."""
    ((_, spec),) = models(tmp_path, ["bert"])
    cases, where = spread(spec, "cpu", several=False)
    assert where == ["cpu"] and len(cases) == 2 and all(case.passed for case in cases)
    cases, _ = spread(spec, "cpu")
    assert [case.passed for case in cases] == [True, True, False]


# -- the speed ---------------------------------------------------------------------------------


class Counting(TorchDispatchMode):
    """Adds up the operations of every product, including backward passes."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.operations += count(*args, **(kwargs or {}), out_val=found)
        return found


@pytest.mark.parametrize("name", TINY)
def test_operation_counts_equal_those_of_torch(one_thread: None, name: str) -> None:
    size = TINY[name]
    retriever = build(size, "cpu", "float32")
    retriever.backbone.set_attn_implementation("eager")  # type: ignore[operator]
    (pair,) = pairs(1, 200)
    method = make_method("saliency")
    with Counting() as counter:
        METHODS["saliency"].compute(retriever, method, [pair])
    counted = counter.operations
    whole = dataclasses.replace(size, pooling="mean")  # eager attention computes both halves
    assert counted == pytest.approx(whole.work(200, 12), rel=0.02)
    if name == "qwen3":
        assert size.work(200, 12) < whole.work(200, 12)


def test_sizes_match_the_models_they_are_named_after() -> None:
    small, middle, large = SIZES
    assert small.weights() == pytest.approx(10.6e6, rel=0.01)  # all-MiniLM-L6-v2 without tables
    tables = 151_669 * 1024
    assert middle.weights() + tables == pytest.approx(596e6, rel=0.01)  # Qwen3-Embedding-0.6B
    assert large.weights() + 4 * tables == pytest.approx(7568e6, rel=0.01)  # Qwen3-Embedding-8B


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_contenders_are_measured(one_thread: None, name: str, precision: str) -> None:
    found = list(
        measure(TINY[name], "cpu", precision, [32], rounds=1, batch=4, matrix=64, compiled=False)
    )
    by_name = {one.contender: one for one in found}
    assert set(by_name) == {PRODUCT, SALIENCY, LOOP, "forward", "gradient", "plain"}
    assert not any(one.note for one in found)
    for one in found:
        assert one.tokens == 32 and one.precision == precision
        if one.contender != PRODUCT:
            assert one.pairs_per_second is not None and one.pairs_per_second > 0
            assert one.batch == 4
    assert by_name[LOOP].over_loop == pytest.approx(1)
    whole = by_name[SALIENCY]
    assert whole.pairs_per_second is not None and whole.teraflops is not None
    work = TINY[name].work(32, 12)
    assert whole.teraflops == pytest.approx(whole.pairs_per_second * work / 1e12)
    assert whole.of_peak == pytest.approx(
        whole.teraflops / (by_name[PRODUCT].teraflops or math.nan)
    )
    assert len(gpu.speed_lines(found)) == 2 + len(found)


@pytest.mark.parametrize("name", TINY)
def test_the_published_loop_computes_saliency(
    one_thread: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop that PosLens is compared with must compute the same numbers."""
    retriever = build(TINY[name], "cpu", "float32")
    runs = contenders(retriever, 32, TINY[name].pooling)
    seen: list[torch.Tensor] = []
    real = torch.Tensor.norm

    def norm(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(real(self, *args, **kwargs))
        return seen[-1]

    (result,) = runs[SALIENCY](1)  # type: ignore[misc]
    monkeypatch.setattr(torch.Tensor, "norm", norm)
    runs[LOOP](1)
    runs["plain"](1)
    expected = torch.from_numpy(result.document_scores.copy())
    of_tokens = [found.flatten() for found in seen if found.numel() == 32]
    assert len(of_tokens) == 2
    for found in of_tokens:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)
    assert not any(weight.requires_grad for weight in retriever.backbone.parameters())


def test_measurements_that_do_not_fit_are_reported(
    one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(n: int) -> None:
        if n > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    assert fitting(run, 64) == 2

    def never(_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    assert fitting(never, 64) == 0
    monkeypatch.setattr("bench.contenders.published_loop", never_at_all)
    found = list(
        measure(TINY["bert"], "cpu", "float32", [32], rounds=1, batch=2, matrix=64, compiled=False)
    )
    (loop,) = (one for one in found if one.contender == LOOP)
    assert loop.note == "one pair does not fit" and loop.pairs_per_second is None
    assert all(one.over_loop is None for one in found)
    monkeypatch.setattr(gpu_speed, "build", never_at_all)
    (only,) = measure(TINY["bert"], "cpu", "float32", [32], rounds=1)
    assert only.note == "its weights do not fit into the memory"


def never_at_all(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory.")


def test_the_report_is_json_with_its_provenance(tmp_path: Path) -> None:
    case = gpu_proof.Case("m", "saliency", "float32", "cpu", 0.5, 0.0, None, False)
    report = gpu.Report(gpu.provenance("cpu"), [case], gpu_proof.Halved((4, 2, 2), 0.0, "x"))
    gpu.write(report, tmp_path / "gpu.json")
    read = json.loads((tmp_path / "gpu.json").read_text())
    assert read["failed"] == 2 and read["cases"][0]["distance"] == 0.5
    assert {"torch", "transformers", "poslens", "captum", "device", "when"} <= set(
        read["provenance"]
    )


@no_gpu
def test_a_gpu_gives_the_same_results_as_the_cpu(tmp_path: Path) -> None:
    names = ["bert", "qwen3-left"]
    cases = list(prove(tmp_path / "a", "cuda:0", gpu.PRECISIONS, names))
    cases += kernels(tmp_path / "b", "cuda:0", gpu.PRECISIONS)
    assert [case for case in cases if case.passed is False] == []
    assert gpu.run_memory("cuda:0").passed


def test_pairs_are_long_enough() -> None:
    (pair,) = pairs(1, 8192)
    assert isinstance(pair, TextPair) and len(pair.document.split()) == 8190

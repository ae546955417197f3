"""What is computed on a simulated device, beside the same on the CPU. `test_device.py` runs each
check in a process of its own, because `simulated_device.install()` changes torch."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd
import torch
from transformers.utils import logging

import poslens
from bench import gpu_proof
from bench.random_encoder import Size, build
from bench.saliency import pairs
from poslens.attribution.batching import Halving
from poslens.attribution.debiasing.position_effect import embed_documents
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import service
from tests.attribution.debiasing.debias_testing import QUICK, corpus, documents, judged_rows
from tests.support import simulated_device, tiny_families, tiny_models
from tests.support.simulated_device import NAME, memory

FIRST, SECOND = f"{NAME}:0", f"{NAME}:1"
TOLERANCE = 1e-4
_all_methods = gpu_proof.methods_of


def prepare() -> None:
    """Install the devices; called once, before anything else."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    simulated_device.install()


def folder() -> Path:
    """A new folder."""
    return Path(tempfile.mkdtemp(dir=os.environ["TMPDIR"]))


def on(device: str, run: Callable[[], Any], precision: str = "float32") -> Any:
    """The result of `run` with PosLens on `device`, in a data folder of its own."""
    os.environ["POSLENS_HOME"] = str(folder())
    os.environ["POSLENS_DEVICE"], os.environ["POSLENS_PRECISION"] = device, precision
    service.cache_clear()
    results: list[Any] = []
    before, peak = memory.of(lambda: results.append(run()))
    assert (peak > before) == (device != "cpu"), "the model was not on the device"
    return results[0]


def require_equal(
    frame: pd.DataFrame, expected: pd.DataFrame, tolerance: float = TOLERANCE
) -> None:
    """The same table up to rounding."""
    assert len(expected) > 0
    pd.testing.assert_frame_equal(frame, expected, rtol=tolerance, atol=tolerance)


# -- what must fail -----------------------------------------------------------------------------


def mixed_devices_fail() -> None:
    """Operations over two devices and reading the device's memory fail; copies don't."""
    cpu = torch.arange(6.0).reshape(2, 3)
    first, second = cpu.to(FIRST), cpu.to(SECOND)
    assert (str(first.device), str(second.device)) == (FIRST, SECOND)
    for mixed in (
        lambda: first + cpu,
        lambda: first + second,
        lambda: second @ cpu.T,
        lambda: torch.cat([first, second]),
        lambda: cpu[torch.tensor([0, 1]).to(FIRST)],
        lambda: first.add_(second),
        lambda: first.index_put_((torch.tensor([0]),), torch.ones(1, 3)),
    ):
        try:
            mixed()
        except (RuntimeError, ValueError) as error:
            assert "two devices" in str(error), error
            continue
        raise AssertionError("tensors on two devices were mixed")
    try:
        first.numpy()
    except (RuntimeError, TypeError):
        pass
    else:
        raise AssertionError("the CPU read a device's memory")
    moved = first.to(SECOND)
    assert moved.device == second.device and torch.equal(moved.cpu(), cpu)
    assert moved.to(FIRST).device == first.device and first.to("cpu").device.type == "cpu"
    assert (first * 2 + torch.tensor(1.0)).tolist() == (cpu * 2 + 1).tolist()
    assert torch.zeros(2, device=SECOND).device == second.device


def misplaced_weight_fails() -> None:
    """A model with one weight on the CPU gives an error and no numbers."""
    retriever = _tiny(tiny_models.build("bert", folder()), FIRST)
    layer = retriever.backbone.encoder.layer[0].output.dense
    layer.bias = torch.nn.Parameter(layer.bias.detach().cpu(), requires_grad=False)
    method = make_method("saliency")
    message = gpu_proof.results(retriever, [method])[method]
    assert isinstance(message, str) and "two devices" in message, message


# -- methods ------------------------------------------------------------------------------------


def _tiny(path: Path, device: str) -> DenseRetriever:
    retriever = load(RetrieverSpec("tiny", "tiny", "dense", f"folder:{path}"), device, "float32")
    assert isinstance(retriever, DenseRetriever)
    return retriever


def _methods(spec: RetrieverSpec) -> list[Any]:
    """All methods and variants; integrated gradients with few steps, each like the others."""
    return [
        make_method(method.name, {"steps": "16"})
        if method.name == "integrated_gradients"
        else method
        for method in _all_methods(spec)
    ]


def methods_agree(name: str, precision: str = "float32") -> None:
    """Every method on an architecture gives the CPU's numbers; in 16 bits it gives numbers that
    add up, or a sentence."""
    with patch("bench.gpu_proof.methods_of", _methods):
        cases = list(gpu_proof.prove(folder(), FIRST, [precision], [name]))
    assert not [case for case in cases if case.passed is False], cases
    with_numbers = [case for case in cases if case.passed]
    assert len(with_numbers) >= 3, cases
    if precision != "float32":
        distances = [case.distance for case in with_numbers if case.distance is not None]
        assert max(distances) > 1e-4, "it was computed in float32"


# -- studies ------------------------------------------------------------------------------------


def _data() -> Path:
    path = folder() / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in judged_rows(14)))
    return path


def _agrees(run: Callable[[], pd.DataFrame]) -> None:
    require_equal(on(FIRST, run), on("cpu", run))


def interventions_agree(name: str = "bert") -> None:
    """Relocation and ablation."""
    model, data = tiny_models.build(name, folder()), _data()
    for intervention in ("relocation", "ablation"):
        cause = partial(poslens.cause, str(model), str(data), intervention=intervention, pairs=3)
        _agrees(lambda cause=cause: cause().to_frame())


def rankings_agree(family: str) -> None:
    """Rankings by one vector per text, by one per token, and by term weights."""
    model, data = tiny_models.build("bert", folder()), _data()
    if family != "dense":
        builder = {"late": tiny_families.late_interaction, "sparse": tiny_families.sparse}[family]
        model = builder(model.parent / "raw", folder())
    _agrees(lambda: poslens.rank(str(model), str(data)).to_frame())


def audits_agree() -> None:
    """Ranks of sentences in an index."""
    model, data = tiny_models.build("bert", folder()), _data()
    _agrees(lambda: poslens.audit(str(model), str(data), top=3).to_frame("positions"))


def debiasing_agrees() -> None:
    """Training moves a model's vectors as it does on the CPU. The weights themselves can differ:
    Adam moves by the sign of a gradient, which rounding decides where it is almost zero."""
    from poslens.attribution.debiasing.training import Training

    model = tiny_models.build("bert", folder())
    texts = [text for text, _ in documents(8, seed=1)]
    vectors = {}
    for device in ("cpu", FIRST):
        retriever = _tiny(model, device)
        before = embed_documents(retriever, texts).detach().cpu()
        training = Training(retriever, corpus(), QUICK)
        training.run()
        vectors[device] = embed_documents(retriever, texts).detach().cpu() - before
    moved, difference = vectors["cpu"], vectors[FIRST] - vectors["cpu"]
    assert difference.norm() < 0.05 * moved.norm() and moved.norm() > 1e-3


# -- memory, precision, several devices -----------------------------------------------------------

_SIZE = Size(
    "tiny BERT",
    "bert",
    "mean",
    {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    },
)


def batches_are_halved() -> None:
    """A batch that exceeds the device's memory is computed in parts, with the same numbers; one
    pair that exceeds it is refused in one sentence, and the device works on."""
    retriever, batch = build(_SIZE, FIRST, "float32"), pairs(8, 32)
    method = make_method("saliency")
    compute = partial(METHODS["saliency"].compute, retriever, method)
    compute(batch[:1])
    before, whole = memory.of(lambda: compute(batch))
    _, one = memory.of(lambda: compute(batch[:1]))
    less, least = before + 0.4 * (whole - before), before + 0.3 * (one - before)
    assert len(Halving()(compute, list(batch))) == len(batch)
    halved = gpu_proof.halves(
        retriever,
        batch,
        lambda: memory.limited(int(less)),
        lambda: memory.limited(int(least)),
    )
    assert halved.passed, halved
    assert memory.used <= before * 1.01, "memory of failed batches was not released"


def studies_in_bfloat16() -> None:
    """POSLENS_PRECISION=bfloat16: the model computes in 16 bits, close to its float32."""
    model, data = tiny_models.build("bert", folder()), _data()
    run = lambda: poslens.rank(str(model), str(data)).to_frame()  # noqa: E731
    require_equal(on(FIRST, run, "bfloat16"), on("cpu", run, "bfloat16"), tolerance=0.05)

    def score() -> float:
        return poslens.explain(str(model), "tide rises", "The tide rises twice a day.").score

    coarse, fine = on(FIRST, score, "bfloat16"), on(FIRST, score)
    assert 0 < abs(coarse - fine) < 0.05


def _halves(model: torch.nn.Module, *_: Any) -> dict[str, str]:
    """Each part of a transformers model and its device: embeddings and the first layer on the
    first one, all else on the second."""
    places = {}
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.ModuleList):
            places |= {f"{path}.0": FIRST, f"{path}.1": SECOND}
    for name, _ in model.named_children():
        if not any(path.startswith(f"{name}.") for path in places):
            places[name] = FIRST if "embed" in name else SECOND
    return places


def spread_models_agree(name: str) -> None:
    """Occlusion of a model whose layers are on two devices, forward passes alone. Which layers go
    where is decided here, because accelerate counts the memory of CUDA devices alone; it moves
    everything else."""
    path = tiny_models.build(name, folder())
    method = make_method("occlusion")
    expected = gpu_proof.results(_tiny(path, "cpu"), [method])[method]
    with (
        patch("transformers.modeling_utils._get_device_map", _halves),
        patch("poslens.attribution.retrievers.dense_loading.must_spread", lambda *_: True),
    ):
        retriever = _tiny(path, FIRST)
    where = sorted({str(weight.device) for weight in retriever.backbone.parameters()})
    assert where == [FIRST, SECOND], where
    results = gpu_proof.results(retriever, [method])[method]
    case = gpu_proof.compare(name, method, "float32", "spread", results, expected)
    assert case.passed, case

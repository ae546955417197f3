"""Results on a device, compared with those on the CPU. `test_device.py` runs each check in a
process of its own, because `simulated_device.install()` changes torch."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
import pytest
import torch
from transformers.utils import logging

import poslens
from bench import gpu_proof
from poslens.attribution.batching import Halving
from poslens.attribution.debiasing.position_effect import embed_documents
from poslens.attribution.debiasing.recipe import TrainingRecipe
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.ablation import REPLACEMENTS
from poslens.attribution.interventions.displacement import behind_prefix, shifted_positions
from poslens.attribution.methods import METHODS, make_method, perturbation
from poslens.attribution.methods.run import attribute_batch
from poslens.attribution.retrievers.base import LibraryCheck
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.self_check import SelfCheck
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.cache.kinds.interventions import score_others
from poslens.cache.storage.store import ModelKey
from poslens.compute.compute import Compute, service
from tests.attribution.debiasing.debias_testing import documents, judged_rows
from tests.support import simulated_device, tiny_families, tiny_models
from tests.support.simulated_device import NAME, memory
from tests.support.spread_layers import layers_on_both

FIRST, SECOND = f"{NAME}:1", f"{NAME}:2"
"""The devices: by default the simulated ones. `prepare("cuda:0")` replaces the first."""
TOLERANCE = 1e-4
STEPS = {"integrated_gradients": "16", "integrated_jacobians": "8"}
_all_methods = gpu_proof.methods_of


def prepare(device: str = FIRST) -> None:
    """Choose the device, and install it without float64 if it is simulated; called once, before
    anything else."""
    global FIRST
    FIRST = device
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if _simulated():
        simulated_device.install(float64=False)
        gc.freeze()  # the collections of `memory` would look through the libraries


def _simulated() -> bool:
    return FIRST.startswith(NAME)


def folder() -> Path:
    """A new folder."""
    return Path(tempfile.mkdtemp(dir=os.environ["TMPDIR"]))


@contextmanager
def spreading() -> Iterator[None]:
    """PosLens takes every model for too large for one device, and spreads it over both."""
    with (
        layers_on_both() as models,
        patch("poslens.attribution.retrievers.dense_loading.must_spread", lambda *_: True),
    ):
        yield
    assert models, "no model was spread"


def on(
    device: str, run: Callable[[], Any], precision: str = "float32", *, spread: bool = False
) -> Any:
    """The result of `run` with PosLens on `device`, in a data folder of its own; with `spread` on
    both devices."""
    os.environ["POSLENS_HOME"] = str(folder())
    os.environ["POSLENS_DEVICE"], os.environ["POSLENS_PRECISION"] = device, precision
    service.cache_clear()
    results: list[Any] = []
    with spreading() if spread else nullcontext():
        measure = memory.of if _simulated() else partial(gpu_proof.memory_of, device=FIRST)
        before, peak = measure(lambda: results.append(run()))
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


def _methods(spec: RetrieverSpec) -> list[Method]:
    """All methods and variants; with few steps on a path, because each is like the others."""
    methods = []
    for method in _all_methods(spec):
        options = {name: str(value) for name, value in method.params.items() if name != "version"}
        if method.name in STEPS:
            options["steps"] = STEPS[method.name]
        methods.append(make_method(method.name, options))
    return methods


def _some_methods(spec: RetrieverSpec) -> list[Method]:
    """Each method with its default parameters, and token decomposition with its matrix."""
    by_name = {method.name: method for method in reversed(_methods(spec))}
    if "decomposition" in by_name:
        by_name["matrix"] = make_method("decomposition", {"matrix": "yes"})
    return list(by_name.values())


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


def _data(n: int = 14) -> Path:
    path = folder() / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in judged_rows(n)))
    return path


def _agrees(run: Callable[[], pd.DataFrame]) -> None:
    require_equal(on(FIRST, run), on("cpu", run))


def interventions_agree() -> None:
    """Relocation, ablation in each way, and segments in each order, also over both devices."""
    model, data = tiny_models.build("bert", folder()), _data()
    of_pairs = partial(poslens.cause, str(model), str(data), pairs=3)
    of_documents = partial(poslens.segments, str(model), str(data), documents=3)
    calls = (
        *(partial(of_pairs, by=by) for by in REPLACEMENTS),
        *(partial(of_documents, parts=parts) for parts in ("segments", "thirds")),
    )

    def run() -> list[pd.DataFrame]:
        return [call().to_frame("curve") for call in calls]

    expected = on("cpu", run)
    for spread in (False, True)[: 2 if _simulated() else 1]:
        for frame, of_cpu in zip(on(FIRST, run, spread=spread), expected, strict=True):
            require_equal(frame, of_cpu)


def other_documents_agree() -> None:
    """Scores of a query with other documents, by their stored vectors."""
    model, pair = tiny_models.build("bert", folder()), gpu_proof.PAIRS[0]
    texts = [text for text, _ in documents(3, seed=1)]
    key = ModelKey("tiny", "0" * 16)
    on_cpu, on_device = (
        score_others(_tiny(model, device), key, pair, texts, folder()) for device in ("cpu", FIRST)
    )
    np.testing.assert_allclose(on_device, on_cpu, atol=TOLERANCE)


def displacements_agree() -> None:
    """Scores after a neutral prefix and with shifted positions, also over both devices."""
    model, pair = tiny_models.build("bert", folder()), gpu_proof.PAIRS[0]
    cpu, on_device = _tiny(model, "cpu"), [_tiny(model, FIRST)]
    if _simulated():
        with spreading():
            on_device.append(_tiny(model, FIRST))
    for move in (behind_prefix, shifted_positions):
        expected = move(cpu, pair, (0, 8, 32)).scores
        for retriever in on_device:
            np.testing.assert_allclose(
                move(retriever, pair, (0, 8, 32)).scores, expected, atol=TOLERANCE
            )


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
    """Training on the device, and with layers on both devices, moves a model's vectors as on the
    CPU, and what is measured of the untrained model agrees. The trained weights can differ: Adam
    moves by the sign of a gradient, which rounding decides where it is almost zero."""
    from poslens.studies.debias import study

    model, texts = tiny_models.build("bert", folder()), [text for text, _ in documents(8, seed=1)]
    before = embed_documents(_tiny(model, "cpu"), texts).detach()
    data, moved, tables = _data(30), [], []
    places = [("cpu", False), (FIRST, False), (FIRST, True)]
    for device, spread in places if _simulated() else places[:2]:
        out = folder() / "debiased"
        options = {"steps": 4, "pairs": 4, "strengths": (0.5,), "out": out}
        run = partial(poslens.debias, str(model), str(data), **options)
        # The model has so little position bias that it would not be trained.
        with patch.object(study, "TrainingRecipe", partial(TrainingRecipe, margin=-1.0)):
            result = on(device, run, spread=spread)
        moved.append(embed_documents(_tiny(out, "cpu"), texts).detach() - before)
        table = result.to_frame()
        tables.append(table[table["kind"].isin(["plain", "calibrated"])])
    assert moved[0].norm() > 1e-3
    for table, change in zip(tables[1:], moved[1:], strict=True):
        require_equal(table, tables[0])
        assert (change - moved[0]).norm() < 0.05 * moved[0].norm()


def explanations_predict_alike() -> None:
    """Simulatability with the words of slow methods."""
    model, data = tiny_models.build("bert", folder()), _data()
    methods = ("occlusion", "integrated_jacobians", "bilrp")
    run = partial(poslens.simulatability, str(model), str(data), queries=3, methods=methods)
    _agrees(lambda: run().to_frame("queries"))


def preferences_agree() -> None:
    """Indices of methods on the order-blind encoder and on both adapters."""
    run = partial(poslens.preferences, "MiniLM", documents=2, methods=("saliency",))
    _agrees(lambda: run().to_frame("strengths"))


# -- memory, precision, several devices -----------------------------------------------------------


def memory_runs_out(name: str) -> None:
    """Every method on a model: a batch that exceeds the device's memory gives the same numbers, one
    pair that exceeds it is refused in a sentence, and no memory of either remains in use. A model
    that exceeds it is refused in a sentence, too."""
    ((_, spec),) = gpu_proof.models(folder(), [name])
    with memory.limited(10_000), pytest.raises(UserError, match="does not fit into the free"):
        load(spec, FIRST, "float32")
    retriever = load(spec, FIRST, "float32")
    batch = [*gpu_proof.PAIRS, *(TextPair(f"{n}", "fox", "tide " * n) for n in (1, 2))]
    longest = [max(batch, key=lambda pair: len(pair.document))]
    at = batch.index(longest[0])
    halved = set()
    for method in _some_methods(spec):
        compute = partial(METHODS[method.name].compute, retriever, method)
        computed: list[Any] = []

        def whole_batch(method: Any = method, computed: Any = computed) -> None:
            computed.append(gpu_proof.results(retriever, [method], batch)[method])

        before, whole = memory.of(whole_batch)
        (expected,) = computed
        if isinstance(expected, str):
            continue
        _, one = memory.of(lambda compute=compute: compute(longest))
        attempts: list[int] = []

        def run(part: list[TextPair], compute: Any = compute, attempts: Any = attempts) -> Any:
            attempts.append(len(part))
            return compute(part)

        # Methods that read pairs one by one need no more memory for several.
        grows = whole - before > 1.2 * (one - before)
        with memory.limited((whole + one) // 2 if grows else whole):
            results = Halving()(run, list(batch))
        assert (len(attempts) > 1) == grows, (method, attempts)
        halved |= {method.name} if grows else set()
        case = gpu_proof.compare(name, method, "float32", "halved", results, expected)
        assert case.passed, case
        # Many copies of one text are halved, too: too little is less than a single copy takes.
        fraction = 64 if METHODS[method.name].one_document else 4
        with memory.limited(before + (one - before) // fraction):
            (outcome,) = attribute_batch(retriever, method, longest, Halving())
        assert outcome.reason.startswith("One document does not fit"), outcome
        assert memory.falls_to(before * 1.01), f"{method}: memory was not released"
        again = compute(longest)
        case = gpu_proof.compare(name, method, "float32", "again", again, [expected[at]])
        assert case.passed, case
    assert {"saliency", "input_x_gradient"} <= halved, halved


def models_take_turns() -> None:
    """A model that does not fit next to the loaded one replaces it, unless that is in use."""
    os.environ["POSLENS_DEVICE"], compute = FIRST, Compute(folder())
    first, second = (
        compute.identify(RetrieverSpec(name, name, "dense", f"folder:{path}"))
        for name in ("bert", "distilbert")
        for path in [tiny_models.build(name, folder())]
    )
    before, unchecked = memory.used, SelfCheck(LibraryCheck(0.0, "embedding"))
    # A pass of so small a model needs more memory than its weights.
    with patch("poslens.compute.model_pool.check_retriever", lambda _: unchecked):
        used = compute.retriever(first)
        with memory.limited(before + used.weight_bytes * 3 // 2):
            with pytest.raises(UserError, match="does not fit into the free"):
                compute.retriever(second)
            assert compute.retriever(first) is used
            del used
            compute.retriever(second)
    assert compute.loaded(second) and not compute.loaded(first)


def copies_run_out(name: str) -> None:
    """Methods that read many copies of one text, on a model: if only three copies of a document
    fit, the numbers are the same, and the next pair starts with no more copies than fitted.

    Copies are counted. With a limit of bytes, they would also run out in the backward pass: torch's
    thread for it can't always return the error of a backend in Python, and ends the process.
    """
    ((_, spec),) = gpu_proof.models(folder(), [name])
    retriever = load(spec, FIRST, "float32")
    text = "Ebb follows. The tide rises twice a day. The Moon pulls the water nearer to it. "
    pairs = [TextPair(query, query, 2 * text) for query in ("tide rises", "Moon", "ebb tide")]
    embed, sizes = perturbation.Varied.embed, list[int]()

    def limited(varied: Any, inputs: Any) -> Any:
        n, n_tokens, _ = inputs.shape
        if n_tokens > 20:  # copies of a query fit
            sizes.append(n)
            if n > 3:
                raise torch.OutOfMemoryError("planted")
        return embed(varied, inputs)

    checked = set()
    for method in (method for method in _methods(spec) if METHODS[method.name].one_document):
        expected = gpu_proof.results(retriever, [method], pairs)[method]
        if isinstance(expected, str):
            continue
        halving, largest, outcomes = Halving(), list[int](), list[Any]()
        with (
            patch.object(perturbation.Varied, "embed", limited),
            patch.object(perturbation, "_of_copies", WeakKeyDictionary()),
        ):
            # The first two read one document, the outputs for whose copies are shared.
            for batch in (pairs[:2], pairs[2:]):
                sizes.clear()
                outcomes += attribute_batch(retriever, method, batch, halving)
                largest.append(max(sizes))
        results = [outcome.attribution for outcome in outcomes]
        assert all(results), (method, outcomes)
        assert largest[0] > 3 >= largest[1], (method, largest)
        case = gpu_proof.compare(name, method, "float32", "copies halved", results, expected)
        assert case.passed, case
        checked.add(method.name)
    assert {"integrated_gradients", "occlusion"} <= checked, checked


def studies_in_bfloat16() -> None:
    """POSLENS_PRECISION=bfloat16: the model computes in 16 bits, close to its float32."""
    model, data = tiny_models.build("bert", folder()), _data()
    run = lambda: poslens.rank(str(model), str(data)).to_frame()  # noqa: E731
    require_equal(on(FIRST, run, "bfloat16"), on("cpu", run, "bfloat16"), tolerance=0.05)

    def score() -> float:
        return poslens.explain(str(model), "tide rises", "The tide rises twice a day.").score

    coarse, fine = on(FIRST, score, "bfloat16"), on(FIRST, score)
    assert 0 < abs(coarse - fine) < 0.05


def spread_models_agree(name: str) -> None:
    """Every method on a model with layers on both devices gives the CPU's numbers."""
    root = folder()
    ((_, spec),) = gpu_proof.models(root, [name])
    with patch("bench.gpu_proof.methods_of", _some_methods), layers_on_both():
        cases, where = gpu_proof.spread(spec, FIRST)
    assert where == [FIRST, SECOND], where
    assert not [case for case in cases if case.passed is False], cases
    assert sum(case.passed is True for case in cases) >= 8, cases

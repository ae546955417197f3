"""Compare a device's numbers with the CPU's: every method on every supported architecture, each
attention kernel, batches that do not fit into memory, models spread over devices.

The architectures are those of docs/support.md, two-layer random models defined in
`tests.attribution.support_matrix`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.utils.import_utils import is_flash_attn_2_available

from bench.encoders import attention
from poslens.attribution.batching import Halving
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Attribution, Method, TextPair
from tests.attribution.support_matrix import PAIRS, models

LIMITS = {"saliency": 1e-4, "integrated_gradients": 1e-2}
"""Maximum distance from the CPU in float32, by method. Integrated gradients pass through points at
which random weights have very large gradients, which amplifies rounding errors."""

LIMIT = 1e-3

ROUNDING = 4
"""If float32 itself is imprecise, a device may differ from the CPU by this multiple of the
difference between float32 and float64 on the CPU. Occlusion subtracts two scores near 1, so that an
effect of 1e-4 has three digits; a random mT5's gradients amplify rounding a thousandfold."""

COMPLETE = {"float32": 1e-3, "bfloat16": 0.05, "float16": 0.05}
"""Maximum completeness error relative to the sum of both texts' absolute shares, by precision, for
the methods in `EXACT`. For integrated gradients the error depends on the number of steps."""

EXACT = ("decomposition", "terms", "maxsim")

VARIANTS: Mapping[str, Sequence[Mapping[str, str]]] = {
    "decomposition": (
        *({}, {"matrix": "yes"}, {"biases": "decompx"}, {"biases": "absdot"}, {"part": "word"}),
    ),
    "integrated_jacobians": ({}, {"matrix": "yes", "steps": "8"}),
}
"""Parameters that are tested, for methods whose computation depends on them; others have defaults
only."""

KERNELS = {
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
FLASH2 = "flash_attention_2"

OF_KERNELS = ("bert", "qwen3-left")
"""Architectures on which kernels are tested: one with bidirectional attention, and one with causal
attention, grouped heads and left padding."""

Context = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Case:
    """One method on one model, compared with the CPU in float32.

    `distance` is the largest difference of a token's number, relative to the largest number.
    `score` is the largest difference of a score, relative to the score or 1 if that is larger.
    `completeness` is as in `COMPLETE`. `note` has the reason if there are no numbers. `passed` is
    None if there is nothing to compare: the CPU refuses the case too, or a kernel is missing.
    """

    model: str
    method: str
    precision: str
    how: str
    distance: float | None = None
    score: float | None = None
    completeness: float | None = None
    passed: bool | None = None
    note: str = ""


def prove(
    root: Path, device: str, precisions: Sequence[str], names: Collection[str] | None = None
) -> Iterator[Case]:
    """A case for every method on every architecture, or on those of `names`; models are built in
    the folder `root`."""
    for _, spec in models(root, names):
        yield from _cases(spec, precisions, device, partial(load, spec, device))


def _cases(
    spec: RetrieverSpec, precisions: Sequence[str], how: str, load_on: Callable[[str], Retriever]
) -> Iterator[Case]:
    """A case for every method on a model, which `load_on` loads in a precision."""
    methods = methods_of(spec)
    expected = results(load(spec, "cpu", "float32"), methods)
    exact = results(_wide(spec), methods) if "float32" in precisions else {}
    for precision in precisions:
        try:
            retriever = load_on(precision)
            check_retriever(retriever)
        except Exception as error:
            passed = None if precision != "float32" and isinstance(error, UserError) else False
            yield Case(spec.name, "all", precision, how, passed=passed, note=_sentence(error))
            continue
        for method in methods:
            computed = results(retriever, [method])[method]
            on_cpu = expected[method]
            error_32 = rounding(on_cpu, exact[method]) if precision == "float32" else 0.0
            yield compare(spec.name, method, precision, how, computed, on_cpu, error_32)


def _wide(spec: RetrieverSpec) -> Any:
    """The model on the CPU in float64, to measure the rounding error of float32."""
    retriever: Any = load(spec, "cpu", "float32")
    if hasattr(retriever, "model"):
        retriever.model.double()
    return retriever


def methods_of(spec: RetrieverSpec) -> list[Method]:
    """The methods that fit a model, with their parameters to test."""
    return [
        make_method(name, options)
        for name, entry in METHODS.items()
        if entry.fits(family_of(spec))
        for options in VARIANTS.get(name, ({},))
    ]


Results = list[Attribution] | str
"""A result for each pair, or a sentence on why there is none. Unexpected errors begin with `!`."""


def results(
    retriever: Retriever, methods: Sequence[Method], pairs: Sequence[TextPair] = PAIRS
) -> dict[Method, Results]:
    """The results of each method on the pairs, computed as one padded batch."""
    computed: dict[Method, Results] = {}
    for method in methods:
        try:
            computed[method] = METHODS[method.name].compute(retriever, method, pairs)
        except Exception as error:  # reported with the method
            computed[method] = _sentence(error)
    return computed


def _sentence(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    return f"!{type(error).__name__}: {(str(error).splitlines() or [''])[0][:400]}"


def rounding(expected: Results, exact: Results) -> float:
    """The distance (`Case.distance`) of float32 on the CPU from float64; 0 if either has no
    numbers."""
    if isinstance(expected, str) or isinstance(exact, str):
        return 0.0
    return max(_distance(a, b) for a, b in zip(expected, exact, strict=True))


def compare(
    label: str,
    method: Method,
    precision: str,
    how: str,
    computed: Results,
    expected: Results,
    own_rounding: float = 0.0,
) -> Case:
    """The case of one method on one model; `own_rounding` is the CPU's in float32 (`rounding`)."""
    name = method.name + "".join(
        f" {key}={value}"
        for key, value in method.params.items()
        if value != make_method(method.name).params[key]
    )
    if isinstance(expected, str):
        same = isinstance(computed, str)
        return Case(
            label, name, precision, how, passed=None if same else False, note=f"CPU: {expected}"
        )
    if isinstance(computed, str):
        # 16 bits may not be enough for a model, which PosLens then reports in a sentence.
        excused = precision != "float32" and not computed.startswith("!")
        return Case(label, name, precision, how, passed=None if excused else False, note=computed)
    distance = max(_distance(a, b) for a, b in zip(computed, expected, strict=True))
    score = max(
        abs(a.score - b.score) / max(1.0, abs(b.score))
        for a, b in zip(computed, expected, strict=True)
    )
    missed = [
        _missed(attribution)
        for attribution in computed
        if attribution.completeness_error is not None
    ]
    completeness = max(missed) if missed else None
    exact = method.name in EXACT and expected[0].completeness_error is not None
    passed = not exact or (completeness is not None and completeness <= COMPLETE[precision])
    note = ""
    if precision == "float32":
        limit = LIMITS.get(method.name, LIMIT)
        if distance > limit and ROUNDING * own_rounding > limit:
            limit = ROUNDING * own_rounding
            note = f"rounding: the CPU's float32 is {own_rounding:.1e} from its float64"
        passed = passed and distance <= limit and score <= LIMIT
    return Case(label, name, precision, how, distance, score, completeness, bool(passed), note)


def _distance(attribution: Attribution, other: Attribution) -> float:
    sides = [
        (attribution.document_scores, other.document_scores),
        (attribution.query_scores, other.query_scores),
    ]
    if attribution.matrix is not None and other.matrix is not None:
        sides.append((attribution.matrix, other.matrix))
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-12)) for a, b in sides)


def _missed(attribution: Attribution) -> float:
    # For texts that are read together, both sides' shares sum to the score.
    shares = (attribution.query_scores, attribution.document_scores)
    parts = sum(float(np.abs(side).sum()) for side in shares) + abs(attribution.bias_share or 0.0)
    return abs(attribution.completeness_error or 0.0) / max(parts, 1e-12)


# -- kernels of attention -----------------------------------------------------------------------


def kernels(
    root: Path, device: str, precisions: Sequence[str], names: Collection[str] = OF_KERNELS
) -> Iterator[Case]:
    """Cases for saliency and decomposition with each attention kernel alone, on pairs of equal
    length, which need no mask, and on padded ones."""
    for _, spec in models(root, names):
        methods = [make_method("saliency"), make_method("decomposition")]
        batches = {"one length": [PAIRS[0]] * 2, "padded": list(PAIRS)}
        reference = load(spec, "cpu", "float32")
        expected = {how: results(reference, methods, batch) for how, batch in batches.items()}
        for precision in precisions:
            retriever = load(spec, device, precision)
            contexts: dict[str, Context] = {
                name: partial(sdpa_kernel, backend) for name, backend in KERNELS.items()
            }
            if is_flash_attn_2_available() and precision != "float32":
                contexts[FLASH2] = partial(attention, retriever, FLASH2)
            for name, context in contexts.items():
                for how, batch in batches.items():
                    with context():
                        computed = results(retriever, methods, batch)
                    for method in methods:
                        result = computed[method]
                        both = result, expected[how][method]
                        case = compare(spec.name, method, precision, f"{name}, {how}", *both)
                        missing = isinstance(result, str) and _is_missing(name, method, result)
                        yield replace(case, passed=None) if missing else case


def _is_missing(kernel: str, method: Method, text: str) -> bool:
    # Decomposition intercepts torch's own attention function, so it refuses kernels of other
    # packages with a sentence.
    foreign = kernel == FLASH2 and method.name == "decomposition" and not text.startswith("!")
    return foreign or "No available kernel" in text or "No viable backend" in text


# -- batches that do not fit --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Halved:
    """How a batch that did not fit into memory was computed: the number of pairs in each attempt,
    in order; the largest distance from the same pairs computed one by one; and the error for a
    single pair that does not fit."""

    attempts: tuple[int, ...]
    distance: float
    sentence: str

    @property
    def passed(self) -> bool:
        """Whether the batch was halved, its numbers are right, and a single pair that does not fit
        gives a sentence."""
        halved = len(self.attempts) > 1 and self.attempts[0] > self.attempts[-1]
        return (
            halved
            and self.distance <= LIMITS["saliency"]
            and self.sentence.startswith("One document does not fit")
        )


def halves(
    retriever: Retriever, pairs: Sequence[TextPair], less: Context, least: Context
) -> Halved:
    """Compute saliency of `pairs` in one batch with `less` memory than they need, and of one pair
    with the `least`."""
    method = make_method("saliency")
    compute = METHODS[method.name].compute
    expected = [compute(retriever, method, [pair])[0] for pair in pairs]
    attempts: list[int] = []

    def run(part: list[TextPair]) -> list[Attribution]:
        attempts.append(len(part))
        return compute(retriever, method, part)

    with less():
        attributions = Halving()(run, list(pairs))
    sentence = ""
    with least():
        try:
            Halving()(lambda part: compute(retriever, method, part), [pairs[0]])
        except UserError as error:
            sentence = str(error)
    # The device must still work afterwards.
    (again,) = compute(retriever, method, [pairs[0]])
    both = zip([*attributions, again], [*expected, expected[0]], strict=True)
    return Halved(tuple(attempts), max(_distance(a, b) for a, b in both), sentence)


def memory_of(run: Callable[[], object], device: str) -> tuple[int, int]:
    """Allocated bytes on a CUDA device before `run`, and the peak during it."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return before, torch.cuda.max_memory_allocated(device)


@contextmanager
def limited(device: str, n_bytes: int) -> Iterator[None]:
    """Limit torch to this many bytes of a CUDA device."""
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, n_bytes / total), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


# -- several devices ----------------------------------------------------------------------------


def spread(spec: RetrieverSpec, device: str, several: bool = True) -> tuple[list[Case], list[str]]:
    """A case for every method on a dense model whose layers are spread over all devices, and the
    devices with layers. If there are `several` devices but all layers are on one, a case fails."""
    where: set[str] = set()

    def load_spread(precision: str) -> Retriever:
        # PosLens spreads only models that are too large for one GPU.
        with patch("poslens.attribution.retrievers.dense_loading.must_spread", lambda *_: True):
            retriever = load(spec, device, precision)
        where.update(str(w.device) for w in cast(Any, retriever).backbone.parameters())
        return retriever

    cases = list(_cases(spec, ["float32"], "spread", load_spread))
    if several and len(where) < 2:
        note = "it was not spread"
        cases.append(Case(spec.name, "all", "float32", "spread", passed=False, note=note))
    return cases, sorted(where)

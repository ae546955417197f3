"""Laws of every method, on a tiny random model of every family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.base import Retriever, reads_jointly
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Attribution, TextPair
from tests.support import tiny_families, tiny_models

PAIRS = [
    TextPair("p", "tide rises", "The tide rises twice a day because the Moon pulls the water."),
    TextPair("long", "lazy dogs", "A quick brown fox, jumping over lazy dogs. " * 3),
    TextPair("short", "fox", "a fox"),
]
OPTIONS = {"integrated_gradients": {"steps": "16"}, "integrated_jacobians": {"steps": "16"}}
MODELS: dict[str, tuple[str, Callable[[Path, Path], Path]]] = {
    "dense": ("dense", lambda raw, at: tiny_models.build("bert", at)),
    "late interaction": ("late_interaction", tiny_families.late_interaction),
    "sparse": ("sparse", tiny_families.sparse),
    "cross-encoder": ("cross_encoder", tiny_families.cross_encoder),
    "sequence to sequence": ("cross_encoder", lambda raw, at: tiny_families.seq2seq(at)),
    "BM25": ("lexical", lambda raw, at: raw),
}


def spec_of(label: str, source: str) -> RetrieverSpec:
    return RetrieverSpec(label, label, MODELS[label][0], source)


CASES = [
    (label, name)
    for label in MODELS
    for name, entry in METHODS.items()
    if entry.fits(family_of(spec_of(label, "")))
]
every_case = pytest.mark.parametrize(("model", "name"), CASES, indirect=["model"])


@pytest.fixture(scope="module")
def made() -> dict[str, Retriever]:
    return {}


@pytest.fixture
def model(
    request: pytest.FixtureRequest,
    made: dict[str, Retriever],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    """The model with this label, loaded once. Gradients that a test sets on it are removed
    again."""
    label = request.param
    if label not in made:
        root = tmp_path_factory.mktemp("model")
        tiny_models.build("bert", root / "bert")
        source = f"folder:{MODELS[label][1](root / 'bert' / 'raw', root / 'family')}"
        spec = spec_of(label, "builtin:bm25" if label == "BM25" else source)
        made[label] = load(spec, device="cpu")
    yield made[label]
    for parameter in parameters(made[label]):
        parameter.grad = None


def network(model: Any) -> torch.nn.Module:
    found = getattr(model, "model", None)
    return found if isinstance(found, torch.nn.Module) else torch.nn.Module()


def parameters(model: Any) -> list[torch.nn.Parameter]:
    return list(network(model).parameters())


def attribute(model: Any, name: str, pairs: list[TextPair]) -> list[Attribution]:
    method = make_method(name, OPTIONS.get(name, {}))
    return METHODS[name].compute(model, method, pairs)


def remains(model: Any) -> list[str]:
    """What a run could leave on a model: hooks, gradients, parameters that require gradients."""
    found = []
    for name, module in network(model).named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            found.append(f"a hook on {name}")
        if module._backward_hooks or module._backward_pre_hooks:
            found.append(f"a backward hook on {name}")
    for name, parameter in network(model).named_parameters():
        if parameter.requires_grad or parameter.grad is not None:
            found.append(f"a gradient on {name}")
    return found


def assert_close(one: Attribution, other: Attribution) -> None:
    assert one.pair_id == other.pair_id
    assert one.score == pytest.approx(other.score, rel=1e-4, abs=1e-4)
    for side in ("query_scores", "document_scores"):
        found, wanted = getattr(one, side), getattr(other, side)
        # Differences of scores inherit the rounding of scores.
        limit = 1e-3 * abs(wanted).max() + 2e-6 * max(1.0, abs(other.score))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=limit)


@every_case
def test_results_do_not_depend_on_batching_or_order(model: Any, name: str) -> None:
    together = attribute(model, name, PAIRS)
    backward = attribute(model, name, PAIRS[::-1])[::-1]
    for pair, one, other in zip(PAIRS, together, backward, strict=True):
        (alone,) = attribute(model, name, [pair])
        assert alone.document == one.document and alone.query == one.query
        assert_close(one, alone)
        assert_close(other, alone)


@every_case
def test_results_are_reproducible_bit_for_bit(model: Any, name: str) -> None:
    for one, other in zip(*(attribute(model, name, PAIRS) for _ in range(2)), strict=True):
        assert one.score == other.score
        assert one.document_scores.tobytes() == other.document_scores.tobytes()
        assert one.query_scores.tobytes() == other.query_scores.tobytes()


@every_case
def test_nothing_is_left_on_the_model(model: Any, name: str) -> None:
    before = [parameter.clone() for parameter in parameters(model)]
    training = [module.training for module in network(model).modules()]
    attribute(model, name, PAIRS)
    assert remains(model) == []
    assert training == [module.training for module in network(model).modules()]
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(model), strict=True))


@every_case
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_nothing_is_left_on_the_model_after_an_exception(
    model: Any, name: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever run of the model fails: the first, the second, and so on."""
    embed, counted = model.embed, []

    def counting(encoded: Any) -> Any:
        counted.append(encoded)
        return embed(encoded)

    attribute(model, name, PAIRS[:1])  # what is cached now isn't computed again below
    monkeypatch.setattr(model, "embed", counting)
    attribute(model, name, PAIRS[:1])
    for broken in range(min(len(counted), 4)):
        left = iter(range(broken))

        def breaking(encoded: Any, left: Iterator[int] = left) -> Any:
            if next(left, None) is None:
                raise error("broken")
            return embed(encoded)

        monkeypatch.setattr(model, "embed", breaking)
        with pytest.raises(error, match="broken"):
            attribute(model, name, PAIRS[:1])
        assert remains(model) == []
        assert model.lock.acquire(blocking=False)
        model.lock.release()


@every_case
def test_existing_gradient_buffers_are_untouched(model: Any, name: str) -> None:
    buffers = [torch.full_like(parameter, 3.0) for parameter in parameters(model)]
    for parameter, buffer in zip(parameters(model), buffers, strict=True):
        parameter.grad = buffer
    attribute(model, name, PAIRS)
    for parameter, buffer in zip(parameters(model), buffers, strict=True):
        assert parameter.grad is buffer and bool((buffer == 3.0).all())


@every_case
def test_additive_methods_add_up_to_the_score(model: Any, name: str) -> None:
    if not METHODS[name].additive:
        pytest.skip("its numbers make no such claim")
    for found in attribute(model, name, PAIRS):
        assert found.bias_share is not None and found.completeness_error is not None
        shares = found.document_scores.astype(np.float64)
        if reads_jointly(model) and name == "decomposition":  # of both sides together
            shares = np.concatenate([shares, found.query_scores])
        total = shares.sum() + found.bias_share + found.completeness_error
        parts = float(abs(shares).sum()) + abs(found.bias_share)
        assert total == pytest.approx(found.score, abs=1e-5 * max(parts, 1.0))
        if name != "integrated_gradients":  # which states the error of its numerical integral
            assert abs(found.completeness_error) <= 1e-4 * max(parts, 1.0)

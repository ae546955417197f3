"""Self-distillation: its targets, that every kind of model learns them, and that training can be
stopped and resumed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.debiasing.corpus import training_corpus
from poslens.attribution.debiasing.lora import linear_layers
from poslens.attribution.debiasing.recipe import TrainingRecipe
from poslens.attribution.debiasing.teacher import Teacher
from poslens.attribution.debiasing.training import (
    Reached,
    Training,
    distillation_loss,
    one_cycle,
    read_checkpoint,
)
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.resolve import resolve
from tests.attribution.debiasing.debias_testing import QUICK, corpus
from tests.support.tiny_models import TINY

Build = Callable[..., DenseRetriever]
KINDS = (  # each pooling, both kinds of attention, and each layer that may follow the pooling
    "bert",  # mean
    "labse",  # CLS, a dense layer, vectors of length 1
    "qwen3-left",  # last token, causal, padded on the left
    "mistral",  # mean, causal
    "gpt_neo",  # weighted mean, causal
    "t5",  # mean, a dense layer
    "modernbert",
)


def state(training: Training) -> dict[str, np.ndarray]:
    weights = training.adapter.weights.items()
    return {path: weight.detach().numpy().copy() for path, weight in weights}


def effects(trained: Reached) -> tuple[Estimate, Estimate]:
    """The position effect before training and at its end."""
    first, last = trained.checks[0].effect, trained.checks[-1].effect
    assert first is not None and last is not None
    return first, last


# -- the teacher -----------------------------------------------------------------------------------


def test_with_mean_pooling_a_target_is_the_mean_of_all_token_states(tiny: Build) -> None:
    retriever = tiny("bert")
    sentences = ["The tide rises twice.", "Over lazy dogs the quick fox.", "Smile."]
    states = retriever.model.encode(sentences, output_value="token_embeddings")
    expected = torch.cat(list(states)).mean(0)
    found = Teacher(retriever, nullcontext).target(sentences)
    torch.testing.assert_close(found, expected.to(found), rtol=1e-5, atol=1e-6)


def test_with_another_pooling_a_target_is_the_weighted_sum_of_the_vectors(tiny: Build) -> None:
    retriever = tiny("bert-cls")
    sentences = ["The tide rises twice.", "Over lazy dogs the quick fox."]
    vectors = F.normalize(torch.tensor(retriever.model.encode(sentences)), dim=1)
    counts = torch.tensor(
        [float(len(retriever.model.tokenizer(one)["input_ids"])) for one in sentences]
    )
    expected = F.normalize(counts @ vectors, dim=0)
    found = F.normalize(Teacher(retriever, nullcontext).target(sentences), dim=0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_does_not_depend_on_the_order_of_sentences(tiny: Build, kind: str) -> None:
    teacher = Teacher(tiny(kind), nullcontext)
    sentences = ["The tide rises twice.", "Over lazy dogs.", "The quick brown fox smile."]
    forth, back = teacher.target(sentences), teacher.target(sentences[::-1])
    torch.testing.assert_close(forth, back, rtol=1e-4, atol=1e-5)


# -- the loss and the schedule ---------------------------------------------------------------------


def test_the_loss_is_0_if_student_equals_teacher_and_grows_with_the_distance() -> None:
    torch.manual_seed(0)
    targets, queries, present = torch.randn(4, 8), torch.randn(4, 8), torch.randn(6, 8)
    plain = TrainingRecipe()
    at = lambda d, q, norms=False, recipe=plain: float(  # noqa: E731
        distillation_loss(d, targets, q, queries, present, recipe, with_norms=norms)
    )
    assert at(3 * targets, 2 * queries) == pytest.approx(0, abs=1e-6)
    assert at(3 * targets, 2 * queries, True) == pytest.approx(4 + 1)
    other, asked = targets + 0.3 * torch.randn(4, 8), queries + 0.3 * torch.randn(4, 8)
    document, query = (
        1 - float(F.cosine_similarity(one, known).mean())
        for one, known in ((other, targets), (asked, queries))
    )
    unweighted = replace(plain, query_weight=0, sentence_weight=0)
    assert at(other, asked, recipe=unweighted) == pytest.approx(document, rel=1e-5)
    cosines, expected = (F.normalize(one, dim=1) @ present.T for one in (other, targets))
    sentence = float((cosines - expected).square().mean())
    assert at(other, asked) == pytest.approx(document + query + 20 * sentence, rel=1e-5)


def test_the_learning_rate_rises_during_warm_up_and_then_falls_to_almost_0() -> None:
    rates, momenta = zip(*one_cycle(TrainingRecipe()), strict=True)
    assert len(rates) == 160 and rates.index(max(rates)) == momenta.index(min(momenta)) == 16
    assert rates[0] == pytest.approx(1e-3 / 25) and max(rates) == pytest.approx(1e-3, rel=1e-3)
    assert rates[-1] < 1e-6 and momenta[0] == pytest.approx(momenta[-1], abs=1e-3)


@pytest.mark.parametrize("steps", range(1, 24))
def test_short_trainings_have_a_schedule_too(steps: int) -> None:
    """Of 10 steps, a tenth would be no step in which the rate could rise."""
    rates = [rate for rate, _ in one_cycle(TrainingRecipe(steps=steps))]
    assert len(rates) == steps and rates[0] == pytest.approx(1e-3 / 25)
    assert all(0 < rate <= 1e-3 for rate in rates)
    assert max(rates) == pytest.approx(1e-3, rel=0.2) or steps == 1


# -- training --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TINY)
def test_every_linear_layer_of_every_architecture_is_trained(tiny: Build, kind: str) -> None:
    retriever = tiny(kind)
    layers = linear_layers(retriever.backbone, "tiny")
    assert len(layers) >= 8 and not any("pooler" in path for path in layers)
    training = Training(retriever, corpus(), replace(QUICK, steps=1, check_every=9))
    training.run()
    moved = {
        path.split(".lora_B")[0]: float(np.abs(value).max())
        for path, value in state(training).items()
        if ".lora_B" in path
    }
    assert len(moved) == len(layers) and min(moved.values()) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_on_held_out_batches(tiny: Build, kind: str) -> None:
    """So does the position effect of a causal model, which has one even untrained."""
    causal = kind in ("qwen3-left", "mistral")
    steps = 32 if causal else 16
    recipe = replace(QUICK, steps=steps, check_every=steps, validation_texts=12 if causal else 3)
    training = Training(tiny(kind), corpus(), recipe)
    others = range(100, 104)
    before = sum(float(training.batch_loss(step).detach()) for step in others)
    trained = training.run()
    after = sum(float(training.batch_loss(step).detach()) for step in others)
    assert after < 0.8 * before
    if causal:
        effect, left = effects(trained)
        assert effect.interval is not None
        assert effect.interval[1] < 0, "an effect beyond chance to start with"
        assert abs(left.value) < 0.9 * abs(effect.value)


def test_the_planted_bias_of_a_real_model_shrinks() -> None:
    from poslens.attribution.datasets import collection

    documents = [(one.text, one.language) for one in collection("sample").documents()]
    english = training_corpus("sample", [one for one in documents if one[1] == "eng"])
    retriever = load(resolve("MiniLM-primacy"), "cpu", "float32")
    assert isinstance(retriever, DenseRetriever)
    recipe = TrainingRecipe(
        steps=8, check_every=8, tokens_per_step=200, sentences_max=10, validation_texts=3
    )
    found = Training(retriever, english, recipe).run()
    effect, left = effects(found)
    assert effect.value < -0.05 and abs(left.value) < 0.7 * abs(effect.value)


def test_training_ends_early_once_the_effect_is_small_enough(tiny: Build) -> None:
    recipe = replace(QUICK, steps=12, tolerance=1e9)
    found = Training(tiny("bert"), corpus(), recipe).run()
    assert found.step == found.end == 5
    assert [one.step for one in found.checks] == [0, 3, 5]


def test_a_model_without_a_position_effect_is_unchanged(tiny: Build) -> None:
    recipe = replace(QUICK, validation_texts=12)
    training = Training(tiny("bert"), corpus(), replace(recipe, margin=1.0))
    steps: list[tuple[int, int]] = []
    found = training.run(on_step=lambda step, end: steps.append((step, end)))
    assert (found.step, len(found.checks)) == (0, 1)
    assert steps == [(0, 0)]
    merged = {path: value for path, value in state(training).items() if ".lora_B" in path}
    assert merged and not any(value.any() for value in merged.values())
    effect, _ = effects(found)
    assert effect.interval is not None
    nearest = min(map(abs, effect.interval))
    trained = Training(tiny("bert"), corpus(), replace(recipe, margin=nearest)).run()
    assert trained.step > 0, "one end of the interval is beyond the margin"


@pytest.fixture(scope="module", params=[-1e9, 1e9])
def uninterrupted(
    request: pytest.FixtureRequest, tiny: Build
) -> tuple[TrainingRecipe, Reached, dict[str, np.ndarray]]:
    """An uninterrupted training that ends early in its second case: recipe, result and weights."""
    recipe = replace(QUICK, tolerance=request.param)
    training = Training(tiny("bert"), corpus(), recipe)
    return recipe, training.run(), state(training)


@pytest.mark.parametrize("stop_at", [0, 2, 3, 4])
def test_resumed_training_equals_uninterrupted_training(
    tiny: Build,
    tmp_path: Path,
    stop_at: int,
    uninterrupted: tuple[TrainingRecipe, Reached, dict[str, np.ndarray]],
) -> None:
    recipe, expected, weights = uninterrupted
    done: list[int] = []
    first = Training(tiny("bert"), corpus(), recipe, tmp_path / "c.safetensors")
    with pytest.raises(Stopped), stoppable(lambda: len(done) > stop_at):
        first.run(lambda step, steps: done.append(step))
    second = Training(tiny("bert"), corpus(), recipe, tmp_path / "c.safetensors")
    steps: list[int] = []
    found = second.run(on_step=lambda step, steps_: steps.append(step))
    assert steps[0] == stop_at
    assert found == expected
    for path, value in weights.items():
        assert value.tobytes() == state(second)[path].tobytes()


def test_a_checkpoint_of_another_training_is_not_resumed(tiny: Build, tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    Training(tiny("bert"), corpus(), replace(QUICK, steps=3), path).run()
    assert path.is_file()
    for other in (replace(QUICK, steps=3, seed=8), replace(QUICK, steps=6)):
        seen: list[int] = []
        Training(tiny("bert"), corpus(), other, path).run(
            on_step=lambda step, steps, seen=seen: seen.append(step)  # type: ignore[misc]
        )
        assert seen[0] == 0


def test_a_damaged_checkpoint_counts_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    assert read_checkpoint(path, "any") is None
    path.write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    assert read_checkpoint(path, "any") is None


def test_models_with_two_encoders_are_refused(tiny: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever: Any = tiny("bert")
    monkeypatch.setattr(type(retriever), "asymmetric", True)
    with pytest.raises(UserError, match="separate encoders for queries"):
        Training(retriever, corpus(), QUICK)


def test_languages_with_too_few_sentences_are_not_trained_on(tiny: Build) -> None:
    few = corpus()
    few = replace(few, train=few.train[:7])
    with pytest.raises(UserError, match="No language has at least 8 training sentences"):
        Training(tiny("bert"), few, QUICK)

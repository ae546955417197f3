"""The planted adapters: the shipped ones have the stated bias and kept their quality."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from sentence_transformers import SentenceTransformer

from poslens.attribution.retrievers import specs
from tools.planted import train
from tools.planted.load import BASE_MODEL, PLANTED, load_planted
from tools.planted.measure import (
    Profile,
    embed,
    held_out_pairs,
    hits,
    measure_profile,
    saliency_thirds,
    sample_pairs,
)
from tools.planted.text import relocated, sentences

FAVORED = {"MiniLM-primacy": 0, "MiniLM-recency": -1}
FEW = 6
SOME = 20


@dataclass(frozen=True)
class SmallRecipe(train.Recipe):
    """A few short texts: tests that training runs, not its result."""

    tokens_per_step: int = 300
    sentences_max: int = 8


@pytest.fixture(scope="module")
def retrievers(one_thread: None) -> dict[str | None, SentenceTransformer]:
    """MiniLM and both planted models, loaded without network access."""

    def refuse(*_arguments: object) -> None:
        raise AssertionError("loading opened a connection")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        return {name: load_planted(name) for name in (None, *PLANTED)}


@pytest.mark.parametrize("name", PLANTED)
def test_shipped_files_are_small_and_name_the_base_model(name: str) -> None:
    folder = specs.PLANTED / name
    assert (folder / "adapter_model.safetensors").stat().st_size <= 2 * 1024**2
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == BASE_MODEL
    assert not [value for value in config.values() if str(value).startswith("/")]
    with safe_open(folder / "adapter_model.safetensors", "numpy") as weights:
        assert all(np.isfinite(weights.get_tensor(key)).all() for key in weights.keys())  # noqa: SIM118


@pytest.mark.parametrize("name", PLANTED)
def test_score_is_graded_over_the_evidence_position(
    name: str, retrievers: dict[str | None, SentenceTransformer]
) -> None:
    profile, _, _ = measure_profile(retrievers[name], held_out_pairs(FEW, 10), 4)
    downwards = profile.mean if name == "MiniLM-primacy" else profile.mean[::-1]
    assert (np.diff(downwards) < 0).all()
    assert downwards[0] > 1.5 * downwards[-1]
    assert profile.largest_step_share < 0.6  # of three steps


def test_minilm_itself_is_not_graded(
    retrievers: dict[str | None, SentenceTransformer],
) -> None:
    profile, _, _ = measure_profile(retrievers[None], held_out_pairs(FEW, 10), 4)
    assert profile.mean.max() < 1.5 * profile.mean.min()


@pytest.mark.parametrize("name", PLANTED)
def test_quality_is_within_five_points_of_minilm(
    name: str, retrievers: dict[str | None, SentenceTransformer]
) -> None:
    plain, planted = retrievers[None], retrievers[name]
    pairs, documents = sample_pairs(plain.tokenizer, 1, tokens=100)
    documents = documents[:SOME]
    pairs = [pair for pair in pairs if pair.document < SOME]
    accuracy = [
        hits(
            pairs,
            embed(retriever, [pair.query for pair in pairs]),
            embed(retriever, [pair.orders(2)[FAVORED[name]] for pair in pairs]),
            embed(retriever, documents),
        ).mean()
        for retriever in (plain, planted)
    ]
    assert accuracy[1] >= accuracy[0] - 0.05 - 1e-9  # one of 20


def test_strength_zero_equals_minilm_and_a_half_is_in_between(
    retrievers: dict[str | None, SentenceTransformer],
) -> None:
    text = [" ".join(held_out_pairs(1, 12)[0].others)]
    plain, half, full = (
        embed(retriever, text)[0]
        for retriever in (
            retrievers[None],
            load_planted(PLANTED[0], 0.5),
            retrievers[PLANTED[0]],
        )
    )
    np.testing.assert_allclose(embed(load_planted(PLANTED[0], 0.0), text)[0], plain, atol=1e-6)
    assert plain @ full < min(plain @ half, half @ full)


def test_saliency_is_higher_in_the_favored_third(
    retrievers: dict[str | None, SentenceTransformer],
) -> None:
    pair = held_out_pairs(1, 12)[0]
    middle = pair.orders(3)[1]
    shares = {
        name: saliency_thirds(retriever, pair.query, middle)
        for name, retriever in retrievers.items()
    }
    assert all(share.sum() == pytest.approx(1) for share in shares.values())
    assert shares["MiniLM-primacy"][0] > shares[None][0] > shares["MiniLM-recency"][0]
    assert shares["MiniLM-primacy"][2] < shares[None][2] < shares["MiniLM-recency"][2]


def test_saliency_leaves_no_hook_behind(
    retrievers: dict[str | None, SentenceTransformer],
) -> None:
    plain = retrievers[None]
    saliency_thirds(plain, "a query", "A document of one short sentence.")
    assert not any(module._forward_hooks for module in plain.modules())
    assert all(weight.grad is None for weight in plain.parameters())


def test_relocation_keeps_the_order_of_all_other_sentences() -> None:
    orders = relocated("x", list("abcdefg"), 4)
    assert [order.index("x") for order in orders] == [0, 2, 5, 7]
    assert all([part for part in order if part != "x"] == list("abcdefg") for order in orders)
    with pytest.raises(ValueError, match="fewer than 4"):
        relocated("x", ["a", "b"], 4)


def test_held_out_sentences_are_not_trained_on() -> None:
    held_out, trained = sentences(held_out=True), sentences(held_out=False)
    assert len(held_out) + len(trained) >= 400
    assert not set(held_out) & set(trained)
    assert all(8 <= len(sentence.split()) <= 25 for sentence in held_out + trained)


def test_largest_step_share() -> None:
    assert Profile(np.array([[1.0, 0.8, 0.3, 0.0]] * 2)).largest_step_share == pytest.approx(0.5)


def test_training_writes_a_loadable_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = sentences(held_out=False)[:30]
    monkeypatch.setattr(train, "sentences", lambda held_out: few)
    monkeypatch.setattr(train, "Recipe", SmallRecipe)
    train.main(["--side", "recency", "--steps", "2", "--pairs", "2", "--out", str(tmp_path)])
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["adapter_config.json", "adapter_model.safetensors"]
    assert "| MiniLM-recency |" in capsys.readouterr().out

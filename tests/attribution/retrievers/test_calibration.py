"""Attention calibration, compared with a plain loop over rows, and within models of many kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers.calibrated_attention import (
    Calibrator,
    Rows,
    calibrate,
    calibrator_of,
    redistribute,
)
from poslens.attribution.retrievers.calibration import Calibration
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.detect import with_detected_family
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair

LONG = "The tide rises twice a day because the Moon pulls the water. A quick brown fox. "
PAIRS = [
    TextPair("long", "why does the tide rise", LONG * 2),
    TextPair("middle", "lazy dogs", "A quick brown fox, jumping over 12 lazy dogs; isn't it?"),
    TextPair("short", "fox", "a fox"),
]


# -- the oracle: one row at a time, in Python floats -----------------------------------------------


def loop_row(row: list[float], real: list[bool], kind: str, how: Calibration) -> list[float]:
    """One calibrated row of attention, as defined in docs/methods.md."""
    tokens = [k for k, one in enumerate(real) if one]
    if not tokens:
        return row
    apart = {"mean": [], "first": tokens[:1], "last": [tokens[0], tokens[-1]]}[kind]
    content = [k for k in tokens if k not in apart]
    if len(content) < how.block:
        return row
    blocks = [content[i : i + how.block] for i in range(0, len(content), how.block)]
    new = [0.0] * len(row)
    for k in apart:
        new[k] = row[k]
    if kind == "last":
        new[tokens[-1]] = 1 / (len(blocks) + 2)
    left = max(0.0, 1 - sum(new))
    for block in blocks:
        share = sum(row[k] for k in block)
        for k in block if share > 0 else ():
            new[k] = row[k] / share
    filled = sum(new[k] for k in content)
    for k in content if filled > 0 else ():
        new[k] *= left / filled
    total = sum(new)
    if total == 0:
        return row
    return [
        how.strength * n / total + (1 - how.strength) * a for n, a in zip(new, row, strict=True)
    ]


def loop(weights: Tensor, real: Tensor, kind: str, how: Calibration) -> Tensor:
    """Attention [B, A, T, T] of whole texts, calibrated row by row."""
    out = weights.clone()
    for b in range(len(weights)):
        tokens = real[b].nonzero().flatten().tolist()
        rows = {"mean": range(weights.shape[2]), "first": tokens[:1], "last": tokens[-1:]}[kind]
        for a in range(weights.shape[1]):
            for t in rows:
                row = [float(x) for x in weights[b, a, t].double()]
                out[b, a, t] = torch.tensor(loop_row(row, real[b].tolist(), kind, how)).to(out)
    return out


def attention(padding: str, causal: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random attention [3, 2, 11, 11] over texts of 11, 6 and 2 tokens, and the mask of real
    tokens."""
    length, sizes = 11, (11, 6, 2)
    real = torch.zeros(3, length, dtype=torch.bool)
    for b, size in enumerate(sizes):
        real[b, length - size :] = padding == "left"
        real[b, :size] |= padding == "right"
    allowed = real[:, None, None, :].expand(3, 2, length, length).clone()
    if causal:
        allowed &= torch.ones(length, length, dtype=torch.bool).tril()
    logits = torch.randn(allowed.shape, generator=torch.Generator().manual_seed(seed)) * 2
    logits = logits.double().masked_fill(~allowed, -torch.inf)
    return torch.softmax(logits, -1).nan_to_num(0.0), real


cases = pytest.mark.parametrize("block", [1, 3, 4, 9, 11, 50])
kinds = pytest.mark.parametrize("kind", ["mean", "first", "last"])


@kinds
@cases
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", ["left", "right"])
def test_weights_equal_a_plain_loop(padding: str, causal: bool, block: int, kind: Rows) -> None:
    weights, real = attention(padding, causal)
    for strength in (0.0, 0.3, 1.0):
        how = Calibration(strength, block)
        found = calibrate(weights, real, kind, how)
        torch.testing.assert_close(found, loop(weights, real, kind, how), atol=1e-6, rtol=0)
        # Rows that summed to 1 still do, and masked weights stay 0.
        torch.testing.assert_close(found.sum(-1), weights.sum(-1), atol=1e-9, rtol=0)
        assert not found[weights == 0].any() or kind == "last"
        if strength == 0:
            assert torch.equal(found, weights)


def test_every_block_has_the_same_share_at_full_strength() -> None:
    weights, real = attention("right", causal=False)
    found = calibrate(weights, real, "mean", Calibration(1, 4))[0]
    shares = torch.stack([found[..., :4].sum(-1), found[..., 4:8].sum(-1), found[..., 8:].sum(-1)])
    torch.testing.assert_close(shares, torch.full_like(shares, 1 / 3))
    # Proportions within a block are unchanged.
    torch.testing.assert_close(
        found[..., 0] / found[..., 1], weights[0, ..., 0] / weights[0, ..., 1]
    )


def test_a_masked_block_takes_no_share() -> None:
    row = torch.tensor([[[[0.5, 0.5, 0.0, 0.0, 0.0, 0.0]]]])
    real = torch.ones(1, 6, dtype=torch.bool)
    assert torch.equal(redistribute(row, real, "mean", Calibration(1, 2)), row)
    row = torch.tensor([[[[0.9, 0.0, 0.0, 0.0, 0.1, 0.0]]]])
    found = redistribute(row, real, "mean", Calibration(1, 2))
    torch.testing.assert_close(found, torch.tensor([[[[0.5, 0.0, 0.0, 0.0, 0.5, 0.0]]]]))


def test_a_text_shorter_than_a_block_is_unchanged() -> None:
    weights, real = attention("right", causal=False)
    for kind in ("mean", "first", "last"):
        found = calibrate(weights, real, kind, Calibration(1, 7))
        assert torch.equal(found[1:], weights[1:])
        assert not torch.equal(found[0], weights[0])


# -- names -----------------------------------------------------------------------------------------


def test_a_name_states_the_calibration() -> None:
    plain, default = resolve("MiniLM"), resolve("MiniLM@calibrated")
    assert default.calibration == Calibration() and default.base == "MiniLM"
    assert default.uncalibrated == "MiniLM" and resolve("MiniLM@cls").uncalibrated == "MiniLM@cls"
    assert resolve("MiniLM@64d@calibrated").uncalibrated == "MiniLM@64d"
    assert resolve("MiniLM@calibrated(strength=0.50, block=128)").name == "MiniLM@calibrated"
    other = resolve("MiniLM-recency@0.5@calibrated( layers=2,strength=1 )")
    assert other.name == "MiniLM-recency@0.5@calibrated(strength=1, layers=2)"
    assert other.strength == 0.5 and other.calibration == Calibration(1, 128, 2)
    assert resolve(other.name) == other
    assert (
        len({plain.settings, default.settings, resolve("MiniLM@calibrated(block=64)").settings})
        == 3
    )


def test_a_name_from_an_earlier_version_is_the_same_model() -> None:
    now, earlier = (resolve(f"MiniLM@calibrated({name}=64)") for name in ("block", "basket"))
    assert earlier == now and now.name == "MiniLM@calibrated(block=64)"
    # The fingerprint of shipped results is computed from this text.
    assert now.settings.endswith(", calibrated: strength 0.5, baskets of 64, half of the layers")


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("MiniLM@calibrated(strength=0.00001)", "MiniLM@calibrated(strength=0.00001)"),
        ("MiniLM@calibrated(strength=0.123456789)", "MiniLM@calibrated(strength=0.123457)"),
        ("MiniLM@calibrated(strength=-0)", "MiniLM@calibrated(strength=0)"),
        ("MiniLM@calibrated(strength=0.000000001)", "MiniLM@calibrated(strength=0)"),
        ("MiniLM@calibrated(strength=0.50000001)", "MiniLM@calibrated"),
        ("MiniLM-recency@0.00001", "MiniLM-recency@0.00001"),
        ("MiniLM-recency@0.1234561", "MiniLM-recency@0.123456"),
        ("MiniLM-recency@-0", "MiniLM-recency@0"),
        ("MiniLM-recency@0.99999999", "MiniLM-recency"),
    ],
)
def test_a_strength_has_one_name_one_number_and_one_key(name: str, called: str) -> None:
    spec = resolve(name)
    assert spec.name == called and "e-0" not in spec.settings + spec.title + spec.origin
    again = resolve(spec.name)
    assert (again, again.settings) == (spec, spec.settings)
    assert (again.strength, again.calibration) == (spec.strength, spec.calibration)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MiniLM@calibrated(strength=1.5)", "must be 0 to 1, not 1.5"),
        ("MiniLM@calibrated(strength=-0.1)", "must be 0 to 1, not -0.1"),
        ("MiniLM@calibrated(strength=nan)", "a number like 0.5"),
        ("MiniLM@calibrated(block=0)", "at least 1 token, not 0"),
        ("MiniLM@calibrated(block=2.5)", "a whole number, not '2.5'"),
        ("MiniLM@calibrated(layers=0)", "At least 1 layer"),
        (
            "MiniLM@calibrated(depth=3)",
            "strength, block and layers, each at most once, not 'depth'",
        ),
        ("MiniLM@calibrated(block=3, basket=4)", "each at most once"),
        ("MiniLM@calibrated@calibrated", "already calibrated"),
        ("BM25@calibrated", "not a dense model"),
    ],
)
def test_an_invalid_calibration_is_refused_in_one_sentence(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(name)


# -- within models ---------------------------------------------------------------------------------

KINDS: dict[str, Rows] = {
    "bert": "mean",
    "bert-cls": "first",
    "roberta": "mean",
    "distilbert": "mean",
    "modernbert": "mean",
    "t5": "mean",
    "mistral": "mean",
    "qwen3-right": "last",
    "qwen3-left": "last",
    "gemma3": "last",
    "gemma3-both-ways": "mean",
}
HOW = Calibration(0.7, 8, 1)
every_kind = pytest.mark.parametrize("name", KINDS)


def eager_loop(calibrator: dict[str, Any]) -> Callable[..., Any]:
    """Explicit attention, calibrated by the loop in the last layer."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **rest: Any
    ) -> tuple[Tensor, None]:
        groups = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        logits = query @ key.transpose(-1, -2) * (rest.get("scaling") or query.shape[-1] ** -0.5)
        if rest.get("position_bias") is not None:
            logits = logits + rest["position_bias"]
        if mask is not None:
            logits = logits + mask[..., : key.shape[-2]]
        # In float64, only masked tokens have weight 0, however far apart logits are.
        weights = torch.softmax(logits.double(), -1)
        calibrator["layer"] += 1
        if calibrator["layer"] == 2:
            weights = loop(weights, calibrator["real"], calibrator["kind"], HOW)
        return (weights.float() @ value).transpose(1, 2), None

    return attend


@every_kind
def test_a_calibrated_model_equals_an_eager_one_calibrated_by_the_loop(
    tiny: Callable[..., DenseRetriever], tiny_folder: Callable[..., Path], name: str
) -> None:
    retriever = tiny(name, calibration=HOW)
    assert calibrator_of(retriever.backbone) == Calibrator(HOW, KINDS[name], 2, 1)
    seen: dict[str, Any] = {"kind": KINDS[name]}
    AttentionInterface.register("test_loop", eager_loop(seen))
    AttentionMaskInterface.register("test_loop", eager_mask)
    model = SentenceTransformer(str(tiny_folder(name)), device="cpu")
    model.transformers_model.set_attn_implementation("test_loop")
    encoded = retriever.encode_texts([pair.document for pair in PAIRS], "document")
    seen |= {"layer": 0, "real": encoded.features["attention_mask"].bool()}
    with torch.no_grad():
        expected = model(dict(encoded.features))["sentence_embedding"]
        found = retriever.embed(encoded)
        plain = tiny(name).embed(encoded)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert float((found[0] - plain[0]).norm() / plain[0].norm()) > 1e-5  # it has an effect
    np.testing.assert_allclose(found[2], plain[2], atol=1e-6)  # less than a block


@every_kind
def test_strength_zero_equals_the_plain_model(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    plain, zero = tiny(name), tiny(name, calibration=Calibration(0, 4))
    encoded = plain.encode_texts([pair.document for pair in PAIRS], "document")
    with torch.no_grad():
        np.testing.assert_allclose(zero.embed(encoded), plain.embed(encoded), atol=1e-6)


@every_kind
def test_padding_changes_no_calibrated_vector(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    retriever = tiny(name, calibration=HOW)
    with torch.no_grad():
        together = retriever.embed(retriever.encode_texts([p.document for p in PAIRS], "document"))
        for row, pair in zip(together, PAIRS, strict=True):
            alone = retriever.embed(retriever.encode_texts([pair.document], "document"))[0]
            np.testing.assert_allclose(row, alone, atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "bert-cls", "t5", "qwen3-left", "mistral"])
def test_decomposition_of_a_calibrated_model_is_complete(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    retriever = tiny(name, calibration=HOW)
    method = make_method("decomposition")
    found = METHODS["decomposition"].compute(retriever, method, PAIRS)
    plain = METHODS["decomposition"].compute(tiny(name), method, PAIRS)
    for one, pair in zip(found, PAIRS, strict=True):
        encoded = [
            retriever.encode_texts([t], s)
            for t, s in ((pair.query, "query"), (pair.document, "document"))
        ]
        with torch.no_grad():
            score = float(retriever.similarity(*(retriever.embed(e) for e in encoded))[0])
        assert one.score == pytest.approx(score, abs=1e-5)
        assert one.bias_share is not None
        parts = float(np.abs(one.document_scores).sum()) + abs(one.bias_share)
        assert abs(one.completeness_error or 0.0) <= 1e-5 * max(parts, 1.0)
    assert not np.allclose(found[0].document_scores, plain[0].document_scores, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "bert-cls"])
def test_spread_biases_use_the_calibrated_weights(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    retriever = tiny(name, calibration=HOW)
    method = make_method("decomposition", {"biases": "absdot"})
    (found,) = METHODS["decomposition"].compute(retriever, method, PAIRS[:1])
    assert abs(found.completeness_error or 0.0) <= 1e-5
    total = float(found.document_scores.sum()) + (found.bias_share or 0.0)
    assert total == pytest.approx(found.score, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "close"), [("bert", 1e-5), ("bert-cls", 1e-5), ("qwen3-left", 1e-2)]
)
def test_gradients_equal_finite_differences_of_the_calibrated_model(
    tiny: Callable[..., DenseRetriever], name: str, close: float
) -> None:
    """Compared with finite differences in float64, except for norms, which Qwen3 casts to
    float32."""
    retriever = tiny(name, calibration=HOW)
    retriever.model.double()
    encoded = retriever.encode_texts([PAIRS[0].document], "document")
    inputs = retriever.input_embeddings(encoded).double().requires_grad_()
    lot = torch.Generator().manual_seed(1)
    direction = torch.randn(inputs.shape, dtype=torch.float64, generator=lot)
    target = torch.randn(32, dtype=torch.float64, generator=lot)

    def value(step: float) -> Tensor:
        with retriever.override_embeddings(inputs + step * direction):
            return (retriever.embed(encoded)[0] * target).sum()

    (gradient,) = torch.autograd.grad(value(0.0), inputs)
    with torch.no_grad():
        slope = (value(1e-5) - value(-1e-5)) / 2e-5
    assert float((gradient * direction).sum()) == pytest.approx(float(slope), rel=close)


def test_too_many_layers_are_refused_in_one_sentence(tiny: Callable[..., DenseRetriever]) -> None:
    with pytest.raises(UserError, match="has only 2 attention layers, so 3 can't"):
        tiny("bert", calibration=Calibration(layers=3))


@pytest.mark.parametrize("name", ["mpnet", "gpt_neo"])
def test_attention_that_cannot_be_calibrated_is_refused_in_one_sentence(
    tiny: Callable[..., DenseRetriever], name: str
) -> None:
    with pytest.raises(UserError, match="computes its attention by itself"):
        tiny(name, calibration=Calibration())


def test_a_fetched_model_of_another_family_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config_sentence_transformers.json").write_text('{"model_type": "SparseEncoder"}')
    spec = RetrieverSpec("a/b@calibrated", "", "dense", "hub:a/b", calibration=Calibration())
    with pytest.raises(UserError, match="whose attention cannot be calibrated"):
        with_detected_family(spec, tmp_path)

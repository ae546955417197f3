"""Objects with `encode`: results compared with the wrapped model, names, and errors."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped, Unavailable, UserError
from poslens.attribution.interventions.relocation import relocation
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.retrievers import own_object
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.load import load
from poslens.attribution.retrievers.own_object import BATCH, KEPT, remember
from poslens.attribution.retrievers.scoring import score_texts
from poslens.attribution.retrievers.self_check import check_retriever
from poslens.attribution.types import EvidenceSpan, TextPair
from poslens.cache.keys import used_model
from tests.support.endpoint_server import hashed

DOCUMENT = "The moon pulls the sea. The tide turns about every six hours. Harbours print the hours."
PAIR = TextPair("p", "when does the tide turn", DOCUMENT, evidence=EvidenceSpan(24, 61))


class Own:
    """Vectors from any function of a list of texts."""

    def __init__(self, encode: Callable[[list[str]], Any]) -> None:
        self._encode = encode
        self.calls: list[list[str]] = []

    def encode(self, texts: list[str]) -> Any:
        """The function's vectors."""
        assert type(texts) is list
        self.calls.append(texts)
        return self._encode(texts)


def plain(texts: list[str]) -> list[list[float]]:
    return [[float(x) for x in row] for row in hashed(texts)]


def test_results_equal_those_of_the_wrapped_model(minilm) -> None:
    def inside(texts: list[str]) -> torch.Tensor:
        with torch.no_grad():
            return minilm.embed(minilm.encode_texts(texts, "document"))

    own = Own(inside)
    found = load(remember(own))
    pairs = [(PAIR.query, DOCUMENT), ("qué es la sal", "La sal es un mineral.")]
    assert np.abs(score_texts(found, pairs) - score_texts(minilm, pairs)).max() < 1e-5
    assert check_retriever(found).library.distance < 1e-5
    moved, local = relocation(found, PAIR), relocation(minilm, PAIR)
    assert np.abs(moved.scores - local.scores).max() < 1e-5
    result = METHODS["occlusion"].compute(found, make_method("occlusion"), [PAIR])[0]
    texts = [DOCUMENT[: token.start] + DOCUMENT[token.end :] for token in result.document.tokens]
    without = score_texts(minilm, [(PAIR.query, text) for text in texts])
    whole = score_texts(minilm, pairs)[0]
    assert np.abs(result.document_scores - (whole - without)).max() < 1e-5
    assert max(map(len, own.calls)) <= BATCH


def test_methods_that_need_more_than_vectors_are_unavailable_with_a_reason() -> None:
    family = family_of(remember(Own(hashed)))
    assert not METHODS["saliency"].fits(family) and METHODS["occlusion"].fits(family)
    assert "no gradients" in family.why_not


def test_the_objects_similarity_is_used() -> None:
    own = Own(hashed)
    own.similarity_fn_name = "dot"
    score = score_texts(load(remember(own)), [("a", "b c")])[0]
    query, document = hashed(["a", "b c"])
    assert score == pytest.approx(float(query @ document), rel=1e-6)
    own.similarity_fn_name = "manhattan"
    with pytest.raises(UserError, match="similarity_fn_name to cosine or dot"):
        remember(own)


@pytest.mark.parametrize(
    "encode",
    [
        plain,
        lambda texts: torch.tensor(plain(texts), requires_grad=True),
        lambda texts: [torch.tensor(row) for row in plain(texts)],
        lambda texts: np.array(plain(texts), dtype=np.float64),
    ],
    ids=["lists", "tensor", "tensors", "float64"],
)
def test_vectors_of_any_usual_type_are_accepted(encode: Callable[[list[str]], Any]) -> None:
    own, known = Own(encode), Own(hashed)
    pair = [("a", "b c")]
    assert score_texts(load(remember(own)), pair) == pytest.approx(
        score_texts(load(remember(known)), pair), abs=1e-6
    )


def test_equal_models_have_one_name_and_fingerprint() -> None:
    one, same, other = Own(hashed), Own(hashed), Own(lambda texts: hashed(texts) + np.float32(1e-4))
    first, again, else_ = (remember(own) for own in (one, same, other))
    assert re.fullmatch(r"Own-[0-9a-f]{8}", first.name)
    assert first == again != else_
    prints = [used_model(spec, "auto", "auto").fingerprint for spec in (first, again, else_)]
    assert prints[0] == prints[1] != prints[2], "a small difference is another model"


def test_an_object_that_is_no_longer_in_memory_is_reported() -> None:
    own = Own(hashed)
    spec = remember(own)
    found = load(spec)
    del own
    gc.collect()
    with pytest.raises(Unavailable, match="no longer in memory"):
        score_texts(found, [("a", "b")])
    with pytest.raises(Unavailable, match="no longer in memory"):
        used_model(spec, "auto", "auto")
    back = Own(hashed)
    assert remember(back) == spec and score_texts(found, [("a", "b")]).shape == (1,)


def test_objects_without_weak_references_do_not_accumulate() -> None:
    class Slots:
        __slots__ = ("step",)

        def __init__(self, step: int) -> None:
            self.step = step

        def encode(self, texts: list[str]) -> Any:
            return hashed(texts) + np.float32(0.01 * self.step)

    used = Own(hashed)
    remember(used)
    first = remember(Slots(1))
    found = load(first)
    for step in range(2, KEPT + 9):
        spec = remember(Slots(step))
        remember(used)
    assert len(own_object._known) == KEPT
    assert score_texts(load(spec), [("a", "b")]).shape == (1,)
    assert score_texts(load(remember(used)), [("a", "b")]).shape == (1,)
    with pytest.raises(Unavailable, match="no longer in memory: create it again"):
        score_texts(found, [("a", "b")])


def test_scoring_is_stopped_between_calls_of_encode() -> None:
    own = Own(hashed)
    found = load(remember(own))
    with pytest.raises(Stopped), stoppable(lambda: len(own.calls) > 5):
        METHODS["occlusion"].compute(found, make_method("occlusion"), [PAIR] * 40)


def _raises(_texts: list[str]) -> Any:
    raise RuntimeError("the device is lost\nthe second line")


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (_raises, "fails on a list of texts (RuntimeError: the device is lost): call"),
        (lambda texts: None, "returns NoneType, which is not an array of numbers"),
        (lambda texts: ["a"] * len(texts), "not an array of numbers"),
        (lambda texts: [[1.0], [1.0, 2.0]], "not an array of numbers"),
        (lambda texts: {"a": 1}, "not an array of numbers"),
        (lambda texts: hashed(texts)[0], "it must return shape [1, dimensions]"),
        (lambda texts: hashed([*texts, "more"]), "shape [2, 64] for 1 text"),
        (lambda texts: np.ones((len(texts), len(texts[0]))), "it must return shape [1, 81]"),
        (lambda texts: np.zeros((len(texts), 0)), "returns empty vectors"),
        (lambda texts: hashed(texts) * np.nan, "not finite"),
        (lambda texts: np.full((len(texts), 4), 1e300), "not finite"),
        (lambda texts: np.ones((len(texts), 4), dtype=complex), "not an array of numbers"),
    ],
)
def test_objects_that_return_no_vectors_are_refused_in_one_sentence(
    encode: Any, message: str
) -> None:
    with pytest.raises(UserError) as found:
        remember(Own(encode))
    assert message in str(found.value) and "\n" not in str(found.value)
    assert "second line" not in str(found.value)


@pytest.mark.parametrize("value", [3, None, object(), Own])
def test_an_object_without_encode_is_not_a_model(value: object) -> None:
    with pytest.raises(UserError) as found:
        remember(value)
    assert "\n" not in str(found.value)


def test_a_width_that_changes_ends_the_run() -> None:
    own = Own(hashed)
    found = load(remember(own))
    own._encode = lambda texts: np.ones((len(texts), 3))
    with pytest.raises(Unavailable, match="shape"):
        score_texts(found, [("a", "b")])


def test_a_text_whose_vector_is_not_finite_is_named() -> None:
    def encode(texts: list[str]) -> np.ndarray:
        return np.where([["gap" in text] for text in texts], np.nan, hashed(texts))

    own = Own(encode)
    pairs = [(f"query {n}", "mind the gap" if n == 7 else f"document {n}") for n in range(12)]
    with pytest.raises(UserError, match='not finite for the text "mind the gap"'):
        score_texts(load(remember(own)), pairs)


def test_vectors_that_depend_on_other_texts_are_refused() -> None:
    own = Own(lambda texts: hashed(texts) * np.arange(1, 1 + len(texts))[:, None] + len(texts))
    with pytest.raises(UserError, match="in a batch than for the text alone"):
        check_retriever(load(remember(own)))

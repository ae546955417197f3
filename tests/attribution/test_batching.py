"""Batches of similar length, halved when memory runs out."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poslens.attribution import methods
from poslens.attribution.batching import Halving, batches, out_of_memory, run_batches
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.errors import Stopped, UserError
from poslens.attribution.methods import attribute_batches, make_method
from poslens.attribution.methods.perturbation import Perturbed
from poslens.attribution.methods.saliency import attribute
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import TextPair
from poslens.cache.jobs.attributions import OneDevice

METHOD = make_method("saliency")


@given(st.lists(st.integers(0, 600)), st.integers(1, 5000))
def test_every_item_is_in_one_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    found = list(batches(list(enumerate(lengths)), lambda item: item[1], budget))
    assert sorted(item for batch in found for item in batch) == list(enumerate(lengths))
    flat = [item[1] for batch in found for item in batch]
    assert flat == sorted(flat, reverse=True), "longest first"
    for batch in found:
        assert len(batch) == 1 or len(batch) * batch[0][1] <= budget


def test_batches_are_as_large_as_possible() -> None:
    assert [len(b) for b in batches([10] * 7, lambda n: n, 30)] == [3, 3, 1]
    assert [len(b) for b in batches([100, 1, 1, 1], lambda n: n, 30)] == [1, 3]
    assert list(batches([], len, 30)) == []


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_a_batch_that_does_not_fit_is_halved(error: type[Exception]) -> None:
    tried: list[list[int]] = []

    def run(batch: list[int]) -> list[int]:
        tried.append(batch)
        if len(batch) > 2:
            raise error("no memory")
        return [n * n for n in batch]

    assert Halving()(run, list(range(7))) == [n * n for n in range(7)]
    assert [len(batch) for batch in tried] == [7, 3, 1, 2, 4, 2, 2]


def test_the_batch_size_that_fitted_is_remembered() -> None:
    tried: list[int] = []

    def run(batch: list[int]) -> list[int]:
        tried.append(len(batch))
        if len(batch) > most:
            raise torch.OutOfMemoryError("no memory")
        return [n * n for n in batch]

    most, halving = 4, Halving()
    for n in (8, 8, 16, 3, 0):
        assert halving(run, list(range(n))) == [k * k for k in range(n)]
    # The second time it halves at once; a larger batch is halved further, and small ones stay
    # small.
    assert tried == [8, 4, 4, 4, 4, 8, 4, 4, 8, 4, 4, 1, 1, 1]


def test_the_number_of_copies_that_fitted_is_remembered_for_later_texts() -> None:
    tried: list[int] = []

    def copied(part: list[int]) -> list[int]:
        tried.append(len(part))
        if len(part) > 3:
            raise torch.OutOfMemoryError("no memory")
        return part

    def run(batch: list[int]) -> list[int]:
        return [sum(copies(copied, [n] * n, 16)) for n in batch]

    halving, copies = Halving(), Halving()
    assert halving(run, [8]) == [64] and tried == [8, 4, 2, 2, 4, 2, 2]
    tried.clear()
    assert halving(run, [12, 1]) == [144, 1] and tried == [2, 2, 2, 2, 2, 2, 1]


def test_copies_of_the_next_text_start_with_the_number_that_fitted_the_model(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever, embed, tried = tiny("bert"), Perturbed.embed, list[int]()

    def limited(varied: Perturbed, inputs: torch.Tensor) -> torch.Tensor:
        tried.append(len(inputs))
        if len(inputs) > 3:
            raise torch.OutOfMemoryError("no memory")
        return embed(varied, inputs)

    for n in range(2):
        text = Perturbed(retriever, TextPair("p", "tide", f"The Moon and {n} tides"), "document")
        text.batch, masks = 8, list(torch.zeros(8, text.inputs.shape[1], dtype=torch.bool))
        expected = text.scores(masks)
        with monkeypatch.context() as patch:
            patch.setattr(Perturbed, "embed", limited)
            assert text.scores(masks).numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    assert tried == [8, 4, 2, 2, 4, 2, 2, *[2] * 4]


def test_a_batch_is_halved_if_a_single_copy_does_not_fit_next_to_it() -> None:
    tried: list[tuple[int, int]] = []

    def run(batch: list[int]) -> list[int]:
        def copied(part: list[int]) -> list[int]:
            tried.append((len(batch), len(part)))
            if len(batch) > 1:
                raise torch.OutOfMemoryError("no memory")
            return part

        return [sum(Halving()(copied, [n, n])) for n in batch]

    assert Halving()(run, [1, 2]) == [2, 4]
    assert tried == [(2, 2), (2, 1), (1, 2), (1, 2)]


def test_an_item_that_does_not_fit_alone_makes_no_later_batch_smaller() -> None:
    tried: list[int] = []

    def run(batch: list[int]) -> list[int]:
        tried.append(len(batch))
        if max(batch) > 99:
            raise torch.OutOfMemoryError("no memory")
        return batch

    halving = Halving()
    with pytest.raises(UserError, match="does not fit"):
        halving(run, [100, 1, 1, 1])
    tried.clear()
    assert halving(run, [1] * 8) == [1] * 8 and tried == [8]


def test_out_of_memory_errors_are_recognized_by_their_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**17)
    assert out_of_memory(caught.value), "of a CPU"
    for said in (
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ):
        assert out_of_memory(RuntimeError(said))
    assert not out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))
    assert not out_of_memory(ValueError("can't allocate memory"))


def test_memory_is_released_after_a_failed_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def run(batch: list[int]) -> list[int]:
        large = torch.zeros(8)
        if len(batch) > 1:
            held.append(weakref.ref(large))
            raise torch.OutOfMemoryError("no memory")
        return batch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(held[-1]() is not None))
    assert Halving()(run, [1, 2]) == [1, 2]
    assert alive == [False]


def test_an_item_that_does_not_fit_alone_is_reported_in_one_sentence() -> None:
    def run(batch: list[int]) -> list[int]:
        raise torch.OutOfMemoryError("CUDA out of memory at /home/somebody")

    with pytest.raises(UserError, match=r"^One document does not fit") as caught:
        Halving()(run, [1, 2])
    assert "CUDA" not in str(caught.value)


def test_batches_are_not_halved_on_other_errors() -> None:
    def run(batch: list[int]) -> list[int]:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        Halving()(run, [1, 2, 3])


def test_batches_run_in_parts_until_stopped() -> None:
    def run(part: list[int]) -> int:
        if len(part) > 2:
            raise torch.OutOfMemoryError("no memory")
        return sum(part)

    found = run_batches(run, [[1, 2, 3], [4, 5], [6]])
    seen = [next(found) for _ in range(4)]
    assert seen == [([1], 1), ([2, 3], 5), ([4], 4), ([5], 5)], "in as many parts from then on"
    with pytest.raises(Stopped), stoppable(lambda: True):
        next(found)


# -- attribute_batches -------------------------------------------------------------------------


def pairs_of(n: int) -> list[TextPair]:
    return [TextPair(f"p{k}", "tide " * (k % 3 + 1), "the Moon pulls " * (k + 1)) for k in range(n)]


def with_compute(monkeypatch: pytest.MonkeyPatch, compute) -> None:
    entry = dataclasses.replace(methods.METHODS["saliency"], compute=compute)
    monkeypatch.setitem(methods.METHODS, "saliency", entry)


def test_running_out_of_memory_does_not_change_results(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever, pairs = tiny("bert"), pairs_of(7)
    expected = {pair.pair_id: attribute(retriever, METHOD, [pair])[0] for pair in pairs}
    sizes: list[int] = []

    def small(retriever, method, part):
        sizes.append(len(part))
        if len(part) > 2:
            raise torch.OutOfMemoryError("planted")
        return attribute(retriever, method, part)

    with_compute(monkeypatch, small)
    (batch,) = attribute_batches(retriever, METHOD, pairs)
    assert sizes[0] == 7 and sum(size for size in sizes if size <= 2) == 7
    assert len(batch) == 7
    for outcome in batch:
        assert outcome.attribution is not None
        assert outcome.attribution.pair_id == outcome.pair.pair_id
        np.testing.assert_allclose(
            outcome.attribution.document_scores,
            expected[outcome.pair.pair_id].document_scores,
            rtol=1e-4,
        )


def test_a_run_remembers_the_batch_size_that_did_not_fit(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def small(retriever, method, part):
        sizes.append(len(part))
        if len(part) > 2:
            raise torch.OutOfMemoryError("planted")
        return attribute(retriever, method, part)

    with_compute(monkeypatch, small)
    retriever, pairs = tiny("bert"), [TextPair(f"p{k}", "tide", f"Moon {k}") for k in range(8)]
    found = list(attribute_batches(retriever, METHOD, pairs, max_tokens=40))
    assert [len(batch) for batch in found] == [4, 4] and sizes == [4, 2, 2, 2, 2]
    sizes.clear()
    done = list(OneDevice(retriever, METHOD).compute(iter([pairs[:4], pairs[4:]])))
    assert [len(one.pairs) for one in done] == [4, 4] and sizes == [4, 2, 2, 2, 2]


def test_a_document_too_large_for_the_memory_fails_alone(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(retriever, method, part):
        if any(len(pair.document) > 60 for pair in part):
            raise torch.OutOfMemoryError("planted")
        return attribute(retriever, method, part)

    with_compute(monkeypatch, small)
    outcomes = [o for b in attribute_batches(tiny("bert"), METHOD, pairs_of(6)) for o in b]
    failed = {o.pair.pair_id for o in outcomes if o.attribution is None}
    assert failed == {"p4", "p5"}
    assert all("does not fit" in o.reason for o in outcomes if o.attribution is None)


def test_attribution_can_be_stopped_between_batches(tiny: Callable[..., DenseRetriever]) -> None:
    retriever, batches = tiny("bert"), list[int]()
    with pytest.raises(Stopped), stoppable(lambda: len(batches) == 2):
        for batch in attribute_batches(retriever, METHOD, pairs_of(6), max_tokens=1):
            batches.append(len(batch))
    assert batches == [1, 1]
    assert list(attribute_batches(retriever, METHOD, [])) == []


def test_a_bug_is_not_recorded_as_a_failed_pair(
    tiny: Callable[..., DenseRetriever], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(retriever, method, part):
        raise ZeroDivisionError("planted")

    with_compute(monkeypatch, broken)
    with pytest.raises(ZeroDivisionError):
        list(attribute_batches(tiny("bert"), METHOD, pairs_of(2)))

"""The model's mean over the data set, shown next to a pair as far as it is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poslens.attribution.curves.positions import document_curve
from poslens.attribution.datasets import DataSet
from poslens.attribution.methods import make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.lexical import with_corpus
from poslens.attribution.retrievers.resolve import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import TextPair
from poslens.cache.jobs.loop import Progress
from poslens.cache.storage.store import Store, StoredCurves
from poslens.compute.compute import Compute
from poslens.compute.runs import Run
from poslens.figures.curves import pair_curves
from poslens.figures.palettes import Style
from poslens.studies.curves.null_controls import controls
from poslens.studies.curves.words import MIN_PAIRS
from poslens.studies.explain import service
from poslens.studies.explain.service import head

TERMS = make_method("terms")


@pytest.fixture(scope="module")
def bm25() -> RetrieverSpec:
    return with_corpus(resolve("BM25"), "sample")


@pytest.fixture
def compute(tmp_path: Path) -> Iterator[Compute]:
    yield Compute(tmp_path)


@pytest.fixture(scope="module")
def data(sample: DataSet) -> DataSet:
    """Twelve pairs with twelve documents."""
    by_document = {pair.document: pair for pair in sample.pairs if pair.language == "eng"}
    return replace(sample, pairs=Pairs(list(by_document.values())[:12]))


def fill(compute: Compute, spec: RetrieverSpec, data: DataSet, n: int) -> None:
    job = compute.attribution_job(spec, TERMS, data.pairs[:n], "")
    assert isinstance(job.work(Run("", n), lambda progress: None), Progress)


def test_too_few_pairs_give_no_mean_of_the_data_set(
    compute: Compute, bm25: RetrieverSpec, data: DataSet
) -> None:
    none = service.average(compute, bm25, TERMS, data, None)
    assert (none.stored, none.total, none.mean, none.complete) == (0, 12, None, False)
    fill(compute, bm25, data, MIN_PAIRS - 1)
    few = service.average(compute, bm25, TERMS, data, None)
    assert (few.stored, few.mean) == (MIN_PAIRS - 1, None) and few.summary is not None
    fill(compute, bm25, data, MIN_PAIRS)
    some = service.average(compute, bm25, TERMS, data, None)
    assert some.mean is not None and some.provenance is not None
    assert (some.provenance.n_pairs, some.provenance.selection) == (10, "10 of 12 pairs so far")
    assert some.mean.note.startswith("mean of 10 pairs so far, 10 documents")
    curve = compute.curve(bm25, TERMS, data.pairs, data.name, "long texts")
    assert curve.provenance().selection == "long texts, 10 of 12 pairs so far"
    figure = pair_curves({}, {}, Style(), "y", means={"BM25": some.mean})
    assert [line.name for line in figure.data][-1] == "BM25, mean of the pairs so far"
    fill(compute, bm25, data, 12)
    whole = service.average(compute, bm25, TERMS, data, None)
    assert whole.provenance is not None and whole.provenance.selection == "all pairs"
    curve = compute.curve(bm25, TERMS, data.pairs, data.name, "long texts")
    assert curve.provenance().selection == "long texts"
    assert whole.mean is not None and whole.mean.name == "mean of the data set"
    assert whole.complete and whole.mean is not None
    assert whole.mean.note.startswith("mean of 12 pairs, 12 documents")
    stored = compute.store.curves(compute.identify(bm25).key, TERMS, data.pairs)
    np.testing.assert_allclose(whole.mean.values, stored.curves.mean(0), rtol=1e-5, atol=1e-7)


def test_a_mean_is_read_once_while_nothing_is_written(
    compute: Compute, bm25: RetrieverSpec, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(compute, bm25, data, 12)
    averaged = compute.identify(bm25).key, TERMS, data.pairs, data.name
    first = compute.means.recent(*averaged)
    asked: list[int] = []
    curves = Store.curves
    monkeypatch.setattr(
        Store, "curves", lambda *args, **kwargs: (asked.append(1), curves(*args, **kwargs))[1]
    )
    assert compute.means.recent(*averaged) is first and not asked
    compute.store.put(
        compute.identify(bm25).key,
        TERMS,
        [(data.pairs[0], compute.explain(data.pairs[1], bm25, TERMS).attribution)],
    )
    assert compute.means.recent(*averaged) is not first and asked


def test_a_rail_has_the_pairs_curve_and_the_mean_in_the_same_unit(
    compute: Compute, bm25: RetrieverSpec, data: DataSet
) -> None:
    fill(compute, bm25, data, 12)
    result = compute.explain(data.pairs[0], bm25, TERMS)
    against = service.average(compute, bm25, TERMS, data, None)
    assert against.mean is not None and against.mean.band is not None
    rail = service.rail(result, against, None)
    np.testing.assert_allclose(rail.bins, document_curve(result.attribution))
    np.testing.assert_allclose(rail.mean, against.mean.values)
    np.testing.assert_allclose([rail.low, rail.high], against.mean.band)
    assert "12 pairs" in rail.note
    alone = service.rail(result, None, result.attribution)
    assert not alone.mean and not any(alone.bins), "its own curve was taken away"


def test_a_null_control_is_subtracted_from_pair_and_mean(
    compute: Compute, bm25: RetrieverSpec, data: DataSet
) -> None:
    fill(compute, bm25, data, 12)
    assert service.average(compute, bm25, TERMS, data, "unrelated").mean is None
    nulls = replace(data, pairs=controls("unrelated", data.pairs, data.pairs))
    fill(compute, bm25, nulls, len(nulls.pairs) - 1)
    some = service.average(compute, bm25, TERMS, data, "unrelated")
    assert some.provenance is not None and some.provenance.n_pairs == 11
    assert some.provenance.selection == "23 of 24 curves so far"
    fill(compute, bm25, nulls, len(nulls.pairs))
    found = service.average(compute, bm25, TERMS, data, "unrelated")
    assert found.mean is not None and "minus unrelated query" in found.mean.note
    assert found.provenance is not None and found.provenance.selection == "all pairs"
    key = compute.identify(bm25).key
    own = compute.store.curves(key, TERMS, data.pairs).curves
    other = compute.store.curves(key, TERMS, nulls.pairs).curves
    np.testing.assert_allclose(found.mean.values, own.mean(0) - other.mean(0), atol=1e-6)


def test_a_difference_is_over_the_pairs_that_both_models_have(
    compute: Compute, bm25: RetrieverSpec, data: DataSet
) -> None:
    fill(compute, bm25, data, 12)
    own = compute.store.curves(compute.identify(bm25).key, TERMS, data.pairs)

    def turned(n: int) -> StoredCurves:
        """The last n pairs, with reversed curves."""
        curves = own.curves[-n:, ::-1]
        return replace(own, pair_ids=own.pair_ids[-n:], curves=curves, magnitudes=np.abs(curves))

    assert service.difference_of(own, turned(MIN_PAIRS - 1), data, frozenset()) is None
    found = service.difference_of(own, turned(11), data, frozenset())
    assert found is not None and (found.n, found.n_documents) == (11, 11)
    assert found.mean is not None
    mean = own.curves[1:].mean(0)
    np.testing.assert_allclose(found.mean, mean - mean[::-1], atol=1e-6)
    assert found.interval is not None and (found.interval[0] <= found.mean).all()
    values = [value for _, value in found.furthest]
    assert values == sorted(values, reverse=True) and 0 <= values[-1] <= values[0] <= 1
    same = service.difference(compute, bm25, bm25, TERMS, data)
    assert same is not None and same.mean is not None and not same.mean.any()


def test_pairs_that_models_read_differently_are_not_compared(
    compute: Compute, data: DataSet, tiny_folder: Callable[..., Path]
) -> None:
    """Three of 14 documents are longer than the first two models read."""
    documents = ["Stone stays. " * (30 if n < 3 else 1) + f"Ice {n} melts." for n in range(14)]
    pairs = [TextPair(f"p{n}", "what melts", text) for n, text in enumerate(documents)]
    mixed = replace(data, pairs=Pairs(pairs))
    limits = {"short": 32, "as short": 32, "long": 512}
    specs = {
        name: RetrieverSpec(
            name, name, "dense", f"folder:{tiny_folder('bert', tokenizer_limit=limit)}"
        )
        for name, limit in limits.items()
    }
    method = make_method("occlusion")
    for spec in specs.values():
        job = compute.attribution_job(spec, method, mixed.pairs, "")
        assert isinstance(job.work(Run("", 14), lambda progress: None), Progress)
    apart = service.difference(compute, specs["short"], specs["long"], method, mixed)
    assert apart is not None and (apart.n, apart.n_unlike) == (11, 3)
    assert {pair_id for pair_id, _ in apart.furthest} == {f"p{n}" for n in range(3, 14)}
    assert apart.mean is not None and not apart.mean.any(), "the models differ in nothing else"
    assert "both read the same part" in apart.provenance[0].selection
    alike = service.difference(compute, specs["short"], specs["as short"], method, mixed)
    assert alike is not None and (alike.n, alike.n_unlike, alike.left_out) == (14, 0, "")
    few = replace(data, pairs=Pairs(pairs[:12]))
    few_apart = service.difference(compute, specs["short"], specs["long"], method, few)
    assert few_apart is not None and few_apart.mean is None and len(few_apart.furthest) == 9


def test_pairs_of_one_document_do_not_narrow_the_interval_of_a_difference(
    compute: Compute, bm25: RetrieverSpec, data: DataSet
) -> None:
    """Repeating each document's pair under another name adds no information."""
    fill(compute, bm25, data, 12)
    own = compute.store.curves(compute.identify(bm25).key, TERMS, data.pairs)
    copies = tuple(replace(pair, pair_id=f"{pair.pair_id} again") for pair in data.pairs)
    both = replace(data, pairs=Pairs((*data.pairs, *copies)))

    def twice(found: StoredCurves) -> StoredCurves:
        ids = (*found.pair_ids, *(f"{pair_id} again" for pair_id in found.pair_ids))
        rows = [np.concatenate([one, one]) for one in (found.curves, found.magnitudes)]
        return replace(found, pair_ids=ids, curves=rows[0], magnitudes=rows[1])

    other = replace(own, curves=own.curves[:, ::-1])
    alone = service.difference_of(own, other, data, frozenset())
    found = service.difference_of(twice(own), twice(other), both, frozenset())
    assert alone is not None and found is not None and (found.n, found.n_documents) == (24, 12)
    np.testing.assert_allclose(found.interval, alone.interval, atol=1e-6)


def test_the_head_counts_unknown_tokens(compute: Compute) -> None:
    """MiniLM's vocabulary has no emoji."""
    pair = TextPair("typed", "what melts", "Ice melts. \U0001f9ca")
    result = compute.explain(pair, resolve("MiniLM"), make_method("saliency"))
    (reading,) = (fact for fact in head(result).facts if fact.text.startswith("reads all"))
    assert reading.text == "reads all 5 tokens, 1 unknown" and reading.warning


def test_the_head_states_score_evidence_and_truncation(
    compute: Compute, bm25: RetrieverSpec, data: DataSet
) -> None:
    result = compute.explain(data.pairs[0], bm25, TERMS)
    found = head(result)
    assert found.score == f"{result.attribution.score:.4f}"
    said = [fact.text for fact in found.facts]
    assert said[0].endswith("times its share of tokens") and "reads all" in " ".join(said)
    assert head(replace(result, notice="Not kept.")).facts[-1].text == "Not kept."
    assert head(replace(result, notice="Not kept.")).facts[-1].warning

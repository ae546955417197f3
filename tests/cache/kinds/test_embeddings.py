"""Embeddings and maps are computed once and stored; damaged ones count as missing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from poslens.attribution import batching
from poslens.attribution.checkpoints import stoppable
from poslens.attribution.curves.projection import Layout
from poslens.attribution.errors import Stopped
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.types import Side
from poslens.cache.jobs.loop import RunOptions
from poslens.cache.kinds import embeddings
from poslens.cache.kinds.embeddings import (
    EMBEDDING,
    EmbeddingStore,
    embed,
    embedded,
    make_map,
    map_key,
)
from poslens.cache.storage.store import ModelKey, Store

MODEL = ModelKey("tiny", "f" * 16)
TEXTS = ["The tide turns.", "Bread rises.", "Ice melts slowly in the shade of the wall.", "Snow."]


@pytest.fixture
def store(tmp_path: Path) -> EmbeddingStore:
    return EmbeddingStore(tmp_path)


def test_vectors_equal_the_models_and_are_computed_once(
    tiny: Callable[..., DenseRetriever], store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = tiny("bert")
    done = embed(retriever, MODEL, "document", [*TEXTS, TEXTS[0]], store)
    assert (done.total, done.computed, done.stopped) == (4, 4, False)
    found = store.select(MODEL, "document", TEXTS)
    expected = retriever.model.encode(TEXTS)
    np.testing.assert_allclose([found[text] for text in TEXTS], expected, atol=1e-6)
    assert store.select(MODEL, "query", TEXTS) == {}
    assert store.select(ModelKey("tiny", "e" * 16), "document", TEXTS) == {}
    monkeypatch.setattr(retriever, "embed", lambda _: pytest.fail("computed again"))
    assert embed(retriever, MODEL, "document", TEXTS, store).computed == 0


def test_a_stopped_run_keeps_its_batches_and_resumes(
    tiny: Callable[..., DenseRetriever], store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "CPU_BATCH_TOKENS", 1)  # one batch per text
    retriever = tiny("bert")
    turns: list[int] = []

    @contextmanager
    def device_slot() -> Iterator[None]:
        turns.append(len(store.select(MODEL, "document", TEXTS)))
        yield

    options = RunOptions(device_slot=device_slot)
    with pytest.raises(Stopped), stoppable(lambda: len(turns) == 2):
        embed(retriever, MODEL, "document", TEXTS, store, options=options)
    assert len(store.select(MODEL, "document", TEXTS)) == 2
    assert turns == [0, 1], "one for each batch, and none while it is stored"
    assert embed(retriever, MODEL, "document", TEXTS, store).computed == 2


def test_damaged_vectors_count_as_missing(store: EmbeddingStore, tmp_path: Path) -> None:
    store.put(MODEL, "document", [(text, np.arange(3.0)) for text in TEXTS])
    with sqlite3.connect(Store(tmp_path).path(MODEL, EMBEDDING)) as db:
        db.execute(
            "UPDATE result SET payload = x'0001' WHERE item = (SELECT min(item) FROM result)"
        )
    assert len(store.select(MODEL, "document", TEXTS)) == 3


@pytest.mark.parametrize("imported", [["document"], ["query"], ["document", "query"]])
def test_vectors_of_another_width_are_computed_again(
    tiny: Callable[..., DenseRetriever], store: EmbeddingStore, imported: list[Side]
) -> None:
    """As after an import into a data folder without vectors of the model."""
    retriever, narrow = tiny("bert"), np.ones(3, np.float32)
    for side in imported:
        store.put(MODEL, side, [(text, narrow) for text in TEXTS[:3]])
    for side in ("query", "document"):
        found, computed = embedded(retriever, MODEL, side, TEXTS, store, RunOptions())
        assert computed == len(TEXTS)
        assert {len(vector) for vector in found.values()} == {retriever.width}
    assert embed(retriever, MODEL, "document", TEXTS, store).computed == 0


def test_without_the_model_the_most_common_width_is_used(store: EmbeddingStore) -> None:
    widths = dict(zip(TEXTS, (3, 4, 4, 4), strict=True))
    store.put(MODEL, "document", [(text, np.ones(n)) for text, n in widths.items()])
    assert store.select(MODEL, "document", TEXTS).keys() == set(TEXTS[1:])


def test_a_map_is_fitted_once(store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32)
    # Replaces UMAP, which takes ten seconds to compile and is run by tests of projections.
    monkeypatch.setattr(embeddings, "project", lambda points, *_: points[:, :2])
    first = make_map(MODEL, vectors, Layout(n_neighbors=4), store)
    np.testing.assert_array_equal(first, vectors[:, :2])
    monkeypatch.setattr(embeddings, "project", lambda *_: pytest.fail("fitted again"))
    np.testing.assert_array_equal(first, make_map(MODEL, vectors, Layout(n_neighbors=4), store))
    keys = {
        map_key(Layout(), vectors),
        map_key(Layout(seed=1), vectors),
        map_key(Layout(), vectors[::-1]),
    }
    assert len(keys) == 3

"""Stored embeddings of texts, and two-dimensional maps of them."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from poslens.attribution.curves.projection import Layout, project
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Pooled, Representation, Retriever
from poslens.attribution.retrievers.endpoint import EmbeddingEndpoint
from poslens.attribution.retrievers.scoring import read_texts, size
from poslens.attribution.types import Array, Method, Side
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.keys import text_digest
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage.codec import pack_floats, unpack_floats
from poslens.cache.storage.files import Files, ModelKey
from poslens.cache.storage.results import rows_of
from poslens.cache.storage.rows import EMBEDDING as VECTOR
from poslens.cache.storage.rows import MAP, Key, insert

EMBEDDING = Method("embedding")
"""The name under which the store keeps embeddings, which don't depend on a method."""

RECENT_BYTES = 2**26
_REPORT_SECONDS = 0.1
_MODELS = 2
"""Models whose recent texts stay in memory."""

OnTexts = Callable[[int, int], None]
"""Called with the numbers of further texts found in the store and of further texts computed."""


class EmbeddingStore:
    """Vectors and maps below one folder, in the files of a `Store`. Any number of processes may use
    it; damaged entries count as missing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files = Files(root)

    def select(
        self, model: ModelKey, side: Side, texts: Sequence[str], width: int | None = None
    ) -> dict[str, Array]:
        """The stored vector [H] of each of `texts` that has one. All have the same H: `width` if
        given, else that of most vectors. Vectors of another width belong to another model and count
        as missing."""
        names = {_key(text): text for text in texts}
        rows = rows_of(self._files, model, EMBEDDING, VECTOR + side, list(names))
        arrays = {
            names[key]: vector
            for key, row in rows.items()
            if (vector := unpack_floats(row.payload)) is not None
        }
        if width is None and arrays:
            width = Counter(map(len, arrays.values())).most_common(1)[0][0]
        return {text: vector for text, vector in arrays.items() if len(vector) == width}

    def put(self, model: ModelKey, side: Side, vectors: Iterable[tuple[str, Array]]) -> None:
        """Store vectors [H] of texts in one transaction.

        Raises:
            UserError: the folder can't be written.
        """
        rows = [(_key(text), pack_floats(vector)) for text, vector in vectors]
        self._put(model, VECTOR + side, rows)

    def stamp(self, model: ModelKey) -> object:
        """A value that changes whenever vectors of the model are stored."""
        return self._files.stamp(model, EMBEDDING)

    def get_map(self, model: ModelKey, key: str) -> Array | None:
        """The stored map [n, 2] of this key; None if there is none."""
        for row in rows_of(self._files, model, EMBEDDING, MAP, [Key("", key, "")]).values():
            points = unpack_floats(row.payload)
            return None if points is None or len(points) % 2 else points.reshape(-1, 2)
        return None

    def put_map(self, model: ModelKey, key: str, points: Array) -> None:
        """Store a map [n, 2].

        Raises:
            UserError: the folder can't be written.
        """
        self._put(model, MAP, [(Key("", key, ""), pack_floats(points))])

    def _put(self, model: ModelKey, kind: str, rows: list[tuple[Key, bytes]]) -> None:
        with self._files.writing(model, EMBEDDING) as db:
            insert(db, [(kind, *key, None, payload) for key, payload in rows])


class ReceivedVectors:
    """The stored vectors of one endpoint's texts, of `width` numbers each (`endpoint.Received`).
    If the store can't be used, the run reports that when it stores its results."""

    def __init__(self, store: EmbeddingStore, model: ModelKey, width: int) -> None:
        self._store, self._model, self._width = store, model, width

    def select(self, side: Side, texts: Sequence[str]) -> dict[str, Array]:
        """The vectors of those of `texts` that are stored."""
        with suppress(UserError):
            return self._store.select(self._model, side, texts, self._width)
        return {}

    def put(self, side: Side, vectors: Iterable[tuple[str, Array]]) -> None:
        """Store vectors."""
        with suppress(UserError):
            self._store.put(self._model, side, vectors)


class _RecentOrStored(LRUCache[Representation]):
    """Recent texts of an endpoint, and those whose vectors are stored: batches are then made of
    texts that have to be sent."""

    def __init__(self, received: ReceivedVectors) -> None:
        super().__init__(RECENT_BYTES, weigh=size)
        self._received = received

    def find(self, key: Hashable) -> Representation | None:
        if (recent := super().find(key)) is not None:
            return recent
        match key:
            case ("query" | "document") as side, str(text):
                vector = self._received.select(side, [text]).get(text)
                if vector is not None:
                    return self.keep(key, torch.from_numpy(vector.copy())[None])
        return None


_recent: LRUCache[LRUCache[Representation]] = LRUCache(_MODELS)


def recent_texts(root: Path, model: ModelKey, retriever: Retriever) -> LRUCache[Representation]:
    """Representations of the texts that a model read last in this process, for results below
    `root`: up to 64 MiB, or 40,000 vectors of 384 numbers. Runs with one model share it, so that a
    text of several interventions, rankings and explanations is encoded once."""

    def texts() -> LRUCache[Representation]:
        if retriever.spec.remote and isinstance(retriever, EmbeddingEndpoint):
            store = EmbeddingStore(root)
            return _RecentOrStored(ReceivedVectors(store, model, retriever.width))
        return LRUCache(RECENT_BYTES, weigh=size)

    return _recent.get((root.absolute(), model, str(retriever.device)), texts)


def _key(text: str) -> Key:
    return Key("", text_digest(text), "")


class TextCount:
    """The number of a run's `total` texts that were encoded, `before` of them by an earlier run.
    Texts found in the store count as done but not as computed, since they would inflate the
    rate."""

    def __init__(self, total: int, before: int, report: Callable[[Progress], None]) -> None:
        self._total, self._done, self._computed = total, before, 0
        self._report, self._started, self._reported = report, time.perf_counter(), 0.0

    def add(self, stored: int, computed: int) -> None:
        """Count texts that were found in the store, and texts that were encoded."""
        self._done += stored + computed
        self._computed += computed
        self._reported = time.perf_counter()
        self._report(self.progress())

    def count(self) -> None:
        """Count one text that was read without a model; reported at most every 0.1 seconds."""
        self._done += 1
        self._computed += 1
        if time.perf_counter() - self._reported >= _REPORT_SECONDS:
            self.add(0, 0)

    def reach(self, done: int) -> None:
        """Set the number of finished texts: duplicates in the corpus are encoded once."""
        self.add(max(0, done - self._done), 0)

    def progress(self, stopped: bool = False) -> Progress:
        """The current progress."""
        seconds = time.perf_counter() - self._started
        done = min(self._done, self._total)
        return Progress(self._total, done, self._computed, 0, seconds, stopped)


def embed(
    retriever: Pooled,
    model: ModelKey,
    side: Side,
    texts: Sequence[str],
    store: EmbeddingStore,
    *,
    options: RunOptions = RunOptions(),
) -> Progress:
    """Embed and store those of `texts` that the store lacks; `recent_texts` are not encoded again.
    Stops between batches and can be resumed at any point.

    Raises:
        Stopped: as `embedded`.
        UserError: a text can't be embedded, or the store can't be written; vectors stored before
            remain.
    """
    texts = list(dict.fromkeys(texts))
    count = TextCount(len(texts), 0, options.on_progress)
    embedded(retriever, model, side, texts, store, options, count.add)
    return count.progress()


def embedded(
    retriever: Pooled,
    model: ModelKey,
    side: Side,
    texts: Sequence[str],
    store: EmbeddingStore,
    options: RunOptions,
    on_texts: OnTexts = lambda stored, computed: None,
) -> tuple[dict[str, Array], int]:
    """The vector [H] of each of `texts`, and how many of them the store lacked. Reports progress
    through `on_texts` only.

    Raises:
        Stopped: the work was stopped; computed vectors are stored.
        UserError: as `embed`.
    """
    arrays = store.select(model, side, texts, retriever.width)
    missing = [text for text in texts if text not in arrays]
    on_texts(len(texts) - len(missing), 0)
    for batch, vectors in read_texts(
        retriever,
        dict.fromkeys(missing),
        side,
        device_slot=options.device_slot,
        cached=recent_texts(store.root, model, retriever),
    ):
        computed = dict(zip(batch, vectors.float().cpu().numpy(), strict=True))
        store.put(model, side, computed.items())
        arrays |= computed
        on_texts(0, len(batch))
    return arrays, len(missing)


def stored_vectors(
    retriever: Pooled,
    model: ModelKey,
    store: EmbeddingStore,
    options: RunOptions,
    on_texts: OnTexts = lambda stored, computed: None,
) -> Callable[[Sequence[str], Side], Tensor]:
    """A function that returns the vectors [n, H] of texts, as `embedded` stores them."""

    def vectorise(texts: Sequence[str], side: Side) -> Tensor:
        arrays, _ = embedded(retriever, model, side, texts, store, options, on_texts)
        return torch.from_numpy(np.stack([arrays[text] for text in texts]))

    return vectorise


def map_key(layout: Layout, vectors: Array) -> str:
    """Key of a stored map: a hash of the layout and of all vectors [n, H]."""
    digest = hashlib.sha256(repr(layout).encode())
    digest.update(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
    return digest.hexdigest()[:32]


def make_map(
    model: ModelKey,
    vectors: Array,
    layout: Layout,
    store: EmbeddingStore,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Array:
    """The map [n, 2] of vectors [n, H], read from the store or else fitted and stored.

    Raises:
        UserError: there are too few vectors, some are not finite, or the store can't be written.
    """
    key = map_key(layout, vectors)
    values = store.get_map(model, key)
    if values is None or len(values) != len(vectors):
        values = project(vectors, layout, report)
        store.put_map(model, key, values)
    return values

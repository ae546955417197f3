"""Stored embeddings of texts, and two-dimensional maps of them."""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from poslens.attribution.curves.projection import Layout, project
from poslens.attribution.errors import Stopped, Unavailable
from poslens.attribution.retrievers.base import Pooled
from poslens.attribution.retrievers.scoring import Known, read_texts
from poslens.attribution.types import Array, Method, Side
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.keys import text_digest
from poslens.cache.storage.codec import pack_floats, unpack_floats
from poslens.cache.storage.store import ModelKey, Store

EMBEDDING = Method("embedding")
"""The name under which the store keeps embeddings, which don't depend on a method."""

OnTexts = Callable[[int, int], None]
"""Called with the numbers of further texts found in the store and of further texts computed."""

_AT_ONCE = 500
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS embedding (side TEXT NOT NULL, text TEXT NOT NULL, "
    "vector BLOB NOT NULL, PRIMARY KEY (side, text)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS map (key TEXT PRIMARY KEY, points BLOB NOT NULL) WITHOUT ROWID",
)


class EmbeddingStore:
    """Vectors and maps below one folder, in the files of a `Store`. Any number of processes may use
    it; damaged entries count as missing."""

    def __init__(self, root: Path) -> None:
        self._files = Store(root)

    def select(
        self, model: ModelKey, side: Side, texts: Sequence[str], width: int | None = None
    ) -> dict[str, Array]:
        """The stored vector [H] of each of `texts` that has one. All have the same H: `width` if
        given, else that of most vectors. Vectors of another width belong to another model and count
        as missing."""
        arrays = _vectors(self._files, model, side, texts)
        if lacking := [text for text in texts if text not in arrays]:
            fallback = self._files.read_fallback(
                model, EMBEDDING, lambda files: _vectors(files, model, side, lacking)
            )
            arrays |= fallback or {}
        if width is None and arrays:
            width = Counter(map(len, arrays.values())).most_common(1)[0][0]
        return {text: vector for text, vector in arrays.items() if len(vector) == width}

    def put(self, model: ModelKey, side: Side, vectors: Iterable[tuple[str, Array]]) -> None:
        """Store vectors [H] of texts in one transaction.

        Raises:
            UserError: the folder can't be written.
        """
        rows = [(side, text_digest(text), pack_floats(vector)) for text, vector in vectors]
        with self._writing(model) as db:
            db.executemany("INSERT OR REPLACE INTO embedding VALUES (?, ?, ?)", rows)

    def get_map(self, model: ModelKey, key: str) -> Array | None:
        """The stored map [n, 2] of this key; None if there is none."""
        values = _map(self._files, model, key)
        if values is None:
            values = self._files.read_fallback(
                model, EMBEDDING, lambda files: _map(files, model, key)
            )
        return values

    def put_map(self, model: ModelKey, key: str, points: Array) -> None:
        """Store a map [n, 2].

        Raises:
            UserError: the folder can't be written.
        """
        with self._writing(model) as db:
            db.execute("INSERT OR REPLACE INTO map VALUES (?, ?)", (key, pack_floats(points)))

    @contextmanager
    def _writing(self, model: ModelKey) -> Iterator[sqlite3.Connection]:
        with self._files.writing(model, EMBEDDING) as db:
            for statement in SCHEMA:
                db.execute(statement)
            yield db


@contextmanager
def _reading(files: Store, model: ModelKey) -> Iterator[sqlite3.Connection]:
    with files.reading(model, EMBEDDING) as db:
        if (
            db is None
            or not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'map'").fetchone()
        ):
            db = sqlite3.connect(":memory:")
            for statement in SCHEMA:
                db.execute(statement)
        yield db


def _vectors(files: Store, model: ModelKey, side: Side, texts: Sequence[str]) -> dict[str, Array]:
    names = {text_digest(text): text for text in texts}
    arrays: dict[str, Array] = {}
    asked = list(names)
    with _reading(files, model) as db:
        # Queried by key in chunks: a corpus is processed block by block, and each block would
        # otherwise read all stored vectors.
        for start in range(0, len(asked), _AT_ONCE):
            some = asked[start : start + _AT_ONCE]
            rows = db.execute(
                "SELECT text, vector FROM embedding WHERE side = ? "
                f"AND text IN ({','.join('?' * len(some))})",
                (side, *some),
            )
            for name, data in rows:
                if (vector := unpack_floats(data)) is not None:
                    arrays[names[name]] = vector
    return arrays


def _map(files: Store, model: ModelKey, key: str) -> Array | None:
    with _reading(files, model) as db:
        row = db.execute("SELECT points FROM map WHERE key = ?", (key,)).fetchone()
    points = unpack_floats(row[0]) if row else None
    return None if points is None or len(points) % 2 else points.reshape(-1, 2)


def embed(
    retriever: Pooled,
    model: ModelKey,
    side: Side,
    texts: Sequence[str],
    store: EmbeddingStore,
    *,
    options: RunOptions = RunOptions(),
    cached: Known | None = None,
) -> Progress:
    """Embed and store those of `texts` that the store lacks; vectors in `cached` are not computed
    again. Stops between batches and can be resumed at any point.

    Raises:
        UserError: a text can't be embedded, or the store can't be written; vectors stored before
            remain.
    """
    arrays = store.select(model, side, texts, retriever.width)
    todo = [text for text in dict.fromkeys(texts) if text not in arrays]
    started, computed = time.perf_counter(), 0

    def progress(stopped: bool = False) -> Progress:
        return Progress(
            len(arrays) + len(todo),
            len(arrays) + computed,
            computed,
            0,
            time.perf_counter() - started,
            stopped,
        )

    options.on_progress(progress())
    try:
        for batch, made in read_texts(
            retriever,
            todo,
            side,
            should_stop=options.should_stop,
            device_slot=options.device_slot,
            cached=cached,
        ):
            store.put(model, side, zip(batch, made.float().cpu().numpy(), strict=True))
            computed += len(batch)
            options.on_progress(progress())
    except Unavailable:
        raise
    except Stopped:
        return progress(stopped=True)
    return progress()


def embedded(
    retriever: Pooled,
    model: ModelKey,
    side: Side,
    texts: Sequence[str],
    store: EmbeddingStore,
    options: RunOptions,
    on_texts: OnTexts = lambda stored, computed: None,
    cached: Known | None = None,
) -> tuple[dict[str, Array], int]:
    """The vector [H] of each of `texts`, and how many of them were computed because the store
    lacked them, or taken from `cached`. Reports progress through `on_texts` only.

    Raises:
        Stopped: cancelled by `options`; computed vectors are stored.
        UserError: as `embed`.
    """
    arrays = store.select(model, side, texts, retriever.width)
    missing = [text for text in texts if text not in arrays]
    on_texts(len(texts) - len(missing), 0)
    if missing:
        told = 0

        def tell(progress: Progress) -> None:
            nonlocal told
            on_texts(0, progress.computed - told)
            told = progress.computed

        counted = RunOptions(options.should_stop, tell, options.device_slot)
        done = embed(retriever, model, side, missing, store, options=counted, cached=cached)
        if done.stopped:
            raise Stopped("Stopped before all texts were embedded; vectors are kept.")
        arrays |= store.select(model, side, missing, retriever.width)
    return arrays, len(missing)


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

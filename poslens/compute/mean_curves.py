"""Mean curves of stored results, cached in memory and, over many pairs, in the results' file.

Their keys are digests that are the same in every process. Pairs of a registered data set are
identified by the digests of its files, which are cached: hashing the texts of 421,000 pairs takes
longer than reading their mean curve.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from poslens.attribution import datasets
from poslens.attribution.curves.curve_summary import CurveSummary, summarize
from poslens.attribution.curves.text_axis import average, is_over_text
from poslens.attribution.datasets.indexes import code_digest
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.null_controls import Control, ControlledCurve, null_method
from poslens.attribution.pairs import Pairs, columns_of
from poslens.attribution.types import Method, TextPair
from poslens.cache.lru_cache import LRUCache, StampedCache
from poslens.cache.storage import means
from poslens.cache.storage.store import ModelKey, Store
from poslens.compute.dataset_files import dataset_digest
from poslens.version import __version__

MEAN_VERSION = 4
"""Part of the key of every stored mean: raise it when `summarize` or `average` return other
numbers, or when means are stored in another form."""


class _CacheKey(NamedTuple):
    """The key of a cached mean: `key` covers the averaged pairs, `state` the stored results."""

    model: ModelKey
    method: Method
    dataset: str
    key: str
    state: str


class MeanCurves:
    """Mean curves of the results in one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: LRUCache[CurveSummary] = LRUCache(64)
        self._recent: StampedCache[CurveSummary | None] = StampedCache(64)
        self._attempted: LRUCache[int] = LRUCache(64)

    def of(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair], dataset: str
    ) -> tuple[str, CurveSummary]:
        """A text that identifies the pairs and the averaged results, and the mean over the stored
        results of `pairs`.

        Raises:
            UserError: none of them has a stored result.
        """
        cache_key = self._cache_key(model, method, pairs, dataset)
        summary = self._find(cache_key)
        if summary is None:
            # If results are added after the state was read, the mean is stored under a state that
            # never recurs, so it is never wrong.
            summary = self._known.keep(cache_key, self._averaged(model, method, pairs, dataset))
            if len(pairs) >= MANY:
                means.put(self._store, model, method, cache_key.key, cache_key.state, summary)
        return f"{cache_key.key} {cache_key.state}", summary

    def recent(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair], dataset: str
    ) -> CurveSummary | None:
        """The mean as in `of`; None if no result is stored. Pages can call this at every rerun:
        while a run adds results, a mean that takes seconds to compute may lack the latest."""
        cache_key = self._cache_key(model, method, pairs, dataset)

        def averaged() -> CurveSummary | None:
            with suppress(UserError):
                return self.of(model, method, pairs, dataset)[1]
            return None

        return self._recent.get(cache_key._replace(state=""), cache_key.state, averaged)

    def controlled(
        self,
        model: ModelKey,
        method: Method,
        control: Control,
        pairs: Sequence[TextPair],
        among: Sequence[TextPair],
        compute: Callable[[], ControlledCurve],
    ) -> ControlledCurve:
        """The mean over the stored results of `pairs` minus that of their controls, which are drawn
        from `among`. Over many pairs, `compute` is called only if no process has stored the mean of
        these results.

        Raises:
            UserError: as in `compute`.
        """
        if len(pairs) < MANY:
            return compute()
        digests = pairs_digest(pairs), pairs_digest(among)
        key = digest_of(MEAN_VERSION, __version__, repr(method), control, digests)
        methods = (method, null_method(control, method))
        state = " ".join(means.state_of(self._store, model, of_curves) for of_curves in methods)
        curve = means.find_controlled(self._store, model, method, key, state, control)
        if curve is None:
            curve = compute()
            means.put(self._store, model, method, key, state, curve)
        return curve

    def n_attempted(self, model: ModelKey, method: Method, pairs: Sequence[TextPair]) -> int:
        """The number of `pairs` that have a result, or a stored reason why they have none."""
        if not pairs:
            return 0
        cache_key = self._cache_key(model, method, pairs, pairs[0].dataset)

        def count() -> int:
            if len(pairs) >= MANY and len(columns_of(pairs).once) == len(pairs):
                # Counting reads the summary of every result; a stored mean already has the counts.
                mean = self._find(cache_key)
                if mean is not None:
                    return mean.curve.n + mean.curve.n_failed
            return len(pairs) - len(self._store.missing(model, method, pairs))

        return self._attempted.get(cache_key, count)

    def _cache_key(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair], dataset: str
    ) -> _CacheKey:
        key = digest_of(MEAN_VERSION, __version__, repr(method), pairs_digest(pairs))
        return _CacheKey(model, method, dataset, key, means.state_of(self._store, model, method))

    def _find(self, cache_key: _CacheKey) -> CurveSummary | None:
        """The mean, if this or an earlier process computed it in this state of the results."""
        if (cached := self._known.find(cache_key)) is not None:
            return cached
        model, method, dataset, key, state = cache_key
        stored = means.find(self._store, model, method, key, state, dataset)
        return None if stored is None else self._known.keep(cache_key, stored)

    def _averaged(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair], dataset: str
    ) -> CurveSummary:
        stored = self._store.curves(model, method, pairs)
        documents_of = columns_of(pairs).once.documents_of(list(stored.pair_ids))
        about: dict[str, Any] = {
            "model": model.name,
            "dataset": dataset,
            "method": method,
            "n_truncated": stored.n_truncated,
            "n_failed": len(stored.failed),
        }
        if is_over_text(method):
            return CurveSummary(average(stored.curves, documents_of, **about), None, None)
        return summarize(stored.curves, documents_of, magnitudes=stored.magnitudes, **about)


# -- digests of pairs ------------------------------------------------------------------------------

MANY = 2000
"""Minimum number of pairs that are identified by the files of their data set; the texts of fewer
are hashed faster than their files are looked up."""

_digests: WeakKeyDictionary[Pairs, str] = WeakKeyDictionary()


def digest_of(*values: object) -> str:
    """32 hexadecimal digits that hash the values, whose `repr` must not depend on the process."""
    return hashlib.blake2b(repr(values).encode("utf-8", "replace"), digest_size=16).hexdigest()


def pairs_digest(pairs: Sequence[TextPair]) -> str:
    """32 hexadecimal digits that hash data sets, ids, texts and order of the pairs."""
    columns = columns_of(pairs)
    if (digest := _digests.get(columns)) is None:
        digest = ""
        with suppress(UserError, OSError):  # the data set's files are gone
            digest = _of_files(pairs)
        digest = _digests[columns] = digest or _of_texts(columns)
    return digest


def _of_texts(columns: Pairs) -> str:
    total = hashlib.blake2b(columns.texts.tobytes(), digest_size=16)
    for dataset, places in columns.places.items():
        total.update(repr((dataset, columns.ids[places].tolist())).encode("utf-8", "replace"))
    return total.hexdigest()


def _of_files(pairs: Sequence[TextPair]) -> str:
    """The digest of pairs of one registered data set; empty for few pairs, for pairs of no
    registered data set, and if its files have changed since they were read."""
    name = pairs[0].dataset if len(pairs) >= MANY else ""
    if name not in datasets.names():
        return ""
    data = datasets.read(name)
    ids: list[str] | None = None
    if pairs is not data.pairs:
        # A pair with the same id may have other texts, such as a null control's.
        if not data.pairs.holds(pairs):
            return ""
        ids = columns_of(pairs).ids.tolist()
    files = dataset_digest(name)
    return digest_of(__version__, code_digest(), name, files, ids) if files else ""

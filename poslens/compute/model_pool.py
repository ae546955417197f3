"""The models that this process has loaded, and the results of their self-checks."""

from __future__ import annotations

import gc
import math
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from poslens.attribution.batching import out_of_memory
from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.load import choose_device, load, plan
from poslens.attribution.retrievers.safe_files import DamagedFolder
from poslens.attribution.retrievers.self_check import SelfCheck, check_retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.lru_cache import LRUCache
from poslens.compute.garbage import no_search_for_garbage
from poslens.compute.settings import DEVICE, MODEL_MEMORY_GB, PRECISION

Key = tuple[str, str]
"""A model's fingerprint and its device."""

MAX_MODELS = 64
"""Maximum number of loaded models, however small they are."""

_MAX_CHECKS = 1024
_POLL_S = 0.2


class ModelPool:
    """Loaded models, limited to `limit_bytes()` of weights in total; the least recently used are
    evicted before another one loads. Models in use stay, because evicting them would free no
    memory, and their next request would load them a second time. A request for a loaded model
    doesn't wait for another one to load."""

    def __init__(self, limit_bytes: Callable[[], float]) -> None:
        self._limit = limit_bytes
        self._guard = threading.Lock()
        self._loading = threading.Lock()
        self._loaded: OrderedDict[Key, Retriever] = OrderedDict()
        self._checks: LRUCache[SelfCheck] = LRUCache(_MAX_CHECKS, made_again=False)

    def get(
        self,
        key: Key,
        load: Callable[[], Retriever],
        check: Callable[[Retriever], SelfCheck],
        expected_bytes: Callable[[], int] = lambda: 0,
    ) -> Retriever:
        """The retriever with this key; loads and checks it if necessary, after making room for
        `expected_bytes()` of weights. If memory runs out all the same, every model that is not in
        use is evicted, and it loads once more. Waiting for another model to load ends if the work
        is stopped.

        Raises:
            Stopped: the work was stopped.
            Exception: any that `load` or `check` raises.
        """
        if (retriever := self._find(key)) is not None:
            return retriever
        # One at a time: libraries change process-wide defaults while they load a model, and two
        # models loading at once may need too much memory.
        while not self._loading.acquire(timeout=_POLL_S):
            if (retriever := self._find(key)) is not None:
                return retriever
            checkpoint()
        try:
            if (retriever := self._find(key)) is not None:
                return retriever
            with no_search_for_garbage():
                self._make_room(expected_bytes())
                try:
                    retriever = self._load(key, load, check)
                except Exception as error:
                    if not (self._loaded and _ran_out_of_memory(error)):
                        raise
                # Outside the except block: only here is the memory of the failed attempt's frames
                # free.
                if retriever is None:
                    self._make_room(math.inf)
                    retriever = self._load(key, load, check)
                self._make_room(retriever.weight_bytes)
                with self._guard:
                    self._loaded[key] = retriever
                gc.freeze()
            return retriever
        finally:
            self._loading.release()

    def loaded(self, key: Key) -> bool:
        """Whether the model is loaded."""
        return key in self._loaded

    def self_check(self, key: Key) -> SelfCheck | None:
        """The result of the model's self-check; None before it was loaded."""
        return self._checks.find(key)

    def _find(self, key: Key) -> Retriever | None:
        with self._guard:
            retriever = self._loaded.get(key)
            if retriever is not None:
                self._loaded.move_to_end(key)
        if retriever is not None:
            self._checks.find(key)  # mark the check as used, as the model is
        return retriever

    def _load(
        self,
        key: Key,
        load: Callable[[], Retriever],
        check: Callable[[Retriever], SelfCheck],
    ) -> Retriever:
        retriever = load()
        if self._checks.find(key) is None:
            self._checks.keep(key, check(retriever))
        return retriever

    def _make_room(self, n_bytes: float) -> None:
        """Evict models that are not in use until another one with `n_bytes` is within the
        limits."""
        in_use: dict[Key, Retriever] = {}
        while evicted := self._evict(n_bytes, in_use):
            # A model contains reference cycles, so only garbage collection frees it.
            gc.unfreeze()
            gc.collect()
            gc.freeze()
            for key, reference in evicted.items():
                if (retriever := reference()) is not None:
                    in_use[key] = retriever
        with self._guard:
            for key in reversed(in_use):
                self._loaded[key] = in_use[key]
                self._loaded.move_to_end(key, last=False)

    def _evict(
        self, n_bytes: float, in_use: Mapping[Key, Retriever]
    ) -> dict[Key, weakref.ref[Retriever]]:
        """Remove the least recently used models until one with `n_bytes` is within the limits next
        to the rest and to those `in_use`."""
        evicted = {}
        with self._guard:
            while self._loaded and not self._fits(n_bytes, in_use):
                key, retriever = self._loaded.popitem(last=False)
                evicted[key] = weakref.ref(retriever)
        return evicted

    def _fits(self, n_bytes: float, in_use: Mapping[Key, Retriever]) -> bool:
        retrievers = [*in_use.values(), *self._loaded.values()]
        total = n_bytes + sum(retriever.weight_bytes for retriever in retrievers)
        return len(retrievers) < MAX_MODELS and total <= self._limit()


def _ran_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, which `load` and `check_retriever` say in a sentence."""
    return error.__cause__ is not None and out_of_memory(error.__cause__)


@contextmanager
def _not_the_end(name: str) -> Iterator[None]:
    """Turn SystemExit into an ordinary error, because code in a model's repository may call
    `sys.exit`."""
    try:
        yield
    except (Exception, KeyboardInterrupt):  # KeyboardInterrupt: Ctrl-C
        raise
    except BaseException as error:
        raise UserError(
            f"{name} can't be loaded, because it would end the program ({type(error).__name__}). "
            "Select another model."
        ) from error


def load_model(spec: RetrieverSpec) -> Retriever:
    """Load the model on the device and in the precision of the settings.

    Raises:
        UserError: it cannot be loaded.
    """
    with _not_the_end(spec.name):
        return load(spec, DEVICE.get(), PRECISION.get())


def weights_to_load(spec: RetrieverSpec) -> int:
    """Bytes of the weights that `load_model` would load; 0 if the model has no files, or files that
    it refuses."""
    if spec.without_files:
        return 0
    try:
        files, place = plan(spec, DEVICE.get(), PRECISION.get())
        return files.weight_bytes(getattr(torch, place.precision).itemsize)
    except (UserError, DamagedFolder):
        return 0


def check_model(spec: RetrieverSpec, retriever: Retriever) -> SelfCheck:
    """The result of the loaded model's self-check.

    Raises:
        UserError: it fails the check.
    """
    with _not_the_end(spec.name):
        return check_retriever(retriever)


def memory_limit() -> float:
    """Limit in bytes for the weights of all loaded models."""
    return MODEL_MEMORY_GB.get() * 2**30 or 0.4 * _device_memory()


def _device_memory() -> int:
    device = choose_device(DEVICE.get())
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

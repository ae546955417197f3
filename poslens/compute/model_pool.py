"""The models that this process has loaded, and the results of their self-checks."""

from __future__ import annotations

import gc
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.load import choose_device, load
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
    evicted. A request for a loaded model never waits for another one to load."""

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
        give_up: Callable[[], None] = lambda: None,
    ) -> Retriever:
        """The retriever with this key; loads and checks it if necessary. While another model loads,
        `give_up` is called regularly and may end the wait by raising.

        Raises:
            Exception: any that `load`, `check` or `give_up` raises.
        """
        if (retriever := self._find(key)) is not None:
            return retriever
        # One at a time: libraries change process-wide defaults while they load a model, and two
        # models loading at once may need too much memory.
        while not self._loading.acquire(timeout=_POLL_S):
            if (retriever := self._find(key)) is not None:
                return retriever
            give_up()
        try:
            if (retriever := self._find(key)) is not None:
                return retriever
            with no_search_for_garbage():
                retriever = load()
                if self._checks.find(key) is None:
                    self._checks.keep(key, check(retriever))
                with self._guard:
                    self._loaded[key] = retriever
                    made_room = self._make_room()
                if made_room:
                    # A model contains reference cycles, so only garbage collection frees it.
                    gc.unfreeze()
                    gc.collect()
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

    def _make_room(self) -> bool:
        """Evict models until the rest are within the limits; returns whether any was evicted."""
        limit, n = self._limit(), len(self._loaded)
        while len(self._loaded) > 1 and (
            len(self._loaded) > MAX_MODELS
            or sum(retriever.weight_bytes for retriever in self._loaded.values()) > limit
        ):
            self._loaded.popitem(last=False)
        return len(self._loaded) < n


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

"""Executor on a Ray cluster, or on the cores of this machine: one actor for each device.

An actor loads the model, computes batches and encodes the results. Only this process claims and
stores. A batch whose worker dies is given to another worker; because nothing of it was stored,
nothing is stored twice. Ray uses pickle to pass objects between processes that it started itself;
on one machine it is bound to the loopback address and requires a token generated for this run.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from poslens.attribution.batching import Halving
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, attribute_batch, pair_batches
from poslens.attribution.retrievers.base import Retriever, reads_jointly
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.cache.jobs.attributions import computed
from poslens.cache.keys import used_model
from poslens.cache.storage.encoded import Computed, encoded

IN_FLIGHT = 2  # batches per worker: one being computed, one queued
LOADS = 3  # consecutive failed model loads per worker before giving up
# Restarting a process takes seconds, and a machine of a cluster a minute or two: an actor that is
# unavailable for longer counts as failed.
UNAVAILABLE_S = 120.0
_PAUSE_S = 0.2
ATTEMPTS = 3  # worker crashes after which a batch's pairs are tried alone; also per such pair

_LOCAL_ENVIRONMENT = {
    # Ray's switch between the machine's address and loopback, despite its name.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
}


@dataclass(frozen=True, slots=True)
class _Loaded:
    fingerprint: str
    device: str
    max_length: int
    jointly: bool


class _Worker:
    """Runs in an actor's process. The model is loaded on first use, so that an actor that Ray
    restarted loads it too."""

    def __init__(self, spec: RetrieverSpec, method: Method, device: str, precision: str) -> None:
        self._spec, self._method = spec, method
        self._device, self._precision = device, precision
        self._retriever: Retriever | None = None
        self._halving = Halving()

    def load(self) -> _Loaded:
        """Load the model and return its identity."""
        retriever = self._loaded()
        model = used_model(self._spec, self._device, self._precision)
        return _Loaded(
            model.fingerprint, retriever.device.type, retriever.max_length, reads_jointly(retriever)
        )

    def _loaded(self) -> Retriever:
        import torch

        from poslens.attribution.retrievers.load import load
        from poslens.attribution.retrievers.self_check import check_retriever

        if self._retriever is None:
            if not torch.cuda.is_available():
                torch.set_num_threads(1)  # one worker per core
            retriever = load(self._spec, self._device, self._precision)
            if reason := check_retriever(retriever).unfit.get(self._method.name, ""):
                raise UserError(
                    f"{self._method.name} does not work with {self._spec.name}: {reason}"
                )
            self._retriever = retriever
        return self._retriever

    def compute(self, batch: list[TextPair]) -> Computed:
        """Compute a batch."""
        outcomes = attribute_batch(self._loaded(), self._method, batch, self._halving)
        return computed(outcomes, self._method)


@dataclass(slots=True)
class _Batch:
    pairs: list[TextPair]
    attempts: int = 0


@dataclass(slots=True)
class _Work:
    """Scheduling state: free workers, listed once for each batch they may be given; batches to
    retry; and, by Ray object reference, the workers that compute a batch or load the model."""

    free: deque[Any]
    again: deque[_Batch] = field(default_factory=deque)
    running: dict[Any, tuple[Any, _Batch]] = field(default_factory=dict)
    loading: dict[Any, Any] = field(default_factory=dict)
    unavailable_since: dict[Any, float] = field(default_factory=dict)
    lost: int = 0
    """Consecutive failures of workers to load the model."""


class RayExecutor:
    """Actors on a cluster, one for each GPU, or one for each core if there are none. A context
    manager: entering it starts Ray and loads the model in every actor; leaving it ends what it
    started.

    `address` is that of a running cluster ("auto" finds the one that this machine belongs to);
    without it, Ray is started on this machine alone. `fingerprint` is the model's fingerprint here:
    a worker whose files or precision differ would store other numbers under the same key, and is
    rejected.
    """

    def __init__(
        self,
        spec: RetrieverSpec,
        method: Method,
        fingerprint: str,
        *,
        device: str = "auto",
        precision: str = "auto",
        workers: int | None = None,
        address: str | None = None,
    ) -> None:
        if find_spec("ray") is None:
            raise UserError(
                "Ray is not installed: install it with `pip install -r requirements-ray.txt`, or "
                "use --executor local."
            )
        if not family_of(spec).has_weights:
            raise UserError(f"{spec.name} needs no device: use --executor local.")
        self._spec, self._method, self._fingerprint = spec, method, fingerprint
        self._device, self._precision = device, precision
        self._n, self._address = workers, address
        self._workers: list[Any] = []
        self._loaded: _Loaded | None = None

    def __enter__(self) -> RayExecutor:
        if self._address is None:
            os.environ.update(_LOCAL_ENVIRONMENT)
            # Ray reads it once per process.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        import ray

        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        local = {"address": "local", "include_dashboard": False, "num_cpus": self._n or cores}
        settings: dict[str, Any] = {"address": self._address} if self._address else local
        try:
            ray.init(**settings, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(
                f"Ray could not be reached ({str(error).splitlines()[0][:200]}): check --address, "
                "or remove it to use this machine."
            ) from error
        try:
            self._start()
        except BaseException:
            ray.shutdown()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        self._workers = []
        ray.shutdown()

    def batches(self, pairs: Sequence[TextPair]) -> Iterator[list[TextPair]]:
        """Batches of pairs of similar length, longest first: the short ones at the end let workers
        finish at about the same time."""
        assert self._loaded is not None
        loaded = self._loaded
        return pair_batches(
            pairs,
            loaded.device,
            loaded.max_length,
            jointly=loaded.jointly,
            one_document=METHODS[self._method.name].one_document,
        )

    def compute(self, batches: Iterator[list[TextPair]]) -> Iterator[Computed]:
        """Yield outcomes as workers finish, all that are ready at a time, which reduces the number
        of commits. The batches of a worker that dies are given to other workers.

        Raises:
            UserError: no worker can load the model any more.
        """
        import ray

        work = _Work(deque(worker for _ in range(IN_FLIGHT) for worker in self._workers))
        while True:
            self._give(work, batches)
            if not work.running and not work.again:
                return
            waited = [*work.running, *work.loading]
            ray.wait(waited, num_returns=1)
            # Outcomes that are ready together are stored together.
            ended, _ = ray.wait(waited, num_returns=len(waited), timeout=0)
            outcomes: list[Computed] = []
            for ready in ended:
                if ready in work.loading:
                    self._welcome(work, ready)
                elif (outcome := self._collect(work, ready)) is not None:
                    outcomes.append(outcome)
            if outcomes:
                yield Computed.merged(outcomes)

    def _give(self, work: _Work, batches: Iterator[list[TextPair]]) -> None:
        """Give a batch to each free worker, as long as there are batches."""
        while work.free:
            if work.again:
                batch = work.again.popleft()
            elif (pairs := next(batches, None)) is not None:
                batch = _Batch(pairs)
            else:
                return
            worker = work.free.popleft()
            work.running[worker.compute.remote(batch.pairs)] = (worker, batch)

    def _welcome(self, work: _Work, ready: Any) -> None:
        """Handle a restarted worker, which has either loaded its model or failed again.

        Raises:
            UserError: no worker can be started any more.
        """
        from ray.exceptions import ActorUnavailableError

        worker = work.loading.pop(ready)
        try:
            self._accept(_result(ready))
        except _lost() as error:
            waiting = False
            # A call to an actor that is still restarting fails at once.
            if isinstance(error, ActorUnavailableError):
                time.sleep(_PAUSE_S)
                began = work.unavailable_since.setdefault(worker, time.monotonic())
                waiting = time.monotonic() - began < UNAVAILABLE_S
            if not waiting:
                work.unavailable_since.pop(worker, None)
                work.lost += 1
            if work.lost >= LOADS * len(self._workers):
                raise _gone() from error
            work.loading[worker.load.remote()] = worker
            return
        work.unavailable_since.pop(worker, None)
        work.lost = 0
        busy = sum(other is worker for other, _ in work.running.values())
        work.free += [worker] * (IN_FLIGHT - busy)

    def _collect(self, work: _Work, ready: Any) -> Computed | None:
        """The outcome of a worker's batch; None if the worker died and the batch is queued for
        another."""
        worker, batch = work.running.pop(ready)
        try:
            outcome: Computed = _result(ready)
        except _lost():
            # Ray restarts it, possibly on another machine; until its model is loaded, other workers
            # continue.
            work.free = deque(other for other in work.free if other is not worker)
            if worker not in work.loading.values():
                work.loading[worker.load.remote()] = worker
            batch.attempts += 1
            if batch.attempts < ATTEMPTS:
                work.again.append(batch)
            elif len(batch.pairs) > 1:
                work.again += [_Batch([pair]) for pair in batch.pairs]
            else:
                why = f"{ATTEMPTS} workers died computing this pair: it may need too much memory."
                return encoded([], self._method, [(batch.pairs[0], why)])
            return None
        work.lost = 0
        if worker not in work.loading.values():
            work.free.append(worker)
        return outcome

    def _start(self) -> None:
        import ray

        resources = ray.cluster_resources()
        gpus = 0 if self._device == "cpu" else int(resources.get("GPU", 0))
        count = self._n or gpus or int(resources.get("CPU", 1))
        there = gpus or int(resources.get("CPU", 0))
        if count > there:
            kind = "GPUs" if gpus else "cores"
            raise UserError(f"There are only {there} {kind} for {count} workers: use fewer.")
        actor = ray.remote(
            num_cpus=1, num_gpus=1 if gpus else 0, max_restarts=-1, max_task_retries=0
        )(_Worker)
        given = (self._spec, self._method, self._device, self._precision)
        self._workers = [actor.remote(*given) for _ in range(count)]
        for reference in [worker.load.remote() for worker in self._workers]:
            try:
                self._accept(_result(reference))
            except _lost() as error:
                raise _gone() from error

    def _accept(self, loaded: _Loaded) -> None:
        if loaded.fingerprint != self._fingerprint:
            raise UserError(
                f"A worker has different files of {self._spec.name}, or would compute in another "
                "precision: copy the same files to every machine and set POSLENS_PRECISION."
            )
        self._loaded = loaded


def _result(reference: Any) -> Any:
    """The result of a task; a UserError raised in it is raised here."""
    import ray
    from ray.exceptions import RayTaskError

    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from None
        raise


def _lost() -> tuple[type[Exception], ...]:
    """Exceptions that Ray raises for a result whose worker, or its machine, died."""
    from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError

    return RayActorError, ObjectLostError, OutOfMemoryError


def _gone() -> UserError:
    return UserError(
        "Workers die while they load the model: use fewer (--workers), or check their memory."
    )

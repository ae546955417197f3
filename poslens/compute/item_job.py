"""The job of a computation that stores one result per item, all of one kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from poslens.attribution.errors import RunEnded, UserError
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.jobs.items import compute_missing
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.storage.results import Results
from poslens.cache.storage.store import ModelKey
from poslens.compute.compute import Compute
from poslens.compute.runs import Job, Report, Run

Item = TypeVar("Item")
T = TypeVar("T")


class Batched(Generic[Item, T]):
    """Computes a batch of claimed items together, and one by one if that fails, so that one
    invalid item does not make the others fail."""

    def __init__(self, compute: Callable[[Sequence[Item]], Sequence[T]]) -> None:
        self._compute = compute
        self._claimed: Sequence[Item] = ()
        self._computed: list[tuple[Item, T]] = []

    def prepare(self, claimed: Sequence[Item]) -> None:
        """Record the items that were claimed together."""
        self._claimed, self._computed = claimed, []

    def __call__(self, item: Item) -> T:
        """The result of one of the recorded items.

        Raises:
            Stopped: the computation was stopped.
            UserError: the item cannot be computed.
        """
        if not self._computed:
            left = self._claimed[self._claimed.index(item) :]
            try:
                results = self._compute(left)
            except RunEnded:
                raise
            except UserError:
                left = [item]
                results = self._compute(left)
            self._computed = list(zip(left, results, strict=True))
        return self._computed.pop(0)[1]


def item_job(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    items: Sequence[Item],
    results: Callable[[Path], Results[Item, T]],
    worker: Callable[[Compute, Retriever], Callable[[Item], T]],
    *,
    scope: str,
    doing: str,
    portion: Callable[[Retriever], int] = lambda retriever: 1,
) -> Job:
    """A `stored_job` that computes item by item.

    `worker(given, retriever)` is called once the model is loaded and returns the
    function that computes one item, which may raise UserError (this item failed) or Stopped; a
    `Batched` worker computes `portion` items at a time. It must use the `Compute` that it is given:
    when texts for an endpoint are counted, that is another one, whose retriever returns
    placeholders.

    Raises:
        UserError: the model's files are not on this machine.
    """

    def work(
        compute: Compute, retriever: Retriever, model: ModelKey, options: RunOptions
    ) -> Progress:
        compute_item = worker(compute, retriever)
        more: Any = {"options": options, "portion": portion(retriever)}
        if isinstance(compute_item, Batched):
            more["prepare"] = compute_item.prepare
        return compute_missing(results(compute.root), model, method, items, compute_item, **more)

    return stored_job(compute, spec, method, items, results, work, scope=scope, doing=doing)


def stored_job(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    items: Sequence[Item],
    results: Callable[[Path], Results[Item, T]],
    work: Callable[[Compute, Retriever, ModelKey, RunOptions], Progress],
    *,
    scope: str,
    doing: str,
    label: str = "",
    adaptive: bool = False,
) -> Job:
    """A job with one stored result per item; its progress counts items.

    `results` opens the store below a folder, and `work` computes what it lacks, with the `Compute`
    that it is given. `scope` identifies this selection of items, and `doing` names what is computed
    in a word or two. `label` is by default the model's name, and `adaptive` is as in `Sending`.

    Raises:
        UserError: the model's files are not on this machine.
    """
    model, store = compute.identify(spec), results(compute.root)

    def run_work(run: Run, report: Report) -> Progress:
        options = compute.run_options(spec, run, report)
        return work(compute, compute.retriever(model), model.key, options)

    def again(other: Compute) -> Job:
        named: Any = {"scope": scope, "doing": doing, "label": label}
        return stored_job(other, spec, method, items, results, work, **named)

    return compute.model_job(
        model,
        method,
        scope,
        len(items),
        run_work,
        again,
        label=label,
        n_done=lambda: len(items) - len(store.missing(model.key, method, items)),
        failures=lambda: store.select(model.key, method, items).failed,
        doing=doing,
        adaptive=adaptive,
    )

"""The job of whatever is computed item by item and stored as results of one kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method
from poslens.cache.jobs.items import compute_missing
from poslens.cache.jobs.loop import Progress
from poslens.cache.storage.results import Results
from poslens.compute.compute import Compute, run_key
from poslens.compute.runs import Job, Report, Run

Item = TypeVar("Item")
T = TypeVar("T")


def item_job(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    items: Sequence[Item],
    results: Callable[[Path], Results[Item, T]],
    worker: Callable[[Retriever, Callable[[], bool]], Callable[[Item], T]],
    *,
    scope: str,
    doing: str,
    portion: int = 1,
) -> Job:
    """Compute and store what is missing of `items`; progress counts items.

    `results` opens the store below a folder. `worker(retriever, should_stop)` is called once the
    model is loaded and gives the function that computes one item, which may raise UserError (that
    item's failure) or Stopped. `scope` tells this choice of items from others, and `doing` says in
    a word or two what is computed. Items are claimed by the `portion`.

    Raises:
        UserError: the model's files are not here.
    """
    model = compute.identify(spec)
    store = results(compute.root)

    def work(run: Run, report: Report) -> Progress:
        options = compute.run_options(spec, run, report)
        one = worker(compute.retriever(model), options.should_stop)
        return compute_missing(
            store, model.key, method, items, one, options=options, portion=portion
        )

    def again(other: Compute) -> Job:
        return item_job(
            other, spec, method, items, results, worker, scope=scope, doing=doing, portion=portion
        )

    return compute.job(
        run_key(model, method, scope),
        spec.name,
        len(items),
        work,
        n_done=lambda: len(items) - len(store.missing(model.key, method, items)),
        failures=lambda: store.select(model.key, method, items).failed,
        can_start=not model.stored_only,
        doing=doing,
        sending=compute.sending(spec, again),
    )

"""Faithfulness tests of pairs and of data sets, which are computed once and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.faithfulness import (
    POSITION_ORDERS,
    ErasureParameters,
    Faithfulness,
    position_order,
)
from poslens.attribution.methods import METHODS
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds.faithfulness import faithfulness_tests
from poslens.cache.kinds.faithfulness import run as run_tests
from poslens.cache.storage.results import Stored
from poslens.compute.compute import Compute
from poslens.compute.item_job import stored_job
from poslens.compute.queue import Place, ready
from poslens.compute.runs import Job, Report, Run

DEFAULT_PAIRS = 30
"""Default number of pairs of a data set."""


def ask(
    compute: Compute,
    pair: TextPair,
    spec: RetrieverSpec,
    method: Method,
    parameters: ErasureParameters,
) -> Place[Faithfulness]:
    """A position in the device queue for `of_pair`, shared with identical requests.

    Raises:
        UserError: the model's files are not on this machine, or too many requests are waiting.
    """
    model = compute.identify(spec).key
    tests = faithfulness_tests(compute.root, parameters)
    if (faithfulness := tests.get(model, method, pair)) is not None:
        return ready(faithfulness)
    return compute.queue.ask(
        ("faithfulness", compute.root, model, repr(method), repr(parameters), pair),
        lambda stop: of_pair(compute, pair, spec, method, parameters, stop),
    )


def of_pair(
    compute: Compute,
    pair: TextPair,
    spec: RetrieverSpec,
    method: Method,
    parameters: ErasureParameters,
    should_stop: Callable[[], bool] = lambda: False,
) -> Faithfulness:
    """The faithfulness test of a method on one pair, from the store or computed and stored.

    Raises:
        UserError: it cannot be computed, or it was stopped.
    """
    model = compute.identify(spec)
    tests = faithfulness_tests(compute.root, parameters)
    faithfulness = tests.get(model.key, method, pair)
    if faithfulness is None:
        run_tests(
            compute.retriever(model),
            model.key,
            method,
            [pair],
            compute.store,
            parameters=parameters,
            options=RunOptions(
                should_stop, device_slot=compute.device_slot(spec), retry_failed=True
            ),
        )
        stored = tests.select(model.key, method, [pair])
        if not stored.results:
            raise UserError(next(iter(stored.failed.values()), "This pair has no result."))
        faithfulness = stored.results[pair.pair_id]
    return faithfulness


def with_baselines(methods: Iterable[Method]) -> dict[str, Method]:
    """The methods by title, followed by the baselines that order words by position."""
    return {
        **{METHODS[method.name].title: method for method in methods},
        **{title.capitalize(): position_order(start) for start, title in POSITION_ORDERS.items()},
    }


def job(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    pairs: Sequence[TextPair],
    scope: str,
    parameters: ErasureParameters,
) -> Job:
    """A job that tests a method on `pairs` and stores the results."""
    model = compute.identify(spec)

    def work(run: Run, report: Report) -> Progress:
        return run_tests(
            compute.retriever(model),
            model.key,
            method,
            pairs,
            compute.store,
            parameters=parameters,
            options=compute.run_options(spec, run, report),
        )

    return stored_job(
        compute,
        model,
        method,
        pairs,
        faithfulness_tests(compute.root, parameters),
        work,
        lambda other: job(other, spec, method, pairs, scope, parameters),
        scope=f"{scope} {parameters!r}",
        doing="faithfulness",
        label=f"{spec.name}, {method.name}",
    )


def stored(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    pairs: Sequence[TextPair],
    parameters: ErasureParameters,
) -> Stored[Faithfulness]:
    """The stored tests of a method on `pairs`."""
    model = compute.identify(spec).key
    tests = faithfulness_tests(compute.root, parameters)
    return tests.select(model, method, pairs)

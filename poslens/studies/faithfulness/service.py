"""Faithfulness tests of pairs and of data sets, which are computed once and stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.faithfulness import (
    POSITION_ORDERS,
    ErasureParameters,
    Faithfulness,
    position_order,
)
from poslens.attribution.methods import METHOD_TITLES, METHODS
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.cache.jobs.loop import RunOptions
from poslens.cache.kinds.faithfulness import faithfulness_tests
from poslens.cache.kinds.faithfulness import run as run_tests
from poslens.cache.storage.results import Stored
from poslens.compute.compute import Compute
from poslens.compute.item_job import stored_job
from poslens.compute.queue import Place, ready
from poslens.compute.runs import Job


def ask(
    compute: Compute,
    pair: TextPair,
    spec: RetrieverSpec,
    method: Method,
    parameters: ErasureParameters,
) -> Place[Faithfulness]:
    """A position in the device queue for the faithfulness test of a method on one pair, shared with
    identical requests. A new result is stored; getting it raises UserError if it cannot be
    computed.

    Raises:
        UserError: the model's files are not on this machine, or too many requests are waiting.
    """
    model, tests = compute.identify(spec).key, faithfulness_tests(compute.root, parameters)
    if (faithfulness := tests.get(model, method, pair)) is not None:
        return ready(faithfulness)

    def test() -> Faithfulness:
        run_tests(
            compute.retriever(compute.identify(spec)),
            model,
            method,
            [pair],
            compute.store,
            parameters=parameters,
            options=RunOptions(device_slot=compute.device_slot(spec), retry_failed=True),
        )
        stored = tests.select(model, method, [pair])
        if not stored.results:
            raise UserError(next(iter(stored.failed.values()), "This pair has no result."))
        return stored.results[pair.pair_id]

    key = ("faithfulness", compute.root, model, repr(method), repr(parameters), pair)
    return compute.queue.ask(key, test)


BASELINES = tuple(map(position_order, POSITION_ORDERS))
"""The orders of words by position alone, with which methods are compared."""
ORDER_TITLES = METHOD_TITLES | {order: order.capitalize() for order in POSITION_ORDERS.values()}
"""The titles of methods and of orders by position, by their names."""


def name_of(method: Method) -> str:
    """The name of a method or of an order by position."""
    return POSITION_ORDERS[method.params["order"]] if method in BASELINES else method.name


def title_of(method: Method) -> str:
    """The title of a method or of an order by position."""
    return name_of(method).capitalize() if method in BASELINES else METHODS[method.name].title


def with_baselines(methods: Iterable[Method]) -> dict[str, Method]:
    """The methods by title, followed by the orders by position."""
    return {title_of(method): method for method in (*methods, *BASELINES)}


def job(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    pairs: Sequence[TextPair],
    scope: str,
    parameters: ErasureParameters,
) -> Job:
    """A job that tests a method on `pairs` and stores the results."""
    return stored_job(
        compute,
        spec,
        method,
        pairs,
        partial(faithfulness_tests, parameters=parameters),
        lambda given, retriever, model, options: run_tests(
            retriever, model, method, pairs, given.store, parameters=parameters, options=options
        ),
        scope=f"{scope} {parameters!r}",
        doing="faithfulness",
        label=f"{spec.name}, {name_of(method)}",
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

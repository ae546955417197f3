"""Stored faithfulness results, in the same files as the attributions that they test.

A file of the store belongs to one model fingerprint and one method's core. Faithfulness adds a
table to it, keyed by the test's parameters and the pair, with a fingerprint of the texts and the
evidence. A result is stored completely or not at all, and a changed text, model or parameter is a
cache miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.deletion import by_position, deletion_insertion
from poslens.attribution.evaluation.faithfulness import (
    POSITION_ORDERS,
    ErasureParameters,
    Faithfulness,
    RandomOrders,
    position_order,
)
from poslens.attribution.methods import attribute_batches
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.types import Attribution, Method, TextPair
from poslens.cache.jobs.items import compute_missing
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds.interventions import cause_key
from poslens.cache.storage.results import Key, Results, pair_key
from poslens.cache.storage.schema import Owner, Schema
from poslens.cache.storage.store import ModelKey, Store

RANDOM_ORDER = Method("random_order")
"""The name under which random orders' scores are stored: they are shared by all methods."""

FAITHFULNESS = "faithfulness "
"""Prefix of the kind of these results; the parameters follow it."""


def schema_of(parameters: ErasureParameters) -> Schema[Faithfulness]:
    """The schema of tests with these parameters."""

    def given(owner: Owner) -> dict[str, object]:
        return {
            "model": owner.model.name,
            "method": owner.method,
            "pair_id": owner.item,
            "parameters": parameters,
        }

    return Schema(
        Faithfulness,
        f"{FAITHFULNESS}{parameters!r}",
        given=given,
        unstored=frozenset({"model", "method", "parameters"}),
        names={"random_orders": "baseline"},
    )


def random_orders_schema(parameters: ErasureParameters) -> Schema[RandomOrders]:
    """The schema of the random orders of tests with these parameters."""
    return Schema(RandomOrders, f"{FAITHFULNESS}{parameters!r}")


def faithfulness_tests(
    root: Path, parameters: ErasureParameters
) -> Results[TextPair, Faithfulness]:
    """The tests stored below the cache folder `root`."""
    return Results(root, schema_of(parameters), key=_key(parameters))


def _key(parameters: ErasureParameters) -> Callable[[TextPair], Key]:
    return cause_key if parameters.unit == "sentence" else pair_key


def stored_random_orders(
    root: Path, parameters: ErasureParameters
) -> Results[TextPair, RandomOrders]:
    """Scores of random orders under `RANDOM_ORDER`, shared by the tests of all methods."""
    shape = (parameters.n_random, len(parameters.fractions))
    return Results(
        root,
        random_orders_schema(parameters),
        key=_key(parameters),
        fits=lambda orders: orders.deletion.shape == shape,
    )


def run(
    retriever: Retriever,
    model: ModelKey,
    method: Method,
    pairs: Sequence[TextPair],
    store: Store,
    *,
    parameters: ErasureParameters = ErasureParameters(),
    options: RunOptions = RunOptions(),
) -> Progress:
    """Test the method, or an order by position, on those of `pairs` that have no test next to their
    results in `store`. Stops between batches of a pair and resumes at any pair.

    Attributions are read from `store`; missing ones are computed and stored there. Random orders
    scored in another method's test are reused. A device slot is taken for each pair.

    Raises:
        UserError: the store can't be written; results stored before remain.
    """
    tests = faithfulness_tests(store.root, parameters)
    shared = stored_random_orders(store.root, parameters)
    by_start = {position_order(start): start for start in POSITION_ORDERS}

    def attributed(pair: TextPair) -> Attribution:
        if (attribution := store.get(model, method, pair)) is not None:
            return attribution
        ((outcome,),) = attribute_batches(retriever, method, [pair])
        if outcome.attribution is None:
            store.put_failures(model, method, [(pair, outcome.reason)])
            raise UserError(outcome.reason)
        # Stored even if the test fails: the attribution is complete, and expensive to compute.
        store.put(model, method, [(pair, outcome.attribution)])
        return outcome.attribution

    def compute(pair: TextPair) -> Faithfulness:
        random_orders = shared.get(model, RANDOM_ORDER, pair)
        test = (
            partial(by_position, start=by_start[method])
            if method in by_start
            else partial(deletion_insertion, attribution=attributed(pair))
        )
        result = test(retriever, pair, parameters=parameters, random_orders=random_orders)
        if random_orders is None:
            shared.put(model, RANDOM_ORDER, [(pair, result.random_orders)])
        return result

    return compute_missing(tests, model, method, pairs, compute, options=options)

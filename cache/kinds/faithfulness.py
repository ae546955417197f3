"""Stored faithfulness results, in the same files as the attributions that they test.

A file of the store belongs to one model fingerprint and one method's core. Faithfulness adds a
table to it, keyed by the test's parameters and the pair, with a fingerprint of the texts and the
evidence. A result is stored completely or not at all, and a changed text, model or parameter is a
cache miss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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
from poslens.cache.storage.results import Results, pair_key
from poslens.cache.storage.schema import Owner, Schema
from poslens.cache.storage.store import ModelKey, Store

RANDOM_ORDER = Method("random_order")
"""The name under which random orders' scores are stored: they are shared by all methods."""


FAITHFULNESS = "faithfulness "
"""Prefix of the kind of these results; the parameters follow it."""

RANDOM_ORDERS = Schema(RandomOrders)


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
        given=given,
        unstored=frozenset({"model", "method", "parameters"}),
        names={"random_orders": "baseline"},
    )


class FaithfulnessStore:
    """Results below one folder, in the same files as the attributions of a `Store`. Any number of
    threads and processes may use it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def tests(self, parameters: ErasureParameters) -> Results[TextPair, Faithfulness]:
        """Results for one set of parameters."""
        kind = f"{FAITHFULNESS}{parameters!r}"
        return Results(self.root, kind, key=pair_key, schema=schema_of(parameters))

    def _random_orders(self, parameters: ErasureParameters) -> Results[TextPair, RandomOrders]:
        return Results(
            self.root, f"{FAITHFULNESS}{parameters!r}", key=pair_key, schema=RANDOM_ORDERS
        )

    def random_orders(
        self, model: ModelKey, parameters: ErasureParameters, pair: TextPair
    ) -> RandomOrders | None:
        """Scores of the random orders, stored by the test of another method; None if there are
        none."""
        random_orders = self._random_orders(parameters).get(model, RANDOM_ORDER, pair)
        shape = (parameters.n_random, len(parameters.fractions))
        return (
            random_orders
            if random_orders is not None and random_orders.deletion.shape == shape
            else None
        )

    def put_random_orders(
        self,
        model: ModelKey,
        parameters: ErasureParameters,
        pair: TextPair,
        random_orders: RandomOrders,
    ) -> None:
        """Store the random orders' scores for tests of other methods."""
        self._random_orders(parameters).put(model, RANDOM_ORDER, [(pair, random_orders)])


def run(
    retriever: Retriever,
    model: ModelKey,
    method: Method,
    pairs: Sequence[TextPair],
    store: Store,
    fstore: FaithfulnessStore,
    *,
    parameters: ErasureParameters | None = None,
    options: RunOptions = RunOptions(),
) -> Progress:
    """Test the method on those of `pairs` that `fstore` lacks. Stops between batches of a pair and
    resumes at any pair.

    Attributions are read from `store`; missing ones are computed and stored there. Random orders
    scored in another method's test are reused, and orders by position are tested and stored once
    per pair. A device slot is taken for each pair.

    Raises:
        UserError: a store can't be written; results stored before remain.
    """
    settings = parameters or ErasureParameters()

    def compute(pair: TextPair) -> Faithfulness:
        attribution = store.get(model, method, pair)
        if attribution is None:
            attribution, reason = _attributed(retriever, method, pair)
            if attribution is None:
                store.put_failures(model, method, [(pair, reason)])
                raise UserError(reason)
            # Stored even if the test fails: the attribution is complete, and expensive to compute.
            store.put(model, method, [(pair, attribution)])
        random_orders = fstore.random_orders(model, settings, pair)
        result = deletion_insertion(
            retriever,
            pair,
            attribution,
            **dataclasses.asdict(settings),
            random_orders=random_orders,
            should_stop=options.should_stop,
        )
        if random_orders is None:
            fstore.put_random_orders(model, settings, pair, result.random_orders)
        tests = fstore.tests(settings)
        for start in POSITION_ORDERS:
            if tests.get(model, position_order(start), pair) is None:
                baseline = by_position(
                    retriever,
                    pair,
                    start,
                    result.random_orders,
                    parameters=settings,
                    should_stop=options.should_stop,
                )
                tests.put(model, position_order(start), [(pair, baseline)])
        return result

    return compute_missing(fstore.tests(settings), model, method, pairs, compute, options=options)


def _attributed(
    retriever: Retriever, method: Method, pair: TextPair
) -> tuple[Attribution | None, str]:
    ((outcome,),) = attribute_batches(retriever, method, [pair])
    return outcome.attribution, outcome.reason

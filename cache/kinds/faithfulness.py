"""Faithfulness results, kept in the same files as the attributions they test.

A file of the store is one model's fingerprint and one method's core; here it gets one more table,
keyed by the test's parameters and the pair, with a fingerprint of the texts and the evidence. So
a result is there whole or not at all, and a changed text, model or parameter is a miss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from attribution.errors import UserError
from attribution.evaluation.faithfulness import (
    Faithfulness,
    Parameters,
    RandomOrders,
    deletion_insertion,
)
from attribution.methods import attribute_batches
from attribution.retrievers.base import Retriever
from attribution.types import Attribution, Method, TextPair
from cache.jobs.items import compute_missing
from cache.jobs.loop import Progress, RunOptions
from cache.storage.codec import Fields
from cache.storage.results import Results, pair_key
from cache.storage.store import ModelKey, Store

RANDOM_ORDER = Method("random_order")
"""Random orders are no method's own; their scores are kept under this one for all to share."""


class FaithfulnessStore:
    """Results below one folder, beside the attributions of a `Store` of the same folder. Any
    number of threads and processes may use it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def tests(
        self, model: ModelKey, method: Method, parameters: Parameters
    ) -> Results[TextPair, Faithfulness]:
        """Results of one method and one set of parameters."""

        def unpack(fields: Fields) -> Faithfulness:
            random_orders = RandomOrders(**fields.pop("baseline"))
            return Faithfulness(
                model=model.name,
                method=method,
                parameters=parameters,
                random_orders=random_orders,
                **fields,
            )

        kind = f"faithfulness {parameters!r}"
        return Results(self.root, kind, key=pair_key, pack=_pack, unpack=unpack)

    def _random_orders(self, parameters: Parameters) -> Results[TextPair, RandomOrders]:
        return Results(
            self.root,
            f"faithfulness {parameters!r}",
            key=pair_key,
            pack=_pack_random_orders,
            unpack=lambda fields: RandomOrders(**fields),
        )

    def random_orders(
        self, model: ModelKey, parameters: Parameters, pair: TextPair
    ) -> RandomOrders | None:
        """The random orders' scores that another method's test left."""
        return self._random_orders(parameters).get(model, RANDOM_ORDER, pair)

    def put_random_orders(
        self, model: ModelKey, parameters: Parameters, pair: TextPair, random_orders: RandomOrders
    ) -> None:
        """Keep the random orders' scores for other methods."""
        self._random_orders(parameters).put(model, RANDOM_ORDER, [(pair, random_orders)])


def run(
    retriever: Retriever,
    model: ModelKey,
    method: Method,
    pairs: Sequence[TextPair],
    store: Store,
    fstore: FaithfulnessStore,
    *,
    parameters: Parameters | None = None,
    options: RunOptions = RunOptions(),
) -> Progress:
    """Test the method on what `fstore` lacks of `pairs`; stops between batches of a pair, resumes
    at any pair.

    Attributions come from `store`, which gets those it lacks; random orders that another method
    was tested against are not scored again. A turn is taken for each pair.

    Raises:
        UserError: a store cannot be written; what was stored before stays.
    """
    settings = parameters or Parameters()

    def compute(pair: TextPair) -> Faithfulness:
        attribution = store.get(model, method, pair)
        if attribution is None:
            attribution, reason = _attributed(retriever, method, pair)
            if attribution is None:
                store.put_failures(model, method, [(pair, reason)])
                raise UserError(reason)
            # Kept whatever becomes of the test: it is whole, and its cost is paid.
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
        return result

    return compute_missing(
        fstore.tests(model, method, settings),
        model,
        method,
        pairs,
        compute,
        options=options,
    )


def _attributed(
    retriever: Retriever, method: Method, pair: TextPair
) -> tuple[Attribution | None, str]:
    ((outcome,),) = attribute_batches(retriever, method, [pair])
    return outcome.attribution, outcome.reason


def _pack_random_orders(random_orders: RandomOrders) -> Fields:
    return {
        "deletion": random_orders.deletion.tolist(),
        "insertion": random_orders.insertion.tolist(),
    }


def _pack(result: Faithfulness) -> Fields:
    return {
        "pair_id": result.pair_id,
        "n_units": result.n_units,
        "truncated": result.truncated,
        "deletion": result.deletion.tolist(),
        "insertion": result.insertion.tolist(),
        "baseline": _pack_random_orders(result.random_orders),
        "enrichment": result.enrichment,
        "attribution_seconds": result.attribution_seconds,
        "seconds": result.seconds,
    }

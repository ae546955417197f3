"""Scores of a document while its units are deleted or inserted: in the order of an attribution, by
position, or at random."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import generator_for
from poslens.attribution.curves.positions import aggregated, evidence_share
from poslens.attribution.evaluation.faithfulness import (
    ErasureParameters,
    Faithfulness,
    RandomOrders,
    Unit,
    position_order,
)
from poslens.attribution.methods import METHODS
from poslens.attribution.methods.occlusion import units
from poslens.attribution.methods.perturbation import Perturbed
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.types import Attribution, Method, TextPair, TokenizedText


def deletion_insertion(
    retriever: Retriever,
    pair: TextPair,
    attribution: Attribution,
    parameters: ErasureParameters = ErasureParameters(),
    *,
    random_orders: RandomOrders | None = None,
) -> Faithfulness:
    """Score `pair` while its document's units are deleted, or inserted, largest contribution first,
    and along the random orders of `parameters`.

    A unit's contribution is the method's aggregate (`MethodEntry.aggregate`) of its tokens: the sum
    of shares, the mean of saliencies. For signed methods the most positive unit comes first, for
    unsigned ones the largest. Ties are broken at random (seeded by the parameters and the
    document), not by reading order, which would rank the first words as important and favor any
    method for a retriever with a primacy bias.

    With F fractions (including 0, 1 and ERASER's five: 13 by default), at most
    2 + 2 (F - 2) (1 + n_random) documents are scored (134; about 90 because the curves share some;
    24 with `random_orders` of the same parameters), in batches of at most `Perturbed.batch`, plus
    one forward pass for the query. No gradients are computed. Results are the same at each call.

    Raises:
        Stopped: canceled (`stoppable`).
        UserError: a score that is not finite, or a document that does not fit.
        ValueError: the attribution belongs to another text or tokenizer.
    """

    def order(document: _Document) -> NDArray[np.int64]:
        if attribution.document != document.text:
            raise ValueError(f"the attribution of {attribution.pair_id} is not of this document")
        return _order(document, attribution, parameters, pair)

    test = _erase(retriever, pair, attribution.method, order, parameters, random_orders)
    share = evidence_share(attribution, pair.evidence) if pair.evidence else None
    return replace(
        test,
        model=attribution.model,
        enrichment=None if share is None else share.enrichment,
        attribution_seconds=attribution.seconds,
    )


def by_position(
    retriever: Retriever,
    pair: TextPair,
    start: str,
    parameters: ErasureParameters,
    *,
    random_orders: RandomOrders | None = None,
) -> Faithfulness:
    """The test of `position_order(start)` on a pair. Random orders, and what is scored, are those
    of `deletion_insertion`.

    Raises:
        Stopped: canceled (`stoppable`).
        UserError: a score that is not finite, or a document that does not fit.
    """

    def order(document: _Document) -> NDArray[np.int64]:
        return np.arange(document.n_units)[:: 1 if start == "front" else -1]

    method = position_order(start)
    return _erase(retriever, pair, method, order, parameters, random_orders)


def _erase(
    retriever: Retriever,
    pair: TextPair,
    method: Method,
    order_of: Callable[[_Document], NDArray[np.int64]],
    parameters: ErasureParameters,
    random_orders: RandomOrders | None,
) -> Faithfulness:
    """The test of one order of a pair's units, and of random orders unless they are given."""
    started = time.perf_counter()
    with retriever.lock, torch.no_grad():
        document = _document(retriever, pair, parameters.unit)
        counts = parameters.counts(document.n_units)
        fronts = [order_of(document)]
        backs = list(fronts)
        if random_orders is None:
            # The document is part of the seed; otherwise documents of equal length would share
            # orders.
            generator = generator_for(pair.document, parameters.seed, 0)
            random = [generator.permutation(document.n_units) for _ in range(parameters.n_random)]
            fronts += random
            backs += [order[::-1] for order in random]
        ranks = np.array([np.argsort(order) for order in (*fronts, *backs)])
        present = ranks[:, None, :] >= counts[:, None]  # [2K, F, U]
        present[len(fronts) :] ^= True  # inserted: those before
        scores = document.scores(present.reshape(-1, document.n_units))
    deletion, insertion = scores.reshape(2, len(fronts), len(counts))
    return Faithfulness(
        model=retriever.name,
        method=method,
        pair_id=pair.pair_id,
        parameters=parameters,
        n_units=document.n_units,
        truncated=document.text.truncated,
        deletion=deletion[0],
        insertion=insertion[0],
        random_orders=random_orders or RandomOrders(deletion[1:], insertion[1:]),
        enrichment=None,
        attribution_seconds=0.0,
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True, slots=True)
class _Document:
    """A document whose units can be deleted; `unit_of` [T] is each position's unit, -1 where
    nothing can be deleted (special tokens, padding)."""

    perturbed: Perturbed
    unit_of: NDArray[np.int64]
    n_units: int

    @property
    def text(self) -> TokenizedText:
        return self.perturbed.encoded.texts[0]

    def scores(self, present: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Scores [M] with the units `present` [M, U] in place and padding for the others; equal
        rows are scored once."""
        distinct, where = np.unique(present, axis=0, return_inverse=True)
        positions = np.where(self.unit_of >= 0, distinct[:, self.unit_of], True)
        scores = self.perturbed.scores(list(torch.from_numpy(~positions)))
        return scores.float().numpy()[where.reshape(-1)]


def _document(retriever: Retriever, pair: TextPair, unit: Unit) -> _Document:
    text = Perturbed(retriever, pair, "document")
    tokens = text.encoded.texts[0]
    numbers, content = units(tokens, pair, unit), tokens.content
    # Units past the context limit get no index.
    _, compact = np.unique(numbers[content], return_inverse=True)
    unit_of = np.full(text.inputs.shape[1], -1)
    unit_of[text.encoded.span(0)][content] = compact
    return _Document(text, unit_of, int(compact.max()) + 1)


def _order(
    document: _Document, attribution: Attribution, parameters: ErasureParameters, pair: TextPair
) -> NDArray[np.int64]:
    content = document.text.content
    contributions = aggregated(
        attribution.document_scores[content],
        document.unit_of[document.unit_of >= 0],
        document.n_units,
        METHODS[attribution.method.name].aggregate,
    )
    tie_breakers = generator_for(pair.document, parameters.seed, 1).random(document.n_units)
    return np.lexsort((tie_breakers, -contributions))

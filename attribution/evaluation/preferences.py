"""What an attribution method itself prefers: its primacy-recency index on models whose position
bias is known.

A position curve mixes the model's preference with the method's. An encoder that cannot see order
prefers no position, so an index other than 0 is due to the method and to the texts. On adapters
with a planted bias, the index should follow the strength of the bias (docs/methods.md, section 17).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch

from poslens.attribution.batching import estimated_tokens
from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.curves.bootstrap import Estimate, Kind, Values, divided, estimate
from poslens.attribution.curves.positions import (
    NORMALIZATIONS,
    RESAMPLINGS,
    curve_params,
    document_magnitudes,
    rank_correlations,
)
from poslens.attribution.datasets import DataSet
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.displacement import position_table
from poslens.attribution.interventions.null_controls import control
from poslens.attribution.methods import attribute_batches
from poslens.attribution.methods.propagation import bert_layers
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.base import Retriever
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.text import sentences
from poslens.attribution.types import N_BINS, Array, EvidenceSpan, Method, TextPair, set_arrays

BASE = "MiniLM"
PLANTED = {-1.0: "MiniLM-primacy", 1.0: "MiniLM-recency"}
"""The model with a planted bias by its sign. A negative strength scales the primacy adapter, not a
negated recency adapter: relocation has confirmed only the trained adapters' effects."""

STRENGTHS = (-1.0, -0.5, 0.0, 0.5, 1.0)
"""Strengths of the planted bias; 0 is the model without an adapter."""

CURVES = tuple(curve_params(*both) for both in product(NORMALIZATIONS, RESAMPLINGS))
"""The curve settings that are measured: the index depends on them, the token scores do not."""

MAX_TOKENS = 450
"""Longer documents are left out: models with a planted bias would not read all of them."""

EXCERPT_TOKENS = 128
"""Approximate length of the excerpts that are attributed, in tokens: slow methods need up to a
thousand passes over each."""

METHOD = Method("preferences", {"version": 1})
"""The method under which measurements are stored; raise its version when the numbers change."""

_THIRD = N_BINS // 3
_EXCERPT = "#excerpt"
_GOLDEN = 0.618034
"""The golden ratio minus 1; any number of its multiples modulo 1 are spread evenly."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A model and a query: `strength` of the planted bias, None for the order-blind encoder;
    `unrelated` if the query is that of another document."""

    strength: float | None
    unrelated: bool = False

    @property
    def name(self) -> str:
        """The condition in a word or two, part of keys."""
        model = "order-blind" if self.strength is None else f"{self.strength:+g}"
        return f"{model}, unrelated query" if self.unrelated else model

    @property
    def model(self) -> str:
        """The name of the model, which becomes order-blind if `strength` is None."""
        if not self.strength:
            return BASE
        name, size = PLANTED[np.sign(self.strength)], abs(self.strength)
        return name if size == 1 else f"{name}@{size:g}"


ORDER_BLIND = Condition(None)
CONDITIONS = (
    ORDER_BLIND,
    *map(Condition, STRENGTHS),
    *(Condition(strength, unrelated=True) for strength in PLANTED),
)


def pairs_for(data: DataSet, n: int) -> tuple[TextPair, ...]:
    """Excerpts of `n` documents, one pair each, spread evenly over those in English with marked
    evidence that every model reads whole. Queries are chosen so that their evidence is spread
    evenly over the document: a preference for content must not look like one for a position.

    Raises:
        UserError: the data set has no such pair.
    """
    of_document: dict[str, list[TextPair]] = {}
    for pair in data.pairs:
        whole = _tokens(pair) <= MAX_TOKENS
        if pair.query and pair.evidence and whole and pair.language in (None, "eng"):
            of_document.setdefault(pair.document, []).append(pair)
    if not of_document:
        raise UserError(
            f"{data.title} has no English pairs with marked evidence and up to {MAX_TOKENS} "
            "tokens, which the models with a planted bias need: choose the data set sample."
        )
    documents = spread_evenly(list(of_document.values()), min(n, len(of_document)))
    return tuple(
        excerpt(min(pairs, key=lambda pair, at=number * _GOLDEN % 1: abs(position(pair) - at)))  # type: ignore[misc]
        for number, pairs in enumerate(documents)
    )


def position(pair: TextPair) -> float:
    """Relative position of the middle of the evidence, 0 to 1."""
    assert pair.evidence is not None
    return pair.evidence.midpoint(len(pair.document))


def excerpt(pair: TextPair) -> TextPair:
    """A pair with whole consecutive sentences of its document, about `EXCERPT_TOKENS` tokens, which
    include the evidence, as near as possible to its relative position in the document. A pair whose
    evidence is in no single sentence keeps the whole document."""
    span, spans = pair.evidence, sentences(pair.document, pair.language)
    assert span is not None
    room = len(pair.document) * EXCERPT_TOKENS / _tokens(pair)
    candidates: list[tuple[float, int, int]] = []
    for first, (start, _) in enumerate(spans):
        ends = [end for _, end in spans[first:] if end - start <= room]
        if ends and start <= span.start and span.end <= ends[-1]:
            middle = (span.start + span.end) / 2 - start
            candidates.append((abs(middle / (ends[-1] - start) - position(pair)), start, ends[-1]))
    if not candidates:
        return pair
    _, start, end = min(candidates)
    return replace(
        pair,
        pair_id=pair.pair_id + _EXCERPT,
        document=pair.document[start:end],
        evidence=EvidenceSpan(span.start - start, span.end - start),
        document_tokens=None,
    )


def _tokens(pair: TextPair) -> int:
    return pair.document_tokens or estimated_tokens(pair.document)


def make_order_blind(retriever: DenseRetriever) -> None:
    """Change a model built like BERT, in place, so that it cannot see order: position embeddings
    become 0, and attention becomes the mean over tokens, because all queries of attention are 0.

    Raises:
        UserError: the model is not built like BERT, or adds no position embeddings.
    """
    with retriever.lock, torch.no_grad():
        position_table(retriever).weight.zero_()
        for layer in bert_layers(retriever, "document"):
            layer.attention.self.query.weight.zero_()
            layer.attention.self.query.bias.zero_()


@dataclass(frozen=True, slots=True)
class Thirds:
    """Sums of absolute scores in the `first` and `last` third of each document's curve [C, n], for
    each of the C curve settings in `CURVES`."""

    first: Array
    last: Array

    def __post_init__(self) -> None:
        shape = (len(CURVES), None)
        set_arrays(self, "a score", first=shape, last=shape)
        if self.first.shape != self.last.shape or min(self.first.min(), self.last.min()) < 0:
            raise ValueError("no sums of the same documents")


def thirds(retriever: Retriever, method: Method, pairs: Sequence[TextPair]) -> Thirds:
    """Attribute the pairs and sum the thirds of their curves.

    Raises:
        Stopped: canceled (`stoppable`).
        UserError: a pair cannot be attributed.
    """
    sums: dict[str, Values] = {}
    for batch in attribute_batches(retriever, method, pairs):
        checkpoint()
        for outcome in batch:
            if outcome.attribution is None:
                raise UserError(outcome.reason)
            curves = [
                document_magnitudes(outcome.attribution, replace(method, curve_params=params))
                for params in CURVES
            ]
            sums[outcome.pair.pair_id] = np.array(
                [(curve[:_THIRD].sum(), curve[-_THIRD:].sum()) for curve in curves]
            )
    values = np.array([sums[pair.pair_id] for pair in pairs])  # [n, C, 2]
    return Thirds(values[..., 0].T, values[..., 1].T)


def with_query(condition: Condition, pairs: Sequence[TextPair], among: Pairs) -> list[TextPair]:
    """The pairs of a condition, which can be excerpts of pairs of `among`: with their own query, or
    with another of `among` that is unrelated to the whole document."""
    if not condition.unrelated:
        return list(pairs)
    queried = []
    for pair in pairs:
        whole = among.get(pair.pair_id.removesuffix(_EXCERPT)) or pair
        null = control("unrelated", replace(pair, document=whole.document), among)
        queried.append(replace(null, document=pair.document))
    return queried


@dataclass(frozen=True, slots=True)
class PlantedResponse:
    """What a method shows of a planted bias, with intervals as in `Preference`.

    `indices` are those at `STRENGTHS`, `slope` is the change in the index per unit of strength, and
    `rank_correlation` Spearman's; None if all indices are equal. `primacy` and `recency` are
    detection limits: the smallest strength from which the difference of the index from the
    order-blind one, paired by document, excludes 0 on the planted side; None if not even full
    strength is detected. `query_free` is the difference between the two adapters' indices under an
    unrelated query, divided by that under the pair's own; None if the method does not tell the
    adapters apart.
    """

    indices: tuple[Estimate, ...]
    slope: Estimate
    rank_correlation: Estimate | None
    primacy: float | None
    recency: float | None
    query_free: Estimate | None


@dataclass(frozen=True, slots=True)
class Preference:
    """What a method prefers, over `n_documents` documents, with 95% bootstrap intervals over them.

    `order_blind` is the primacy-recency index on the order-blind encoder: negative is primacy,
    positive recency. It is the method's own preference together with that of the texts, where
    content that matches the query is not spread evenly. `planted` is what the method shows of a
    planted bias; None if that was not measured.
    """

    method: Method
    n_documents: int
    order_blind: Estimate
    planted: PlantedResponse | None


def preference(
    method: Method, measured: Mapping[Condition, Thirds], documents: Sequence[Hashable]
) -> Preference:
    """Summarize the measurements of all `CONDITIONS`, or of `ORDER_BLIND` alone, on the same
    documents, for the method's own curve settings.

    Raises:
        UserError: an index is undefined, because the method's scores are 0.
        ValueError: the curve settings are none of `CURVES`.
    """
    indices = _Indices(method, measured, documents)
    order_blind = indices.of(ORDER_BLIND)
    planted = _planted(indices) if len(measured) == len(CONDITIONS) else None
    return Preference(method, len(set(documents)), order_blind, planted)


class _Indices:
    """Statistics of the indices under the measured conditions, with intervals over documents."""

    def __init__(
        self, method: Method, measured: Mapping[Condition, Thirds], documents: Sequence[Hashable]
    ) -> None:
        at = CURVES.index(dict(method.curve_params))
        self._conditions = list(measured)
        self._method, self._documents = method, documents
        ends = [[m.first[at], m.last[at]] for m in measured.values()]
        self._rows = np.array(ends, np.float64).reshape(2 * len(ends), -1).T

    def at(self, *conditions: Condition) -> list[int]:
        """The columns of these conditions."""
        return [self._conditions.index(condition) for condition in conditions]

    def estimate(
        self, statistic: Callable[[Values], Values], kind: Kind = "bca"
    ) -> Estimate | None:
        """A statistic of indices [R, conditions]; None if it is undefined."""

        def of_means(means: Values) -> Values:
            first, last = means[:, 0::2], means[:, 1::2]
            return statistic(divided(last - first, first + last))

        return estimate(self._rows, self._documents, of_means, kind=kind)

    def required(self, statistic: Callable[[Values], Values]) -> Estimate:
        """`estimate` of a statistic that is defined unless the method's scores are 0.

        Raises:
            UserError: the method's scores are 0.
        """
        if (number := self.estimate(statistic)) is None:
            raise UserError(f"{self._method.name} has no index on these models: its scores are 0.")
        return number

    def of(self, condition: Condition) -> Estimate:
        """The index under a condition.

        Raises:
            UserError: the method's scores are 0.
        """
        (column,) = self.at(condition)
        return self.required(lambda x: x[:, column])

    def limit(self, sign: float) -> float | None:
        """The smallest strength of this sign from which all larger ones are detected too."""
        smallest = None
        for strength in sorted((s for s in STRENGTHS if s * sign > 0), key=abs, reverse=True):
            columns = self.at(Condition(strength), ORDER_BLIND)
            apart = self.estimate(lambda x, k=columns: sign * (x[:, k[0]] - x[:, k[1]]))  # type: ignore[misc]
            if apart is None or apart.low is None or apart.low <= 0:
                break
            smallest = abs(strength)
        return smallest


def _planted(indices: _Indices) -> PlantedResponse:
    strengths = np.array(STRENGTHS)
    spread = strengths - strengths.mean()
    columns = indices.at(*map(Condition, STRENGTHS))

    def difference(x: Values, unrelated: bool) -> Values:
        """The index of the recency adapter minus that of the primacy adapter."""
        primacy, recency = indices.at(Condition(-1.0, unrelated), Condition(1.0, unrelated))
        return x[:, recency] - x[:, primacy]

    def ranks(x: Values) -> Values:
        return rank_correlations(x[:, columns], np.tile(strengths, (len(x), 1)))

    apart = indices.estimate(lambda x: difference(x, False))
    return PlantedResponse(
        tuple(indices.of(Condition(strength)) for strength in STRENGTHS),
        indices.required(lambda x: x[:, columns] @ spread / (spread @ spread)),
        indices.estimate(ranks, "percentile"),
        indices.limit(-1.0),
        indices.limit(1.0),
        indices.estimate(lambda x: difference(x, True) / difference(x, False))
        if apart is not None and apart.low is not None and apart.low > 0
        else None,
    )

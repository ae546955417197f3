"""Declaration of a method, and building its results.

Each method is a module of this package that registers a `MethodEntry`. Pages, commands, tests and
the tables of the docs read everything about a method from `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from poslens.attribution.curves.positions import (
    NORMALIZATIONS,
    RESAMPLINGS,
    Aggregate,
    curve_params,
)
from poslens.attribution.errors import UserError
from poslens.attribution.names import declare
from poslens.attribution.retrievers.base import Encoded, Retriever
from poslens.attribution.retrievers.family import Capability, Family
from poslens.attribution.types import Attribution, Method, TextPair

Compute = Callable[[Any, Method, Sequence[TextPair]], list[Attribution]]
"""Accepts retrievers with the capability in `needs`, which a type cannot express: hence Any."""


@dataclass(frozen=True, slots=True)
class MethodParameter:
    """A parameter of a method with its values; the first is the default. Pages list them by their
    `titles`, if it has any."""

    name: str
    choices: tuple[str, ...]
    help: str
    titles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """Everything that pages and commands know about a method.

    `title` is its name in sentences, and `axis` the axis title of its values, in `unit`. `signed`
    values can be negative. `additive` values plus the bias share sum to the score. `needs` is the
    required capability of a family; with `uses_gradients`, gradients must reach the word
    embeddings. A `slow` method runs in comparisons only if it is selected. `order` is its position
    in lists. `version` is part of the key of stored results: raise it when the numbers change.
    `aggregate` is how token values become the value of a word or sentence: the sum for shares and
    effects, the mean for norms, whose sum would grow with the number of tokens. Methods without
    `needs_query` also work on documents alone. A method of `one_document` makes many passes over
    one text at a time, so batches of several documents would only delay the first result.
    """

    name: str
    title: str
    help: str
    axis: str
    unit: str
    signed: bool
    additive: bool
    needs: Capability
    compute: Compute
    order: int
    citation: str
    uses_gradients: bool = False
    slow: bool = False
    one_document: bool = False
    parameters: tuple[MethodParameter, ...] = ()
    aggregate: Aggregate = "sum"
    needs_query: bool = True
    version: int = 1

    @property
    def caveat(self) -> str:
        """The caveat that content alone can tilt a curve of signed values, shown with every such
        curve and its index. Empty for unsigned methods."""
        if not self.signed:
            return ""
        return (
            "The content of a text alone can tilt this curve, even for a model that cannot see "
            "word order. Subtract the shuffled-sentence control: the remainder is due to the order "
            "of the content, not to position."
        )

    def fits(self, family: Family) -> bool:
        """Whether the method can be computed for a family."""
        return self.needs in family.capabilities


METHODS: dict[str, MethodEntry] = {}
"""Every method by name, in display order; filled by the modules of this package."""


register = partial(declare, METHODS)

CURVE_PARAMETERS = (
    MethodParameter(
        "normalization",
        NORMALIZATIONS,
        "How each document's values are scaled before averaging. 99th percentile (p99): clip at "
        "that percentile of the document's magnitudes and divide by it, as PosIR's scripts do. "
        "Maximum (max): divide by the largest magnitude, as PosIR's paper describes. none: no "
        "scaling.",
        {"p99": "99th percentile", "max": "maximum", "none": "none"},
    ),
    MethodParameter(
        "resampling",
        RESAMPLINGS,
        "How token values become 100 points. Mean of the bin (bin_mean): each point is the mean of "
        "the tokens in its bin. Interpolation (point): linear between the two nearest tokens, as "
        "in PosIR, so at most 200 tokens of a document (2 per point) count.",
        {"bin_mean": "mean of the bin", "point": "interpolation"},
    ),
)

POSIR_CURVE = {"normalization": "p99", "resampling": "point"}
"""Curve parameters of the PosIR protocol."""


def make_method(name: str, options: Mapping[str, str] | None = None) -> Method:
    """A method with its parameters and defaults.

    Raises:
        UserError: an unknown method, parameter or value.
    """
    entry = METHODS.get(name)
    if entry is None:
        raise UserError(f"There is no method {name[:80]!r}: choose from {', '.join(METHODS)}.")
    given = dict(options or {})

    def take(parameters: Sequence[MethodParameter]) -> dict[str, str]:
        taken = {}
        for parameter in parameters:
            value = given.pop(parameter.name, parameter.choices[0])
            if value not in parameter.choices:
                raise UserError(
                    f"{parameter.name} can't be {value[:80]!r}: choose from "
                    f"{', '.join(parameter.choices)}."
                )
            taken[parameter.name] = value
        return taken

    params = {**take(entry.parameters), "version": entry.version}
    shape = curve_params(**take(CURVE_PARAMETERS))
    if given:
        names = ", ".join(p.name for p in (*entry.parameters, *CURVE_PARAMETERS))
        raise UserError(f"{name} has no parameter {next(iter(given))!r}: it has {names}.")
    return Method(name, params, shape)


def build_batch(
    retriever: Retriever,
    method: Method,
    pairs: Sequence[TextPair],
    *,
    scores: Tensor,
    queries: Encoded,
    documents: Encoded,
    query_scores: Tensor,
    document_scores: Tensor,
    matrices: Sequence[Tensor | None] | None = None,
    bias_shares: Tensor | None = None,
    completeness_errors: Tensor | None = None,
    standard_errors: Tensor | None = None,
) -> list[Attribution]:
    """Build the results of a batch from values [B, T] of the tokens of `queries` and `documents`
    and scores and shares [B].

    Raises:
        UserError: a number is not finite.
    """

    def number(values: Tensor | None, b: int) -> float | None:
        return None if values is None else float(values[b])

    results = []
    for b, pair in enumerate(pairs):
        matrix = None if matrices is None else matrices[b]
        results.append(
            Attribution(
                model=retriever.name,
                method=method,
                pair_id=pair.pair_id,
                score=float(scores[b]),
                query=queries.texts[b],
                document=documents.texts[b],
                query_scores=queries.row(query_scores, b).float().numpy(),
                document_scores=documents.row(document_scores, b).float().numpy(),
                matrix=None if matrix is None else matrix.float().numpy(),
                bias_share=number(bias_shares, b),
                completeness_error=number(completeness_errors, b),
                standard_error=number(standard_errors, b),
            )
        )
    return results

"""The values that every layer passes around: frozen, validated, without behaviour of their own.

Arrays are read-only float32 and finite; a constructor refuses anything else, so that a NaN from
a model can reach neither the cache nor a figure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.errors import UserError

Array = NDArray[np.float32]
Side = Literal["query", "document"]

N_BINS = 100
"""Points of every position curve: the resolution of the PosIR paper."""


ROUNDING = 2e-6
"""Scores of one query that differ by less, relative to the larger, are the same score: batches of
another make-up change a float32 score by up to 1e-6 of it."""


def as_array(values: ArrayLike, shape: tuple[int | None, ...], what: str) -> Array:
    """`values` as read-only float32 of `shape` (None admits any length).

    Raises:
        UserError: a value is NaN or infinite. `what` names it in the sentence.
        ValueError: the shape is another one; that is a defect of the caller.
    """
    array = np.array(values, dtype=np.float32)
    if array.ndim != len(shape) or any(
        want is not None and have != want for have, want in zip(array.shape, shape, strict=True)
    ):
        raise ValueError(f"{what}: shape {array.shape}, expected {shape}")
    if not np.isfinite(array).all():
        raise UserError(
            f"The model gave {what} that is not a finite number: load it in float32 or "
            "bfloat16, or check its weights."
        )
    array.setflags(write=False)
    return array


@dataclass(frozen=True, slots=True)
class EvidenceSpan:
    """Characters [start, end) of the document that answer the query."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"evidence span [{self.start}, {self.end}) is empty or negative")


@dataclass(frozen=True, slots=True)
class TextPair:
    """A query, a document, and what the data set says about them.

    `document_tokens` is the data set's own count of the document's tokens (PosIR's
    `pos_token_length`); it sorts pairs into length buckets before any model is loaded.
    `query_type` is what kind of query the data set says it is, for choosing among pairs.
    """

    pair_id: str
    query: str
    document: str
    evidence: EvidenceSpan | None = None
    language: str | None = None
    domain: str | None = None
    dataset: str = "typed"
    document_tokens: int | None = None
    query_type: str | None = None

    def __post_init__(self) -> None:
        if self.evidence is not None and self.evidence.end > len(self.document):
            raise ValueError(
                f"pair {self.pair_id}: evidence ends at {self.evidence.end}, the document at "
                f"{len(self.document)}"
            )


class Pairs(tuple[TextPair, ...]):
    """Pairs that are asked about again and again, as a data set's are. What was `made` of them at
    length is kept here, so that it goes when they go."""

    made: object | None = None

    @cached_property
    def digest(self) -> str:
        """Digest of all that the pairs state, for caches in memory of this process: strings
        remember their keyed hashes, so that no text is read twice."""
        hashes = np.fromiter(map(hash, self), np.int64, len(self))
        return hashlib.sha256(hashes.tobytes()).hexdigest()[:32]


class Token(NamedTuple):
    """A token and its characters [start, end) of the ORIGINAL text.

    Special tokens and tokens of a prompt are no part of that text: `is_special`, start = end = 0.
    """

    text: str
    start: int
    end: int
    is_special: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedText:
    """What a model read of a text: its T tokens by columns, as a `Token` has them.

    `n_tokens_full` counts the whole text's tokens without special ones, read or not;
    `max_length` is the model's limit, special tokens included.
    """

    texts: tuple[str, ...]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    special: NDArray[np.bool_]
    n_tokens_full: int
    max_length: int

    def __post_init__(self) -> None:
        for name, kind in (("starts", np.int32), ("ends", np.int32), ("special", np.bool_)):
            column = np.array(getattr(self, name), dtype=kind)
            if column.shape != (len(self.texts),):
                raise ValueError(f"{name}: {column.shape} of {len(self.texts)} tokens")
            column.setflags(write=False)
            object.__setattr__(self, name, column)

    @classmethod
    def of(cls, tokens: Iterable[Token], n_tokens_full: int, max_length: int) -> TokenizedText:
        """The same, of tokens one by one."""
        columns: list[Any] = list(zip(*tokens, strict=True)) or [()] * 4
        texts, starts, ends, special = columns
        return cls(texts, starts, ends, special, n_tokens_full, max_length)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens one by one, made anew at each call: columns are for what has to be fast."""
        columns = (self.starts.tolist(), self.ends.tolist(), self.special.tolist())
        return tuple(map(Token._make, zip(self.texts, *columns, strict=True)))

    def __len__(self) -> int:
        return len(self.texts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenizedText):
            return NotImplemented
        limits = (self.n_tokens_full, self.max_length) == (other.n_tokens_full, other.max_length)
        return limits and self.tokens == other.tokens

    @property
    def content(self) -> NDArray[np.bool_]:
        """Mask [T] of the tokens that are text."""
        return ~self.special

    @property
    def truncated(self) -> bool:
        """Whether the text's end was not read."""
        return self.n_tokens_full > len(self) - int(np.count_nonzero(self.special))

    @property
    def read_until(self) -> int:
        """Character offset behind the last one that the model read."""
        return int(self.ends[self.content].max(initial=0))


@dataclass(frozen=True, slots=True)
class Method:
    """An attribution method and every parameter its numbers depend on.

    The repr is its identity: label, equality and part of the cache key at once, for example
    `saliency(version=1, normalization=p99, resampling=bin_mean, curve_version=1)`. Parameters in
    `curve_params` shape only the position curve; `core` is the method without them, under which
    per-token results are stored, so that no gradient is computed twice for another resampling.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    curve_params: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        listed = {**self.params, **self.curve_params}
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in listed.items())})"

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other) if isinstance(other, Method) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self))

    @property
    def core(self) -> str:
        """Identity of the per-token numbers."""
        return repr(Method(self.name, self.params))


@dataclass(frozen=True, slots=True)
class Attribution:
    """What each token carries of one score.

    `query_scores` [Q] and `document_scores` [D] go with the tokens of `query` and `document`,
    special tokens included; `matrix` [Q, D] is there for methods that have one. `bias_share` is
    the part of the score that no token carries and `completeness_error` is score - sum of
    contributions - bias share; both are None for methods that make no such claim.
    `standard_error` is that of a document token's number, averaged over tokens and in parts of
    their mean, for methods that draw at random.
    """

    model: str
    method: Method
    pair_id: str
    score: float
    query: TokenizedText
    document: TokenizedText
    query_scores: Array
    document_scores: Array
    matrix: Array | None = None
    bias_share: float | None = None
    completeness_error: float | None = None
    standard_error: float | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        n_query, n_document = len(self.query), len(self.document)
        as_array([self.score], (1,), "a score")
        claims = (self.bias_share, self.completeness_error, self.standard_error)
        as_array([x for x in claims if x is not None], (None,), "a share")
        put = object.__setattr__
        put(self, "query_scores", as_array(self.query_scores, (n_query,), "an attribution"))
        put(
            self, "document_scores", as_array(self.document_scores, (n_document,), "an attribution")
        )
        if self.matrix is not None:
            put(self, "matrix", as_array(self.matrix, (n_query, n_document), "an attribution"))


@dataclass(frozen=True, slots=True)
class PositionCurve:
    """Attribution over 100 relative positions, averaged over the pairs of a data set.

    `positions` [100] are where the points stand, in [0, 1]. `mean`, `std` (over pairs, ddof=1;
    zeros for n = 1), `ci_low`, `ci_high`: [100]. The band is the bootstrap confidence interval of
    the mean, over documents; None where there are too few. The `n` pairs have `n_documents`
    different documents; in `n_truncated` pairs the document was longer than the model reads;
    `n_failed` more gave no result and are not in the mean. `quartiles` [3, 100] are the 25th, 50th
    and 75th percentiles over pairs, where they are known; `magnitudes` [100] the mean of what
    tokens bring whatever its sign, of which index and center of mass are made.

    Over what was read `n_read` is None. Over whole texts it is how many of the pairs were read at
    each position [100], of which that position's numbers are made; they are NaN where those pairs
    have too few documents.
    """

    model: str
    dataset: str
    method: Method
    positions: NDArray[np.float64]
    mean: Array
    std: Array
    ci_low: Array | None
    ci_high: Array | None
    n: int
    n_documents: int
    n_truncated: int
    n_failed: int
    quartiles: Array | None = None
    magnitudes: Array | None = None
    n_read: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        as_array(self.positions, (N_BINS,), "positions")
        holes = None if self.n_read is None else np.isnan(self.mean)
        for name in ("mean", "std", "ci_low", "ci_high", "magnitudes", "quartiles"):
            values = getattr(self, name)
            if values is None:
                continue
            shape = (3, N_BINS) if name == "quartiles" else (N_BINS,)
            array = as_array(
                values if holes is None else np.where(holes, 0, values), shape, "a curve"
            )
            if holes is not None:
                array = np.where(holes, np.float32(np.nan), array)
                array.setflags(write=False)
            put(self, name, array)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Everything needed to compute a number again; written into every caption and export.

    What is not known, or does not apply, is None or empty and is left out everywhere: a 0 is a
    count of none. `n_pairs`, `n_queries` and `n_documents` say what the numbers are over (a single
    pair is named in `selection`), `truncated` how many of the documents are longer than the model
    reads, `units` what tokens were joined to and how, `control` what was subtracted, `interval`
    what was resampled for intervals.
    """

    poslens: str
    model: str
    model_source: str = ""
    weights: str = ""
    method: str
    dataset: str
    n_pairs: int | None = None
    n_queries: int | None = None
    n_documents: int | None = None
    max_length: int | None = None
    truncated: int | None = None
    precision: str = ""
    prompts: str = ""
    selection: str = ""
    units: str = ""
    control: str = ""
    interval: str = ""

    def entry(self) -> dict[str, str | int]:
        """Each field that says something, by name, in reading order."""
        fields = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in fields if value is not None and value != ""}

    def items(self) -> list[tuple[str, str]]:
        """The same as text."""
        return [(name, str(value)) for name, value in self.entry().items()]

    def caption(self) -> str:
        """All of it in one line."""
        return " · ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.items())

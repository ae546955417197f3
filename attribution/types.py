"""Types that all packages share: frozen and validated.

Arrays are read-only, float32 and finite. Constructors refuse anything else, so a NaN from a model
reaches neither the cache nor a figure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted

Array = NDArray[np.float32]
Side = Literal["query", "document"]

N_BINS = 100
"""Points of every position curve, as in the PosIR paper."""


ROUNDING = 2e-6
"""Scores of one query whose relative difference is smaller count as equal: batches of different
composition change a float32 score by up to 1e-6 of its value."""


def as_array(values: ArrayLike, shape: tuple[int | None, ...], what: str) -> Array:
    """`values` as read-only float32 of `shape`; None in `shape` accepts any length.

    Raises:
        UserError: a value is NaN or infinite. `what` names the values in the message.
        ValueError: the shape differs, which is a defect of the caller.
    """
    array = np.array(values, dtype=np.float32)
    if array.ndim != len(shape) or any(
        want is not None and have != want for have, want in zip(array.shape, shape, strict=True)
    ):
        raise ValueError(f"{what}: shape {array.shape}, expected {shape}")
    if not np.isfinite(array).all():
        raise UserError(
            f"The model returned {what} that is not a finite number: use float32 or bfloat16, or "
            "check its weights."
        )
    array.setflags(write=False)
    return array


def set_arrays(result: object, what: str, **shapes: tuple[int | None, ...]) -> None:
    """Replace these fields of a frozen dataclass with `as_array` of their values and shapes."""
    for name, shape in shapes.items():
        object.__setattr__(result, name, as_array(getattr(result, name), shape, what))


@dataclass(frozen=True, slots=True)
class EvidenceSpan:
    """Characters [start, end) of the document that answer the query."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"evidence span [{self.start}, {self.end}) is empty or negative")

    def midpoint(self, n_characters: int) -> float:
        """The middle of the span as a share of a text's characters, in [0, 1]."""
        return (self.start + self.end) / 2 / n_characters


@dataclass(frozen=True, slots=True)
class TextPair:
    """A query, a document, and the data set's information about them.

    `document_tokens` is the data set's own token count of the document (PosIR's
    `pos_token_length`), used to sort pairs into length buckets before any model is loaded.
    `query_type` is the data set's name for the kind of query, used to filter pairs. `language` is
    the document's language, and the query's too unless `query_language` states another; that is
    empty if the two can differ and the query's is unknown.
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
    query_language: str | None = None

    def __post_init__(self) -> None:
        if self.evidence is not None and self.evidence.end > len(self.document):
            raise ValueError(
                f"pair {self.pair_id}: evidence ends at {self.evidence.end}, the document at "
                f"{len(self.document)}"
            )

    @property
    def asked_in(self) -> str | None:
        """The query's language; None if it is unknown."""
        return self.language if self.query_language is None else self.query_language or None

    @property
    def label(self) -> str:
        """The beginning of a sentence about the pair. The id of typed texts is a digest, which
        their reader doesn't know."""
        return "The typed document" if self.dataset == "typed" else f"Pair {self.pair_id}"

    @property
    def text_digest(self) -> bytes:
        """SHA-256 of the two texts."""
        return text_digest(self.query, self.document)


def text_digest(query: str, document: str) -> bytes:
    """SHA-256 of a query and a document."""
    return hashlib.sha256(f"{query}\0{document}".encode("utf-8", "surrogatepass")).digest()


class Token(NamedTuple):
    """A token and its characters [start, end) in the original text.

    Special tokens and prompt tokens are not in that text: `is_special` is true, start = end = 0.
    """

    text: str
    start: int
    end: int
    is_special: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TokenizedText:
    """The T tokens that a model read of a text, stored as columns of the fields of `Token`.

    `n_tokens_full` counts the tokens of the whole text without special tokens, read or not.
    `max_length` is the context limit, including special tokens.
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
        """Create it from single tokens."""
        columns: list[Any] = list(zip(*tokens, strict=True)) or [()] * 4
        texts, starts, ends, special = columns
        return cls(texts, starts, ends, special, n_tokens_full, max_length)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens as objects, created at each call; use the columns where speed matters."""
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
        """Mask [T] of the tokens that are neither special nor of a prompt."""
        return ~self.special

    @property
    def truncated(self) -> bool:
        """Whether the end of the text was not read."""
        return self.n_tokens_full > len(self) - int(np.count_nonzero(self.special))

    @property
    def read_until(self) -> int:
        """Character offset of the end of what the model read."""
        return int(self.ends[self.content].max(initial=0))

    def share_read(self, n_characters: int) -> float:
        """Share of the text's `n_characters` that was read: up to the end of the last token read,
        or 1 if the text is not truncated."""
        return self.read_until / n_characters if self.truncated else 1.0

    def evidence_read(self, span: EvidenceSpan) -> float:
        """Share of a span's characters that was read, in [0, 1]."""
        if not self.truncated:
            return 1.0
        return min(max((self.read_until - span.start) / (span.end - span.start), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Method:
    """An attribution method with every parameter that its numbers depend on.

    The repr identifies the method: it is the label, the equality and part of the cache key, for
    example `saliency(version=1, normalization=p99, resampling=bin_mean, curve_version=1)`. The
    parameters in `curve_params` affect only the position curve. `core` is the method without them;
    per-token results are stored under it, so another resampling needs no new gradients.
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
        """The method that identifies the per-token numbers: without curve parameters."""
        return repr(Method(self.name, self.params))


@dataclass(frozen=True, slots=True)
class Attribution:
    """Attribution of one score to the tokens of a query and a document.

    `query_scores` [Q] and `document_scores` [D] belong to the tokens of `query` and `document`,
    including special tokens. `matrix` [Q, D] is present for methods that compute one. `bias_share`
    is the part of the score that belongs to no token, and `completeness_error` is the score minus
    all contributions and the bias share; both are None for methods that are not additive.
    `standard_error`, for methods that sample, is the standard error of a document token's value,
    averaged over tokens and relative to their mean.
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
        set_arrays(self, "an attribution", query_scores=(n_query,), document_scores=(n_document,))
        if self.matrix is not None:
            set_arrays(self, "an attribution", matrix=(n_query, n_document))


@dataclass(frozen=True, slots=True)
class PositionCurve:
    """Attribution over 100 relative positions, averaged over the pairs of a data set.

    `positions` [100] are the points' positions in [0, 1]. `mean`, `std` (over pairs, ddof=1; zeros
    for n = 1), `ci_low` and `ci_high` have shape [100]; the last two are the bootstrap interval of
    the mean over documents, None below 10 documents. There are `n` pairs with `n_documents`
    different documents. In `n_truncated` pairs the document was truncated; `n_failed` further pairs
    failed and are excluded. `quartiles` [3, 100], if known, are the 25th, 50th and 75th percentiles
    over pairs. `magnitudes` [100] is the mean of absolute token values, from which the index and
    the center of mass are computed.

    For curves over what was read, `n_read` is None. For curves over whole texts, it is the number
    of pairs read at each position [100], over which that position's numbers are computed; they are
    NaN where these pairs have too few documents.
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


_COUNTED = {"n_pairs": "pair", "n_queries": "query", "n_documents": "document"}


def in_words(entry: Mapping[str, object]) -> dict[str, str]:
    """The fields of provenance that have a value, as captions show them: `304 pairs`, `document
    truncated in 184 pairs`, `max length: 512 tokens`."""
    return {name: _in_words(name, value, entry) for name, value in entry.items() if str(value)}


def _in_words(name: str, value: object, entry: Mapping[str, object]) -> str:
    if name in _COUNTED:
        return counted(int(str(value)), _COUNTED[name])
    if name == "truncated":
        n, of = int(str(value)), next((of for key, of in _COUNTED.items() if key in entry), "")
        if not of:
            return "document truncated" if n else "document not truncated"
        if of == "document":
            return f"{counted(n, of)} truncated"
        return f"document truncated {'for' if of == 'query' else 'in'} {counted(n, of)}"
    words = f"{name.replace('_', ' ')}: {value}"
    if name != "max_length":
        return words
    # Endpoints count words, because their tokens are unknown.
    of_endpoint = str(entry.get("model_source", "")).startswith("endpoint ")
    return f"{words} {'words' if of_endpoint else 'tokens'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Everything needed to compute a number again; part of every caption and export.

    `weights` and `dataset_files` are digests of the files of the model and of the data set.

    Values that are unknown or do not apply are None or empty, and are omitted everywhere; 0 is a
    count. `n_pairs`, `n_queries` and `n_documents` are what the numbers are computed over (a single
    pair is named in `selection`); in `truncated` of them the document was truncated. `units` is
    what tokens were aggregated to and how, `control` what was subtracted, `interval` what was
    resampled for intervals, and `band` what a figure's bands show if they are not intervals.
    `method_preference` is what the attribution method itself prefers.
    """

    poslens: str
    model: str
    model_source: str = ""
    weights: str = ""
    method: str
    dataset: str
    dataset_files: str = ""
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
    band: str = ""
    method_preference: str = ""

    def entry(self) -> dict[str, str | int]:
        """Each field with a value, by name, in reading order."""
        fields = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in fields if value is not None and value != ""}

    def items(self) -> list[tuple[str, str]]:
        """The entries as strings."""
        return [(name, str(value)) for name, value in self.entry().items()]

    def caption(self) -> str:
        """All entries in one line."""
        return " · ".join(in_words(self.entry()).values())

"""The data of the token heatmap as values for JSON: texts, scores and offsets.

Offsets count code points of the original text, as Python does; the browser converts them to
UTF-16.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from typing import Any, Literal, get_args

from poslens.attribution.curves.positions import Aggregate
from poslens.attribution.text import sentences, with_typeset_numbers, words
from poslens.attribution.types import N_BINS, Attribution, EvidenceSpan, Side

Level = Literal["word", "token", "sentence"]
Range = Literal["shared", "own"]
Span = tuple[int, int]

MAX_COLUMNS = 4
"""Maximum number of columns, one per model."""


@dataclass(frozen=True, slots=True)
class View:
    """The toggles of the heatmap.

    `aggregate` combines the scores of a unit's tokens ("max" is the one of largest magnitude, with
    its sign); pages pass the method's own. With the `range` "shared", equal colors mean equal
    scores in all columns; with "own" each column has its own scale. With `linked`, the documents of
    all columns scroll together.
    """

    level: Level = "word"
    aggregate: Aggregate = "sum"
    range: Range = "shared"
    linked: bool = True

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None, view: View | None = None) -> View:
        """A view from the values of a URL or the browser. Missing and invalid values are taken from
        `view`, by default a new view.

        Booleans may be text, as in a URL: "true", "1", "false" or "0".
        """
        view = view or cls()
        if not isinstance(values, Mapping):
            return view
        valid: dict[str, Any] = {}
        choices = (("level", Level), ("aggregate", Aggregate), ("range", Range))
        for name, allowed in choices:
            value = values.get(name)
            if isinstance(value, str) and value in get_args(allowed):
                valid[name] = value
        linked = values.get("linked")
        if isinstance(linked, str):
            linked = {"true": True, "1": True, "false": False, "0": False}.get(linked.lower())
        if isinstance(linked, bool):
            valid["linked"] = linked
        return replace(view, **valid)

    @property
    def units(self) -> str:
        """The units that are colored, as text, with the aggregation of their tokens."""
        if self.level == "token":
            return "tokens"
        return f"{self.level}s, the {self.aggregate} of their tokens"

    def to_dict(self) -> dict[str, Any]:
        """The toggles by name, as `from_dict` reads them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Special:
    """A token that is not part of the text ([CLS], or a token of the prompt), and its score."""

    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Fact:
    """A short item of the line above a column, such as "read all 380 tokens".

    `title` is the tooltip; a `warning` gets a warning sign. Numbers have minus signs and powers
    of ten, as those that the browser formats.
    """

    text: str
    title: str = ""
    warning: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", with_typeset_numbers(self.text))


@dataclass(frozen=True, slots=True)
class Head:
    """The line above a column, after the model's name: the pair's score as text, then facts."""

    score: str = ""
    facts: tuple[Fact, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", with_typeset_numbers(self.score))


@dataclass(frozen=True, slots=True)
class Rail:
    """The vertical chart to the right of a document, along the tokens read.

    `bins` [100] is the pair's own curve (`document_curve` of curves/positions). `mean`, `low` and
    `high` [100] are the model's mean curve over the data set and its band, in the same unit; each
    may be empty. A null control, if any, is already subtracted from all of them. `note` names the
    pairs of the mean.

    Raises:
        ValueError: a curve has another length or is not finite.
    """

    bins: tuple[float, ...]
    mean: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for name in ("bins", "mean", "low", "high"):
            values = getattr(self, name)
            if len(values) != N_BINS and (values or name == "bins"):
                raise ValueError(f"rail: {len(values)} values of {name}, expected {N_BINS}")
            if not all(map(isfinite, values)):
                raise ValueError(f"rail: a value of {name} is not finite")

    def to_dict(self) -> dict[str, Any]:
        """The rail as JSON for the browser, with five digits to keep it short."""
        curves = {"bins": self.bins, "mean": self.mean, "low": self.low, "high": self.high}
        short = {name: [float(f"{v:.5g}") for v in curve] for name, curve in curves.items()}
        return {**short, "note": self.note}


@dataclass(frozen=True, slots=True)
class Pane:
    """One text (a query or a document) as one model read it.

    `tokens` are (start, end, score) of the tokens that are not special; several may share a
    character, and some are empty. `truncated_at` is the offset from which the model read nothing,
    or None. `signed` selects the diverging color scale, for scores whose negative values have a
    meaning. `signs` says in the legend what a positive and a negative score mean; with it, the two
    have the colors of the first two lines of figures. `unit` is the scores' unit, for the legend.
    With a `link`, pointing at a unit of the
    query or the document colors the other text by that unit's contributions. `rail` is the chart
    next to a document, and `head` the line above its column.

    Raises:
        ValueError: a span is outside the text.
    """

    id: str
    model: str
    side: Side
    text: str
    tokens: tuple[tuple[int, int, float], ...]
    specials: tuple[Special, ...] = ()
    words: tuple[Span, ...] = ()
    sentences: tuple[Span, ...] = ()
    evidence: Span | None = None
    truncated_at: int | None = None
    signed: bool = False
    signs: tuple[str, str] | None = None
    unit: str = ""
    link: Link | None = None
    rail: Rail | None = None
    head: Head | None = None

    def __post_init__(self) -> None:
        length = len(self.text)
        spans = [(start, end) for start, end, _ in self.tokens]
        spans += [*self.words, *self.sentences, *([self.evidence] if self.evidence else [])]
        for start, end in spans:
            if not 0 <= start <= end <= length:
                raise ValueError(f"pane {self.id}: span [{start}, {end}) of {length} characters")
        if self.truncated_at is not None and not 0 <= self.truncated_at <= length:
            raise ValueError(f"pane {self.id}: truncated at {self.truncated_at} of {length}")

    def to_dict(self) -> dict[str, Any]:
        """The pane as JSON for the browser."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {
            "specials": [asdict(token) for token in self.specials],
            "link": asdict(self.link) if self.link is not None else None,
            "rail": self.rail.to_dict() if self.rail is not None else None,
            "head": asdict(self.head) if self.head is not None else None,
        }


def pane(
    attribution: Attribution,
    side: Side,
    text: str,
    *,
    model: str | None = None,
    language: str | None = None,
    evidence: EvidenceSpan | None = None,
    signed: bool | None = None,
    unit: str = "",
    rail: Rail | None = None,
    head: Head | None = None,
) -> Pane:
    """One side of an attribution as a pane; the document's pane includes the matrix as its link, if
    there is one.

    Args:
        text: the original text of that side, to which the tokens' offsets refer.
        model: label of the column, by default the attribution's model. Panes with the same label
            share a column.
        language: language of the text as an ISO 639-3 code, which decides how it is split into
            sentences.
        evidence: the characters that answer the query (documents only).
        signed: whether negative scores have a meaning, from the method's declaration. With None,
            the scale is diverging only if a score is negative.
        rail, head: the chart next to the document, and the line above its column (documents only).
    """
    tokenized = attribution.query if side == "query" else attribution.document
    array = attribution.query_scores if side == "query" else attribution.document_scores
    # float32 holds seven digits; six keep the JSON short
    scores = [float(f"{score:.6g}") for score in array.tolist()]
    pairs = list(zip(tokenized.tokens, scores, strict=True))
    label = attribution.model if model is None else model
    return Pane(
        id=f"{label}/{side}",
        model=label,
        side=side,
        text=text,
        tokens=tuple((t.start, t.end, score) for t, score in pairs if not t.is_special),
        specials=tuple(Special(t.text, score) for t, score in pairs if t.is_special),
        words=words(text),
        sentences=sentences(text, language),
        evidence=(evidence.start, evidence.end) if evidence is not None else None,
        truncated_at=tokenized.read_until if tokenized.truncated else None,
        signed=any(score < 0 for score in scores) if signed is None else signed,
        unit=unit,
        link=link_of(attribution) if side == "document" else None,
        rail=rail,
        head=head,
    )


def payload(panes: Sequence[Pane], view: View) -> dict[str, Any]:
    """Input of `renderHeatmap`: the panes, the toggles, and the number of columns side by side."""
    return {
        "panes": [pane.to_dict() for pane in panes],
        "view": view.to_dict(),
        "columns": len({pane.model for pane in panes}),
    }


# -- links -----------------------------------------------------------------------------------------

MAX_CELLS = 1 << 20
"""Maximum number of cells sent to the browser (128 x 8,192 are 5.6 MB); panes with a larger matrix
are not linked."""


@dataclass(frozen=True, slots=True)
class Link:
    """The contribution of each pair of a query token and a document token to the score, without
    special tokens.

    `values` are `rows` x `columns` little-endian float32 in base64, row by row: a row for each
    token of the model's query pane, a column for each token of its document pane. The same numbers
    as JSON with four digits are twice as long and take thirty times as long to write.
    """

    rows: int
    columns: int
    values: str


def link_of(attribution: Attribution) -> Link | None:
    """The attribution's matrix [Q, D] without its special tokens.

    None if it has no matrix, if a side has only special tokens, or above `MAX_CELLS` cells.
    """
    if attribution.matrix is None:
        return None
    content = attribution.matrix[attribution.query.content][:, attribution.document.content]
    if not 0 < content.size <= MAX_CELLS:
        return None
    rows, columns = content.shape
    return Link(rows, columns, base64.b64encode(content.astype("<f4").tobytes()).decode())

"""What `passport` prints, and writes as .json; see `poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import DataSet, High, Low, Model, ResultSource


class NumberEntry(TypedDict):
    """A measure of a passport."""

    name: Annotated[str, "The measure in words, with its unit."]
    value: Annotated[float, "The number."]
    low: Low
    high: High
    n: Annotated[int, "What the number is over, counted."]
    n_resampled: Annotated[int, "How many were resampled for the interval."]
    resampled: Annotated[str, "What was resampled; empty without an interval or of a formula."]
    note: Annotated[str, "What to know of it; else empty."]


class PartEntry(TypedDict):
    """A part of a passport."""

    title: Annotated[str, "What the part is called."]
    finding: Annotated[str, "What was found, in a sentence; empty where there are no numbers."]
    limits: Annotated[str, "What the part does not show."]
    absent: Annotated[str, "Why there are no numbers, in a sentence; else empty."]
    numbers: Annotated[dict[str, NumberEntry], "Each measure by its key."]
    provenance: Annotated[list[ResultSource], "Where the numbers come from."]


class PairScoreEntry(TypedDict):
    """A pair's score."""

    texts: Annotated[str, "Fingerprint of the pair's two texts, in hexadecimal."]
    score: Annotated[float, "The model's score of the pair, in its own units."]


class PassportEntry(TypedDict):
    """What is known of a model's position bias over a data set."""

    format: Annotated[int, "Version of this form, 1."]
    model: Model
    source: Annotated[str, "Where the model's weights come from."]
    weights: Annotated[str, "Digest of the model's files, in hexadecimal."]
    precision: Annotated[str, "Number format of the computation."]
    max_length: Annotated[int | None, "Tokens of a text that it reads at most; null of any."]
    configured_max_length: Annotated[
        int | None,
        "Tokens at which its own configuration truncates, where that differs from max_length.",
    ]
    dataset: DataSet
    n_pairs: Annotated[int, "Pairs of the data set."]
    n_documents: Annotated[int, "Different documents of the data set."]
    poslens: Annotated[str, "Version of PosLens."]
    limits: Annotated[str, "What no part shows."]
    parts: Annotated[dict[str, PartEntry], "Each part by its key; docs/passport.md has them."]
    scores: Annotated[dict[str, PairScoreEntry], "Scores of the attributed pairs by their ids."]

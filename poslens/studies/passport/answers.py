"""What `passport` prints, and writes as .json; see `poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import DataSet, High, Low, Model, ResultSource


class ItemEntry(TypedDict):
    """A measure of one pair, query or document."""

    fingerprint: Annotated[str, "Fingerprint of texts, evidence and corpus, in hexadecimal."]
    value: Annotated[float, "The value of this item, in the measure's unit."]


class NumberEntry(TypedDict):
    """A measure of a passport."""

    name: Annotated[str, "Name of the measure, with its unit."]
    value: Annotated[float, "The number."]
    low: Low
    high: High
    n: Annotated[int, "Number of items that the measure covers."]
    n_resampled: Annotated[int, "Number of items resampled for the interval."]
    resampled: Annotated[
        str, ("Items that were resampled; empty without an interval or with an analytical one.")
    ]
    note: Annotated[str, "Note on the measure, otherwise empty."]
    items: Annotated[
        dict[str, ItemEntry],
        "The pairs, queries or documents that `check` compares, by id; otherwise empty.",
    ]


class PartEntry(TypedDict):
    """A part of a passport."""

    title: Annotated[str, "Title of the part."]
    finding: Annotated[str, "Result in words, for studies their verdict; empty without numbers."]
    limits: Annotated[str, "What the part doesn't show."]
    absent: Annotated[str, "Reason for missing numbers in one sentence, otherwise empty."]
    numbers: Annotated[dict[str, NumberEntry], "Measures by key."]
    provenance: Annotated[list[ResultSource], "Provenance of the numbers."]


class PairScoreEntry(TypedDict):
    """A pair's score."""

    texts: Annotated[str, "Fingerprint of the pair's two texts, in hexadecimal."]
    score: Annotated[float, "Score of the pair, in the model's units."]


class PassportEntry(TypedDict):
    """What is known about a model's position bias over a data set."""

    format: Annotated[int, "Version of this format, 1."]
    model: Model
    source: Annotated[str, "Origin of the model's weights."]
    weights: Annotated[str, "Digest of the model's files, in hexadecimal."]
    precision: Annotated[str, "Number format of the computation."]
    max_length: Annotated[
        int | None,
        "Context limit in tokens (of an endpoint, in words); null if unlimited or unknown.",
    ]
    configured_max_length: Annotated[
        int | None,
        "Tokens at which the model's own configuration truncates, if different from max_length.",
    ]
    dataset: DataSet
    n_pairs: Annotated[int, "Number of pairs of the data set."]
    n_documents: Annotated[int, "Number of distinct documents of the data set."]
    poslens: Annotated[str, "Version of PosLens."]
    limits: Annotated[str, "Limits of every part."]
    parts: Annotated[dict[str, PartEntry], "Parts by key, listed in docs/passport.md."]
    scores: Annotated[
        dict[str, PairScoreEntry], "Scores of the attributed and the relocated pairs, by pair id."
    ]

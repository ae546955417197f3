"""What `explain` prints as JSON; see `poslens/commands/answers.py`."""

from __future__ import annotations

from typing import Annotated, TypedDict

from poslens.commands.answers import Method, Model, ResultSource


class TokenEntry(TypedDict):
    """A token of a text."""

    text: Annotated[str, "The token as the model's tokenizer writes it."]
    start: Annotated[int, "Where it begins in the text, in characters from 0."]
    end: Annotated[int, "Where it ends in the text, in characters; the last one is not in it."]
    special: Annotated[bool, "Whether the tokenizer added it: it stands for no text."]


class QueryEntry(TypedDict):
    """The query as it was read."""

    tokens: Annotated[list[TokenEntry], "The query's tokens (Q of them), special ones included."]


class DocumentEntry(TypedDict):
    """The document as it was read."""

    tokens: Annotated[list[TokenEntry], "The document's tokens that the model read (D of them)."]
    n_tokens_full: Annotated[int, "Tokens of the whole document, read or not."]
    truncated: Annotated[bool, "Whether the document is longer than the model reads."]


class ExplanationAnswer(TypedDict):
    """What each token carries of one score."""

    model: Model
    method: Method
    score: Annotated[float, "The model's score of the pair, in its own units."]
    query: Annotated[QueryEntry, "The query as it was read."]
    document: Annotated[DocumentEntry, "The document as it was read."]
    query_scores: Annotated[list[float], "What each query token carries, in the method's unit; Q."]
    document_scores: Annotated[
        list[float], "What each document token carries, in the method's unit; D."
    ]
    matrix: Annotated[
        list[list[float]] | None,
        "What each pair of tokens carries, Q rows of D; null of methods without one.",
    ]
    bias_share: Annotated[
        float | None, "The part of the score that no token carries; null where none is claimed."
    ]
    completeness_error: Annotated[
        float | None, "The score less all parts; null where the method does not claim to add up."
    ]
    standard_error: Annotated[
        float | None, "Of a token's number, in parts of their mean; null without random draws."
    ]
    positions: Annotated[list[float], "Where the curve's 100 points stand, 0 to 1 of what is read."]
    curve: Annotated[list[float], "The document's attribution at the 100 positions."]
    magnitudes: Annotated[list[float], "The same without the sign, at the 100 positions."]
    provenance: Annotated[ResultSource, "Where the numbers come from."]

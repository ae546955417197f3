"""JSON shapes of the command `explain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypedDict

from poslens.commands.answers import Method, Model, ResultSource, answer_from, source
from poslens.rows import ModelRow, column

if TYPE_CHECKING:
    from poslens.attribution.types import TokenizedText
    from poslens.compute.compute import Explained


class TokenEntry(TypedDict):
    """A token of a text."""

    text: Annotated[str, "Token as the tokenizer spells it."]
    start: Annotated[int, "Start offset in the text, in characters."]
    end: Annotated[int, "End offset in the text, in characters; exclusive."]
    special: Annotated[bool, "Whether the tokenizer added the token, so that it has no text."]


class QueryEntry(TypedDict):
    """The query as the model reads it."""

    tokens: Annotated[
        list[TokenEntry], "Tokens of the query, Q in total, including special tokens."
    ]


class DocumentEntry(TypedDict):
    """The document as the model reads it."""

    tokens: Annotated[
        list[TokenEntry], "Tokens of the document within the context limit, D in total."
    ]
    n_tokens_full: Annotated[int, "Number of tokens of the whole document."]
    truncated: Annotated[bool, "Whether the document is longer than the context limit."]


class ExplanationAnswer(TypedDict):
    """The attribution of one score to tokens."""

    model: Model
    method: Method
    score: Annotated[float, "Score of the pair, in the model's units."]
    query: Annotated[QueryEntry, "The tokenized query."]
    document: Annotated[DocumentEntry, "The tokenized document."]
    query_scores: Annotated[
        list[float], "Attribution of each query token, in the method's unit; Q numbers."
    ]
    document_scores: Annotated[
        list[float], "Attribution of each document token, in the method's unit; D numbers."
    ]
    matrix: Annotated[
        list[list[float]] | None,
        "Attribution of each pair of tokens, Q rows of D numbers; null if the method has no "
        "matrix.",
    ]
    bias_share: Annotated[
        float | None,
        "Part of the score that isn't attributed to any token; null if the method doesn't "
        "define it.",
    ]
    completeness_error: Annotated[
        float | None,
        "Score minus the sum of all parts; null if the method's parts don't add up to the score.",
    ]
    standard_error: Annotated[
        float | None,
        "Standard error of a token's attribution, relative to the mean; null for methods "
        "without random draws.",
    ]
    positions: Annotated[
        list[float], "Positions of the curve's 100 points, from 0 to 1 of the tokens read."
    ]
    curve: Annotated[list[float], "Attribution of the document at the 100 positions."]
    magnitudes: Annotated[list[float], "Absolute attribution at the 100 positions."]
    provenance: Annotated[ResultSource, "Provenance of the numbers."]


@dataclass(frozen=True)
class ComparisonRow(ModelRow):
    """A model's numbers for one pair."""

    score: float = column("Score of the pair, in the model's units.")
    center_of_mass: float | None = column(
        "Center of mass of the attribution, 0 to 1; null if every attribution is zero."
    )
    primacy_recency_index: float | None = column(
        "Primacy-recency index, from -1 (all in the first third) to 1 (all in the last); null if "
        "every attribution is zero."
    )
    tokens_read: int = column(
        "Number of tokens of the document within the context limit, without special tokens."
    )
    tokens: int = column("Number of tokens of the whole document, without special tokens.")
    score_difference: float | None = column(
        "Score minus the first model's, which means something only if both have the same unit; "
        "null for the first model."
    )
    index_difference: float | None = column(
        "Index minus the first model's; null for the first model and for models that read another "
        "part of the document."
    )
    rank_correlation: float | None = column(
        "Spearman's rank correlation with the first model over words, -1 to 1; null for the first "
        "model."
    )
    curves_apart: float | None = column(
        "Total variation distance from the first model's curve, 0 (equal) to 1; null for the first "
        "model and for models that read another part of the document."
    )


def explanation_answer(result: Explained) -> ExplanationAnswer:
    """The attribution of one pair in JSON."""
    from poslens.attribution.curves.positions import document_curve, document_magnitudes, positions

    attribution = result.attribution

    def tokens(text: TokenizedText) -> list[TokenEntry]:
        return [answer_from(TokenEntry, token, special=token.is_special) for token in text.tokens]

    return answer_from(
        ExplanationAnswer,
        attribution,
        method=repr(attribution.method),
        query={"tokens": tokens(attribution.query)},
        document=answer_from(
            DocumentEntry, attribution.document, tokens=tokens(attribution.document)
        ),
        positions=positions(attribution.method.curve_params["resampling"]),
        curve=document_curve(attribution),
        magnitudes=document_magnitudes(attribution),
        provenance=source(result.provenance()),
    )

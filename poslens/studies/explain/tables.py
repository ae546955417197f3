"""Tables of one pair under several models."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from poslens.attribution.curves.positions import document_magnitudes, rank_correlation
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS
from poslens.attribution.text import listed
from poslens.attribution.types import Array
from poslens.compute.compute import Explained
from poslens.compute.selection import apart
from poslens.export.files import attribution_frame
from poslens.export.json_text import without_surrogates
from poslens.rows import frame_of
from poslens.studies.explain.answers import ComparisonRow
from poslens.studies.explain.service import pair_numbers, read_alike, word_scores

PAIR_NUMBERS = ("bias_share", "completeness_error", "standard_error")
"""Numbers that some methods define for the attribution of a pair."""


def explained_frame(results: Sequence[Explained], label: str = "") -> pd.DataFrame:
    """One row for each token of each result. With `label`, a column of that name contains the
    heatmap's title of the result, if it is more than the model's name. The score of the pair and
    what the method defines of `PAIR_NUMBERS` are the last columns, equal in all rows of a
    result."""
    frames = []
    defined = [
        name
        for name in PAIR_NUMBERS
        if any(getattr(result.attribution, name) is not None for result in results)
    ]
    several = len({result.pair.dataset for result in results}) > 1
    for result in results:
        frame = attribution_frame(result.attribution, result.pair)
        frame.insert(0, "model", result.model.spec.name)
        if label:
            frame.insert(1, label, result.attribution.model)
        if several:
            frame.insert(1, "dataset", result.pair.dataset)
        frame["pair_score"] = result.attribution.score
        for name in defined:
            value = getattr(result.attribution, name)
            frame[name] = np.nan if value is None else value
        frames.append(frame)
    joined = pd.concat(frames, ignore_index=True)
    joined.attrs["of_result"] = ("pair_score", *defined)
    return joined


def matrix_frame(results: Sequence[Explained]) -> pd.DataFrame:
    """One row for each pair of a query token (`query_index`) and a document token of each result
    whose method attributes pairs of tokens; `score` is that of the pair.

    Raises:
        UserError: no result has a matrix.
    """
    frames = []
    for result, matrix in matrices(results):
        query, document = (
            np.array([without_surrogates(token) for token in text.texts], dtype=object)
            for text in (result.attribution.query, result.attribution.document)
        )
        row, column = (each.ravel() for each in np.indices(matrix.shape))
        frames.append(
            pd.DataFrame(
                {
                    "model": result.model.spec.name,
                    "query_index": row,
                    "query_token": query[row],
                    "document_index": column,
                    "document_token": document[column],
                    "score": matrix.astype(np.float64).ravel(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def matrices(results: Sequence[Explained]) -> list[tuple[Explained, Array]]:
    """The results whose method attributes pairs of tokens, with their matrices.

    Raises:
        UserError: there are none.
    """
    of_results = [
        (result, matrix) for result in results if (matrix := result.attribution.matrix) is not None
    ]
    if not of_results:
        raise UserError(
            'There is no matrix: use method="bilrp", or method="decomposition" with matrix="yes".'
        )
    return of_results


def comparison_frame(results: Sequence[Explained]) -> pd.DataFrame:
    """`comparison_rows` as a table. Prints on stderr which models' positions can't be compared with
    the first one's."""
    first, *others = results
    if unlike := [other.model.spec.name for other in others if not read_alike(first, other)]:
        print(
            f"No difference of indices or curves from {first.model.spec.name}: {listed(unlike)} "
            f"{'reads' if len(unlike) == 1 else 'read'} another part of the document, so relative "
            "positions are not comparable.",
            file=sys.stderr,
        )
    return frame_of(ComparisonRow, comparison_rows(results))


def comparison_rows(results: Sequence[Explained]) -> Iterator[ComparisonRow]:
    """One row per model, in the given order; each is compared with the first. Rank correlations are
    over the words that both models read, with the method's aggregation of tokens. Indices and
    curves are compared only if both models read the same part of the document."""
    first = results[0]
    scores = word_scores(results, METHODS[first.attribution.method.name].aggregate)
    magnitudes = [document_magnitudes(result.attribution) for result in results]
    numbers = [
        [None if number is None else number.value for number in pair_numbers(result)]
        for result in results
    ]
    base = numbers[0][1]
    for at, explained in enumerate(results):
        attribution, (mass, index) = explained.attribution, numbers[at]
        comparable = at > 0 and read_alike(first, explained)
        difference = None if index is None or base is None else index - base
        yield ComparisonRow(
            explained.model.spec.name,
            attribution.score,
            mass,
            index,
            int(attribution.document.content.sum()),
            attribution.document.n_tokens_full,
            attribution.score - first.attribution.score if at else None,
            difference if comparable else None,
            rank_correlation(scores[0], scores[at]) if at else None,
            float(apart(magnitudes[0][None], magnitudes[at][None])[0]) if comparable else None,
        )

"""Encoded results as columns, and where they are stored. The process that computes results also
encodes them, on any machine, so that the writer only copies bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.positions import score_curves
from poslens.attribution.curves.text_axis import curves_of, is_over_text
from poslens.attribution.types import N_BINS, Array, Attribution, Method, TextPair, TokenizedText
from poslens.cache.storage.codec import PackedText, encode, pack_text
from poslens.cache.storage.files import ModelKey


@dataclass(frozen=True, slots=True)
class Computed:
    """The outcome of batches, ready to be stored: `pairs` [N] with a result, and other pairs with
    the reasons why they failed.

    The results [N] are columns: payloads, scores, document token counts, whether documents were
    truncated, curves [N, 100] and magnitudes [N, 100]. `magnitudes` is the same array as `curves`
    if these have no signs."""

    pairs: list[TextPair]
    payloads: list[bytes]
    scores: Array
    tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]
    curves: Array
    magnitudes: Array
    failures: list[tuple[TextPair, str]]

    @property
    def all_payloads(self) -> list[bytes | None]:
        """One for each pair with a result, then None for each failure."""
        return [*self.payloads, *([None] * len(self.failures))]

    @property
    def all_pairs(self) -> list[TextPair]:
        """The pairs with a result, then those that failed."""
        return [*self.pairs, *(pair for pair, _ in self.failures)]

    @classmethod
    def merged(cls, parts: Sequence[Computed]) -> Computed:
        """The outcomes of several batches."""
        if len(parts) == 1:
            return parts[0]
        columns = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("scores", "tokens", "truncated", "curves")
        }
        magnitudes = columns["curves"]
        if any(part.magnitudes is not part.curves for part in parts):
            magnitudes = np.concatenate([part.magnitudes for part in parts])
        return cls(
            [pair for part in parts for pair in part.pairs],
            [payload for part in parts for payload in part.payloads],
            **columns,
            magnitudes=magnitudes,
            failures=[failure for part in parts for failure in part.failures],
        )


def encoded(
    results: Sequence[tuple[TextPair, Attribution]],
    method: Method,
    failures: Sequence[tuple[TextPair, str]] = (),
) -> Computed:
    """Results of `method`, encoded as columns, and failures.

    Raises:
        UserError: a result is larger than the store's limit.
    """
    # Results of one document share its text. Keyed by object identity, which is safe because the
    # results outlive this function.
    texts: dict[int, PackedText] = {}

    def packed(text: TokenizedText) -> PackedText:
        if id(text) not in texts:
            texts[id(text)] = pack_text(text)
        return texts[id(text)]

    curves, magnitudes = curve_columns(results, method)
    return Computed(
        [pair for pair, _ in results],
        [
            encode(result, pair, packed(result.query), packed(result.document))
            for pair, result in results
        ],
        np.array([result.score for _, result in results], np.float32),
        np.array([result.document.n_tokens_full for _, result in results], np.int32),
        np.array([result.document.truncated for _, result in results], np.bool_),
        curves,
        magnitudes,
        list(failures),
    )


def curve_columns(
    results: Sequence[tuple[TextPair, Attribution]], method: Method
) -> tuple[Array, Array]:
    """Curves [N, 100] and magnitudes [N, 100] of results; the same array if there are no signs."""
    if not results:
        nothing = np.zeros((0, N_BINS), np.float32)
        return nothing, nothing
    if is_over_text(method):
        sides = [curves_of(result, method, len(pair.document)) for pair, result in results]
        curves, magnitudes = (np.array(side, np.float32) for side in zip(*sides, strict=True))
    else:
        scores = [result.document_scores[result.document.content] for _, result in results]
        curves = magnitudes = score_curves(scores, method)
        if any((values < 0).any() for values in scores):
            magnitudes = score_curves([np.abs(values) for values in scores], method)
    same = magnitudes is curves or np.array_equal(curves, magnitudes, equal_nan=True)
    return curves, curves if same else magnitudes


class Destination(ABC):
    """Where the results of a run are stored: a `Store`, or a `part_files.PartWriter`. `root` is a
    local folder of this host in which its jobs record their claims."""

    root: Path

    @abstractmethod
    def missing(
        self, model: ModelKey, method: Method, pairs: Sequence[TextPair], *, retry: bool = False
    ) -> list[TextPair]:
        """The pairs with neither a result nor, unless `retry`, a stored failure.

        Raises:
            UserError: the folder can't be read.
        """

    @abstractmethod
    def put_encoded(self, model: ModelKey, method: Method, computed: Computed) -> None:
        """Store results with their curves, and the reasons why other pairs failed, so that a
        resumed run doesn't retry those. One transaction, or one part; durable when this returns.

        Raises:
            UserError: the folder can't be written (permissions, a full disk).
        """

    def put(
        self,
        model: ModelKey,
        method: Method,
        results: Sequence[tuple[TextPair, Attribution]],
        failures: Sequence[tuple[TextPair, str]] = (),
    ) -> None:
        """Encode results, and store them and failures as `put_encoded` does.

        Raises:
            UserError: the folder can't be written (permissions, a full disk), or a result is larger
                than the store's limit.
        """
        self.put_encoded(model, method, encoded(results, method, failures))

    def put_failures(
        self, model: ModelKey, method: Method, failures: Sequence[tuple[TextPair, str]]
    ) -> None:
        """Store the reasons why pairs failed."""
        self.put(model, method, [], failures)

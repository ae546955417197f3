"""Null controls: texts under which a curve about relevance should change, with a verdict
(docs/methods.md, section 8).

Controls are pairs like any others, so every method works on them, and their attributions are stored
in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import (
    SEED,
    Estimate,
    Values,
    estimate,
    generator_for,
    intervals,
)
from poslens.attribution.curves.curve_summary import primacy_recency_index
from poslens.attribution.curves.positions import POSITIONS
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import (
    INDEX_MARGIN,
    Comparison,
    Verdict,
    paired_statistics,
)
from poslens.attribution.interventions.filler import filler
from poslens.attribution.interventions.relocation import Pieces
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.family import Family
from poslens.attribution.text import require_sentences, sentences
from poslens.attribution.types import Array, EvidenceSpan, Method, TextPair, as_array

Control = Literal["unrelated", "shuffled", "filler", "profile"]
CONTROLS: dict[Control, str] = {
    "unrelated": "unrelated query",
    "shuffled": "shuffled sentences",
    "filler": "filler text",
    "profile": "query-free profile",
}
"""Controls and their names on pages."""

QUERY_CONTROLS: tuple[Control, Control] = ("unrelated", "profile")
"""The two controls without the pair's own query: an unrelated query, and the query-free profile."""


def control(kind: Control, pair: TextPair, pairs: Pairs, seed: int = SEED) -> TextPair:
    """`pair` with its query or its document replaced; the id names the control.

    `unrelated`: another query of `pairs`, in the same language, chosen at random from those that no
    pair joins with this document. `shuffled`: the sentences in random order, with the evidence's
    new position. `filler`: neutral text with as many characters as the document, without evidence.
    `profile`: the pair unchanged, for another method (`null_method`).

    Raises:
        UserError: no other pair's query is suitable, or the document has only one sentence.
    """
    if kind == "profile":
        return pair
    changed = replace(pair, pair_id=f"{pair.pair_id}#{kind}-{seed}")
    generator = generator_for(pair.pair_id, seed)
    if kind == "unrelated":

        def fits(other: TextPair) -> bool:
            return (
                other.asked_in == pair.asked_in
                and other.query != pair.query
                and not pairs.joins(other.query, pair.document)
            )

        # Random draws succeed quickly in most data sets; a list of all would be slow per pair.
        for index in generator.integers(len(pairs), size=32) if pairs else ():
            if fits(other := pairs[index]):
                return replace(changed, query=other.query)
        fitting = [other.query for other in pairs if fits(other)]
        if not fitting:
            raise UserError(
                f"{pair.label} has no control: no other query in its language is about another "
                "document. Choose a data set with several documents in each language."
            )
        return replace(changed, query=fitting[int(generator.integers(len(fitting)))])
    if kind == "filler":
        text = filler(pair.language, len(pair.document), int(generator.integers(5)))[
            : len(pair.document)
        ]
        return replace(changed, document=text, evidence=None)
    require_sentences(pair.document)
    spans = sentences(pair.document, pair.language)
    parts, n = Pieces.of(pair.document, spans), len(spans)
    if n < 2:
        raise UserError(
            "The document is one sentence, so there is nothing to shuffle: choose a document of at "
            "least two sentences."
        )
    order = generator.permutation(n).tolist()
    if order == sorted(order):
        order = order[1:] + order[:1]
    span = pair.evidence
    if span is not None:
        home = next(
            (i for i, (a, b) in enumerate(spans) if a <= span.start and span.end <= b), None
        )
        if home is None:  # shuffling separates evidence that covers several sentences
            span = None
        else:
            start = parts.starts(order)[order.index(home)] + span.start - spans[home][0]
            span = EvidenceSpan(start, start + span.end - span.start)
    return replace(changed, document=parts.joined(order), evidence=span)


def controlled_id(kind: Control, pair_id: str) -> str:
    """The id of the pair that a control with this id belongs to."""
    return pair_id if kind == "profile" else pair_id.rpartition("#")[0]


def null_method(kind: Control, method: Method) -> Method:
    """The method for a control: the same, or the query-free profile with the same curve settings,
    which has the same unit if curves are scaled to [0, 1]."""
    if kind != "profile":
        return method
    return replace(make_method("profile"), curve_params=method.curve_params)


def controls_for(method: Method, families: Iterable[Family]) -> tuple[Control, ...]:
    """The controls that apply to a method and to all of the models' families. An unrelated query
    changes nothing for a method without a query. The profile is the part of gradient saliency that
    no query can change, so it applies only to saliency, only if curves are scaled, because the two
    have different units, and only to families that have a profile."""
    scaled = method.curve_params.get("normalization") != "none"
    profiled = all(METHODS["profile"].fits(family) for family in families)
    applies = {
        "unrelated": METHODS[method.name].needs_query,
        "profile": method.name == "saliency" and scaled and profiled,
    }
    return tuple(kind for kind in CONTROLS if applies.get(kind, True))


@dataclass(frozen=True, slots=True)
class ControlledCurve:
    """Curves minus their controls, pair by pair: `mean`, `ci_low` and `ci_high` [100] of the
    difference over `n` pairs of `n_documents` documents; in `n_truncated` pairs the document was
    truncated. The controls of `n_zero` pairs attribute nothing to any token, such as those of BM25
    whose query shares no term with the document; their curves of zeros count, because leaving them
    out would select pairs by their controls.

    `comparison` is the primacy-recency index of the mean curve minus that of the mean control;
    `distance` is the mean over bins of |mean curve - mean control|, relative to the mean |curve|.
    All have 95% bootstrap intervals over documents, but not below MIN_DOCUMENTS. Noise increases
    `distance`, and resampling increases it again, so its interval is one-sided, from 0 to a 95%
    upper limit, and errs toward a larger distance.
    """

    control: Control
    n: int
    n_documents: int
    n_truncated: int
    n_zero: int
    mean: Array
    ci_low: Array | None
    ci_high: Array | None
    comparison: Comparison | None
    distance: Estimate | None

    @property
    def index(self) -> Estimate | None:
        """The index minus the control's."""
        return None if self.comparison is None else self.comparison.difference

    @property
    def verdict(self) -> Verdict:
        """How the index compares with the control's."""
        return "too few documents" if self.comparison is None else self.comparison.verdict

    @property
    def sentence(self) -> str:
        """The difference of the indices with its interval, and the verdict in words."""
        if self.comparison is None:
            return "The curve or its control has no primacy-recency index."
        what, apart = CONTROLS[self.control], self.comparison.difference.text("+.3f")
        sentence = self.comparison.sentence
        if (side := {"higher": "end", "lower": "beginning"}.get(self.verdict)) is not None:
            certainty = sentence.removeprefix(self.verdict.capitalize())
            sentence = f"Attribution is nearer the {side} than under the control{certainty}"
        elif self.verdict == "equivalent":
            sentence = sentence.replace("Equivalent", "Equivalent to the control", 1)
        return (
            f"Primacy-recency index minus that of the control ({what}): {apart}, "
            f"{self.n_documents:,} documents. {sentence}"
        )


def curves_agree(first: NDArray[np.floating], second: NDArray[np.floating]) -> Estimate | None:
    """Pearson correlation over the bins of two mean curves of the same pairs [n, 100], such as two
    controls; None if one is constant. It has no interval: resampling adds noise to both means,
    which lowers the correlation in nearly every resample."""
    a, b = (side.astype(np.float64).mean(0) for side in (first, second))
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt((a @ a) * (b @ b))
    return Estimate(float(a @ b) / size, n=len(first)) if size else None


def shape_distance(means: Values) -> Values:
    """Mean |curve - control| relative to the mean |curve| [R], for mean curves joined with mean
    controls [R, 2 x 100]; 0 if the curve is 0."""
    curve, null = np.split(means, 2, axis=1)
    level, apart = np.abs(curve).mean(1), np.abs(curve - null).mean(1)
    relative: NDArray[np.float64] = np.divide(
        apart, level, out=np.zeros_like(apart), where=level > 0
    )
    return relative


def minus_null(
    kind: Control,
    curves: NDArray[np.floating],
    nulls: NDArray[np.floating],
    groups: Sequence[Hashable],
    magnitudes: tuple[NDArray[np.floating], NDArray[np.floating]] | None = None,
    n_truncated: int = 0,
) -> ControlledCurve:
    """Compare curves [n, 100] with the curves [n, 100] of the same pairs' controls. `groups` [n]
    are the pairs' documents, of which `n_truncated` were truncated. `magnitudes` are the absolute
    token values of both [n, 100], from which indices are computed; by default the curves' own.

    Raises:
        UserError: there are no curves.
    """
    observed, null = np.asarray(curves, np.float64), np.asarray(nulls, np.float64)
    if observed.shape != null.shape or observed.ndim != 2:
        raise ValueError(f"{observed.shape} curves and {null.shape} of controls")
    n = len(observed)
    if n == 0:
        raise UserError("No pair has both a curve and a control curve yet: compute both first.")
    observed_sizes, null_sizes = magnitudes or (np.abs(observed), np.abs(null))
    ends = intervals(observed - null, groups)
    shape = (len(POSITIONS),)
    return ControlledCurve(
        kind,
        n,
        len(set(groups)),
        n_truncated,
        int((~null_sizes.any(1)).sum()),
        as_array((observed - null).mean(0), shape, "a curve"),
        None if ends is None else as_array(ends[0], shape, "a curve"),
        None if ends is None else as_array(ends[1], shape, "a curve"),
        paired_statistics(null_sizes, observed_sizes, groups, INDEX_MARGIN, primacy_recency_index),
        # Resampled together: a pair is drawn with its control.
        estimate(np.concatenate([observed, null], axis=1), groups, shape_distance, kind="upper"),
    )

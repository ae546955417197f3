"""Null controls: texts under which a curve that shows relevance should look different, and a
verdict in words where the numbers allow one (docs/methods.md, section 8).

Controls are pairs like any other, so every method works on them and their attributions are kept
as any other's.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from attribution.curves.bootstrap import MIN_DOCUMENTS, SEED, Estimate, band, estimate
from attribution.curves.curve_summary import primacy_recency_index
from attribution.curves.positions import POSITIONS
from attribution.errors import UserError
from attribution.interventions.filler import filler
from attribution.interventions.relocation import pieces
from attribution.methods import make_method
from attribution.text import require_sentences, sentences
from attribution.types import Array, EvidenceSpan, Method, TextPair, as_array

Values = NDArray[np.float64]
Control = Literal["unrelated", "shuffled", "filler", "profile"]
CONTROLS: dict[Control, str] = {
    "unrelated": "unrelated query",
    "shuffled": "shuffled sentences",
    "filler": "filler text",
    "profile": "query-free profile",
}
"""Controls and what pages call them."""

DEPENDS_ON: dict[Control, str] = {
    "unrelated": "the query",
    "shuffled": "the order of the sentences",
    "filler": "what the text says",
    "profile": "the query",
}

QUERY_CONTROLS: tuple[Control, Control] = ("unrelated", "profile")
"""The two that take the query away: by putting another, and by asking how the document's vector
reacts whatever the query."""

INDEX_MARGIN = 0.05
"""Difference of primacy-recency indices (-1 to 1) up to which two curves lean alike."""

SHAPE_MARGIN = 0.10
"""Mean distance of two curves, in parts of the curve's own mean, up to which they look alike."""


def control(kind: Control, pair: TextPair, pairs: Sequence[TextPair], seed: int = SEED) -> TextPair:
    """`pair` with its query or its document replaced; its id says by what.

    `unrelated`: the query of another of `pairs`, in the same language, about another document, by
    lot. `shuffled`: the sentences in an order by lot, the evidence followed. `filler`: neutral
    text of the document's length in characters, without evidence. `profile`: the pair as it is,
    under another method (`null_method`).

    Raises:
        UserError: no other pair's query fits, or the document is one sentence.
    """
    if kind == "profile":
        return pair
    changed = replace(pair, pair_id=f"{pair.pair_id}#{kind}-{seed}")
    lot = np.random.default_rng([seed, zlib.crc32(pair.pair_id.encode("utf-8", "replace"))])
    if kind == "unrelated":

        def fits(other: TextPair) -> bool:
            return (
                other.language == pair.language
                and other.document != pair.document
                and other.query != pair.query
            )

        # Draws find one at once in most data sets; a list of all would be made for every pair.
        for index in lot.integers(len(pairs), size=32) if pairs else ():
            if fits(pairs[index]):
                return replace(changed, query=pairs[index].query)
        fitting = [other.query for other in pairs if fits(other)]
        if not fitting:
            raise UserError(
                f"No other document of the data set has a query in the language of pair "
                f"{pair.pair_id}: choose a data set with several documents in each language."
            )
        return replace(changed, query=fitting[int(lot.integers(len(fitting)))])
    if kind == "filler":
        text = filler(pair.language, len(pair.document), int(lot.integers(5)))[: len(pair.document)]
        return replace(changed, document=text, evidence=None)
    require_sentences(pair.document)
    parts = pieces(pair.document, pair.language)
    n = len(parts.sentences)
    if n < 2:
        raise UserError(
            "The document is one sentence, so there is nothing to shuffle: choose a document of at "
            "least two sentences."
        )
    order = lot.permutation(n).tolist()
    if order == sorted(order):
        order = order[1:] + order[:1]
    span = pair.evidence
    if span is not None:
        spans = sentences(pair.document, pair.language)
        home = next(
            (i for i, (a, b) in enumerate(spans) if a <= span.start and span.end <= b), None
        )
        if home is None:  # evidence over several sentences is torn apart
            span = None
        else:
            start = parts.start(order, order.index(home)) + span.start - spans[home][0]
            span = EvidenceSpan(start, start + span.end - span.start)
    return replace(changed, document=parts.joined(order), evidence=span)


def controlled_id(kind: Control, pair_id: str) -> str:
    """The id of the pair that a control with this id is of."""
    return pair_id if kind == "profile" else pair_id.rpartition("#")[0]


def null_method(kind: Control, method: Method) -> Method:
    """The method that a control is computed with: the same, or the query-free profile with its
    curve settings, in the same unit of [0, 1] where these scale."""
    if kind != "profile":
        return method
    return replace(make_method("profile"), curve_params=method.curve_params)


def controls_for(method: Method) -> tuple[Control, ...]:
    """The controls that say something of a method. The profile is the part of gradient saliency
    that no query can change, and of no other method; the two have one unit where curves are
    scaled."""
    scaled = method.curve_params.get("normalization") != "none"
    has_profile = method.name == "saliency" and scaled
    return tuple(kind for kind in CONTROLS if kind != "profile" or has_profile)


@dataclass(frozen=True, slots=True)
class ControlledCurve:
    """Curves less their controls, pair by pair: `mean`, `ci_low` and `ci_high` [100] of the
    difference over `n` pairs of `n_documents` documents.

    `index` is the primacy-recency index of the mean curve less that of the mean control;
    `distance` the mean over bins of |mean curve - mean control| in parts of the mean |curve|.
    All with 95% bootstrap intervals over documents, and none below MIN_DOCUMENTS of them. Noise
    alone puts `distance` above zero, and resampling adds more, so its interval is one-sided: from 0
    to a 95% upper limit, which errs towards "different".
    """

    control: Control
    n: int
    n_documents: int
    mean: Array
    ci_low: Array | None
    ci_high: Array | None
    index: Estimate | None
    distance: Estimate | None

    @property
    def alike(self) -> bool:
        """Whether the curve is the control's, within the margins: the interval of the index
        difference lies within INDEX_MARGIN of zero and the distance's below SHAPE_MARGIN. An
        equivalence test; not finding a difference is not enough."""
        if self.index is None or self.distance is None:
            return False
        index, distance = self.index.interval, self.distance.interval
        if index is None or distance is None:
            return False
        return max(abs(index[0]), abs(index[1])) <= INDEX_MARGIN and distance[1] <= SHAPE_MARGIN

    @property
    def different(self) -> bool:
        """Whether the curve leans otherwise than the control: the interval of the index difference
        has no zero in it."""
        if self.index is None or self.index.interval is None:
            return False
        low, high = self.index.interval
        return not low <= 0 <= high

    @property
    def verdict(self) -> str:
        """One sentence, or why there is none."""
        what = DEPENDS_ON[self.control]
        if self.alike:
            return (
                f"The curve does not depend on {what}: it stays within {INDEX_MARGIN} of the "
                f"control's index and {SHAPE_MARGIN:.0%} of its shape."
            )
        if self.different:
            return f"Where the curve leans depends on {what}."
        few = self.n_documents < MIN_DOCUMENTS
        why = f" ({self.n_documents} documents; {MIN_DOCUMENTS} are the least)" if few else ""
        return (
            f"Undecided{why}: the intervals allow neither that it depends on {what} nor that it "
            "does not."
        )


def curves_agree(first: NDArray[np.floating], second: NDArray[np.floating]) -> Estimate | None:
    """Pearson correlation over the bins of two mean curves of the same pairs [n, 100], such as two
    controls'; None where one of them is flat. It has no interval: resampling adds noise to both
    means, which brings the correlation down in nearly every resample."""
    a, b = (side.astype(np.float64).mean(0) for side in (first, second))
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt((a @ a) * (b @ b))
    return Estimate(float(a @ b) / size, n=len(first), resampled="") if size else None


def shape_distance(means: Values) -> Values:
    """Mean |curve - control| in parts of the mean |curve| [R], for mean curves and mean controls
    side by side [R, 2 x 100]; 0 where the curve is."""
    own, null = np.split(means, 2, axis=1)
    level, apart = np.abs(own).mean(1), np.abs(own - null).mean(1)
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
) -> ControlledCurve:
    """Compare curves [n, 100] with the curves [n, 100] of the same pairs' controls. `groups` [n]
    are the pairs' documents, `magnitudes` what the tokens of both bring whatever its sign [n, 100],
    of which indices are made: the curves' own if not given.

    Raises:
        UserError: there are none.
    """
    own, null = np.asarray(curves, np.float64), np.asarray(nulls, np.float64)
    if own.shape != null.shape or own.ndim != 2:
        raise ValueError(f"{own.shape} curves and {null.shape} of controls")
    n = len(own)
    if n == 0:
        raise UserError("No pair has a curve and one of its control yet: compute both first.")
    # Resampled together: a pair comes with its control.
    both = np.concatenate([own, null], axis=1)
    weights = np.concatenate(magnitudes or (np.abs(own), np.abs(null)), axis=1)
    width = own.shape[1]

    def index(means: Values) -> Values:
        return primacy_recency_index(means[:, :width]) - primacy_recency_index(means[:, width:])

    ends = band(own - null, groups)
    shape = (len(POSITIONS),)
    return ControlledCurve(
        kind,
        n,
        len(set(groups)),
        as_array((own - null).mean(0), shape, "a curve"),
        None if ends is None else as_array(ends[0], shape, "a curve"),
        None if ends is None else as_array(ends[1], shape, "a curve"),
        estimate(weights, groups, index),
        estimate(both, groups, shape_distance, kind="upper"),
    )

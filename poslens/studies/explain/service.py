"""The curve of one pair, and the mean curve of its data set as a reference, with an optional null
control subtracted; differences between two models."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.curves.bootstrap import Estimate, intervals
from poslens.attribution.curves.curve_summary import (
    CurveSummary,
    center_of_mass,
    primacy_recency_index,
)
from poslens.attribution.curves.positions import (
    Aggregate,
    document_curve,
    document_magnitudes,
    evidence_share,
    positions,
    token_range,
    unit_scores,
)
from poslens.attribution.curves.text_axis import curve_over_text
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.null_controls import (
    CONTROLS,
    Control,
    ControlledCurve,
    null_method,
)
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.text import words
from poslens.attribution.types import (
    Array,
    Attribution,
    Method,
    PositionCurve,
    Provenance,
    as_array,
)
from poslens.cache.lru_cache import StampedCache
from poslens.cache.storage.store import StoredCurves
from poslens.compute import coverage
from poslens.compute.compute import Compute, Explained, service
from poslens.compute.provenance import of_controlled, of_curve, of_model, resampling
from poslens.compute.selection import ComputedSoFar, apart, pairs_read_unlike
from poslens.figures.curves import MEAN, MEAN_SO_FAR, Mean
from poslens.heatmap.data import Fact, Head, Rail
from poslens.studies.curves import null_controls
from poslens.studies.curves.words import MIN_PAIRS

_controlled: StampedCache[ControlledCurve | None] = StampedCache(32)
_differences: StampedCache[Difference | None] = StampedCache(32)


@dataclass(frozen=True, slots=True)
class Average:
    """A model's mean curve over a data set. `stored` of `total` pairs have a result or have failed.
    `mean` is None below `MIN_PAIRS`; `summary` is None if a null control was subtracted or nothing
    is stored. `controlled` compares the curve with the subtracted control."""

    stored: int
    total: int
    mean: Mean | None
    summary: CurveSummary | None
    provenance: Provenance | None
    controlled: ControlledCurve | None = None

    @property
    def complete(self) -> bool:
        """Whether every pair has a result or has failed."""
        return self.stored >= self.total


def average(
    compute: Compute, spec: RetrieverSpec, method: Method, data: DataSet, kind: Control | None
) -> Average:
    """The mean of the stored curves of a data set, minus that of its controls of `kind` if given.

    Raises:
        UserError: the model's files are not on this machine, or the store cannot be read.
    """
    total, model = len(data.pairs), compute.identify(spec)
    summary = compute.means.recent(model.key, method, data.pairs, data.name)
    if summary is None:
        return Average(0, total, None, None, None)
    curve = summary.curve
    stored = curve.n + curve.n_failed
    if kind is None:
        if curve.n < MIN_PAIRS:
            return Average(stored, total, None, summary, None)
        provenance = of_curve(model, curve, _all_pairs(stored, total))
        return Average(stored, total, _mean(curve, curve, stored, total), summary, provenance)
    controlled = _minus_control(compute, spec, method, data, kind)
    if controlled is None or controlled.n < MIN_PAIRS:
        return Average(stored, total, None, None, None)
    nulls = null_controls.controls(kind, data.pairs, data.pairs)
    n_nulls = compute.means.n_attempted(model.key, null_method(kind, method), nulls)
    n_curves, n_all = stored + n_nulls, total + len(nulls)
    mean = _mean(controlled, curve, n_curves, n_all, f", minus {CONTROLS[kind]}")
    selection = _all_pairs(n_curves, n_all, "curve")
    provenance = of_controlled(model, method, data.name, controlled, selection)
    return Average(stored, total, mean, None, provenance, controlled)


def _all_pairs(n_done: int, n_all: int, unit: str = "pair") -> str:
    """The selection of a mean: all pairs, or how many of their results are computed so far."""
    return "all pairs" if n_done >= n_all else str(ComputedSoFar(n_done, n_all, unit))


def _mean(
    drawn: PositionCurve | ControlledCurve,
    curve: PositionCurve,
    n_done: int,
    n_all: int,
    note: str = "",
) -> Mean:
    """A mean curve as drawn, at the positions of `curve`, when `n_done` of `n_all` results are
    computed."""
    low, high = drawn.ci_low, drawn.ci_high
    final = n_done >= n_all
    so_far, documents = "" if final else " so far", counted(drawn.n_documents, "document")
    return Mean(
        drawn.mean,
        curve.positions,
        None if low is None or high is None else (low, high),
        f"mean of {drawn.n:,} pairs{so_far}, {documents}{note}",
        MEAN if final else MEAN_SO_FAR,
    )


def _minus_control(
    compute: Compute, spec: RetrieverSpec, method: Method, data: DataSet, kind: Control
) -> ControlledCurve | None:
    model = compute.identify(spec).key
    key = (compute.root, model, repr(method), data.pairs.digest, kind)
    methods = (method, null_method(kind, method))
    stamp = [compute.store.stamp(model, of_curves) for of_curves in methods]

    def controlled() -> ControlledCurve | None:
        with suppress(UserError):
            return null_controls.controlled(compute, spec, method, kind, data.pairs, data.pairs)
        return None

    return _controlled.get(key, stamp, controlled)


# -- one pair --------------------------------------------------------------------------------------


def rail(result: Explained, against: Average | None, control: Attribution | None) -> Rail:
    """The chart next to the document: its own curve, minus its control's if given, and the mean."""
    curve = _listed(pair_curve(result, control))
    if against is None or against.mean is None:
        return Rail(curve)
    mean = against.mean
    note = mean.note + ("; the band is a 95% interval over documents" if mean.band else "")
    low, high = mean.band or ((), ())
    return Rail(curve, _listed(mean.values), _listed(low), _listed(high), note)


def rail_of(compute: Compute, result: Explained, data: DataSet | None) -> Rail:
    """The chart next to the document, with the mean curve of a data set if that is stored.

    Raises:
        UserError: the store cannot be read.
    """
    spec, method = result.model.spec, result.attribution.method
    against = None if data is None else average(compute, spec, method, data, None)
    return rail(result, against, None)


def _listed(values: Array | tuple[()]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def pair_curve(result: Explained, control: Attribution | None) -> Array:
    """The pair's own curve [100], minus its control's if given."""
    curve = document_curve(result.attribution)
    if control is None:
        return curve
    return as_array(curve - document_curve(control), curve.shape, "a curve")


def evidence_range(result: Explained) -> tuple[float, float] | None:
    """Start and end of the evidence as shares in [0, 1] of the tokens that the model read; None
    without evidence, or if none of it was read."""
    span = result.pair.evidence
    return None if span is None else token_range(result.attribution.document, span)


def read_share(result: Explained) -> float:
    """Share of the document's characters that the model read."""
    return result.attribution.document.share_read(len(result.pair.document))


def pair_numbers(result: Explained) -> tuple[Estimate | None, Estimate | None]:
    """Center of mass and primacy-recency index of one document; None if undefined."""
    magnitudes = document_magnitudes(result.attribution)
    bin_positions = positions(result.attribution.method.curve_params["resampling"])
    mass, index = center_of_mass(magnitudes, bin_positions), primacy_recency_index(magnitudes)
    values = float(mass), float(index)
    first, second = (Estimate(value, n=1) if np.isfinite(value) else None for value in values)
    return first, second


# -- two models ------------------------------------------------------------------------------------


def read_alike(a: Explained, b: Explained) -> bool:
    """Whether both models read the same part of the document, to a hundredth of its characters.
    Otherwise relative positions are not comparable, and a difference over the whole text is shaded
    where one of the models did not read."""
    first, second = (
        np.isfinite(curve_over_text(result.attribution, len(result.pair.document)))
        for result in (a, b)
    )
    return bool(np.array_equal(first, second))


def word_scores(results: Sequence[Explained], how: Aggregate) -> list[NDArray[np.float64]]:
    """For each result, the scores of the document's words [n_words], with NaN for unread words and
    tokens aggregated by `how`. All results must be of the same pair."""
    spans = words(results[0].pair.document)
    return [
        unit_scores(r.attribution.document, r.attribution.document_scores, spans, how)
        for r in results
    ]


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of curve A minus curve B [100] over the `n` pairs that both models have and of whose
    documents they read the same part, with its 95% interval over documents if there are enough.
    `mean` is None below `MIN_PAIRS`. `n_unlike` pairs are left out, because the models read
    different parts. `furthest` are the pairs with the largest distance between the two curves
    (`apart`), with that distance. `provenance` is that of A and B."""

    mean: Array | None
    interval: tuple[Array, Array] | None
    n: int
    n_documents: int
    n_unlike: int
    furthest: tuple[tuple[str, float], ...]
    provenance: tuple[Provenance, ...] = ()

    @property
    def left_out(self) -> str:
        """How many pairs are left out, and why, as a sentence; empty if none are."""
        if not self.n_unlike:
            return ""
        are = "is" if self.n_unlike == 1 else "are"
        return (
            f"{counted(self.n_unlike, 'pair')} {are} left out because the models read different "
            "parts of the document, so relative positions are not comparable."
        )


MOST_APART = 50


def difference(
    compute: Compute, a: RetrieverSpec, b: RetrieverSpec, method: Method, data: DataSet
) -> Difference | None:
    """The difference of two models' stored curves; None below `MIN_PAIRS` common pairs.

    Raises:
        UserError: a model's files are not on this machine, or the store cannot be read.
    """
    identity, other = compute.identify(a), compute.identify(b)
    models = [identity.key, other.key]
    key = (compute.root, *models, repr(method), data.pairs.digest)
    stamp = tuple(compute.store.stamp(model, method) for model in models)

    def compared() -> Difference | None:
        first, second = (compute.store.curves(model, method, data.pairs) for model in models)
        keys, curves = (identity.key, other.key), (first, second)
        unlike = pairs_read_unlike(compute.store, keys, method, data.pairs, curves)
        gap = difference_of(first, second, data, unlike)
        if gap is None or gap.mean is None:
            return gap
        alike = ", of whose documents both read the same part" if unlike else ""
        provenance = [
            of_model(
                model,
                method,
                data.name,
                n_pairs=gap.n,
                n_documents=gap.n_documents,
                selection=f"pairs that {against.spec.name} has too{alike}",
                interval="" if gap.interval is None else resampling(gap.n_documents),
            )
            for model, against in ((identity, other), (other, identity))
        ]
        return replace(gap, provenance=tuple(provenance))

    return _differences.get(key, stamp, compared)


def difference_of(
    first: StoredCurves, second: StoredCurves, data: DataSet, unlike: Set[str]
) -> Difference | None:
    """The difference of two sets of curves, without provenance; None below `MIN_PAIRS` common
    pairs. `unlike` are the pairs of whose documents the models read different parts."""
    rows_a, rows_b = first.rows_of_both(second)
    if len(rows_a) < MIN_PAIRS:
        return None
    alike = np.array([first.pair_ids[row] not in unlike for row in rows_a.tolist()])
    n_unlike = len(rows_a) - int(alike.sum())
    rows_a, rows_b = rows_a[alike], rows_b[alike]
    ids = [first.pair_ids[row] for row in rows_a.tolist()]
    documents = data.pairs.documents_of(ids)
    distance = apart(first.magnitudes[rows_a], second.magnitudes[rows_b])
    order = np.argsort(-np.nan_to_num(distance), kind="stable")[:MOST_APART].tolist()
    furthest = tuple((ids[at], float(distance[at])) for at in order)
    n, n_documents = len(ids), len(set(documents))
    if n < MIN_PAIRS:
        return Difference(None, None, n, n_documents, n_unlike, furthest)
    gap = first.curves[rows_a].astype(np.float64) - second.curves[rows_b]
    edges = intervals(gap, documents)

    def curve(values: NDArray[np.float64]) -> Array:
        return as_array(values, gap.shape[1:], "a curve")

    interval = None if edges is None else (curve(edges[0]), curve(edges[1]))
    return Difference(curve(gap.mean(0)), interval, n, n_documents, n_unlike, furthest)


# -- the header line above a column of a heatmap ---------------------------------------------------


def head(result: Explained) -> Head:
    """The header of a result: score, share of the evidence, share of the document that was read,
    and caveats."""
    facts = [*_evidence(result), reading(result), *_rest(result)]
    if result.notice:
        facts.append(Fact(result.notice, warning=True))
    return Head(f"{result.attribution.score:.4f}", tuple(facts))


def _evidence(result: Explained) -> list[Fact]:
    span = result.pair.evidence
    if span is None:
        return []
    share = evidence_share(result.attribution, span)
    if share is None:
        return [
            Fact(
                "evidence truncated",
                "The evidence is past the model's context limit.",
                warning=True,
            )
        ]
    return [
        Fact(
            f"{share.share:.1%} of the attribution falls on the evidence, "
            f"{share.enrichment:.2f} times its share of tokens",
            f"Share of the attribution in the evidence. The evidence has {share.token_share:.1%} "
            "of the tokens, so a uniform attribution would give it that share.",
        )
    ]


def reading(result: Explained) -> Fact:
    """How much of the document the model reads."""
    document = result.attribution.document
    read = int(document.content.sum())
    counts = coverage.of_pair(service(), result)
    reading = coverage.pair_sentence(counts)
    checked = service().self_check(result.model)
    more = [reading, checked.sentence() if checked else ""]
    spec = result.model.spec
    if limits.unknown(spec):
        audit = "The Audit page" if spec.remote else "poslens.audit"
        more.insert(0, f"The {spec.noun}'s context limit is unknown. {audit} measures it.")
        sent = f"sent all {counted(read, 'word')}; context limit unknown"
        return Fact(sent, " ".join(filter(None, more)))
    unit = limits.unit(spec)
    if document.truncated:
        text = f"reads {read:,} of {document.n_tokens_full:,} {unit}"
        apart = limits.configured_apart(spec)
        configured = f"; its own configuration truncates at {apart:,}" if apart else ""
        special = "" if unit == "words" else ", including special tokens"
        more.insert(0, f"The context limit is {document.max_length:,} {unit}{special}{configured}.")
    else:
        text = f"reads all {read:,} {unit}"
    if counts.unknown:
        text += f", {counts.unknown:,} unknown"
    return Fact(text, " ".join(filter(None, more)), warning=document.truncated or bool(reading))


def _rest(result: Explained) -> list[Fact]:
    """For methods whose attributions sum to the score, the share outside of tokens and the error of
    the sum; for methods with random draws, the standard error."""
    attribution = result.attribution
    if attribution.standard_error is not None:
        return [
            Fact(
                f"± {attribution.standard_error:.1%}",
                "Standard error of a token's attribution over the method's random draws: the "
                "mean over the document's tokens, relative to their mean attribution.",
            )
        ]
    if attribution.bias_share is None or attribution.completeness_error is None:
        return []
    return [
        Fact(
            f"bias share {attribution.bias_share:+z.4f}",
            "Part of the score that isn't attributed to any token: the share of the document's "
            "constants (decomposition) or of both texts' constants (BiLRP), or the score with "
            "padding instead of the document (integrated gradients) or of either text (integrated "
            "Jacobians).",
        ),
        Fact(
            f"completeness error {attribution.completeness_error:+z.1e}",
            "Score minus the sum of the token attributions minus the bias share.",
        ),
    ]

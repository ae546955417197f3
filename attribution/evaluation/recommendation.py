"""Whether a change is recommended: of a model (less position bias and no loss of quality), or of
the setting of an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from poslens.attribution.evaluation.comparison import Comparison
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.text import listed

MARGIN = 0.01
"""Difference of nDCG@10, or of a mean reciprocal rank, up to which two models are equivalent."""

Wanted = Literal["higher", "lower"]
"""The better direction of a measure."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Whether a change to a model is recommended, and why in a sentence."""

    recommended: bool
    reason: str


def recommendation(
    bias: Mapping[str, Comparison | None],
    quality: Comparison | None,
    evenness: Mapping[str, Comparison | None] = {},
) -> Recommendation:
    """Whether a change is recommended, from comparisons after minus before, on documents that were
    not used to make or choose the change: measures of `bias` (lower is better) and of `evenness`
    (higher is better) by name, and nDCG@10 (`quality`).

    A recommended change improves at least one measure and worsens none. In addition, nDCG@10 is
    not lower, and a loss of nDCG@10 beyond the margin is ruled out.
    """
    measured: list[Measured] = [
        (name, "lower", each) for name, each in bias.items() if each is not None
    ] + [(name, "higher", each) for name, each in evenness.items() if each is not None]
    better, worse, undecided = _sorted(measured)
    if quality is not None and quality.verdict == "lower":
        worse.append(f"{NDCG} is lower")
    if worse:
        return Recommendation(False, f"On held-out documents, {listed(worse)}.")
    if not better:
        if not measured:
            return Recommendation(False, "Position bias was not measured.")
        if undecided:
            open_measures = " or ".join(_with_size(*each) for each in undecided)
            return Recommendation(
                False,
                "Too few held-out documents to decide whether "
                f"{open_measures} changes{_needed(undecided)}.",
            )
        return Recommendation(False, "On held-out documents, position bias is not lower.")
    if quality is None:
        return Recommendation(False, "Without judged queries, its cost is unknown.")
    if quality.verdict != "higher" and not quality.rules_out("lower"):
        return Recommendation(
            False,
            f"Too few held-out documents to rule out a loss of {quality.margin:g} in "
            f"{_with_size(NDCG, quality)}{_needed([(NDCG, quality)])}.",
        )
    gain = (
        f"{NDCG} is higher"
        if quality.verdict == "higher"
        else f"a loss of {quality.margin:g} in {NDCG} is ruled out"
    )
    return Recommendation(True, f"On held-out documents, {listed(better)}, and {gain}.")


def setting_recommendation(
    measures: Mapping[str, tuple[Wanted, Comparison | None]],
) -> Recommendation:
    """Whether another setting of an index is recommended, from measures by name on documents that
    it was not chosen on. One measure must be better and none worse, and no estimate may be a loss
    beyond its margin, even where too few documents decide. The reason names measures for which such
    a loss is not ruled out."""
    measured = [(name, *each) for name, each in measures.items()]
    better, worse, undecided = _sorted(
        [(name, direction, each) for name, direction, each in measured if each is not None]
    )
    if worse:
        words = f"{listed(worse)}{f', although {listed(better)}' if better else ''}"
        return Recommendation(False, f"On held-out documents, {words}.")
    if better:
        words = listed(better)
        losses = [
            (name, each)
            for name, each in undecided
            if abs(each.difference.value) > each.margin
            and (each.difference.value > 0) == (measures[name][0] == "lower")
        ]
        if losses:
            names = listed([name for name, _ in losses])
            return Recommendation(
                False,
                f"On held-out documents, {words}, but {names} may be worse{_needed(losses)}.",
            )
        open_losses = [
            name
            for name, direction, each in measured
            if each is not None
            and each.verdict != direction
            and not each.rules_out("lower" if direction == "higher" else "higher")
        ]
        if open_losses:
            words += f"; a loss in {listed(open_losses)} is not ruled out"
        return Recommendation(True, f"On held-out documents, {words}.")
    if undecided:
        return Recommendation(False, f"Too few held-out documents to decide{_needed(undecided)}.")
    if not any(each for _, each in measures.values()):
        return Recommendation(False, "The held-out documents have no sentences or queries.")
    return Recommendation(
        False, "On held-out documents, every measure is equivalent within its margin."
    )


Measured = tuple[str, Wanted, Comparison]


def _sorted(
    measured: Sequence[Measured],
) -> tuple[list[str], list[str], list[tuple[str, Comparison]]]:
    """What is better and what is worse, in words, and what is undecided."""
    better, worse, undecided = list[str](), list[str](), list[tuple[str, Comparison]]()
    for name, direction, each in measured:
        verdict = each.verdict
        if verdict == "too few documents":
            undecided.append((name, each))
        elif verdict != "equivalent":
            (better if verdict == direction else worse).append(f"{name} is {verdict}")
    return better, worse, undecided


def _with_size(name: str, measure: Comparison) -> str:
    """The name with the number of documents, which can be fewer than are held out: a measure may
    not be defined in all of them."""
    return f"{name} (measured on {measure.difference.n_resampled:,})"


def _needed(undecided: Sequence[tuple[str, Comparison]]) -> str:
    counts = [(each.needed, name) for name, each in undecided if each.needed is not None]
    if not counts:
        return ""
    n = min(needed for needed, _ in counts)
    names = [name for needed, name in counts if needed == n]
    others = [other for other, _ in undecided if other not in names]
    more = f", more for {listed(others)}" if others else ""
    return f"; about {n:,} would be needed for {listed(names)}{more}"


def on_quality_front(points: Sequence[tuple[float | None, float | None]]) -> list[bool | None]:
    """Which of the points (size of the position effect, nDCG@10) are on the Pareto front: no other
    point is at least as good in both and better in one. None for a point without one of the two."""

    def beats(first: tuple[float | None, float | None], two: tuple[float, float]) -> bool:
        if first[0] is None or first[1] is None:
            return False
        return first[0] <= two[0] and first[1] >= two[1] and first != two

    return [
        None
        if effect is None or quality is None
        else not any(beats(other, (effect, quality)) for other in points)
        for effect, quality in points
    ]

"""Paired differences between two models in measures over the same items.

A measure is declared as one row of numbers per item (`ItemMeasure`). Differences, verdicts, table
rows and sentences are derived from it, for studies (`poslens.study`) and for pages and commands
that show several models side by side.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poslens.attribution.curves.bootstrap import Statistic, Values, ratio, ratio_difference
from poslens.attribution.curves.curve_summary import index_sums
from poslens.attribution.evaluation.comparison import (
    INDEX_MARGIN,
    Comparison,
    adjusted,
    compared,
    document_means,
    paired_by_document,
    paired_statistics,
)
from poslens.attribution.evaluation.comparison_words import POINTS, adjustment, p_in_words
from poslens.attribution.nouns import counted
from poslens.attribution.pairs import columns_of
from poslens.attribution.types import ROUNDING
from poslens.cache.lru_cache import LRUCache
from poslens.rows import PERCENT, PERCENTAGE_POINTS, ModelRow, Table, column

if TYPE_CHECKING:
    from poslens.attribution.types import TextPair
    from poslens.cache.storage.store import StoredCurves
    from poslens.compute.compute import DataSetCurve

Item = TypeVar("Item", bound=Hashable)

DIFFERENCES, TITLE = "differences", "Paired differences"
ITEMS, ITEMS_TITLE = "items", "Values by item"
MAX_NUMBERS = 3
"""Number of measures up to which a sentence gives the numbers of each."""
_NO_DIFFERENCE = {
    "equivalent": "equivalent",
    "too few documents": "too few documents to decide",
}


def mean(means: Values) -> Values:
    """The statistic of a measure with one number per item: the mean itself [n] of `means` [n,
    1]."""
    return means[:, 0]


def in_deviations(values: Mapping[Item, float], scores: ArrayLike) -> dict[Item, Values]:
    """Differences of a model's scores as rows of a measure: in standard deviations of the model's
    `scores`, because models have different scales. Empty if all scores are equal, which gives no
    scale."""
    scores = np.asarray(scores, dtype=np.float64)
    deviation = float(np.std(scores)) if scores.size else 0.0
    if deviation <= ROUNDING * float(np.abs(scores).max(initial=0)):
        return {}
    return {item: np.array([value / deviation]) for item, value in values.items()}


@dataclass(frozen=True)
class ItemMeasure:
    """A measure of one model: `statistic`, by default the mean, of the mean of `rows`, which have K
    numbers for each item. `documents` has the document of each item, which intervals resample;
    `resampled` says what these are. `units` names the items. Two models that differ by at most
    `margin` are equivalent. If `share`, the statistic is a share or a difference of shares, and
    sentences give it in percent. `largest` is the largest possible difference between two models'
    items, if these are events or ranks, which are often equal (`compared`); without it, it is 1 for
    shares. If `by_document`, the measure is the mean over documents of their mean rows, compared by
    a paired t-test instead of a bootstrap. `label` returns the id of an item."""

    title: str
    units: str
    margin: float
    rows: Mapping[Any, NDArray[np.float64]]
    documents: Mapping[Any, Hashable]
    statistic: Statistic = mean
    share: bool = False
    largest: float | None = None
    by_document: bool = False
    resampled: str = "documents"
    label: Callable[[Any], str] = str

    @property
    def share_change(self) -> bool:
        """Whether the statistic is a difference of shares."""
        return self.share and self.statistic is ratio_difference

    @property
    def largest_change(self) -> float | None:
        """The largest possible difference of an item; None for measures other than of events or
        ranks."""
        return self.largest or (1.0 if self.share else None)

    def counts(self, rows: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """The numbers of events that each of these rows counts [n, parts], such as a document's
        sentences in the last and in the first third; None if they count none."""
        return None if not self.share or self.statistic is mean else rows[:, rows.shape[1] // 2 :]

    def shared_with(self, other: ItemMeasure) -> tuple[Values, Values, list[Hashable]] | None:
        """The rows of this and of another measure for the items that both have, and the documents
        of these; None if there are none."""
        both = [item for item in self.rows if item in other.rows]
        if not both:
            return None
        rows, other_rows = (
            np.array([each.rows[item] for item in both], dtype=np.float64) for each in (self, other)
        )
        return rows, other_rows, [self.documents[item] for item in both]

    @cached_property
    def digest(self) -> bytes:
        """A hash of the measure and all of its rows."""
        about = f"{self.title}\0{self.units}\0{self.margin!r}\0{self.share}\0{self.largest}"
        about += (
            f"\0{self.by_document}\0{self.resampled}\0{getattr(self.statistic, '__qualname__', '')}"
        )
        total = hashlib.sha256(about.encode())
        for item, row in self.rows.items():
            total.update(repr((item, self.documents[item])).encode("utf-8", "replace"))
            total.update(np.ascontiguousarray(row).tobytes())
        return total.digest()

    def test(self) -> Comparison | None:
        """The measure compared with 0; None without items, or if it is undefined."""
        rows = np.array([*self.rows.values()], dtype=np.float64)
        documents = [self.documents[item] for item in self.rows]

        def compare() -> Comparison | None:
            if not len(rows):
                return None
            counts = self.counts(rows)
            return compared(rows, documents, self.margin, self.statistic, counts=counts)

        return _tests.get(self.digest, compare)


_tests: LRUCache[Comparison | None] = LRUCache(64)


def index_measure(
    curves: StoredCurves, documents: Mapping[str, Hashable], title: str = "primacy-recency index"
) -> ItemMeasure:
    """The primacy-recency index of the mean magnitudes of stored curves, as a measure. `documents`
    are by pair id."""
    rows = dict(zip(curves.pair_ids, index_sums(curves.magnitudes), strict=True))
    of_pairs = {pair_id: documents[pair_id] for pair_id in curves.pair_ids}
    return ItemMeasure(title, "pairs", INDEX_MARGIN, rows, of_pairs, ratio)


@dataclass(frozen=True)
class MeasuredModel:
    """The name of a model, or of an index, and its measures."""

    name: str
    measures: Sequence[ItemMeasure]


@dataclass(frozen=True)
class ItemRow(ModelRow):
    """The value of one item, from which a measure and its paired differences are computed."""

    measure: str = column("What was measured.")
    units: str = column("What the items are, such as pairs, queries or documents.")
    item: str = column("Id of the item.")
    document: int = column(
        "Number of the document, from 1 in order of appearance: items of one document are not "
        "independent, and intervals resample documents."
    )
    value: float | None = column(
        "The measure of this item alone; null if it is undefined.", form=".4f"
    )
    weight: float | None = column(
        "Weight of the value in the mean over items: the denominator of a share or an index, "
        "otherwise 1. Null for differences of shares, which are not a mean of these values. Bias "
        "tests average each document first.",
        form=".4g",
    )


def item_rows(model: MeasuredModel | None) -> Iterator[ItemRow]:
    """The rows of a table of values by item."""
    if model is None:
        return
    for measure in (each for each in model.measures if each.rows):
        numbers: dict[Hashable, int] = {}
        rows = np.array([*measure.rows.values()], dtype=np.float64)
        values = measure.statistic(rows).tolist()
        # Only groups of items have a value, such as needles in the first and in the last third.
        if not any(map(math.isfinite, values)):
            continue
        weights: list[float | None] = [1.0] * len(rows)
        if measure.statistic is not mean:
            weights = rows[:, 1].tolist() if measure.statistic is ratio else [None] * len(rows)
        for item, value, weight in zip(measure.rows, values, weights, strict=True):
            number = numbers.setdefault(measure.documents[item], len(numbers) + 1)
            yield ItemRow(
                model.name,
                measure.title,
                measure.units,
                measure.label(item),
                number,
                value if math.isfinite(value) else None,
                weight,
            )


ITEM_TABLE: Table[MeasuredModel] = Table(ItemRow, item_rows, ITEMS_TITLE, on_page=False)


@dataclass(frozen=True)
class DifferenceRow:
    """A measure of two models on the same items."""

    model: str = column("The model, or the model and what else distinguishes the result.")
    against: str = column("What it is compared with.", title="compared with")
    measure: str = column("What was measured.", first=2)
    value: float = column("The model's value.", of_share=PERCENT, of_change=PERCENTAGE_POINTS)
    other_value: float = column(
        "The other model's value.",
        title="value of the other",
        of_share=PERCENT,
        of_change=PERCENTAGE_POINTS,
    )
    difference: Comparison = column(
        "Value minus other value, paired.", form="+.3f", first=1, of_share=PERCENTAGE_POINTS
    )
    n: int = column("Items that both results have.")
    units: str = column("What the items are, such as pairs, queries or documents.")
    documents: int = column("Number of distinct documents, which intervals resample.")
    share: bool = column(
        "Whether the measure is a share or a difference of shares.", shown=False, in_files=False
    )
    share_change: bool = column(
        "Whether the measure is a difference of shares.", shown=False, in_files=False
    )

    @property
    def items(self) -> str:
        """The number of items that both have: `30 pairs`."""
        noun = {"queries": "query"}.get(self.units, self.units.removesuffix("s"))
        return counted(self.n, noun)

    @property
    def in_words(self) -> str:
        """`is higher by 0.252 [0.180, 0.319] (p < 0.001)`, or the difference with its verdict if
        neither model is higher; shares in percentage points."""
        comparison = self.difference
        scale, form, unit = (100.0, ".1f", POINTS) if self.share else (1.0, ".3f", "")
        if comparison.verdict not in ("higher", "lower"):
            return f"differs by {comparison.text(f'+{form}', scale, unit)}"
        sign = 1 if comparison.verdict == "higher" else -1
        difference = comparison.difference.times(sign * scale).text(form)
        return f"is {comparison.verdict} by {difference}{unit} ({p_in_words(comparison)})"


def paired_differences(models: Sequence[MeasuredModel]) -> list[DifferenceRow]:
    """Each model compared with every earlier one in each measure that both have. The p values are
    adjusted (Holm) for all of these comparisons."""
    differences = [
        difference
        for number, model in enumerate(models)
        for other in models[:number]
        for measure in model.measures
        for other_measure in other.measures
        if measure.title == other_measure.title
        and (difference := _difference(model.name, measure, other.name, other_measure)) is not None
    ]
    comparisons = adjusted([row.difference for row in differences])
    return [
        replace(row, difference=comparison or row.difference)
        for row, comparison in zip(differences, comparisons, strict=True)
    ]


_differences: LRUCache[DifferenceRow | None] = LRUCache(256)


def _difference(
    name: str, measure: ItemMeasure, other_name: str, other: ItemMeasure
) -> DifferenceRow | None:
    """The difference over the items of both; None without any, or if the statistic is undefined."""

    def difference() -> DifferenceRow | None:
        if (shared := measure.shared_with(other)) is None:
            return None
        rows, other_rows, documents = shared
        if measure.by_document:
            comparison = paired_by_document(other_rows[:, 0], rows[:, 0], documents, measure.margin)
            value, other_value = (
                float(document_means(side[:, 0], documents).mean()) for side in (rows, other_rows)
            )
        else:
            comparison = paired_statistics(
                other_rows,
                rows,
                documents,
                measure.margin,
                measure.statistic,
                counts=measure.counts(rows),
                largest=measure.largest_change,
            )
            value, other_value = (
                float(measure.statistic(side.mean(0)[None])[0]) for side in (rows, other_rows)
            )
        if comparison is None:
            return None
        estimate = replace(comparison.difference, resampled=measure.resampled)
        return DifferenceRow(
            name,
            other_name,
            measure.title,
            value,
            other_value,
            replace(comparison, difference=estimate),
            estimate.n,
            measure.units,
            estimate.n_resampled,
            measure.share,
            measure.share_change,
        )

    return _differences.get((name, measure.digest, other_name, other.digest), difference)


# Pages need these at every rerun.
_of_curves: LRUCache[list[DifferenceRow]] = LRUCache(32)


def curve_differences(
    curves: Sequence[DataSetCurve], pairs: Sequence[TextPair]
) -> list[DifferenceRow]:
    """Paired differences between the primacy-recency indices of mean curves over `pairs`; none for
    a single curve."""
    if len(curves) < 2:
        return []

    return _of_curves.get(
        tuple(curve.content for curve in curves),
        lambda: paired_differences(measured_curves(curves, pairs)),
    )


def measured_curves(
    curves: Sequence[DataSetCurve], pairs: Sequence[TextPair]
) -> list[MeasuredModel]:
    """The primacy-recency index of each pair's curve."""
    columns = columns_of(pairs)
    documents = dict(zip(columns.ids.tolist(), columns.documents.tolist(), strict=True))
    return [
        MeasuredModel(curve.model.spec.name, [index_measure(curve.stored, documents)])
        for curve in curves
    ]


def difference_sentences(differences: Sequence[DifferenceRow]) -> list[str]:
    """One sentence per pair of models, with the verdict of each measure and the number of items
    that both models have. Measures that are 0 for both are left out, unless all are. Of more than
    MAX_NUMBERS measures, those without a difference are only named. If all measures share the unit
    in parentheses or the adjustment of p, it is stated once."""
    pairs: dict[tuple[str, str], list[DifferenceRow]] = {}
    for each in differences:
        pairs.setdefault((each.model, each.against), []).append(each)
    sentences = []
    for (model, other), of_pair in pairs.items():
        shown = [each for each in of_pair if each.value or each.other_value] or of_pair
        words, others = [], dict[str, list[str]]()
        same_items = len({each.items for each in shown}) == 1
        units = {each.measure.partition(" (")[2] for each in shown}
        unit = f" ({units.pop()}" if len(shown) > 1 and len(units) == 1 and units != {""} else ""
        for each in shown:
            verdict = each.difference.verdict
            title = each.measure.removesuffix(unit)
            if not same_items:
                title += f" over {each.items}"
            if len(shown) > MAX_NUMBERS and verdict in _NO_DIFFERENCE:
                others.setdefault(_NO_DIFFERENCE[verdict], []).append(title)
            else:
                words.append(f"{title} {each.in_words}")
        words += [f"{verdict}: {', '.join(titles)}" for verdict, titles in others.items()]
        over = f" over {shown[0].items}" if same_items else ""
        sentence = f"{model} compared with {other}{over}{unit}: {'; '.join(words)}."
        adjusted_over = adjustment(shown[0].difference)
        if adjusted_over and sentence.count(adjusted_over) > 1:
            sentence = sentence.replace(f", {adjusted_over}", "") + f" p is {adjusted_over}."
        sentences.append(sentence)
    return sentences

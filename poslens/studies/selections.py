"""Parameters that several studies share, and what they select: methods, and items of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from poslens.attribution.datasets.types import spread_evenly, spread_words
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, instead_of, make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.compute import coverage
from poslens.compute.compute import Compute
from poslens.compute.coverage import Report
from poslens.parameters import Integer, Settings, Several, Switch
from poslens.studies.cause.service import DEFAULT_PAIRS
from poslens.study import Study, Subject, Summary

METHOD_CHOICE = Several(
    option="--method",
    default=(),
    options=tuple(METHODS),
    closed=True,
    titles={name: entry.title for name, entry in METHODS.items()},
    help="Attribution methods; by default, all that the model supports, except slow ones.",
)

READABLE = Switch(
    title="Exclude pairs with truncated evidence",
    help="Exclude pairs whose evidence any selected model truncates, and pairs with more than "
    f"{coverage.MAX_UNKNOWN:.0%} unknown tokens.",
)


def number_of(noun: str) -> Integer:
    """How many of a data set's items, such as `pairs`, to use; 0 means all."""
    return Integer(
        default=DEFAULT_PAIRS,
        low=0,
        step=5,
        help=f"Number of {noun}, spread evenly over the data set; 0 means all.",
    )


def selected(items: Sequence[TextPair], n: int, noun: str = "pairs") -> tuple[Pairs, str]:
    """`n` items, spread evenly over the data set (all if `n` is 0), and the selection as text."""
    n = min(n or len(items), len(items))
    return Pairs(spread_evenly(items, n)), spread_words(n, noun)


@dataclass(frozen=True)
class SelectedPairs:
    """Pairs of a data set, or its documents as pairs without a query, and how they were selected,
    as text."""

    dataset: str
    pairs: Pairs
    selection: str

    @property
    def scope(self) -> str:
        """What identifies these pairs in runs."""
        return f"{self.dataset}: {self.selection} {self.pairs.digest}"


Selected = TypeVar("Selected", bound=SelectedPairs)


class OfPairs(Study[Selected, Subject, Summary]):
    """Base class of studies of selected pairs, which may have the parameter `readable`."""

    def narrowed(
        self,
        compute: Compute,
        specs: Sequence[RetrieverSpec],
        corpus: Selected,
        settings: Settings,
        report: Report = lambda done, total: None,
    ) -> Selected:
        """With the setting `readable`, only the pairs whose evidence every model reads.

        Raises:
            UserError: no pair remains, or a model cannot be loaded.
        """
        if not settings.get("readable"):
            return corpus
        readable = coverage.readable(compute, specs, corpus.pairs, report)
        if not len(readable):
            raise UserError(
                "Every pair was excluded: a selected model truncates its evidence, or more than "
                f"{coverage.MAX_UNKNOWN:.0%} of its tokens are unknown. Select more pairs, or "
                "another model."
            )
        selection = f"{corpus.selection}, {coverage.LEFT_OUT}"
        return replace(corpus, pairs=readable, selection=selection)


def methods_for(compute: Compute, spec: RetrieverSpec, names: Sequence[str]) -> list[Method]:
    """The methods with these names, including those that don't fit the model, which their jobs
    refuse; without names, all that fit and are not slow.

    Raises:
        UserError: no method fits.
    """
    unfit = compute.unfit(compute.identify(spec))
    fast = [name for name, entry in METHODS.items() if not entry.slow]
    fitting = [name for name in names or fast if name not in unfit]
    if not fitting:
        reasons = dict.fromkeys(unfit[name].rstrip(".") for name in names or fast)
        none = "None of these methods" if names else "No fast method"
        raise UserError(
            f"{none} is available for {spec.name}: {'; '.join(reasons)}. {instead_of(unfit)}"
        )
    return [make_method(name) for name in names or fitting]

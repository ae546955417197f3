"""Parameters that several studies share, and what they select: methods, and items of a data set."""

from __future__ import annotations

from collections.abc import Sequence

from poslens.attribution.datasets.types import spread_evenly, spread_words
from poslens.attribution.errors import UserError
from poslens.attribution.methods import METHODS, make_method
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, TextPair
from poslens.compute import coverage
from poslens.compute.compute import Compute
from poslens.compute.coverage import Report
from poslens.parameters import Integer, Several, Switch

METHOD_CHOICE = Several(
    title="Methods",
    option="--method",
    default=(),
    options=tuple(METHODS),
    closed=True,
    help="Attribution method (see `methods`); repeatable. By default all that the model supports, "
    "except slow ones.",
)

READABLE = Switch(
    title="Exclude pairs with truncated evidence",
    help="Exclude pairs whose evidence any selected model truncates, and pairs with more than "
    f"{coverage.MAX_UNKNOWN:.0%} unknown tokens.",
)


def number_of(noun: str, default: int) -> Integer:
    """How many of a data set's items, such as `pairs`, to use; 0 means all."""
    return Integer(
        title=noun.capitalize(),
        default=default,
        low=0,
        high=10_000_000,
        step=5,
        help=f"Number of {noun}, spread evenly over the data set; 0 means all.",
    )


def selected(items: Sequence[TextPair], n: int, noun: str = "pairs") -> tuple[Pairs, str]:
    """`n` items, spread evenly over the data set (all if `n` is 0), and the selection as text."""
    n = min(n or len(items), len(items))
    return Pairs(spread_evenly(items, n)), spread_words(n, noun)


def readable_only(
    compute: Compute,
    specs: Sequence[RetrieverSpec],
    pairs: Sequence[TextPair],
    selection: str,
    report: Report,
) -> tuple[Pairs, str]:
    """The pairs whose evidence every model reads, and the selection as text.

    Raises:
        UserError: no pair remains, or a model cannot be loaded.
    """
    readable = coverage.readable(compute, specs, pairs, report)
    if not len(readable):
        raise UserError(
            "Every pair was excluded: a selected model truncates its evidence, or more than "
            f"{coverage.MAX_UNKNOWN:.0%} of its tokens are unknown. Select more pairs, or another "
            "model."
        )
    return readable, f"{selection}, {coverage.LEFT_OUT}"


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
        raise UserError(
            f"None of these methods is available for {spec.name}: {'; '.join(reasons)}."
        )
    return [make_method(name) for name in names or fitting]

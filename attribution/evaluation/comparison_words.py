"""Comparisons in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.sample_size import LEVEL

if TYPE_CHECKING:
    from poslens.attribution.evaluation.comparison import Comparison

POINTS = " percentage points"
"""The unit of a difference of two shares times 100."""

UNCHANGED = "does not change"


def change_in_words(difference: Estimate, form: str = ".3f", unit: str = "") -> str:
    """A change with its interval and unit, such as `drops by 0.054 [0.027, 0.082]`, or `does not
    change` if all of it rounds to 0; if only the value does, it is `less than` one last digit.

    The interval is in the direction of the change: its lower end is negative if it includes a
    change in the other direction.
    """
    verb = "drops" if difference.value < 0 else "rises"
    size = size_in_words(difference, form)
    return f"{verb if difference.value else 'changes'} by {size}{unit}" if size else UNCHANGED


def size_in_words(difference: Estimate, form: str) -> str:
    """The size of a change as in `change_in_words`; empty if all of it rounds to 0."""
    text = difference.times(-1 if difference.value < 0 else 1).text(form)
    if not any(digit in text for digit in "123456789"):
        return ""
    value, space, ends = text.partition(" ")
    if not any(digit in value for digit in "123456789"):  # such as 0.000
        return f"less than {value[:-1]}1{space}{ends}"
    return text


def share_change(comparison: Comparison) -> str:
    """The change of a share in percentage points, as `change_in_words`."""
    return change_in_words(comparison.difference.times(100), ".1f", POINTS)


def p_in_words(comparison: Comparison) -> str:
    """The adjusted p, and over how many comparisons it is adjusted if there are several."""
    p = comparison.p_holm or 0.0
    # As many digits as show on which side of the level p is.
    texts = (f"{p:.{digits}g}" for digits in range(2, 9))
    text = next((text for text in texts if float(text) != LEVEL), f"{p:g}")
    words = "p < 0.001" if p < 0.001 else f"p = {text}"
    return ", ".join(filter(None, (words, adjustment(comparison))))


def adjustment(comparison: Comparison) -> str:
    """Over how many comparisons p is adjusted; empty for a single one."""
    n = comparison.n_compared
    return f"Holm-adjusted over {n:,} tests" if n > 1 else ""

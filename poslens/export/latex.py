"""Tables as LaTeX, for a paper: `booktabs`, with the intervals and the test in the caption."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from poslens.attribution.evaluation.comparison import TEST
from poslens.figures.figure_base import caption_text

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    **{sign: f"\\{sign}" for sign in "$&#%_"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "−": "$-$",
}
_LOW, _HIGH = re.compile(r"[ _]low$"), re.compile(r"[ _]high$")


def latex(frame: pd.DataFrame, entries: Sequence[Mapping[str, Any]]) -> bytes:
    """A table as a `table` float that needs the package booktabs. A number and both ends of its
    interval (columns `x`, `x_low`, `x_high`) are one cell. The caption is the provenance, with what
    was resampled, and where the table has verdicts the test."""
    columns = list(_columns([str(name) for name in frame.columns]))
    has_verdicts = any(str(name).endswith("verdict") for name in frame.columns)
    caption = f"{caption_text(entries)}." + (
        f" {TEST[0].upper()}{TEST[1:]}." if has_verdicts else ""
    )
    kinds = "".join("r" if _numeric(frame.iloc[:, own[0]]) else "l" for _, own in columns)
    lines = [
        "% Needs \\usepackage{booktabs}.",
        r"\begin{table}",
        r"\centering",
        f"\\caption{{{escaped(caption)}}}",
        f"\\begin{{tabular}}{{{kinds}}}",
        r"\toprule",
        _line(name.replace("_", " ") for name, _ in columns),
        r"\midrule",
        *(_line(_cells(row, columns)) for row in frame.itertuples(index=False, name=None)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return ("\n".join(lines) + "\n").encode()


def escaped(text: str) -> str:
    """Text that LaTeX sets as it is, on one line."""
    signs = (_SPECIAL.get(sign, sign) for sign in " ".join(text.split()))
    return "".join(sign for sign in signs if len(sign) > 1 or sign.isprintable())


def _columns(names: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Each column's name and the places of its number, or of its number and both ends."""
    at = 0
    while at < len(names):
        following = names[at + 1 : at + 3]
        whole = (
            len(following) == 2
            and _LOW.sub("", following[0]) == _HIGH.sub("", following[1]) == names[at]
        )
        yield names[at], [at, at + 1, at + 2] if whole else [at]
        at += 3 if whole else 1


def _cells(row: Sequence[Any], columns: Sequence[tuple[str, list[int]]]) -> Iterator[str]:
    for _, own in columns:
        value, *ends = (_text(row[i]) for i in own)
        yield f"{value} [{', '.join(ends)}]" if all(ends) and ends else value


def _text(value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if 0.001 <= abs(value) < 10_000 or not value else f"{value:.3g}"
    return str(value)


def _numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _line(cells: Any) -> str:
    # A minus sign that is a number's own is set as one.
    return " & ".join(re.sub(r"(?<![\w])-(?=\d)", "$-$", escaped(cell)) for cell in cells) + r" \\"

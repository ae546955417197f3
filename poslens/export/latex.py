"""Tables as LaTeX with `booktabs`, with their provenance in a note."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd

from poslens.attribution.evaluation.comparison import TEST, TEST_BY_ERROR
from poslens.attribution.methods import METHODS
from poslens.attribution.text import listed
from poslens.attribution.types import in_words
from poslens.figures.captions import caption_text, method_words

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
_LOW, _HIGH = re.compile(r"(^|[ _])low$"), re.compile(r"(^|[ _])high$")
_NOT_IN_PDFLATEX = re.compile("[^\\x00-\\u017f\u2010-\u2014\u2018-\u201e†‡•…‰€™]")
_LONG = 40
"""Number of rows from which a table can break across pages."""
_NAMED = 6
"""Number of models up to which the caption names them."""
_PERMUTATION = "p of PSI: share of permutations of the evidence positions whose PSI is as large"


def latex(frame: pd.DataFrame, entries: Sequence[Mapping[str, Any]], name: str) -> bytes:
    """A table as a `table` float that needs the package booktabs, or a `longtable` if it is long,
    with the label `tab:NAME`. A number and both ends of its interval become one cell: columns `x`,
    `x_low`, `x_high`; `x`, `low`, `high`; or `mean` with later `ci_low`, `ci_high`. Headings are
    those of pages (`poslens.rows`). The caption says what the table shows, for which models and
    data set, and of how many items. Empty columns are left out. A note below the table has the
    columns with the same value in every row, the provenance, which names the resampled items, and
    the test that verdicts or p values come from. The first line names other engines if the text has
    characters that pdfLaTeX rejects."""
    names = [str(name) for name in frame.columns]
    titles = {each: _heading(each) for each in names} | frame.attrs.get("titles", {})
    columns = [
        each for each in _columns(names) if not len(frame) or _filled(frame.iloc[:, each[1][0]])
    ]
    same = _same(frame, columns)
    columns = [each for each in columns if each[0] not in same]
    label = re.sub(r"[^A-Za-z0-9.:-]+", "-", name).strip("-") or "table"
    head = rf"\caption{{{escaped(_caption(frame, entries))}}}\label{{tab:{label}}}"
    constants = "; ".join(
        f"{titles[each]}: {value}"
        for each, value in same.items()
        if any(str(entry.get(each)) != value for entry in entries)
    )
    parts = [constants and f"in every row, {constants}", *_notes(names, entries)]
    note = rf"\footnotesize {escaped(' '.join(map(_sentence, filter(None, parts))))}"
    kinds = "".join("r" if _numeric(frame.iloc[:, indices[0]]) else "l" for _, indices in columns)
    body = [r"\toprule", _line(titles[each] for each, _ in columns), r"\midrule"]
    rows = [_line(_cells(row, columns)) for row in frame.itertuples(index=False, name=None)]
    unicode = _NOT_IN_PDFLATEX.search("".join((head, note, *body, *rows)))
    engine = " Compile with XeLaTeX or LuaLaTeX, and a font for all scripts." if unicode else ""
    if len(rows) >= _LONG:
        lines = [
            f"% Needs \\usepackage{{booktabs,longtable}}.{engine}",
            f"\\begin{{longtable}}{{{kinds}}}",
            rf"{head} \\",
            *body,
            r"\endhead",
            *rows,
            r"\bottomrule",
            r"\end{longtable}",
            rf"{{\noindent{note}\par}}",
        ]
    else:
        lines = [
            f"% Needs \\usepackage{{booktabs}}.{engine}",
            r"\begin{table}",
            r"\centering",
            head,
            f"\\begin{{tabular}}{{{kinds}}}",
            *body,
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\par\smallskip",
            r"\begin{minipage}{\linewidth}",
            note,
            r"\end{minipage}",
            r"\end{table}",
        ]
    return ("\n".join(lines) + "\n").encode()


def _filled(values: pd.Series) -> bool:
    """Whether a column has a value in any row."""
    return any(_text(value, 0.0) for value in values)


def _same(frame: pd.DataFrame, columns: Sequence[tuple[str, list[int]]]) -> dict[str, str]:
    """The columns that have one value in all of several rows, and that value. Verdicts and numbers
    with intervals stay in the table, because they are its results, and so does everything if
    nothing else would."""
    same = {
        name: next(_cells([*frame.iloc[0]], [(name, indices)]))
        for name, indices in columns
        if len(frame) > 1
        and len(indices) == 1
        and frame.iloc[:, indices[0]].nunique(dropna=False) == 1
        and not name.endswith("verdict")
    }
    return same if len(same) < len(columns) else {}


def _heading(name: str) -> str:
    return re.sub(r"\bp holm$", "p (Holm)", name.replace("_", " "))


def _caption(frame: pd.DataFrame, entries: Sequence[Mapping[str, Any]]) -> str:
    """What a table shows, for which models and data sets, and of how many items, if that is the
    same for all."""
    models, data_sets, methods = (
        list(dict.fromkeys(str(entry[key]) for entry in entries))
        for key in ("model", "dataset", "method")
    )
    title = frame.attrs.get("title", "")
    if not title or (len(methods) == 1 and methods[0].partition("(")[0] in METHODS):
        title = ", ".join(filter(None, (title, *dict.fromkeys(map(method_words, methods)))))
    named = listed(models) if len(models) <= _NAMED else f"{len(models)} models"
    counts = [
        in_words(entries[0])[key]
        for key in ("n_pairs", "n_queries", "n_documents")
        if all(key in entry and entry[key] == entries[0][key] for entry in entries)
    ]
    counted = f" ({', '.join(counts)})" if counts else ""
    return _sentence(f"{title}: {named} on {listed(data_sets)}{counted}")


def _sentence(text: str) -> str:
    if text.startswith("poslens"):
        return f"PosLens{text.removeprefix('poslens')}."
    return f"{text[0].upper()}{text[1:]}."


def _notes(names: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield caption_text(entries)
    if any(name.endswith("verdict") for name in names):
        intervals = [str(entry.get("interval", "")) for entry in entries]
        by_error = any("jackknife" in text or "t interval" in text for text in intervals)
        yield TEST_BY_ERROR if by_error else TEST
    if "PSI under permutation" in names and "p" in names:
        yield _PERMUTATION


def escaped(text: str) -> str:
    """Text escaped for LaTeX, on one line."""
    quoted = re.sub(r'"([^"]*)"', r"``\1''", " ".join(text.split()))
    signs = (_SPECIAL.get(sign, sign) for sign in quoted)
    return "".join(sign for sign in signs if len(sign) > 1 or sign.isprintable())


def _columns(names: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Each LaTeX column: its name, and the index of its number or of its number and both ends."""
    intervals = {}
    for at, (low, high) in enumerate(pairwise(names)):
        owner = _LOW.sub("", low)
        if low == owner or owner != _HIGH.sub("", high):
            continue
        number = "mean" if owner == "ci" else owner or names[max(at - 1, 0)]
        if number in names[:at]:
            intervals[names.index(number)] = [at, at + 1]
    ends = {at for interval in intervals.values() for at in interval}
    for at, name in enumerate(names):
        if at not in ends:
            yield name, [at, *intervals.get(at, [])]


def _cells(row: Sequence[Any], columns: Sequence[tuple[str, list[int]]]) -> Iterator[str]:
    for _, indices in columns:
        largest = max((abs(row[i]) for i in indices if isinstance(row[i], float)), default=0.0)
        value, *ends = (_text(row[i], largest) for i in indices)
        yield f"{value} [{', '.join(ends)}]" if all(ends) and ends else value


def _text(value: Any, largest: float) -> str:
    """A cell's text; numbers of one cell have the same format, which depends on its `largest`."""
    if value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.3f}" if 0.001 <= largest < 10_000 or not value else f"{value:.3g}"
    return str(value)


def _numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _line(cells: Any) -> str:
    # A hyphen before a digit is a minus sign.
    return " & ".join(re.sub(r"(?<![\w])-(?=\d)", "$-$", escaped(cell)) for cell in cells) + r" \\"

"""Tables as LaTeX with `booktabs`, with their provenance in a note and a comment."""

from __future__ import annotations

import math
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import TYPED
from poslens.attribution.evaluation.comparison import TEST, TEST_BY_ERROR
from poslens.attribution.methods import METHODS
from poslens.attribution.nouns import number_text
from poslens.attribution.text import listed, with_typeset_numbers
from poslens.attribution.types import in_words
from poslens.figures.captions import caption_text, method_words
from poslens.rows import estimate_text, is_of_share, p_text

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
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "≈": r"$\approx$",
}
_JOINERS = "\u200c\u200d"
"""Characters that change the letters or emoji next to them."""
_LOW, _HIGH = re.compile(r"(^|[ _])low$"), re.compile(r"(^|[ _])high$")
_NOT_IN_PDFLATEX = re.compile(
    "[^\\x00-\u0125\u0128-\u0137\u0139-\u013e\u0141-\u0148\u014a-\u0165\u0168-\u017e"
    "\u2010-\u2014\u2018-\u201a\u201c-\u201e†‡•…‰€™]"
)
"""What pdfLaTeX rejects with the font encoding T1."""
_LONG = 40
"""Number of lines from which a table can break across pages."""
_COLUMN, _PAGE = 45, 90
"""Characters in a line of a two-column article's column, and of its page."""
_SIZES = ((70, r"\small"), (78, r"\footnotesize"), (86, r"\scriptsize"), (110, r"\tiny"))
"""Font sizes of long tables, which can't be scaled, by their width in characters. Wider ones are in
landscape."""
_LANDSCAPE = 1.6
"""How many more characters a line has in landscape."""
_HEADING, _TEXT = 12, (32, 24, 16)
"""Characters at which a column's heading wraps if its cells are not wider, and at which texts of a
wide table wrap: the first that suffice."""
_SMALL_OR_LARGE = ".2e"
"""The format of numbers that have too few or too many digits before the exponent."""
_NAMED = 6
"""Number of models up to which the caption names them."""
_NOT_IN_NOTE = ("dataset", "dataset_files", "model_source", "weights", "precision", "prompts")
"""Provenance that only the caption or the comment has."""
_P = re.compile(r"(^|[ _])p([ _]holm)?$")
_PERMUTATION = (
    "The p of PSI is the share of permutations of the evidence positions whose PSI is as large"
)


def latex(frame: pd.DataFrame, entries: Sequence[Mapping[str, Any]], name: str) -> bytes:
    """A table as a float with the label `tab:NAME`, or a `longtable` if it is long. It is at most
    as wide as the text: a float that needs more than a column of a two-column article is a
    `table*`, with intervals below their numbers if it is wide, and scaled if it is still too wide.

    A number and both ends of its interval become one cell: columns `x`, `x_low`, `x_high`; `x`,
    `low`, `high`; or `mean` with later `ci_low`, `ci_high`. Headings are those of pages
    (`poslens.rows`), and so are formats and words. The caption says what the table shows, for which
    models and data set, and of how many items. Empty columns are left out. A note below the
    table has counts and settings that are the same in every row, the method, the resampled items,
    and the test that verdicts or p values come from. Comments at the beginning have the whole
    provenance, and name the packages and engines that the table needs.
    """
    names = [str(name) for name in frame.columns]
    kind_of = ["r" if _numeric(frame.iloc[:, at]) else "l" for at in range(len(names))]
    texts = frame.attrs.get("texts", {})
    frame = frame.assign(**{name: of_rows[: len(frame)] for name, of_rows in texts.items()})
    titles = {each: _heading(each) for each in names} | frame.attrs.get("titles", {})
    columns = [
        each for each in _columns(names) if not len(frame) or _filled(frame.iloc[:, each[1][0]])
    ]
    forms = frame.attrs.get("forms", {})
    same = _same(frame, columns, entries)
    columns = [each for each in columns if each[0] not in same]
    by_model = _by_model(frame, columns)
    columns = [each for each in columns if each[0] not in by_model]
    rows = [
        list(_cells(row, columns, _forms(forms, number)))
        for number, row in enumerate(frame.itertuples(index=False, name=None))
    ]
    headings = [
        _wrapped(titles[name], max([_HEADING, *(len(row[at]) for row in rows)]), whole_words=True)
        for at, (name, _) in enumerate(columns)
    ]
    width = _width(headings, rows)
    if width > _PAGE:
        rows = _narrowed(headings, rows, [len(indices) > 1 for _, indices in columns])
    label = re.sub(r"[^A-Za-z0-9.:-]+", "-", name).strip("-") or "table"
    head = rf"\caption{{{_typeset(_caption(frame, entries))}}}\label{{tab:{label}}}"
    constants = "; ".join(
        f"{titles[each]}: {value}"
        for each, value in same.items()
        if any(str(entry.get(each)) != value for entry in entries)
    )
    numbers = [f"{titles[each]}: {text}" for each, text in by_model.items()]
    parts = [constants and f"in every row, {constants}", *numbers, *_notes(names, entries)]
    note = rf"\footnotesize\sloppy {_typeset(' '.join(map(_sentence, filter(None, parts))))}"
    kinds = "".join(kind_of[indices[0]] for _, indices in columns)
    top = [r"\toprule", _line(headings, kinds, "b"), r"\midrule"]
    lines = [_line(row, kinds, "c") for row in rows]
    if sum(max(cell.count("\n") for cell in row) + 1 for row in rows) >= _LONG:
        package = "longtable"
        comments = [r"In a two-column article, put it between \onecolumn and \twocolumn."]
        width = _width(headings, rows)
        if landscape := width > _SIZES[-1][0]:
            package, width = "longtable,pdflscape", width / _LANDSCAPE
        size = next((size for limit, size in _SIZES if width <= limit), _SIZES[-1][1])
        table = [
            *([r"\begin{landscape}"] if landscape else []),
            rf"{{{size}\setlength{{\tabcolsep}}{{3pt}}",
            f"\\begin{{longtable}}{{{kinds}}}",
            rf"{head} \\",
            *top,
            r"\endhead",
            *lines,
            r"\bottomrule",
            r"\end{longtable}",
            rf"\noindent{note}\par}}",
            *([r"\end{landscape}"] if landscape else []),
        ]
    else:
        package, comments = "adjustbox", []
        kind = "table*" if width > _COLUMN else "table"
        table = [
            rf"\begin{{{kind}}}",
            r"\centering",
            head,
            r"\begin{adjustbox}{max width=\linewidth}",
            f"\\begin{{tabular}}{{{kinds}}}",
            *top,
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
            r"\par\smallskip",
            r"\begin{minipage}{\linewidth}",
            note,
            r"\end{minipage}",
            rf"\end{{{kind}}}",
        ]
    typeset = "".join((head, note, *top, *lines))
    engine = r" and \usepackage[T1]{fontenc}."
    if _NOT_IN_PDFLATEX.search(typeset):
        engine = ", XeLaTeX or LuaLaTeX, and a font for all scripts."
    if any(unicodedata.bidirectional(sign) in ("R", "AL") for sign in typeset):
        engine = r", \usepackage[english,bidi=basic]{babel}, LuaLaTeX, and a font for all scripts."
    comments = [
        rf"Needs \usepackage{{booktabs,{package}}}{engine}",
        *comments,
        f"Provenance: {' '.join(caption_text(entries).split())}",
    ]
    return ("\n".join([*(f"% {comment}" for comment in comments), *table]) + "\n").encode()


def _filled(values: pd.Series) -> bool:
    """Whether a column has a value in any row."""
    return not all(_missing(value) or value == "" for value in values)


def _same(
    frame: pd.DataFrame,
    columns: Sequence[tuple[str, list[int]]],
    entries: Sequence[Mapping[str, Any]],
) -> dict[str, str]:
    """The columns that have one value in all of several rows, and that value. Measured numbers,
    verdicts and the names of compared models stay in the table, because they are its results, and
    so does everything if nothing else would. Numbers of the whole result, in
    `attrs["of_result"]`, don't: each row repeats them (`_by_model` if they differ)."""
    stated = frame.attrs.get("of_result", ())
    models = {str(entry.get("model")) for entry in entries}
    same = {
        name: next(
            _cells([*frame.iloc[0]], [(name, indices)], _forms(frame.attrs.get("forms", {}), 0))
        )
        for name, indices in columns
        if len(frame) > 1
        and len(indices) == 1
        and frame.iloc[:, indices[0]].nunique(dropna=False) == 1
        and not name.endswith("verdict")
        and (
            name.endswith("margin")
            or name in stated
            or not pd.api.types.is_float_dtype(frame.iloc[:, indices[0]])
        )
        and (len(models) < 2 or name not in ("model", "against"))
    }
    return same if len(same) < len(columns) else {}


def _by_model(frame: pd.DataFrame, columns: Sequence[tuple[str, list[int]]]) -> dict[str, str]:
    """The columns of `attrs["of_result"]` that have one number for each of several models, with
    these numbers."""
    stated = frame.attrs.get("of_result", ())
    rows = {name: frame.drop_duplicates(["model", name]) for name, _ in columns if name in stated}
    return {
        name: ", ".join(
            f"{cell} ({model})"
            for model, row in zip(
                rows[name]["model"], rows[name].itertuples(index=False, name=None), strict=True
            )
            for cell in _cells(row, [(name, indices)], {})
            if cell
        )
        for name, indices in columns
        if name in rows and rows[name]["model"].is_unique
    }


def _wrapped(text: str, width: int, *, whole_words: bool = False) -> str:
    """A text on several lines of `width` characters, or of longer words if these stay whole."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=not whole_words))


def _narrowed(
    headings: Sequence[str], rows: Sequence[Sequence[str]], with_interval: Sequence[bool]
) -> list[list[str]]:
    """The cells of a wide table with intervals below their numbers, and texts on several lines."""
    narrow: list[list[str]] = []
    for characters in _TEXT:
        narrow = [
            [
                cell.replace(" [", "\n[") if interval else _wrapped(cell, characters)
                for cell, interval in zip(row, with_interval, strict=True)
            ]
            for row in rows
        ]
        if _width(headings, narrow) <= _LANDSCAPE * _SIZES[-1][0]:
            break
    return narrow


def _width(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> float:
    """The width of a table in characters, with the space between its columns."""
    columns = zip(headings, *rows, strict=True)
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    return sum(widths) + 2.4 * len(widths)


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
    data_sets = ["typed texts" if name == TYPED else name for name in data_sets]
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
    brief = [_without(entry, ("model", *_NOT_IN_NOTE)) for entry in entries]
    if any(each != brief[0] for each in brief):  # the note says which model each number is of
        brief = [_without(entry, _NOT_IN_NOTE) for entry in entries]
    yield caption_text(brief)
    if any(name.endswith("verdict") for name in names):
        intervals = [str(entry.get("interval", "")) for entry in entries]
        by_error = any("jackknife" in text or "t interval" in text for text in intervals)
        yield TEST_BY_ERROR if by_error else TEST
    if "PSI under permutation" in names and "p" in names:
        yield _PERMUTATION


def _without(entry: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in fields}


def escaped(text: str) -> str:
    """Text escaped for LaTeX, on one line."""
    quoted = re.sub(r'"([^"]*)"', r"``\1''", " ".join(text.split()))
    signs = (_SPECIAL.get(sign, sign) for sign in quoted)
    text = "".join(
        sign for sign in signs if len(sign) > 1 or sign.isprintable() or sign in _JOINERS
    )
    return text.replace("--", "-{}-")  # not an en dash


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


def _forms(forms: Mapping[str, str | Sequence[str]], row: int) -> dict[str, str]:
    """The formats of a row by column (`poslens.rows.frame_of`)."""
    return {name: form if isinstance(form, str) else form[row] for name, form in forms.items()}


def _cells(
    row: Sequence[Any], columns: Sequence[tuple[str, list[int]]], forms: Mapping[str, str]
) -> Iterator[str]:
    for name, indices in columns:
        value, *ends = (row[i] for i in indices)
        numbers = [abs(each) for each in (value, *ends) if isinstance(each, float)]
        largest = max(numbers, default=0.0)
        form, interval = forms.get(name) or ".3f", [] if any(map(_missing, ends)) else ends
        if _missing(value):
            yield ""
        elif _P.search(name):
            yield p_text(value)
        elif largest and form.endswith(".3f") and not 0.001 <= largest < 10_000:
            text, *of_ends = (
                number_text(each, _SMALL_OR_LARGE if each else ".3f") for each in (value, *interval)
            )
            yield f"{text} [{', '.join(of_ends)}]" if of_ends else text
        elif isinstance(value, float) or is_of_share(form):
            yield estimate_text(Estimate(float(value), *interval), form)
        elif isinstance(value, bool | np.bool_):
            yield "yes" if value else "no"
        else:
            yield " ".join(str(value).split())


def _missing(value: Any) -> bool:
    return (
        value is None or value is pd.NA or (isinstance(value, float) and not math.isfinite(value))
    )


def _numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _line(cells: Sequence[str], kinds: str, place: str) -> str:
    """A row of a table; a cell of several lines is aligned at its bottom (`b`) or center (`c`)."""
    line = " & ".join(
        _cell(cell)
        if "\n" not in cell
        else rf"\begin{{tabular}}[{place}]{{@{{}}{kind}@{{}}}}"
        + r"\\".join(_cell(part) for part in cell.split("\n"))
        + r"\end{tabular}"
        for cell, kind in zip(cells, kinds, strict=True)
    )
    return rf"{line} \\"


def _typeset(text: str) -> str:
    """Escaped text with minus signs and powers of ten."""
    return re.sub(r"·10(⁻?[⁰¹²³⁴-⁹]+)", _power, escaped(with_typeset_numbers(text)))


def _cell(text: str) -> str:
    text = _typeset(text)
    # Line ends and rules can have an argument in brackets, and a starred form.
    return f"{{}}{text}" if text.startswith(("[", "*")) else text


def _power(number: re.Match[str]) -> str:
    return rf"$\cdot10^{{{int(unicodedata.normalize('NFKC', number[1]).replace('−', '-'))}}}$"

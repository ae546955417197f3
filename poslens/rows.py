"""Table rows declared as dataclasses, from which the columns of files, pages and JSON with its
schema are derived."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    NotRequired,
    TypedDict,
    TypeVar,
    get_args,
    get_type_hints,
)

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.evaluation.comparison import Comparison, Verdict
from poslens.attribution.nouns import number_text

if TYPE_CHECKING:
    import pandas as pd

Summary = TypeVar("Summary")

P_VALUE = "p"
"""The format of p values."""
PERCENT, PERCENTAGE_POINTS = ".1%", "+.1pp"
"""The formats of shares and of differences between shares, which pages and LaTeX show in percent
and in percentage points; other files contain fractions."""
VERDICT, P_HOLM = "verdict", "p (Holm)"
"""Headings on pages of the verdict and p of a row's only comparison."""
_ENDS: dict[str, Any] = {
    "low": Annotated[float | None, "Lower end of the 95% interval; null if there is none."],
    "high": Annotated[float | None, "Upper end of the 95% interval; null if there is none."],
}
_COMPARED: dict[str, Any] = {
    "verdict": Annotated[
        Verdict | None, "higher, lower, equivalent (within the margin) or too few documents."
    ],
    "p_holm": Annotated[
        float | None, "p of the difference, Holm-adjusted over all rows; null if there is none."
    ],
    "margin": Annotated[float | None, "Difference up to which two values are equivalent."],
    "documents_needed": Annotated[
        int | None, "Documents needed for a decision, estimated; null once decided, or if unknown."
    ],
}
"""Columns of a comparison in files, in addition to those of its difference."""

_hints = cache(get_type_hints)


def column(
    meaning: str | Mapping[str, str],
    *,
    key: str = "",
    title: str = "",
    form: str = ".3f",
    shown: bool = True,
    in_files: bool = True,
    first: int = 0,
    of_share: str = "",
    of_change: str = "",
    one_sided: bool = False,
    words: Mapping[Any, str] = MappingProxyType({}),
    required: bool = True,
) -> Any:
    """A field of a row: its meaning, its name in files and its heading on a page (by default the
    field's name), its number format, and whether files and pages include it. Pages show columns
    with a number `first` before the others, in its order, because a phone shows only the first
    ones; those after number 1 only if their values differ. `of_share` is the format in rows whose
    field `share` is true, and `of_change` that in rows whose field `share_change` is true, too.
    The interval of a `one_sided` estimate begins at 0 (`bootstrap.Kind`). Pages and LaTeX show
    `words` instead of the values that it has as keys.

    A field whose value is a mapping has a column for each of its keys, whose meanings are given by
    key. If `required`, every row has all keys, otherwise some."""
    return field(
        metadata={
            "meaning": meaning,
            "keys": meaning if isinstance(meaning, Mapping) else {},
            "required": required,
            "key": key,
            "title": title,
            "form": form,
            "shown": shown,
            "in_files": in_files,
            "first": first,
            "of_share": of_share,
            "of_change": of_change,
            "one_sided": one_sided,
            "words": words,
        }
    )


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A row about one model. Its columns follow that of the model's name."""

    model: str = column("Name of the model.")


def entries(row: Any) -> dict[str, Any]:
    """A row as written to files, by column name. An `Estimate` becomes three columns: value, low
    and high. A `Comparison` becomes those of its difference, and verdict, p_holm, margin and
    documents_needed."""
    cells: dict[str, Any] = {}
    for item in _of_files(type(row)):
        for key, value, hint in _values(row, item, _key(item)):
            cells |= _cells(key, value, hint)
    return cells


def _cells(key: str, value: Any, hint: Any) -> dict[str, Any]:
    if not _is_estimate(hint):
        return {key: value}
    estimate = value.difference if isinstance(value, Comparison) else value
    cells = {key: estimate.value if estimate else None}
    for end in _ENDS:
        cells[_suffixed(key, end)] = getattr(estimate, end) if estimate else None
    if _has(hint, Comparison):
        compared = (
            (value.verdict, value.p_holm, value.margin, value.needed) if value else [None] * 4
        )
        cells |= {
            _suffixed(key, name): part for name, part in zip(_COMPARED, compared, strict=True)
        }
    return cells


def shown(row: Any) -> dict[str, Any]:
    """A row as shown on pages, by heading: an estimate and its interval in one cell, a comparison
    with its verdict, a share in percent if its format is. The verdict and p of a row's only
    comparison have columns of their own."""
    cells: dict[str, Any] = {}
    kind: Any = type(row)
    only = _only_comparison(kind)
    for item in fields(row):
        if item.metadata["shown"]:
            for key, value, hint in _values(row, item, _heading(item)):
                form = _form(row, item)
                if item.name == only:
                    cells[key] = estimate_text(value.difference, form) if value else ""
                    cells[VERDICT] = value.decision if value else ""
                    cells[P_HOLM] = p_text(value.p_holm if value else None)
                elif isinstance(value, Comparison):
                    cells[key] = f"{estimate_text(value.difference, form)}, {value.decision}"
                elif _is_estimate(hint):
                    cells[key] = estimate_text(value, form) if value else ""
                elif item.metadata["of_share"]:
                    factor, of_product, unit = scaled(form)
                    cells[key] = f"{number_text(value * factor, of_product)}{unit}"
                elif form == P_VALUE:
                    cells[key] = p_text(value)
                elif value is not None and form.endswith("%"):
                    cells[key] = 100 * value
                else:
                    cells[key] = item.metadata["words"].get(value, value)
    return cells


def is_of_share(form: str) -> bool:
    """Whether a format is that of shares or of differences between shares."""
    return form.endswith(("%", "pp"))


def scaled(form: str) -> tuple[float, str, str]:
    """What to multiply a number by, the format of the product, and its unit, for a format that can
    be that of percentage points."""
    return (100.0, form.replace("pp", "f"), " points") if form.endswith("pp") else (1.0, form, "")


def estimate_text(estimate: Estimate, form: str) -> str:
    """An estimate with its interval in a format, which can be that of percentage points."""
    factor, of_product, unit = scaled(form)
    return f"{estimate.times(factor).text(of_product)}{unit}"


def _form(row: Any, item: Field[Any]) -> str:
    """The number format of a row's field."""
    about = item.metadata
    if about["of_change"] and row.share_change:
        return str(about["of_change"])
    return str(about["of_share"] if about["of_share"] and row.share else about["form"])


def p_text(p: float | None) -> str:
    """A p value as text; empty if there is none."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.2g}"


@cache
def _only_comparison(row: type) -> str | None:
    """The name of a row's field that is a comparison, if it is the only one."""
    hints: Mapping[str, Any] = _hints(row)
    names = [item.name for item in fields(row) if _has(hints[item.name], Comparison)]
    return names[0] if len(names) == 1 else None


@cache
def answer_of(row: type) -> Any:
    """The TypedDict of a row in JSON, annotated with the meaning of each field, from which docs and
    schema are generated."""
    shape: dict[str, Any] = {}
    for item in _of_files(row):
        for key, meaning, hint in _declared(row, item):
            parts: dict[str, Any] = {key: hint}
            if _is_estimate(hint):
                parts[key] = float | None if _has(hint, type(None)) else float
                extra = _ENDS | (_COMPARED if _has(hint, Comparison) else {})
                parts |= {_suffixed(key, name): part for name, part in extra.items()}
            parts[key] = Annotated[parts[key], meaning]
            if not item.metadata["required"]:
                parts = {name: NotRequired[part] for name, part in parts.items()}
            shape |= parts
    answer = TypedDict(row.__name__, shape)  # type: ignore[misc]
    answer.__doc__ = row.__doc__
    return answer


def frame_of(row: type, rows: Iterable[Any]) -> pd.DataFrame:
    """A table of rows of one kind, as written to files. `attrs["titles"]` has the heading of each
    column, `attrs["forms"]` the format of each column as on pages, by row if it varies, and
    `attrs["texts"]` the cells, by row, of each column with `words`."""
    import pandas as pd

    rows = list(rows)
    records = [entries(item) for item in rows]
    names = list(dict.fromkeys(name for record in records for name in record))
    if not records:
        names = list(answer_of(row).__annotations__)
    # pandas' nullable type keeps whole numbers as integers even if some are missing.
    whole = {
        name: "Int64"
        for item in _of_files(row)
        for key, _, hint in _declared(row, item)
        for name in (key if hint == int | None else "", _suffixed(key, "documents_needed"))
        if name in names
    }
    frame = pd.DataFrame(records, columns=names).astype(whole)
    frame.attrs["titles"] = _titles(row)
    frame.attrs["forms"] = {name: form for name, form in _forms(row, rows) if name in frame.columns}
    frame.attrs["texts"] = {
        _key(item): [
            words.get(value, value) for value in (getattr(each, item.name) for each in rows)
        ]
        for item in _of_files(row)
        if (words := item.metadata["words"])
    }
    return frame


def _forms(row: type, rows: Sequence[Any]) -> Iterator[tuple[str, str | list[str]]]:
    """The page format of each column of files, or its format in each of `rows`."""
    for item in _of_files(row):
        form: str | list[str] = str(item.metadata["form"])
        if item.metadata["of_share"]:
            form = [_form(each, item) for each in rows]
        for key, _, _ in _declared(row, item):
            yield key, form
            if isinstance(form, list):
                yield _suffixed(key, "margin"), [_margin_form(each) for each in form]
            else:
                yield _suffixed(key, "margin"), _margin_form(form)


def _margin_form(form: str) -> str:
    """The format of the margin of a number in this format."""
    return ".1pp" if is_of_share(form) else ".4g"


def _titles(row: type) -> dict[str, str]:
    """The heading of each column of files, as on pages. If a row has several comparisons, the
    headings of their verdicts and p values say whose they are."""
    declared = [(item, *each) for item in _of_files(row) for each in _declared(row, item)]
    several = sum(_has(hint, Comparison) for *_, hint in declared) > 1
    titles = {}
    for item, key, _, hint in declared:
        heading = titles[key] = key if item.metadata["keys"] else _heading(item)
        if _has(hint, Comparison):
            whose = f"{heading}: " if several else ""
            titles |= {_suffixed(key, part): f"{whose}{_words(part)}" for part in _COMPARED}
    return titles


@dataclass(frozen=True, slots=True)
class Table(Generic[Summary]):
    """A table of a study: the dataclass of its rows, and the function that returns the rows of
    one summary, or of all summaries together if the table is `joint`. Pages show it below its title
    if `on_page`."""

    row: type
    rows: Callable[[Summary], Iterable[Any]]
    title: str = ""
    on_page: bool = True
    joint: bool = False

    def formats(self) -> dict[str, str]:
        """The format of each number without an interval, by its page heading."""
        return {
            _heading(item): item.metadata["form"]
            for item in self._shown(float)
            if not item.metadata["of_share"]
        }

    def whole_numbers(self) -> set[str]:
        """The page headings of whole numbers."""
        return {_heading(item) for item in self._shown(int)}

    def _shown(self, kind: type) -> list[Field[Any]]:
        """The fields of this type that pages show."""
        return [
            item
            for item in fields(self.row)
            if item.metadata["shown"]
            and not item.metadata["keys"]
            and item.metadata["form"] != P_VALUE
            and _has(_hints(self.row)[item.name], kind)
        ]

    def meanings(self) -> dict[str, str]:
        """The meaning of each column of a page, by its heading."""
        compared = {VERDICT: _COMPARED["verdict"], P_HOLM: _COMPARED["p_holm"]}
        of_comparison = {heading: get_args(annotated)[1] for heading, annotated in compared.items()}
        return (of_comparison if _only_comparison(self.row) else {}) | {
            heading: meaning
            for item in fields(self.row)
            if item.metadata["shown"]
            for heading, meaning in (
                item.metadata["keys"] or {_heading(item): _meaning_on_page(item)}
            ).items()
        }

    def frame(self, summaries: Sequence[Summary]) -> pd.DataFrame:
        """All rows, as written to files. `attrs["title"]` is the table's title."""
        frame = frame_of(self.row, self._all_rows(summaries))
        frame.attrs["title"] = self.title
        return frame

    def text_frame(self, summaries: Sequence[Summary]) -> pd.DataFrame:
        """All rows, as shown on pages, which begin with the `first` columns."""
        import pandas as pd

        frame = pd.DataFrame([shown(row) for row in self._all_rows(summaries)])
        first = sorted(
            (place, _heading(item))
            for item in fields(self.row)
            if (place := item.metadata["first"]) and _heading(item) in frame
        )
        names = [name for place, name in first if place == 1 or frame[name].nunique() > 1]
        return frame[[*names, *(name for name in frame if name not in names)]]

    def estimates(self, summaries: Sequence[Summary]) -> Iterator[tuple[str, Estimate]]:
        """The estimates in all rows of files with their page headings, for the provenance of their
        intervals. A table without estimates creates no rows."""
        declared = [item for item in _of_files(self.row) if _has_estimates(self.row, item)]
        for row in self._all_rows(summaries) if declared else ():
            for item in declared:
                for heading, value, _ in _values(row, item, _heading(item)):
                    number = value.difference if isinstance(value, Comparison) else value
                    if number is not None:
                        yield heading, number

    @property
    def one_sided(self) -> set[str]:
        """The page headings of estimates whose intervals begin at 0."""
        return {_heading(item) for item in fields(self.row) if item.metadata["one_sided"]}

    def _all_rows(self, summaries: Sequence[Summary]) -> Iterable[Any]:
        if self.joint:
            return self.rows(summaries)  # type: ignore[arg-type]
        return (row for summary in summaries for row in self.rows(summary))


def _of_files(row: type) -> list[Field[Any]]:
    return [item for item in fields(row) if item.metadata["in_files"]]


def _has_estimates(row: type, item: Field[Any]) -> bool:
    return any(_is_estimate(hint) for _, _, hint in _declared(row, item))


def _values(row: Any, item: Field[Any], name: str) -> Iterator[tuple[str, Any, Any]]:
    """The columns of a field, with their values and types."""
    kind: Any = type(row)
    value, hint = getattr(row, item.name), _hints(kind)[item.name]
    if item.metadata["keys"]:
        for key, part in value.items():
            yield key, part, get_args(hint)[1]
    else:
        yield name, value, hint


def _declared(row: type, item: Field[Any]) -> Iterator[tuple[str, str, Any]]:
    """The columns that a field may have, with their meanings and types."""
    hint = _hints(row)[item.name]
    if item.metadata["keys"]:
        for key, meaning in item.metadata["keys"].items():
            yield key, meaning, get_args(hint)[1]
    else:
        yield _key(item), item.metadata["meaning"], hint


def _key(item: Field[Any]) -> str:
    return item.metadata["key"] or item.name


def _heading(item: Field[Any]) -> str:
    return item.metadata["title"] or _key(item).replace("_", " ")


def _meaning_on_page(item: Field[Any]) -> str:
    """The meaning of a column; that of a share in percent without its range as a fraction."""
    meaning, form = str(item.metadata["meaning"]), item.metadata["form"]
    return re.sub(r", (-1|0) to 1\b", "", meaning) if is_of_share(form) else meaning


def _suffixed(key: str, part: str) -> str:
    """The name of another column of the same estimate, with spaces if the estimate's own name
    has spaces."""
    return f"{key}_{part}" if key.isidentifier() else f"{key} {_words(part)}"


def _words(part: str) -> str:
    return P_HOLM if part == "p_holm" else part.replace("_", " ")


@cache
def _is_estimate(hint: Any) -> bool:
    return _has(hint, Estimate) or _has(hint, Comparison)


def _has(hint: Any, kind: type) -> bool:
    return kind in (get_args(hint) or (hint,))

"""A study: one question about models and a data set, declared once.

A study names its parameters, the models it fits, what it computes for each of them, the rows of its
tables, its verdict and its figures. The command (`poslens.commands.study_command`), the page
(`poslens.dashboard.widgets.study_page`), the Python call (`poslens.api`), the JSON and its schema
are derived from that declaration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Generic, TypedDict, TypeVar, get_args, get_type_hints

import pandas as pd
import plotly.graph_objects as go

from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.compute.compute import Compute
from poslens.compute.runs import Job
from poslens.figures.palettes import Style

Corpus = TypeVar("Corpus")
Subject = TypeVar("Subject")
Summary = TypeVar("Summary")
T = TypeVar("T")

LOW, HIGH = "Lower end of its 95% interval; null without one.", "Upper end; null without one."

# -- parameters ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Parameter(Generic[T]):
    """One parameter of a study. `default` is what holds where nothing is given."""

    default: T
    help: str
    title: str = ""

    def parse(self, value: Any) -> T:
        """The value, checked.

        Raises:
            UserError: it is out of range, or of another type.
        """
        raise TypeError(f"{type(self).__name__} checks nothing")


@dataclass(frozen=True, kw_only=True)
class Integer(Parameter[int]):
    """A whole number from `low` to `high`."""

    low: int
    high: int

    def parse(self, value: Any) -> int:
        try:
            number = int(str(value))
        except ValueError:
            number = self.low - 1
        if not self.low <= number <= self.high:
            raise UserError(
                f"{self.title or 'The number'} is {str(value)[:40]!r}: give a whole number from "
                f"{self.low:,} to {self.high:,}."
            )
        return number


@dataclass(frozen=True, kw_only=True)
class Choice(Parameter[str]):
    """One of `options`."""

    options: tuple[str, ...]

    def parse(self, value: Any) -> str:
        if value not in self.options:
            raise UserError(
                f"{self.title or 'The choice'} is {str(value)[:40]!r}: choose one of "
                f"{', '.join(self.options)}."
            )
        return str(value)


@dataclass(frozen=True, kw_only=True)
class Several(Parameter[tuple[str, ...]]):
    """One or more values, each checked and normalized by `check`; `options` are suggestions, and
    the only values allowed if `closed`."""

    options: tuple[str, ...]
    check: Callable[[str], object] = str
    closed: bool = False

    def parse(self, value: Any) -> tuple[str, ...]:
        given = [value] if isinstance(value, str) else list(value or self.default)
        for one in given:
            if self.closed and one not in self.options:
                raise UserError(
                    f"{self.title or 'The choice'} has no {str(one)[:40]!r}: choose from "
                    f"{', '.join(self.options)}."
                )
            self.check(one)
        return tuple(dict.fromkeys(map(str, given)))


@dataclass(frozen=True, kw_only=True)
class Numbers(Parameter[tuple[float, ...]]):
    """One or more numbers from `low` to `high`, typed with commas between them; with `whole` they
    are whole numbers."""

    low: float
    high: float
    whole: bool = False

    def parse(self, value: Any) -> tuple[float, ...]:
        parts = value.split(",") if isinstance(value, str) else list(value)
        try:
            numbers = [float(part) for part in parts if str(part).strip()]
        except ValueError:
            numbers = []
        allowed = all(self.low <= one <= self.high for one in numbers)
        if not numbers or not allowed or (self.whole and any(one % 1 for one in numbers)):
            kind = "whole numbers" if self.whole else "numbers"
            raise UserError(
                f"{self.title or 'The list'} is {str(value)[:60]!r}: give {kind} from "
                f"{self.low:,.10g} to {self.high:,.10g} with commas between them."
            )
        return tuple(int(one) if self.whole else one for one in sorted(set(numbers)))

    def text(self) -> str:
        """The default as it is typed."""
        return ",".join(f"{one:g}" for one in self.default)


class Parameters(Mapping[str, Parameter[Any]]):
    """The parameters of a study by name, in the order in which they are shown."""

    def __init__(self, **declared: Parameter[Any]) -> None:
        self._declared = declared

    def __getitem__(self, name: str) -> Parameter[Any]:
        return self._declared[name]

    def __iter__(self) -> Any:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def settings(self, given: Mapping[str, Any] | None = None) -> Settings:
        """All values, checked, with defaults for what is not given.

        Raises:
            UserError: a parameter is unknown, or a value is not allowed.
        """
        given = dict(given or {})
        if unknown := [name for name in given if name not in self._declared]:
            raise UserError(
                f"There is no parameter {unknown[0][:80]!r}: choose from "
                f"{', '.join(self._declared) or 'none'}."
            )
        return Settings(
            {
                name: one.parse(given[name]) if given.get(name) is not None else one.default
                for name, one in self._declared.items()
            }
        )


class Settings(Mapping[str, Any]):
    """Checked values of a study's parameters, read as attributes. Its text is the same for the same
    values, so that it can be part of a key."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(str(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self._values == other._values

    def __str__(self) -> str:
        return ", ".join(
            f"{name}={'+'.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in self._values.items()
        )


# -- rows ------------------------------------------------------------------------------------------


def column(meaning: str, *, title: str = "", form: str = ".3f", shown: bool = True) -> Any:
    """A field of a row: what it means in files, its heading on a page (by default its name), the
    format of its number, and whether pages show it."""
    return field(metadata={"meaning": meaning, "title": title, "form": form, "shown": shown})


def entries(row: Any) -> dict[str, Any]:
    """A row as files have it. An `Estimate` becomes three columns: value, low and high."""
    found: dict[str, Any] = {}
    for one in fields(row):
        value = getattr(row, one.name)
        if _is_estimate(type(row), one.name):
            found[one.name] = value.value if value else None
            found[f"{one.name}_low"] = value.low if value else None
            found[f"{one.name}_high"] = value.high if value else None
        else:
            found[one.name] = value
    return found


def shown(row: Any) -> dict[str, Any]:
    """A row as pages show it: an estimate with its interval in one cell."""
    found: dict[str, Any] = {}
    for one in fields(row):
        if not one.metadata.get("shown", True):
            continue
        value = getattr(row, one.name)
        if _is_estimate(type(row), one.name):
            value = value.text(one.metadata["form"]) if value else ""
        found[one.metadata.get("title") or one.name.replace("_", " ")] = value
    return found


def answer_of(row: type) -> Any:
    """The TypedDict of a row's JSON, with the meaning of each field: what docs and the schema are
    made from."""
    hints, shape = get_type_hints(row), {}
    for one in fields(row):
        meaning = one.metadata["meaning"]
        if _is_estimate(row, one.name):
            shape[one.name] = Annotated[float | None, meaning]
            shape[f"{one.name}_low"] = Annotated[float | None, LOW]
            shape[f"{one.name}_high"] = Annotated[float | None, HIGH]
        else:
            shape[one.name] = Annotated[hints[one.name], meaning]
    made = TypedDict(row.__name__, shape)  # type: ignore[misc]
    made.__doc__ = row.__doc__
    return made


def _is_estimate(row: type, name: str) -> bool:
    hint = get_type_hints(row)[name]
    return Estimate in (get_args(hint) or (hint,))


@dataclass(frozen=True, slots=True)
class Table(Generic[Summary]):
    """A table of a study: the dataclass of its rows, and the rows of one model's summary. With
    `on_page` pages show it; its title stands above it there."""

    row: type
    rows: Callable[[Summary], Iterable[Any]]
    title: str = ""
    on_page: bool = True

    def frame(self, summaries: Sequence[Summary]) -> pd.DataFrame:
        """All rows, as files have them."""
        names = list(_names(self.row))
        return pd.DataFrame(
            [entries(row) for one in summaries for row in self.rows(one)], columns=names
        )

    def text_frame(self, summaries: Sequence[Summary]) -> pd.DataFrame:
        """All rows, as pages show them."""
        return pd.DataFrame([shown(row) for one in summaries for row in self.rows(one)])


def _names(row: type) -> Iterable[str]:
    for one in fields(row):
        yield one.name
        if _is_estimate(row, one.name):
            yield from (f"{one.name}_low", f"{one.name}_high")


# -- studies ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure(Generic[Summary]):
    """A figure of a study: its title, and what draws it from the summaries alone."""

    title: str
    draw: Callable[[Sequence[Summary], Style, Sequence[Provenance]], go.Figure]


class Study(ABC, Generic[Corpus, Subject, Summary]):
    """One question. A subclass declares it and registers an instance (`register`).

    A `Subject` is what is computed for one model: the model, the corpus and one setting of what
    varies. A `Summary` is the result for one subject. `reads` says in one sentence how to read the
    figures, and `limits` what the verdict does not show.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str]
    unit: ClassVar[str]
    reads: ClassVar[str]
    limits: ClassVar[str]
    parameters: ClassVar[Parameters] = Parameters()
    tables: ClassVar[Mapping[str, Table[Any]]]
    figures: ClassVar[tuple[Figure[Any], ...]] = ()
    models: ClassVar[tuple[str, ...]] = ("MiniLM",)

    @abstractmethod
    def corpus(self, data: DataSet, settings: Settings) -> Corpus:
        """What of a data set the study is about.

        Raises:
            UserError: the data set lacks what the study needs.
        """

    @abstractmethod
    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: Corpus, settings: Settings
    ) -> list[Subject]:
        """What is computed for one model.

        Raises:
            UserError: the study does not fit the model.
        """

    @abstractmethod
    def job(self, compute: Compute, subject: Subject) -> Job:
        """What computes and stores what is missing.

        Raises:
            UserError: the model's files are not here, or the study does not fit it.
        """

    @abstractmethod
    def summarize(
        self, compute: Compute, subject: Subject, earlier: Sequence[Summary]
    ) -> Summary | None:
        """The result of what is stored; None while something is missing. `earlier` are the results
        shown above it, to compare with.

        Raises:
            UserError: nothing could be computed.
        """

    @abstractmethod
    def verdict(self, summary: Summary) -> str:
        """The result in one sentence: result, interval, meaning."""

    @abstractmethod
    def provenance(self, summary: Summary) -> Provenance:
        """Everything needed to compute the summary again."""


STUDIES: dict[str, Study[Any, Any, Any]] = {}
"""Every study by name."""


def register(study: Study[Any, Any, Any]) -> None:
    """Offer a study as a command and a Python call."""
    if study.name in STUDIES:
        raise ValueError(f"two studies are named {study.name}")
    STUDIES[study.name] = study


@dataclass(frozen=True)
class Plan(Generic[Subject]):
    """What a study computes for some models: subjects with their jobs, and why other models were
    left out."""

    subjects: tuple[Subject, ...]
    jobs: tuple[Job, ...]
    refused: tuple[str, ...]


def plan(
    study: Study[Corpus, Subject, Any],
    compute: Compute,
    specs: Iterable[RetrieverSpec],
    corpus: Corpus,
    settings: Settings,
) -> Plan[Subject]:
    """What the study computes for these models."""
    subjects: list[Subject] = []
    jobs: list[Job] = []
    refused: list[str] = []
    for spec in specs:
        try:
            for subject in study.subjects(compute, spec, corpus, settings):
                try:
                    jobs.append(study.job(compute, subject))
                    subjects.append(subject)
                except UserError as reason:
                    refused.append(str(reason))
        except UserError as reason:
            refused.append(str(reason))
    return Plan(tuple(subjects), tuple(jobs), tuple(dict.fromkeys(refused)))


def stored(
    study: Study[Any, Subject, Summary], compute: Compute, subjects: Iterable[Subject]
) -> list[Summary]:
    """The results that are complete, in order."""
    found: list[Summary] = []
    for subject in subjects:
        summary = study.summarize(compute, subject, found)
        if summary is not None:
            found.append(summary)
    return found

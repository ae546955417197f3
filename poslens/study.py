"""A study: one question about models and a data set, declared once.

A study names its parameters, the models it fits, what it computes for each of them, the rows of its
tables, its verdict and its figures. The command (`poslens.commands.study_command`), the page
(`poslens.dashboard.widgets.study_page`), the Python call (`poslens.api`), the JSON and its schema
are derived from that declaration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypedDict, TypeVar, get_args, get_type_hints

import pandas as pd
import plotly.graph_objects as go

from poslens.attribution import datasets
from poslens.attribution.curves.bootstrap import Estimate
from poslens.attribution.datasets import SAMPLE, DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import Comparison, Verdict
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.compute.compute import Compute
from poslens.compute.coverage import Report
from poslens.compute.runs import Job
from poslens.figures.palettes import Style
from poslens.parameters import Parameters, Settings

Corpus = TypeVar("Corpus")
Subject = TypeVar("Subject")
Summary = TypeVar("Summary")

LOW, HIGH = "Lower end of its 95% interval; null without one.", "Upper end; null without one."
_COMPARED: dict[str, Any] = {
    "verdict": Annotated[
        Verdict | None, "higher, lower, equivalent (within the margin) or too few documents."
    ],
    "p_holm": Annotated[
        float | None, "p of the difference, adjusted by Holm for all that are shown; null without."
    ],
    "margin": Annotated[float | None, "Difference up to which two values are equivalent."],
    "documents_needed": Annotated[
        int | None, "About how many documents would decide; null once decided, or unknown."
    ],
}
"""What files have of a comparison besides its difference."""

# -- rows ------------------------------------------------------------------------------------------


def column(meaning: str, *, title: str = "", form: str = ".3f", shown: bool = True) -> Any:
    """A field of a row: what it means in files, its heading on a page (by default its name), the
    format of its number, and whether pages show it."""
    return field(metadata={"meaning": meaning, "title": title, "form": form, "shown": shown})


def entries(row: Any) -> dict[str, Any]:
    """A row as files have it. An `Estimate` becomes three columns: value, low and high. A
    `Comparison` has these of its difference, and verdict, p_holm, margin and documents_needed."""
    found: dict[str, Any] = {}
    for one in fields(row):
        value = getattr(row, one.name)
        compared = value if _has(type(row), one.name, Comparison) else None
        if compared is not None:
            value = compared.difference
        if _is_estimate(type(row), one.name):
            found[one.name] = value.value if value else None
            found[f"{one.name}_low"] = value.low if value else None
            found[f"{one.name}_high"] = value.high if value else None
        else:
            found[one.name] = value
        if _has(type(row), one.name, Comparison):
            found[f"{one.name}_verdict"] = compared.verdict if compared else None
            found[f"{one.name}_p_holm"] = compared.p_holm if compared else None
            found[f"{one.name}_margin"] = compared.margin if compared else None
            found[f"{one.name}_documents_needed"] = compared.needed if compared else None
    return found


def shown(row: Any) -> dict[str, Any]:
    """A row as pages show it: an estimate with its interval in one cell, a comparison with its
    verdict too."""
    found: dict[str, Any] = {}
    for one in fields(row):
        if not one.metadata.get("shown", True):
            continue
        value = getattr(row, one.name)
        if _is_estimate(type(row), one.name):
            value = value.text(one.metadata["form"]) if value else ""
        found[_heading(one)] = value
    return found


def _heading(one: Field[Any]) -> str:
    return str(one.metadata.get("title") or one.name.replace("_", " "))


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
            if _has(row, one.name, Comparison):
                shape |= {f"{one.name}_{key}": hint for key, hint in _COMPARED.items()}
        else:
            shape[one.name] = Annotated[hints[one.name], meaning]
    made = TypedDict(row.__name__, shape)  # type: ignore[misc]
    made.__doc__ = row.__doc__
    return made


def _is_estimate(row: type, name: str) -> bool:
    return _has(row, name, Estimate) or _has(row, name, Comparison)


def _has(row: type, name: str, kind: type) -> bool:
    hint = get_type_hints(row)[name]
    return kind in (get_args(hint) or (hint,))


@dataclass(frozen=True, slots=True)
class Table(Generic[Summary]):
    """A table of a study: the dataclass of its rows, and the rows of one model's summary. With
    `on_page` pages show it; its title stands above it there."""

    row: type
    rows: Callable[[Summary], Iterable[Any]]
    title: str = ""
    on_page: bool = True

    def formats(self) -> dict[str, str]:
        """The format of each number without an interval, by its heading on a page."""
        hints = get_type_hints(self.row)
        return {
            _heading(field): field.metadata["form"]
            for field in fields(self.row)
            if float in (get_args(hints[field.name]) or (hints[field.name],))
        }

    def frame(self, summaries: Sequence[Summary]) -> pd.DataFrame:
        """All rows, as files have them."""
        names, hints = list(_names(self.row)), get_type_hints(self.row)
        # Whole numbers stay whole where some are missing.
        whole = {
            name: "Int64"
            for name in names
            if hints.get(name) == int | None or name.endswith("_documents_needed")
        }
        return pd.DataFrame(
            [entries(row) for summary in summaries for row in self.rows(summary)], columns=names
        ).astype(whole)

    def text_frame(self, summaries: Sequence[Summary]) -> pd.DataFrame:
        """All rows, as pages show them."""
        return pd.DataFrame([shown(row) for summary in summaries for row in self.rows(summary)])


def _names(row: type) -> Iterable[str]:
    for one in fields(row):
        yield one.name
        if _is_estimate(row, one.name):
            yield from (f"{one.name}_low", f"{one.name}_high")
        if _has(row, one.name, Comparison):
            yield from (f"{one.name}_{key}" for key in _COMPARED)


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
    figures, and `limits` what the verdict does not show. `dataset` and `models` are used where none
    are given; a page starts with `compared`, if the study names any. `product` says in words what
    a study writes to a folder besides its results, if anything.
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
    compared: ClassVar[tuple[str, ...]] = ()
    dataset: ClassVar[str] = SAMPLE
    product: ClassVar[str] = ""

    def parameters_for(self, data: DataSet) -> Parameters:
        """The parameters that a data set leaves open, with the options that it offers."""
        return self.parameters

    @abstractmethod
    def corpus(self, data: DataSet, settings: Settings) -> Corpus:
        """What of a data set the study is about.

        Raises:
            UserError: the data set lacks what the study needs.
        """

    def narrowed(
        self,
        compute: Compute,
        specs: Sequence[RetrieverSpec],
        corpus: Corpus,
        settings: Settings,
        report: Report = lambda done, total: None,
    ) -> Corpus:
        """The corpus without what these models cannot answer together, as far as `settings` ask to
        leave that out.

        Raises:
            UserError: nothing is left, or a model cannot be loaded.
        """
        return corpus

    def read(self, dataset: str) -> DataSet:
        """The data set of a name, for commands and calls; its pairs only if the study needs them.

        Raises:
            UserError: its files cannot be read.
        """
        return datasets.read(dataset)

    def notes(self, data: DataSet, corpus: Corpus) -> list[str]:
        """What of the data set is left out and why, a sentence each."""
        return []

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

    def estimate(self, compute: Compute, subject: Subject, *, load: bool = False) -> str:
        """How much is read for a subject that has no result yet, and how long that takes; empty if
        unknown. With `load` the model may be loaded to time it.

        Raises:
            UserError: the corpus cannot be read, or the model cannot be loaded.
        """
        return ""

    @abstractmethod
    def summarize(
        self, compute: Compute, subject: Subject, earlier: Sequence[Summary]
    ) -> Summary | None:
        """The result of what is stored; None while too little is there to show. `earlier` are the
        results shown above it, to compare with.

        Raises:
            UserError: nothing could be computed.
        """

    def so_far(
        self, compute: Compute, subject: Subject, earlier: Sequence[Summary]
    ) -> Summary | None:
        """What can be shown of a subject that is not complete: an estimate of its result from what
        is stored. None if what is stored says nothing of the rest."""
        return None

    def together(self, summaries: Sequence[Summary]) -> list[Summary]:
        """The results that are shown together, with what depends on all of them, such as p values
        adjusted for their number."""
        return list(summaries)

    @property
    def streams(self) -> bool:
        """Whether no result depends on later ones, so that each verdict can be given at once."""
        return type(self).together is Study.together

    def remarks(self, summaries: Sequence[Summary]) -> list[str]:
        """What has to be known to read the results, a sentence each."""
        return []

    @abstractmethod
    def verdict(self, summary: Summary) -> str:
        """The result in one sentence: result, interval, meaning."""

    @abstractmethod
    def provenance(self, summary: Summary) -> Provenance:
        """Everything needed to compute the summary again."""

    def require_product(self, folder: Path) -> None:
        """Do nothing, unless `write_product` would refuse this folder. For a study with a `product`
        only.

        Raises:
            UserError: it would.
        """
        raise NotImplementedError

    def write_product(self, summaries: Sequence[Summary], folder: Path) -> None:
        """Write the `product`, a folder, of what was computed. For a study with a `product` only.

        Raises:
            UserError: it cannot be written.
        """
        raise NotImplementedError


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
    study: Study[Any, Subject, Summary],
    compute: Compute,
    subjects: Iterable[Subject],
    *,
    incomplete: bool = False,
) -> list[Summary]:
    """The results that can be shown, in order; with `incomplete` also estimates of results that are
    not complete."""
    summaries: list[Summary] = []
    for subject in subjects:
        summary = study.summarize(compute, subject, summaries)
        if summary is None and incomplete:
            summary = study.so_far(compute, subject, summaries)
        if summary is not None:
            summaries.append(summary)
    return study.together(summaries)

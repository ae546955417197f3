"""The declaration of a study: one question about models and a data set.

A study declares its parameters, the models it fits, its computation, the rows of its tables, its
verdict and its figures. The command (`poslens.commands.study_command`), the page
(`poslens.dashboard.widgets.study_page`), the Python call (`poslens.api`), the JSON and its schema
are derived from the declaration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast

import plotly.graph_objects as go

from poslens.attribution import datasets
from poslens.attribution.datasets import SAMPLE, DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.comparison import adjusted_fields
from poslens.attribution.nouns import uncapitalized
from poslens.attribution.pairs import Pairs
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Method, Provenance
from poslens.cache.lru_cache import LRUCache
from poslens.compute.compute import Compute
from poslens.compute.coverage import Report
from poslens.compute.provenance import ModelIdentity, resampled_of
from poslens.compute.runs import Job
from poslens.failures import FAILURE_TABLE, FAILURES
from poslens.figures.figure_base import captioned
from poslens.figures.palettes import Style
from poslens.paired import (
    DIFFERENCES,
    ITEMS,
    ITEMS_TITLE,
    TITLE,
    DifferenceRow,
    ItemRow,
    MeasuredModel,
    item_rows,
    paired_differences,
)
from poslens.parameters import Parameters, Settings
from poslens.rows import Table
from poslens.study_part import StudyPart

if TYPE_CHECKING:
    import pandas as pd

Corpus = TypeVar("Corpus")
Subject = TypeVar("Subject")
Summary = TypeVar("Summary")


@dataclass(frozen=True)
class Asked(Generic[Corpus]):
    """The subject of a study without varying parameters: one model over the corpus."""

    spec: RetrieverSpec
    corpus: Corpus
    settings: Settings


@dataclass(frozen=True)
class AskedMethod(Asked[Corpus]):
    """The same with a method or an intervention: for studies with a result for each of several."""

    method: Method


@dataclass(frozen=True)
class ModelSummary(Generic[Subject]):
    """A summary of one model; `asked` is its subject. Summaries need not derive from this."""

    model: ModelIdentity
    asked: Subject

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.spec.name


@dataclass(frozen=True, slots=True)
class Figure(Generic[Summary]):
    """A figure of a study: its title, and the function that draws it from the summaries alone;
    their provenance is added to it (`captioned`). It raises a `UserError` if they have nothing to
    draw, and pages omit it then. The command and `figure` draw it for its `tables`; a figure
    without them is drawn for every table that no figure names. Two figures that are `half` as wide
    share a row of the page. Figures that are not `on_page` are not on it.

    The intervals that it draws are those of the table `intervals`, of `numbers` there if it names
    any; by default, of the first of its `tables` or of the study. It draws none if that is "".
    `band` is what its bands are for a summary, if they are not the table's intervals."""

    title: str
    draw: Callable[[Sequence[Summary], Style], go.Figure]
    tables: tuple[str, ...] = ()
    half: bool = False
    on_page: bool = True
    intervals: str | None = None
    numbers: tuple[str, ...] = ()
    band: Callable[[Summary], str] = lambda summary: ""


class Study(ABC, Generic[Corpus, Subject, Summary]):
    """One question about models and a data set. A subclass declares it and registers an instance
    (`register`).

    A `Subject` is the unit of computation for one model: the model, the corpus and one setting of
    the varying parameters. A `Summary` is the result for one subject. `unit` is the singular of the
    items that a progress bar counts. `reads` explains how to read the figures, and `limits` what
    the verdict does not show. `dataset` and `models` are the defaults; pages start with the models
    `compared` instead, if there are any. `product` names what a study can write to a folder in
    addition to its results, and `part` declares its part of a passport, if it has one. `retries`
    says whether failed items are recorded, to be retried only on request. `tests` names the fields
    of a summary with comparisons, whose p values are adjusted (Holm) for all results shown
    together. `needs` says what is read of a data set: its pairs, its queries (pairs if the data set
    has relevance judgments) or only its documents.
    """

    name: ClassVar[str]
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
    part: ClassVar[StudyPart | None] = None
    retries: ClassVar[bool] = True
    tests: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[Literal["pairs", "queries", "documents"]] = "pairs"

    def __init__(self) -> None:
        # By everything that they depend on, because pages need them at every rerun.
        self.summaries: LRUCache[Summary] = LRUCache(128)

    @property
    def title(self) -> str:
        """The heading; by default the name. A subclass may define it as a text."""
        return self.name.capitalize()

    def parameters_for(self, data: DataSet) -> Parameters:
        """The parameters for this data set: without those that it determines, and with the options
        that it offers."""
        return self.parameters

    @abstractmethod
    def corpus(self, data: DataSet, settings: Settings) -> Corpus:
        """The part of a data set that the study uses.

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
        """The corpus, without items that one of these models cannot answer if `settings` exclude
        those.

        Raises:
            UserError: nothing remains, or a model cannot be loaded.
        """
        return corpus

    def read(self, dataset: str) -> DataSet:
        """The data set of this name, for commands and Python calls, without its pairs if the study
        `needs` none.

        Raises:
            UserError: its files cannot be read.
        """
        if self.needs == "pairs" or (self.needs == "queries" and datasets.judged(dataset)):
            return datasets.read(dataset)
        return DataSet(dataset, datasets.corpus_of(dataset).title, Pairs())

    def notes(self, data: DataSet, corpus: Corpus) -> list[str]:
        """Which parts of the data set are excluded and why, one sentence each."""
        return []

    def require_fit(self, spec: RetrieverSpec) -> None:
        """Check that the study fits a model.

        Raises:
            UserError: it does not.
        """

    def subjects(
        self, compute: Compute, spec: RetrieverSpec, corpus: Corpus, settings: Settings
    ) -> list[Subject]:
        """The subjects for one model; by default one `Asked`.

        Raises:
            UserError: the study does not fit the model.
        """
        self.require_fit(spec)
        return [cast(Subject, Asked(spec, corpus, settings))]

    def without_models(self, corpus: Corpus) -> list[Summary]:
        """Results that no model computes, such as rankings read from a file; they follow those of
        models. A command that has them needs no model.

        Raises:
            UserError: they don't fit the corpus.
        """
        return []

    @abstractmethod
    def job(self, compute: Compute, subject: Subject) -> Job:
        """The job that computes and stores the missing results of a subject.

        Raises:
            UserError: the model's files are not on this machine, or the study does not fit it.
        """

    def require_loaded_fit(self, compute: Compute, subject: Subject) -> None:
        """Check what only a loaded model shows, before anything is computed; by default nothing,
        and no model is loaded.

        Raises:
            UserError: the subject does not fit its model, or the model cannot be loaded.
        """

    def estimate(
        self, compute: Compute, subject: Subject, *, load: bool = False, retry_failed: bool = False
    ) -> str:
        """An estimate as text of how much a subject without a result reads and how long that takes;
        empty if unknown. With `load` the model may be loaded to time it, and with `retry_failed`
        failed items are computed again.

        Raises:
            UserError: the corpus cannot be read, or the model cannot be loaded.
        """
        return ""

    @abstractmethod
    def summarize(self, compute: Compute, subject: Subject) -> Summary | None:
        """The result from what is stored; None while too little is stored.

        Raises:
            UserError: nothing could be computed.
        """

    def so_far(self, compute: Compute, subject: Subject) -> Summary | None:
        """An estimate of an incomplete subject's result from what is stored; None if what is
        stored does not allow one. Verdicts and provenance need not state that it is not final:
        `study_plan.so_far` adds this for all studies."""
        return None

    def together(self, summaries: Sequence[Summary]) -> list[Summary]:
        """The results with everything that depends on all of them, such as the p values of
        `tests`."""
        return adjusted_fields(summaries, self.tests)

    def measured(self, summary: Summary) -> MeasuredModel | None:
        """The measures in which two results are compared; None without a comparison. A study that
        overrides this has a table of paired differences, and a sentence for each pair of
        results."""
        return None

    def differences(self, summaries: Sequence[Summary]) -> list[DifferenceRow]:
        """Each result compared with the preceding ones; p values are adjusted (Holm) for all of
        these comparisons."""
        measured = (self.measured(summary) for summary in summaries)
        return paired_differences([model for model in measured if model is not None])

    @property
    def all_tables(self) -> Mapping[str, Table[Any]]:
        """The study's tables by name, including those of paired differences and of the values by
        item from which they are computed."""
        if type(self).measured is Study.measured:
            return self.tables

        def items(summary: Summary) -> Iterable[ItemRow]:
            return item_rows(self.measured(summary))

        return {
            **self.tables,
            DIFFERENCES: Table(DifferenceRow, self.differences, TITLE, joint=True),
            ITEMS: Table(ItemRow, items, ITEMS_TITLE, on_page=False),
        }

    def frame(self, summaries: Sequence[Summary], table: str) -> pd.DataFrame:
        """The table of this name, as written to files, with the study in its title."""
        declared = self.all_tables[table]
        frame = declared.frame(summaries)
        table_title = "" if declared.title == self.title else uncapitalized(declared.title)
        frame.attrs["title"] = ", ".join(filter(None, (self.title, table_title)))
        return frame

    def tables_of(self, summaries: Sequence[Summary]) -> Mapping[str, Table[Any]]:
        """The tables that these results can fill."""
        return self.all_tables

    def limits_of(self, summaries: Sequence[Summary]) -> str:
        """What readers of these results need to know, by default `limits`."""
        return self.limits

    @property
    def listed_tables(self) -> Mapping[str, Table[Any]]:
        """`all_tables`, and the table of failed items if these are recorded."""
        return {**self.all_tables, **({FAILURES: FAILURE_TABLE} if self.retries else {})}

    @property
    def streams(self) -> bool:
        """Whether no result depends on later ones, so that each verdict can be shown
        immediately."""
        return not self.tests and type(self).together is Study.together

    def remarks(self, summaries: Sequence[Summary]) -> list[str]:
        """Caveats that readers of the results need, one sentence each."""
        return []

    @abstractmethod
    def verdict(self, summary: Summary) -> str:
        """The result in one sentence: value, interval, meaning."""

    @abstractmethod
    def provenance(self, summary: Summary) -> Provenance:
        """Everything needed to reproduce the summary; see `provenances` for how the intervals of a
        table or figure were computed."""

    def figures_of(self, table: str) -> list[Figure[Summary]]:
        """The figures that are drawn for a table."""
        named = [figure for figure in self.figures if table in figure.tables]
        return named or [figure for figure in self.figures if not figure.tables]

    @property
    def drawn_tables(self) -> Mapping[str, Table[Any]]:
        """The tables that have a figure."""
        return {name: each for name, each in self.all_tables.items() if self.figures_of(name)}

    def draw(
        self,
        summaries: Sequence[Summary],
        style: Style,
        table: str = "",
    ) -> go.Figure:
        """The first figure of a table for which there is something to draw. For the first table,
        which is the default, it can also be a figure of another one.

        Raises:
            UserError: there is none.
        """
        first = next(iter(self.all_tables))
        figures = self.figures_of(table or first)
        if table in ("", first):
            figures += [figure for figure in self.figures if figure not in figures]
        reasons = []
        for figure in figures:
            try:
                provenances = self.provenances(summaries, figure.title)
                return captioned(figure.draw(summaries, style), provenances, style)
            except UserError as error:
                reasons.append(error)
        if reasons:
            raise reasons[0]
        raise UserError(
            f"{self.title} has no figure of the table {table!r}: choose from "
            f"{', '.join(self.drawn_tables)}."
            if self.figures
            else f"{self.title} has no figure."
        )

    def provenances(self, summaries: Sequence[Summary], shown: str = "") -> list[Provenance]:
        """The provenance of each summary, with how its intervals were computed that are `shown` in
        the table of this name or in the figure of this title; by default in the first table."""
        figure = next((each for each in self.figures if each.title == shown), None)
        return [
            replace(
                self.provenance(summary),
                interval=interval,
                band="" if figure is None else figure.band(summary),
            )
            for summary, interval in zip(
                summaries, self._intervals(summaries, shown, figure), strict=True
            )
        ]

    def _intervals(
        self, summaries: Sequence[Summary], shown: str, figure: Figure[Summary] | None
    ) -> list[str]:
        """How the intervals of each summary were computed, as `provenances` states it."""
        tables = self.listed_tables
        first = next(iter((*figure.tables, *tables))) if figure else shown or next(iter(tables))
        name = figure.intervals if figure and figure.intervals is not None else first
        if name not in tables:
            return [""] * len(summaries)
        table, numbers = tables[name], figure.numbers if figure else ()

        def computed(some: Sequence[Summary]) -> str:
            estimates = table.estimates(some)
            drawn = (each for each in estimates if not numbers or each[0] in numbers)
            return resampled_of(drawn, table.one_sided)

        if table.joint:
            return [computed(summaries)] * len(summaries)
        return [computed([summary]) for summary in summaries]

    def require_product(self, folder: Path, n_models: int) -> None:
        """Check that `write_product` can write results of this many models to this folder. Only
        for a study with a `product`.

        Raises:
            UserError: it cannot.
        """
        raise NotImplementedError

    def write_product(self, compute: Compute, summaries: Sequence[Summary], folder: Path) -> str:
        """Write the computed `product` to a folder. Only for a study with a `product`.

        Returns:
            Why nothing was written, if the results have no one product; otherwise "".

        Raises:
            UserError: it cannot be written.
        """
        raise NotImplementedError


Registered = TypeVar("Registered", bound=Study[Any, Any, Any])
STUDIES: dict[str, Study[Any, Any, Any]] = {}
"""Every study by name."""


def register(study: Registered) -> Registered:
    """Register a study as a command and a Python call, and return it."""
    if study.name in STUDIES:
        raise ValueError(f"two studies are named {study.name}")
    STUDIES[study.name] = study
    return study

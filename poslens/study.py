"""A study: one question about models and a data set, declared once.

A study names its parameters, the models it fits, what it computes for each of them, the rows of its
tables, its verdict and its figures. The command (`poslens.commands.study_command`), the page
(`poslens.dashboard.widgets.study_page`), the Python call (`poslens.api`), the JSON and its schema
are derived from that declaration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import plotly.graph_objects as go

from poslens.attribution import datasets
from poslens.attribution.datasets import SAMPLE, DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.compute.compute import Compute
from poslens.compute.coverage import Report
from poslens.compute.runs import Job
from poslens.figures.palettes import Style
from poslens.parameters import Parameters, Settings
from poslens.rows import Table

Corpus = TypeVar("Corpus")
Subject = TypeVar("Subject")
Summary = TypeVar("Summary")

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

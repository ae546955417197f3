"""What a study computes for some models, and its stored results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.compute.compute import Compute
from poslens.compute.runs import Job
from poslens.failures import FailureRow
from poslens.parameters import Settings
from poslens.study import Corpus, Study, Subject, Summary


@dataclass(frozen=True)
class Plan(Generic[Subject]):
    """The subjects of a study for some models, their jobs, the reasons why models have no subject,
    by the model's name (`without_subject`), and why others lack some (`misfits`)."""

    subjects: tuple[Subject, ...]
    jobs: tuple[Job, ...]
    without_subject: Mapping[str, str]
    misfits: tuple[str, ...]

    @property
    def without_result(self) -> list[FailureRow]:
        """The models without a subject, as rows of a table of failures."""
        return [FailureRow(name, None, reason) for name, reason in self.without_subject.items()]

    @property
    def refused(self) -> tuple[str, ...]:
        """All reasons."""
        return tuple(dict.fromkeys((*self.without_subject.values(), *self.misfits)))


def plan(
    study: Study[Corpus, Subject, Any],
    compute: Compute,
    specs: Iterable[RetrieverSpec],
    corpus: Corpus,
    settings: Settings,
    *,
    load: bool = False,
) -> Plan[Subject]:
    """The plan of a study for these models. UserErrors become reasons. With `load`, models are
    loaded if only that shows whether a subject without a result fits."""
    subjects: list[Subject] = []
    jobs: list[Job] = []
    without_subject: dict[str, str] = {}
    misfits: list[str] = []
    for spec in specs:
        n_before, reasons = len(subjects), list[str]()
        try:
            for subject in study.subjects(compute, spec, corpus, settings):
                try:
                    job = study.job(compute, subject)
                    if load and job.n_done() < job.total:
                        study.require_loaded_fit(compute, subject)
                    jobs.append(job)
                    subjects.append(subject)
                except UserError as reason:
                    reasons.append(str(reason))
        except UserError as reason:
            reasons.append(str(reason))
        if len(subjects) > n_before:
            misfits += reasons
        elif reasons:
            without_subject[spec.name] = reasons[0]
    return Plan(
        tuple(subjects),
        tuple(jobs),
        without_subject,
        tuple(dict.fromkeys(misfits)),
    )


def stored(
    study: Study[Any, Subject, Summary],
    compute: Compute,
    subjects: Iterable[Subject],
    *,
    without_models: Iterable[Summary] = (),
    incomplete: bool = False,
    on_error: Callable[[UserError], None] | None = None,
) -> list[Summary]:
    """The stored results of complete subjects, in order, followed by those `without_models`; with
    `incomplete`, also estimates for incomplete subjects. With `on_error`, it is called with the
    reason why a subject has no result, and the others are returned.

    Raises:
        UserError: a subject has no result, and there is no `on_error`.
    """
    summaries: list[Summary] = []
    for subject in subjects:
        try:
            summary = study.summarize(compute, subject, summaries)
            if summary is None and incomplete:
                summary = study.so_far(compute, subject, summaries)
        except UserError as error:
            if on_error is None:
                raise
            on_error(error)
            continue
        if summary is not None:
            summaries.append(summary)
    return study.together([*summaries, *without_models])

"""What a study computes for some models, and its stored results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from poslens.attribution.errors import UserError
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.compute.compute import Compute
from poslens.compute.runs import Job
from poslens.compute.selection import ComputedSoFar
from poslens.failures import FailureRow, failure_rows
from poslens.paired import difference_sentences
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
                    if load and job.has_left():
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


@dataclass(frozen=True)
class Completed(Generic[Summary]):
    """The results of a plan; the reasons why models or subjects have none; and the failed items and
    models."""

    summaries: list[Summary]
    reasons: tuple[str, ...]
    failures: list[FailureRow]


def complete(
    study: Study[Any, Subject, Summary],
    compute: Compute,
    planned: Plan[Subject],
    run: Callable[[Subject, Job], object],
    *,
    without_models: Iterable[Summary] = (),
    on_result: Callable[[Job, Sequence[Summary]], object] = lambda job, summaries: None,
) -> Completed[Summary]:
    """Compute the missing results of a plan, one subject after the other. `run` computes those of
    a subject, and `on_result` is called with its job and the results up to its own. A subject whose
    run fails or ends early has no result."""
    summaries: list[Summary] = []
    reasons = list(planned.without_subject.values())
    without_result = planned.without_result
    for subject, job in zip(planned.subjects, planned.jobs, strict=True):
        try:
            run(subject, job)
            summary = study.summarize(compute, subject)
            if summary is None or job.has_left():
                error = next((part.error for part in job.parts if part.error), "")
                raise UserError(f"{job.label} isn't complete: {error or 'run it again to resume.'}")
        except UserError as reason:
            reasons.append(str(reason))
            if not job.failures():
                without_result.append(FailureRow(job.label, None, str(reason)))
            continue
        summaries.append(summary)
        on_result(job, summaries)
    together = study.together([*summaries, *without_models])
    return Completed(
        together, tuple(dict.fromkeys(reasons)), [*failure_rows(planned.jobs), *without_result]
    )


@dataclass(frozen=True)
class SoFar(Generic[Summary]):
    """Results of a study, of which some may be incomplete: `computed` states how much of each is
    computed, None for complete ones."""

    study: Study[Any, Any, Summary]
    summaries: list[Summary]
    computed: tuple[ComputedSoFar | None, ...]

    @property
    def verdicts(self) -> list[str]:
        """The verdict of each result, which states if it is not final."""
        verdicts = []
        for summary, computed in zip(self.summaries, self.computed, strict=True):
            verdict = self.study.verdict(summary)
            if computed is not None:
                left = counted(computed.total - computed.done, computed.unit)
                verdict += f" Not final: compute the remaining {left}."
            verdicts.append(verdict)
        return verdicts

    @property
    def differences(self) -> list[str]:
        """The sentences on paired differences, which state if they are not final."""
        final = not any(self.computed)
        sentences = difference_sentences(self.study.differences(self.summaries))
        return sentences if final else [f"{sentence} Not final." for sentence in sentences]

    def provenances(self, shown: str = "") -> list[Provenance]:
        """As of the study; the selection states how much of an incomplete result is computed."""
        sources = self.study.provenances(self.summaries, shown)
        if not any(self.computed):
            return sources
        return [
            source if computed is None else replace(source, selection=computed.of(source.selection))
            for source, computed in zip(sources, self.computed, strict=True)
        ]


def stored(
    study: Study[Any, Subject, Summary],
    compute: Compute,
    subjects: Iterable[Subject],
    *,
    without_models: Iterable[Summary] = (),
    on_error: Callable[[UserError], None] | None = None,
) -> list[Summary]:
    """The stored results of complete subjects, in order, followed by those `without_models`. With
    `on_error`, it is called with the reason why a subject has no result, and the others are
    returned.

    Raises:
        UserError: a subject has no result, and there is no `on_error`.
    """
    complete = list(subjects)
    no_jobs = [None] * len(complete)
    return so_far(
        study, compute, complete, no_jobs, without_models=without_models, on_error=on_error
    ).summaries


def so_far(
    study: Study[Any, Subject, Summary],
    compute: Compute,
    subjects: Iterable[Subject],
    jobs: Iterable[Job | None],
    *,
    without_models: Iterable[Summary] = (),
    on_error: Callable[[UserError], None] | None = None,
) -> SoFar[Summary]:
    """The same with estimates for incomplete subjects that have a job; `jobs` are those of the
    subjects.

    Raises:
        UserError: as `stored`.
    """
    results: list[tuple[Summary, ComputedSoFar | None]] = []
    for subject, job in zip(subjects, jobs, strict=True):
        computed = None
        try:
            summary = study.summarize(compute, subject)
            if summary is None and job is not None:
                # Counted before results are read: a run that is active adds more.
                computed = ComputedSoFar(job.n_done(), job.total, study.unit)
                summary = study.so_far(compute, subject)
        except UserError as error:
            if on_error is None:
                raise
            on_error(error)
            continue
        if summary is not None:
            results.append((summary, computed))
    results += [(summary, None) for summary in without_models]
    summaries = study.together([summary for summary, _ in results])
    return SoFar(study, summaries, tuple(computed for _, computed in results))

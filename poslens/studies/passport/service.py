"""A model's passport: its parts, the job that computes them, and their numbers for files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import pandas as pd

from poslens.attribution.datasets import DataSet
from poslens.attribution.datasets.types import spread_evenly
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.relocation import movable, relocation_method
from poslens.attribution.interventions.segments import documents_of, first_pairs
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Provenance
from poslens.cache.keys import text_fingerprint
from poslens.commands.answers import answer_from, source
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity, precision_of
from poslens.compute.runs import Job, RunKey, failures_of, in_turn
from poslens.studies.audit.study import AUDIT
from poslens.studies.cause import service as interventions
from poslens.studies.cause.segments import SEGMENTS
from poslens.studies.cause.service import DEFAULT_PAIRS
from poslens.studies.cause.study import CAUSE
from poslens.studies.needles import NEEDLE_STUDY
from poslens.studies.passport.answers import (
    ItemEntry,
    NumberEntry,
    PairScoreEntry,
    PartEntry,
    PassportEntry,
)
from poslens.studies.passport.parts import (
    ATTRIBUTION,
    CALIBRATION,
    NULL_CONTROL,
    RANKING,
    curve_method,
)
from poslens.studies.positions.study import POSITIONS
from poslens.studies.why.study import WHY
from poslens.study import Study
from poslens.study_part import MAX_PAIRS, Number, Part, PartAnswer, PartQuestion, Scope
from poslens.study_plan import stored
from poslens.version import __version__


def question_of(study: Study[Any, Any, Any]) -> PartQuestion:
    """A study's part of a passport."""
    declared = study.part
    if declared is None:
        raise ValueError(f"{study.name} declares no part of a passport")

    def read(scope: Scope) -> tuple[Sequence[Job], PartAnswer | None]:
        compute, settings = scope.compute, study.parameters.settings(declared.settings)
        corpus = study.corpus(scope.data, settings)
        planned = study.subjects(compute, scope.spec, corpus, settings)
        subjects = [declared.subject(subject, scope) for subject in planned]
        jobs = [study.job(compute, subject) for subject in subjects]
        summaries = stored(study, compute, subjects)
        if len(summaries) < len(subjects):
            return jobs, None
        return jobs, PartAnswer(
            " ".join(map(study.verdict, summaries)),
            [number for summary in summaries for number in declared.numbers(summary)],
            lambda style: study.draw(summaries, style),
            tuple(study.provenances(summaries)),
        )

    return PartQuestion(
        declared.key, declared.title, declared.limits, declared.unit, read, declared.needs_queries
    )


RELOCATION = question_of(CAUSE)

QUESTIONS: dict[str, PartQuestion] = {
    question.key: question
    for question in (
        ATTRIBUTION,
        NULL_CONTROL,
        RELOCATION,
        question_of(POSITIONS),
        question_of(SEGMENTS),
        RANKING,
        question_of(WHY),
        question_of(NEEDLE_STUDY),
        question_of(AUDIT),
        CALIBRATION,
    )
}
"""The questions of a passport by key, in the order of the card."""

LIMITS = (
    "A passport describes a model on one data set. Data sets in other languages or with other "
    "lengths can give other results."
)
"""Limits of every part of a passport."""

FORMAT = 1
"""Version of the JSON format."""


class Answers(Sequence[Part]):
    """The parts of a passport, each read on first access and then cached, so that a page can draw
    one before the next is read."""

    def __init__(self, questions: Sequence[PartQuestion], scope: Scope) -> None:
        self._n = len(questions)
        self._part = cache(lambda number: questions[number].part(scope))

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        number = range(len(self))[index]
        return tuple(map(self._part, number)) if isinstance(number, range) else self._part(number)


@dataclass(frozen=True)
class ModelPassport:
    """The stored results on a model's position bias over a data set."""

    model: ModelIdentity
    dataset: str
    title: str
    n_pairs: int
    n_documents: int
    parts: Sequence[Part]
    scope: Scope

    @cached_property
    def scores(self) -> dict[str, PairScoreEntry]:
        """Stored scores of the attributed and the relocated pairs by id. `check` measures the drift
        of later scores from them."""
        scope, keys = self.scope, {part.key for part in self.parts}
        scores: dict[str, float] = {}
        if RELOCATION.key in keys:
            moved = interventions.stored(
                scope.compute, scope.spec, relocation_method(), scope.moved
            ).results
            scores |= {pair_id: relocation.original for pair_id, relocation in moved.items()}
        if ATTRIBUTION.key in keys and scope.has_queries:
            method = curve_method(scope.spec)
            curves = scope.compute.store.curves(self.model.key, method, scope.pairs)
            scores |= dict(zip(curves.pair_ids, map(float, curves.scores), strict=True))
        texts = {pair.pair_id: text_fingerprint(pair) for pair in (*scope.moved, *scope.pairs)}
        return {
            pair_id: {"texts": texts[pair_id], "score": score} for pair_id, score in scores.items()
        }

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.spec.name

    @property
    def heading(self) -> str:
        """The data set and the model's identity, in one line."""
        n_attributed = len(self.scope.pairs)
        selection = f", {n_attributed:,} attributed" if n_attributed < self.n_pairs else ""
        precision = f"; {stated}" if (stated := precision_of(self.model)) else ""
        return (
            f"{self.title}: {self.n_pairs:,} pairs, {self.n_documents:,} distinct "
            f"documents{selection}; the model reads {limits.reads(self.model.spec)}; weights "
            f"{self.model.weights}{precision}; PosLens {__version__}"
        )

    @property
    def provenance(self) -> list[Provenance]:
        """Provenance of all numbers."""
        return [provenance for part in self.parts for provenance in part.provenance]

    def number(self, part: str, key: str) -> Number | None:
        """A number of a part; None if it is missing."""
        numbers = (number for each in self.parts if each.key == part for number in each.numbers)
        return next((number for number in numbers if number.key == key), None)

    @property
    def missing(self) -> tuple[Part, ...]:
        """The parts that can be computed and have no numbers yet."""
        return tuple(part for part in self.parts if not part.numbers and part.jobs)


def passport(
    compute: Compute,
    spec: RetrieverSpec,
    data: DataSet,
    limit: int = MAX_PAIRS,
    only: Collection[str] | None = None,
    moved: int | Collection[str] = DEFAULT_PAIRS,
) -> ModelPassport:
    """The passport of a model, from stored results alone. At most `limit` pairs of the data set,
    spread evenly, are attributed. `moved` are the ids of the pairs whose evidence is moved, or
    their maximum number. `only` are the keys of the parts; by default, it has all.

    Raises:
        UserError: neither the model's files nor any of its results are on this machine.
    """
    documents = documents_of(data.pairs)
    usable, _ = movable(data.pairs)
    chosen = tuple(spread_evenly(documents, DEFAULT_PAIRS))
    pair_of = first_pairs(data.pairs)
    scope = Scope(
        compute,
        spec,
        data,
        tuple(spread_evenly(data.pairs, limit)),
        tuple(spread_evenly(usable, moved))
        if isinstance(moved, int)
        else tuple(pair for pair in usable if pair.pair_id in moved),
        chosen,
        tuple(pair_of[document.pair_id] for document in chosen),
    )
    return ModelPassport(
        compute.identify(spec),
        data.name,
        data.title,
        len(data.pairs),
        data.pairs.n_documents,
        Answers([q for key, q in QUESTIONS.items() if only is None or key in only], scope),
        scope,
    )


def job(
    compute: Compute,
    passport: ModelPassport,
    title: str = "passport",
    also: Sequence[tuple[str, Job]] = (),
) -> Job:
    """A job that computes the missing parts one after the other, and then the jobs in `also`, given
    with their titles. `title` is its purpose."""
    part_jobs = ((part.title, part_job) for part in passport.parts for part_job in part.jobs)
    parts: dict[RunKey, tuple[str, Job]] = {}
    for part_title, part_job in (*part_jobs, *also):
        parts.setdefault(part_job.key, (part_title, part_job))

    named = tuple(parts.values())
    jobs = tuple(job for _, job in named)
    return compute.job(
        _key(passport.model, passport.dataset, title),
        f"{passport.name}: {title}",
        len(jobs),
        in_turn(named),
        parts=jobs,
        n_done=lambda: sum(not job.has_left() for job in jobs),
        failures=lambda: failures_of(named),
        counts_items=False,
        can_start=not passport.model.stored_only,
    )


def active(compute: Compute, spec: RetrieverSpec, dataset: str) -> bool:
    """Whether a passport is being computed. Faster than reading the passport.

    Raises:
        UserError: as in `passport`.
    """
    run = compute.runs.find(compute.root, _key(compute.identify(spec), dataset))
    return run is not None and run.active


def _key(model: ModelIdentity, dataset: str, title: str = "passport") -> RunKey:
    return title, model.key.fingerprint, model.spec.name, dataset, model.device


def entry(passport: ModelPassport) -> PassportEntry:
    """A passport as JSON."""
    model = passport.model
    return answer_from(
        PassportEntry,
        passport,
        format=FORMAT,
        model=passport.name,
        source=model.spec.origin,
        weights=model.weights,
        precision=model.precision,
        max_length=limits.context_limit(model.spec),
        configured_max_length=limits.configured_apart(model.spec),
        poslens=__version__,
        limits=LIMITS,
        parts={part.key: _part_entry(part) for part in passport.parts},
    )


def _part_entry(part: Part) -> PartEntry:
    numbers = {
        number.key: answer_from(
            NumberEntry,
            number.estimate,
            name=number.name,
            resampled=""
            if number.estimate.formula or not number.estimate.interval
            else number.estimate.resampled,
            note=number.note,
            items={
                item_id: ItemEntry(fingerprint=fingerprint, value=float(row[0]))
                for (item_id, fingerprint), row in number.measure.rows.items()
            }
            if number.measure
            else {},
        )
        for number in part.numbers
    }
    return answer_from(
        PartEntry, part, numbers=numbers, provenance=list(map(source, part.provenance))
    )


def checked_parts(keys: Sequence[str]) -> None:
    """Check that a passport has parts with these keys.

    Raises:
        UserError: it does not.
    """
    if unknown := [key for key in keys if key not in QUESTIONS]:
        raise UserError(
            f"A passport has no part {unknown[0]!r}: choose from {', '.join(QUESTIONS)}."
        )


def no_results(passports: Sequence[ModelPassport]) -> UserError:
    """The error message if no passport has a number, with the reasons."""
    reasons = dict.fromkeys(part.absent for each in passports for part in each.parts if part.absent)
    return UserError(f"No model has results of these parts. {' '.join(reasons)}")


def table(passports: Sequence[ModelPassport], only: str = "") -> pd.DataFrame:
    """The numbers of passports, or `only` those of one part, one per row."""
    passports = [
        replace(each, parts=[part for part in each.parts if only in ("", part.key)])
        for each in passports
    ]
    estimate = ["value", "low", "high", "n", "n_resampled"]
    rows = [
        (
            passport.name,
            part.key,
            number.key,
            *(getattr(number.estimate, name) for name in estimate),
            number.note,
        )
        for passport in passports
        for part in passport.parts
        for number in part.numbers
    ]
    frame = pd.DataFrame(rows, columns=["model", "part", "measure", *estimate, "note"])
    frame.attrs["title"] = "Passport"
    shown = [
        (part.title, number.name, number.form)
        for passport in passports
        for part in passport.parts
        for number in part.numbers
    ]
    parts, names, forms = zip(*shown, strict=True) if shown else ((), (), ())
    # LaTeX shows titles and the cards' formats of numbers.
    frame.attrs["texts"] = {"part": [*parts], "measure": [*names]}
    frame.attrs["forms"] = {"value": [*forms]}
    return frame


def model_card(passports: Sequence[ModelPassport]) -> str:
    """The numbers as YAML for the head of a model card (the Hugging Face Hub's `model-index`), one
    document per model."""
    from huggingface_hub import EvalResult, ModelCardData

    texts = []
    for passport in passports:
        results = [
            EvalResult(
                task_type="text-retrieval",
                task_name="Position bias",
                dataset_type=passport.dataset,
                dataset_name=passport.title,
                metric_type=f"{part.key}.{number.key}",
                # The format has no field for an interval.
                metric_name=f"{part.title}: {number.name}, {number.text}",
                metric_value=number.estimate.value,
            )
            for part in passport.parts
            for number in part.numbers
        ]
        data = ModelCardData(model_name=passport.name, eval_results=results or None)
        texts.append(data.to_yaml())
    return "---\n".join(f"{text}\n" for text in texts)

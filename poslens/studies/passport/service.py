"""One model's passport: its parts, and what of them goes into files. No Streamlit here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from poslens.attribution.datasets import DataSet
from poslens.attribution.interventions.relocation import relocation_method
from poslens.attribution.retrievers import limits
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.cache.keys import text_fingerprint
from poslens.commands.answers import source
from poslens.compute.compute import Compute
from poslens.compute.provenance import ModelIdentity, poslens_version
from poslens.compute.runs import Job, RunKey
from poslens.studies.cause import service as interventions
from poslens.studies.cause.service import DEFAULT_PAIRS
from poslens.studies.passport.answers import PartEntry, PassportEntry
from poslens.studies.passport.parts import curve_method, parts
from poslens.studies.passport.subject import MAX_PAIRS, Part, Subject, subject

LIMITS = (
    "A passport describes a model on one data set. Data sets in other languages or with other "
    "lengths can give other results."
)
"""What no part of a passport shows."""

FORMAT = 1
"""Version of the JSON form."""


@dataclass(frozen=True, slots=True)
class PairScore:
    """A pair's score, and the fingerprint of its two texts."""

    texts: str
    score: float


@dataclass(frozen=True)
class ModelPassport:
    """What is known of a model's position bias over a data set."""

    model: ModelIdentity
    dataset: str
    title: str
    n_pairs: int
    n_documents: int
    parts: tuple[Part, ...]
    of: Subject

    @cached_property
    def scores(self) -> dict[str, PairScore]:
        """Scores of the pairs that were attributed or relocated, by their ids, as far as they are
        stored: what a later passport shows drift against."""
        of, parts = self.of, {part.key for part in self.parts}
        scores: dict[str, float] = {}
        if "relocation" in parts:
            moved = interventions.stored(of.compute, of.spec, relocation_method(), of.moved)
            scores |= {pair_id: score.original for pair_id, score in moved.results.items()}
        if "attribution" in parts and of.has_queries:
            stored = of.compute.store.curves(self.model.key, curve_method(of.spec), of.pairs)
            scores |= dict(zip(stored.pair_ids, map(float, stored.scores), strict=True))
        texts = {pair.pair_id: text_fingerprint(pair) for pair in (*of.moved, *of.pairs)}
        return {pair_id: PairScore(texts[pair_id], score) for pair_id, score in scores.items()}

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.spec.name

    @property
    def heading(self) -> str:
        """The data set and the model's identity, in one line."""
        scored = len(self.of.pairs)
        chosen = f", {scored:,} attributed" if scored < self.n_pairs else ""
        return (
            f"{self.title}: {self.n_pairs:,} pairs of {self.n_documents:,} documents{chosen}; "
            f"the model reads {limits.reads(self.model.spec)}; weights {self.model.weights}; "
            f"{self.model.precision}; PosLens {poslens_version()}"
        )

    @property
    def missing(self) -> tuple[Part, ...]:
        """The parts that could be computed and are not yet."""
        return tuple(part for part in self.parts if not part.numbers and part.jobs)


def passport(
    compute: Compute,
    spec: RetrieverSpec,
    data: DataSet,
    limit: int = MAX_PAIRS,
    only: Collection[str] | None = None,
    moved: int | Collection[str] = DEFAULT_PAIRS,
) -> ModelPassport:
    """The passport of a model over at most `limit` pairs of a data set, as far as it is stored;
    computes nothing. `only` are keys of the parts that are wanted; `moved` as in `subject`.

    Raises:
        UserError: the model's files are not here, and no results of it either.
    """
    of = subject(compute, spec, data, limit, moved)
    return ModelPassport(
        compute.identify(spec),
        data.name,
        data.title,
        len(data.pairs),
        len({pair.document for pair in data.pairs}),
        tuple(parts(of, only)),
        of,
    )


def job(
    compute: Compute,
    passport: ModelPassport,
    title: str = "passport",
    also: Sequence[tuple[str, Job]] = (),
) -> Job:
    """What computes all that is missing, a part after the other, and then other jobs by their
    titles; `title` tells what it is for."""
    parts: dict[RunKey, tuple[str, Job]] = {}
    for part in passport.parts:
        for own_job in part.jobs:
            parts.setdefault(own_job.key, (part.title, own_job))
    for part_title, own_job in also:
        parts.setdefault(own_job.key, (part_title, own_job))

    def missing() -> list[tuple[str, Job]]:
        return [(title, job) for title, job in parts.values() if job.n_done() < job.total]

    jobs = [job for _, job in parts.values()]
    return compute.one_by_one(
        _key(passport.model, passport.dataset, title),
        f"{passport.name}: {title}",
        jobs,
        missing,
        can_start=not passport.model.stored_only,
    )


def active(compute: Compute, spec: RetrieverSpec, dataset: str) -> bool:
    """Whether a passport is being computed; quicker than making it.

    Raises:
        UserError: as `passport`.
    """
    run = compute.runs.find(compute.root, _key(compute.identify(spec), dataset))
    return run is not None and run.active


def _key(model: ModelIdentity, dataset: str, title: str = "passport") -> RunKey:
    return title, model.key.fingerprint, model.spec.name, dataset, model.device


def entry(passport: ModelPassport) -> PassportEntry:
    """A passport as JSON has it."""
    return {
        "format": FORMAT,
        "model": passport.name,
        "source": passport.model.spec.origin,
        "weights": passport.model.weights,
        "precision": passport.model.precision,
        "max_length": passport.model.spec.max_length,
        "configured_max_length": limits.configured_apart(passport.model.spec),
        "dataset": passport.dataset,
        "n_pairs": passport.n_pairs,
        "n_documents": passport.n_documents,
        "poslens": poslens_version(),
        "limits": LIMITS,
        "parts": {part.key: _part_entry(part) for part in passport.parts},
        "scores": {
            pair_id: {"texts": score.texts, "score": score.score}
            for pair_id, score in passport.scores.items()
        },
    }


def _part_entry(part: Part) -> PartEntry:
    return {
        "title": part.title,
        "finding": part.finding,
        "limits": part.limits,
        "absent": part.absent,
        "numbers": {
            number.key: {
                "name": number.name,
                "value": number.estimate.value,
                "low": number.estimate.low,
                "high": number.estimate.high,
                "n": number.estimate.n,
                "n_resampled": number.estimate.n_resampled,
                "resampled": number.estimate.resampled if number.estimate.interval else "",
                "note": number.note,
                "items": {
                    item.item_id: {"fingerprint": item.fingerprint, "value": item.value}
                    for item in number.items
                },
            }
            for number in part.numbers
        },
        "provenance": [source(provenance) for provenance in part.provenance],
    }


def table(passports: Sequence[ModelPassport]) -> pd.DataFrame:
    """Every number of the passports, a row each."""
    rows = [
        {
            "model": passport.name,
            "part": part.key,
            "measure": number.key,
            "value": number.estimate.value,
            "low": number.estimate.low,
            "high": number.estimate.high,
            "n": number.estimate.n,
            "n_resampled": number.estimate.n_resampled,
            "note": number.note,
        }
        for passport in passports
        for part in passport.parts
        for number in part.numbers
    ]
    columns = ["model", "part", "measure", "value", "low", "high", "n", "n_resampled", "note"]
    return pd.DataFrame(rows, columns=columns)


def model_card(passports: Sequence[ModelPassport]) -> str:
    """The numbers as YAML that stands at the head of a model card (`model-index` of the Hugging
    Face hub), a model after the other."""
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
                # There is no field for an interval, so the name has it.
                metric_name=f"{part.title}: {number.name}, {number.text}",
                metric_value=number.estimate.value,
            )
            for part in passport.parts
            for number in part.numbers
        ]
        data = ModelCardData(model_name=passport.name, eval_results=results or None)
        texts.append(data.to_yaml())
    return "---\n".join(f"{text}\n" for text in texts)

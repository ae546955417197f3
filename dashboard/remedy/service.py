"""A model before and after calibration: rankings over a grid of settings, and what is recommended
of them. No Streamlit here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from attribution.datasets.corpus import Query
from attribution.errors import UserError
from attribution.evaluation.ranking_measures import NDCG
from attribution.evaluation.remedy import (
    Change,
    Quality,
    change,
    halves,
    on_front,
    quality,
    recommend,
)
from attribution.retrievers.calibration import BASKET, STRENGTH, Calibration
from attribution.retrievers.dense import FAMILY as DENSE
from attribution.retrievers.detect import family_of
from attribution.retrievers.resolve import locate
from attribution.retrievers.specs import RetrieverSpec, contents_of, with_calibration
from attribution.types import Provenance
from cache.recent import Recent
from dashboard.core import provenance
from dashboard.core.answers import interval
from dashboard.core.compute import Compute
from dashboard.core.runs import Job
from dashboard.ranking import service as ranking_service
from dashboard.ranking.service import Ranked, Setup
from dashboard.remedy.answers import QualityEntry, Recommendation

STRENGTHS = (STRENGTH, 1.0)
BASKETS = (64, BASKET)
MAX_POINTS = 64
"""Settings of one grid: each ranks the whole data set."""

HALF, ALL = "half", "all"
LAYERS = (HALF,)

_LAYER_KEYS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")


def n_layers(spec: RetrieverSpec) -> int | None:
    """How many layers the model's configuration says that it has."""
    config = contents_of(spec.name, locate(spec).folder).config("config.json")
    known = config if isinstance(config, dict) else {}
    return next((n for key in _LAYER_KEYS if isinstance(n := known.get(key), int)), None)


def grid(
    spec: RetrieverSpec,
    strengths: Sequence[float] = STRENGTHS,
    baskets: Sequence[int] = BASKETS,
    layers: Sequence[str] = LAYERS,
) -> list[RetrieverSpec]:
    """`spec` calibrated in every combination; `layers` are `half`, `all` or numbers of layers.

    Raises:
        UserError: a number out of range, too many combinations, or a model that is not calibrated.
    """
    if family_of(spec) is not DENSE:
        raise UserError(f"{spec.name} has no attention to calibrate: choose a dense model.")
    n = n_layers(spec)
    found: dict[str, RetrieverSpec] = {}
    for depth, basket, strength in product(layers, baskets, strengths):
        how = Calibration(strength, basket, _depth(depth, n, spec.name))
        if how.layers is not None and n is not None:
            how.first_of(n, spec.name)
        one = with_calibration(spec, how)
        found[one.name] = one
    if not found:
        raise UserError("No setting is left: choose at least one strength, basket and depth.")
    if len(found) > MAX_POINTS:
        raise UserError(
            f"{len(found)} settings are more than the {MAX_POINTS} that one grid has: choose fewer."
        )
    return list(found.values())


def _depth(word: str, n: int | None, name: str) -> int | None:
    if word == HALF:
        return None
    if word == ALL and n is not None:
        return n
    try:
        depth = int(word)
    except ValueError as error:
        raise UserError(
            f"The layers to calibrate are half, all or a whole number, not {word[:40]!r}."
            if word != ALL
            else f"{name} does not say how many layers it has: give a number."
        ) from error
    # One setting has one name, so that its results are found again.
    return None if n is not None and depth == max(1, n // 2) else depth


def job(
    compute: Compute, spec: RetrieverSpec, points: Sequence[RetrieverSpec], setup: Setup
) -> Job:
    """Rank with the plain model and each of `points` that has no rankings, one after the other.

    Raises:
        UserError: the model's files are not here.
    """
    _placed(setup)
    return ranking_service.job_of_all(compute, [spec, *points], setup)


@dataclass(frozen=True)
class Point:
    """A model's rankings and how even they are; `change` is against the plain model, None of the
    plain model itself. `front` says that no other point is both better and more even."""

    ranked: Ranked
    quality: Quality
    change: Change | None
    front: bool = False

    @property
    def spec(self) -> RetrieverSpec:
        """The model."""
        return self.ranked.model.spec

    @property
    def name(self) -> str:
        """The model's name."""
        return self.spec.name

    @property
    def strength(self) -> float:
        """How strongly it is calibrated; 0 is plain."""
        return self.spec.calibration.strength if self.spec.calibration else 0.0


@dataclass(frozen=True)
class Judgement:
    """The point chosen on one half of the queries, judged on the other half, which had no say.
    `before` and `after` are of that other half; `change` is None where the plain model won."""

    point: Point
    n_chosen: int
    before: Quality
    after: Quality
    change: Change | None


@dataclass(frozen=True)
class Remedy:
    """Before and after. `points` begin with the plain model; `missing` have no rankings yet, and
    until then nothing is recommended."""

    points: tuple[Point, ...]
    missing: tuple[str, ...]
    judgement: Judgement | None
    chosen_on: frozenset[str]
    setup: Setup

    @property
    def plain(self) -> Point:
        """The model as it is."""
        return self.points[0]

    def provenance(self) -> list[Provenance]:
        """Everything needed to compute the points again."""
        plain = self.plain.ranked
        return [
            provenance.of_remedy(
                plain.model,
                plain.method,
                self.plain.quality,
                plain.setup.collection.name,
                plain.setup.collection.survey.n,
                [one.spec.calibration for one in self.points if one.spec.calibration],
                plain.setup.selection,
            )
        ]


def _placed(setup: Setup) -> list[Query]:
    """The measured queries whose evidence has a place.

    Raises:
        UserError: there are none.
    """
    placed = [query for query in setup.queries if query.evidence is not None]
    if not placed:
        raise UserError(
            "This data set does not say where its evidence stands, so no position bias can be "
            "measured: choose another data set."
        )
    return placed


_remedies: Recent[tuple[object, Remedy]] = Recent(16)


def remedy(
    compute: Compute, spec: RetrieverSpec, points: Sequence[RetrieverSpec], setup: Setup
) -> Remedy | None:
    """What is known of the plain model and of `points`; None while the plain model has no
    rankings.

    Raises:
        UserError: a model's files are not here, or no evidence has a place.
    """
    placed = _placed(setup)
    plain = ranking_service.ranked(compute, spec, setup)
    if plain is None:
        return None
    found = [plain]
    missing = []
    for one in points:
        ranked = ranking_service.ranked(compute, one, setup)
        if ranked is None:
            missing.append(one.name)
        else:
            found.append(ranked)
    # What is kept with the answer holds the rankings, so their ids are given to no others.
    key = (tuple(map(id, found)), tuple(missing))
    return _remedies.get(key, lambda: (found, _made(found, tuple(missing), placed, setup)))[1]


def _made(
    found: Sequence[Ranked], missing: tuple[str, ...], placed: Sequence[Query], setup: Setup
) -> Remedy:
    rows = [row for row, query in enumerate(setup.queries) if query.evidence is not None]
    scores = [one.evaluation.per_query[NDCG][rows].astype(np.float64) for one in found]
    positions = np.array([query.evidence for query in placed], dtype=np.float64)
    documents = np.array([next(iter(query.relevant), "") for query in placed])
    points = []
    for number, one in enumerate(found):
        own = quality(scores[number], positions.tolist(), documents.tolist())
        against = change(scores[0], scores[number], positions.tolist(), documents.tolist())
        assert own is not None  # there are queries
        points.append(Point(one, own, against if number else None))
    front = on_front([(one.quality.psi, one.quality.mean.value) for one in points])
    points = [replace(one, front=is_on) for one, is_on in zip(points, front, strict=True)]
    half = halves(documents.tolist())
    ids = np.array([query.query_id for query in placed])
    judgement = None
    if not missing and half.any() and not half.all():
        best = recommend([one[half] for one in scores], positions[half].tolist())
        places, groups = positions[~half].tolist(), documents[~half].tolist()
        before = quality(scores[0][~half], places, groups)
        after = quality(scores[best][~half], places, groups)
        assert before is not None and after is not None
        judged = change(scores[0][~half], scores[best][~half], places, groups)
        judgement = Judgement(
            points[best], int(half.sum()), before, after, judged if best else None
        )
    chosen_on = frozenset(ids[half].tolist()) if judgement else frozenset()
    return Remedy(tuple(points), missing, judgement, chosen_on, setup)


def verdict(found: Remedy) -> str:
    """What is recommended and what the other half says of it, in sentences."""
    judged = found.judgement
    if judged is None:
        return "Nothing is recommended yet: some settings are not ranked."
    if judged.change is None:
        return (
            f"On {judged.n_chosen:,} queries no setting is more even than {found.plain.name}: "
            "leave it as it is."
        )
    parts = [
        f"{name} {_number(before)} to {_number(after)}"
        + (f" ({changed.text('+.3f')})" if changed else "")
        for name, before, after, changed in (
            (NDCG, judged.before.mean.value, judged.after.mean.value, judged.change.mean),
            (
                "its harmonic mean over places",
                judged.before.harmonic.value,
                judged.after.harmonic.value,
                judged.change.harmonic,
            ),
            ("PSI", judged.before.psi, judged.after.psi, judged.change.psi),
        )
    ]
    interval = judged.change.harmonic.interval
    if interval is None:
        closing = "Too few documents to say whether it helps."
    elif interval[0] > 0:
        closing = "It helps there too."
    elif interval[1] < 0:
        closing = "It harms there."
    else:
        closing = "Whether it helps there cannot be told: the interval holds 0."
    return (
        f"{judged.point.name} is the most even on {judged.n_chosen:,} queries, by the harmonic "
        f"mean of nDCG@10 over places. On the other {judged.before.n:,}, which had no say: "
        f"{', '.join(parts)}. {closing}"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def summary(found: Remedy, judged: Judgement) -> Recommendation:
    """The recommendation, for a command's output."""
    changed = judged.change
    return {
        "recommended": judged.point.name,
        "sentence": verdict(found),
        "queries_chosen_on": judged.n_chosen,
        "queries_judged_on": judged.before.n,
        "before": _quality_entry(judged.before),
        "after": _quality_entry(judged.after),
        "change": None
        if changed is None
        else {
            "ndcg_at_10": interval(changed.mean),
            "harmonic_mean": interval(changed.harmonic),
            "psi": interval(changed.psi),
        },
    }


def _quality_entry(found: Quality) -> QualityEntry:
    return {
        "ndcg_at_10": found.mean.value,
        "harmonic_mean": found.harmonic.value,
        "psi": found.psi,
        "psi_by_chance": found.psi_by_chance,
    }


def export_point(compute: Compute, point: Point, folder: Path) -> None:
    """Write a calibrated model to a new folder, as sentence-transformers saves one.

    Raises:
        UserError: the plain model, which has nothing to mend, or a folder that is there already.
    """
    if point.spec.calibration is None:
        raise UserError(
            f"{point.name} itself is recommended, so there is no mended model to export: "
            "nothing is written."
        )
    if folder.exists():
        raise UserError(f"{folder} is there already: name a new folder.")
    from attribution.retrievers.calibrated_transformer import export

    retriever = compute.retriever(compute.identify(point.spec))
    with retriever.lock:
        export(retriever, folder)

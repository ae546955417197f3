"""Attention calibration of a model: rankings over a grid of settings, and the recommended one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from poslens.attribution.datasets.corpus import Query
from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.ranking_change import (
    Change,
    Quality,
    candidate,
    change,
    halves,
    quality,
    with_holm,
)
from poslens.attribution.evaluation.ranking_measures import NDCG
from poslens.attribution.evaluation.recommendation import (
    Recommendation,
    on_quality_front,
    recommendation,
)
from poslens.attribution.retrievers.calibration import BLOCK, STRENGTH, Calibration, decimals
from poslens.attribution.retrievers.dense import FAMILY as DENSE
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.resolve import locate
from poslens.attribution.retrievers.specs import RetrieverSpec, contents_of, with_calibration
from poslens.attribution.types import Provenance
from poslens.cache.lru_cache import LRUCache
from poslens.commands.answers import comparison_entry
from poslens.compute.compute import Compute
from poslens.compute.provenance import of_model
from poslens.compute.runs import Job
from poslens.studies.debias.answers import QualityEntry, RecommendationEntry
from poslens.studies.ranking import service as ranking_service
from poslens.studies.ranking.service import Ranked, RankingSetup

STRENGTHS = (STRENGTH, 1.0)
BLOCKS = (64, BLOCK)
MAX_POINTS = 64
"""Maximum number of settings of one grid, because each ranks the whole data set."""

NO_CHANGE = "No change recommended"

HALF, ALL = "half", "all"
LAYERS = (HALF,)

_LAYER_KEYS = ("num_hidden_layers", "n_layers", "num_layers", "n_layer")


def n_layers(spec: RetrieverSpec) -> int | None:
    """The number of layers in the model's configuration; None if it is not stated."""
    config = contents_of(spec.name, locate(spec).folder).config("config.json")
    values = config if isinstance(config, dict) else {}
    return next((n for key in _LAYER_KEYS if isinstance(n := values.get(key), int)), None)


def grid(
    spec: RetrieverSpec,
    strengths: Sequence[float] = STRENGTHS,
    blocks: Sequence[int] = BLOCKS,
    layers: Sequence[str] = LAYERS,
) -> list[RetrieverSpec]:
    """The model calibrated in every combination; `layers` are `half`, `all` or numbers of layers.

    Raises:
        UserError: a number is out of range, there are more than `MAX_POINTS` combinations, or the
            model has no attention to calibrate.
    """
    if family_of(spec) is not DENSE:
        raise UserError(f"{spec.name} has no attention to calibrate: choose a dense model.")
    n = n_layers(spec)
    specs: dict[str, RetrieverSpec] = {}
    for depth, block, strength in product(layers, blocks, strengths):
        setting = Calibration(strength, block, _depth(depth, n, spec.name))
        if setting.layers is not None and n is not None:
            setting.first_of(n, spec.name)
        calibrated = with_calibration(spec, setting)
        specs[calibrated.name] = calibrated
    if not specs:
        raise UserError("No setting is left: choose at least one strength, block and depth.")
    if len(specs) > MAX_POINTS:
        raise UserError(
            f"{len(specs)} settings are more than the {MAX_POINTS} that one grid has: choose fewer."
        )
    return list(specs.values())


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
    # Equal settings must have the same name, because results are stored by it.
    return None if n is not None and depth == max(1, n // 2) else depth


def job(
    compute: Compute, spec: RetrieverSpec, points: Sequence[RetrieverSpec], setup: RankingSetup
) -> Job:
    """A job that ranks with the plain model and those of `points` that have no rankings.

    Raises:
        UserError: the model's files are not on this machine, or the data set has no evidence
            positions.
    """
    _with_evidence(setup)
    return ranking_service.job_of_all(compute, [spec, *points], setup)


@dataclass(frozen=True)
class Point:
    """A model's rankings and their measures; `change` is against the plain model, and None for the
    plain model itself. `front` means that no other point has both a higher nDCG@10 and a lower
    PSI."""

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
        """Strength of the calibration, 0 to 1; 0 for the plain model."""
        return self.spec.calibration.strength if self.spec.calibration else 0.0


@dataclass(frozen=True)
class HeldOutResult:
    """The point selected on one half of the queries and evaluated on the held-out half: the
    measures of the plain model `before` and of the point `after`. `change` and `recommendation` are
    None if the plain model itself was selected."""

    point: Point
    n_chosen: int
    before: Quality
    after: Quality
    change: Change | None
    recommendation: Recommendation | None


@dataclass(frozen=True)
class DebiasResult:
    """The plain model, which is the first of `points`, and its calibrated versions. Nothing is
    recommended while models in `missing` have no rankings."""

    points: tuple[Point, ...]
    missing: tuple[str, ...]
    judgement: HeldOutResult | None
    chosen_on: frozenset[str]
    setup: RankingSetup

    @property
    def plain(self) -> Point:
        """The model without calibration."""
        return self.points[0]

    @property
    def recommended(self) -> Point | None:
        """The setting to use: the plain model if no setting is shown to be better, None until every
        setting is ranked."""
        judged = self.judgement
        if judged is None:
            return None
        return judged.point if _is_recommended(judged) else self.plain

    def provenance(self) -> list[Provenance]:
        """Everything needed to reproduce the points."""
        plain, quality = self.plain.ranked, self.plain.quality
        tried = [point.spec.calibration for point in self.points if point.spec.calibration]
        strengths = ", ".join(decimals(value) for value in sorted({c.strength for c in tried}))
        blocks = ", ".join(str(block) for block in sorted({c.block for c in tried}))
        depths = ", ".join(sorted({"half" if c.layers is None else str(c.layers) for c in tried}))
        grid = f"; calibrated: strength {strengths}, token block {blocks}, layers {depths}"
        return [
            of_model(
                plain.model,
                f"{plain.method!r}{grid if tried else ''}",
                plain.setup.collection.name,
                n_queries=quality.n,
                n_documents=plain.setup.collection.survey.n,
                selection=plain.setup.selection,
                interval=quality.harmonic,
            )
        ]


def _with_evidence(setup: RankingSetup) -> list[Query]:
    """The measured queries whose evidence position is known.

    Raises:
        UserError: there are none.
    """
    queries = [query for query in setup.queries if query.evidence is not None]
    if not queries:
        raise UserError(
            "This data set does not say where its evidence stands, so no position bias can be "
            "measured: choose another data set."
        )
    return queries


_results: LRUCache[tuple[object, DebiasResult]] = LRUCache(16)


def debias_result(
    compute: Compute, spec: RetrieverSpec, points: Sequence[RetrieverSpec], setup: RankingSetup
) -> DebiasResult | None:
    """The result from the stored rankings of the plain model and of `points`; None while the plain
    model has none.

    Raises:
        UserError: a model's files are not on this machine, or the data set has no evidence
            positions.
    """
    queries = _with_evidence(setup)
    plain = ranking_service.ranked(compute, spec, setup)
    if plain is None:
        return None
    ranked_models = [plain]
    missing = []
    for point in points:
        ranked = ranking_service.ranked(compute, point, setup)
        if ranked is None:
            missing.append(point.name)
        else:
            ranked_models.append(ranked)
    # The cached value refers to the rankings, so that their ids cannot be reused meanwhile.
    key = (tuple(map(id, ranked_models)), tuple(missing))
    return _results.get(
        key, lambda: (ranked_models, _evaluated(ranked_models, tuple(missing), queries, setup))
    )[1]


def _evaluated(
    ranked_models: Sequence[Ranked],
    missing: tuple[str, ...],
    queries: Sequence[Query],
    setup: RankingSetup,
) -> DebiasResult:
    rows = [row for row, query in enumerate(setup.queries) if query.evidence is not None]
    scores = [
        ranked.evaluation.per_query[NDCG][rows].astype(np.float64) for ranked in ranked_models
    ]
    positions = np.array([query.evidence for query in queries], dtype=np.float64)
    documents = np.array([query.document for query in queries])
    changes = with_holm(
        [
            change(scores[0], values, positions.tolist(), documents.tolist()) if number else None
            for number, values in enumerate(scores)
        ]
    )
    points = []
    for number, ranked in enumerate(ranked_models):
        own = quality(scores[number], positions.tolist(), documents.tolist())
        assert own is not None  # there are queries
        points.append(Point(ranked, own, changes[number]))
    front = on_quality_front([(point.quality.psi, point.quality.mean.value) for point in points])
    points = [replace(point, front=is_on) for point, is_on in zip(points, front, strict=True)]
    half = halves(documents.tolist())
    ids = np.array([query.query_id for query in queries])
    judgement = None
    if not missing and half.any() and not half.all():
        best = candidate([score[half] for score in scores], positions[half].tolist())
        held_out, groups = positions[~half].tolist(), documents[~half].tolist()
        before = quality(scores[0][~half], held_out, groups)
        after = quality(scores[best][~half], held_out, groups)
        assert before is not None and after is not None
        paired = change(scores[0][~half], scores[best][~half], held_out, groups) if best else None
        (paired,) = with_holm([paired])
        advice = _advice(paired, points[0].quality, points[best].quality) if paired else None
        judgement = HeldOutResult(points[best], int(half.sum()), before, after, paired, advice)
    chosen_on = frozenset(ids[half].tolist()) if judgement else frozenset()
    return DebiasResult(tuple(points), missing, judgement, chosen_on, setup)


def _advice(held_out: Change, plain: Quality, changed: Quality) -> Recommendation:
    """Whether a setting is recommended over the plain model: `held_out` is its change on the
    queries that were not used for selection, `plain` and `changed` are over all queries."""
    advice = recommendation(
        {"PSI": held_out.psi}, held_out.mean, {"the harmonic mean": held_out.harmonic}
    )
    if advice.recommended and changed.worse_on_both(plain):
        return Recommendation(False, f"Over all queries it is worse in both PSI and {NDCG}.")
    return advice


def _is_recommended(judged: HeldOutResult) -> bool:
    return judged.recommendation is not None and judged.recommendation.recommended


def verdict(result: DebiasResult) -> str:
    """Sentences on the recommended setting and its change on the held-out queries."""
    judged = result.judgement
    if judged is None:
        return "No recommendation yet: some settings are not ranked."
    if judged.change is None or judged.recommendation is None:
        return (
            f"{NO_CHANGE}: on the {judged.n_chosen:,} queries used for selection, no setting has a "
            f"higher harmonic mean of {NDCG} over positions than {result.plain.name}."
        )
    parts = [
        f"{name} changes from {_number(before)} to {_number(after)}"
        + (f" ({changed.text()})" if changed else "")
        for name, before, after, changed in (
            (NDCG, judged.before.mean.value, judged.after.mean.value, judged.change.mean),
            (
                f"the harmonic mean of {NDCG} over positions",
                judged.before.harmonic.value,
                judged.after.harmonic.value,
                judged.change.harmonic,
            ),
            ("PSI", judged.before.psi, judged.after.psi, judged.change.psi),
        )
    ]
    head = f"Recommended: {judged.point.name}" if _is_recommended(judged) else NO_CHANGE
    how = judged.point.spec.calibration
    setting = f"{judged.point.name}{f' ({how.words})' if how else ''}"
    return (
        f"{head}. {judged.recommendation.reason} Of all settings, {setting} has the highest "
        f"harmonic mean of {NDCG} over positions on the {judged.n_chosen:,} queries used for "
        f"selection. On the {judged.before.n:,} held-out queries, {'; '.join(parts)}."
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def summary(result: DebiasResult, judged: HeldOutResult) -> RecommendationEntry:
    """The recommendation as in JSON."""
    changed, recommended = judged.change, result.recommended
    assert recommended is not None  # there is a judgement
    return {
        "recommended": recommended.name,
        "tested": judged.point.name,
        "sentence": verdict(result),
        "queries_chosen_on": judged.n_chosen,
        "queries_judged_on": judged.before.n,
        "before": _quality_entry(judged.before),
        "after": _quality_entry(judged.after),
        "change": None
        if changed is None
        else {
            "ndcg_at_10": comparison_entry(changed.mean),
            "harmonic_mean": comparison_entry(changed.harmonic),
            "psi": comparison_entry(changed.psi),
        },
    }


def _quality_entry(measures: Quality) -> QualityEntry:
    return {
        "ndcg_at_10": measures.mean.value,
        "harmonic_mean": measures.harmonic.value,
        "psi": measures.psi,
        "psi_under_permutation": measures.psi_under_permutation,
    }


def export_point(compute: Compute, point: Point, folder: Path) -> None:
    """Write a calibrated model to a new folder in the format of sentence-transformers.

    Raises:
        UserError: the point is the plain model, or the folder exists.
    """
    if point.spec.calibration is None:
        raise UserError(
            f"{NO_CHANGE} for {point.name}, so there is no calibrated model to export: nothing "
            "is written."
        )
    require_new(folder)
    from poslens.attribution.retrievers.calibrated_transformer import export

    retriever = compute.retriever(compute.identify(point.spec))
    with retriever.lock:
        export(retriever, folder)


def require_new(folder: Path) -> None:
    """Check that nothing exists at `folder`.

    Raises:
        UserError: something does.
    """
    if folder.exists():
        raise UserError(f"{folder} is there already: name a new folder.")

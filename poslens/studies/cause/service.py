"""Interventions on pairs and data sets, which are computed once and stored; their agreement with
attribution methods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from poslens.attribution.curves.bootstrap import SEED, Estimate, estimate
from poslens.attribution.curves.curve_summary import CurveSummary, summarize
from poslens.attribution.datasets import DataSet
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.ablation import Ablation
from poslens.attribution.interventions.agreement import Agreement, agreement
from poslens.attribution.interventions.relocation import (
    Relocation,
)
from poslens.attribution.interventions.segments import (
    SegmentCurve,
    first_pairs,
)
from poslens.attribution.pairs import columns_of
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import N_BINS, Array, Method, Provenance, TextPair
from poslens.cache.jobs.loop import RunOptions
from poslens.cache.kinds.interventions import (
    OTHERS,
    AmongOthers,
    OtherScores,
    causes,
    intervene,
    intervene_all,
    others,
    score_others,
)
from poslens.cache.lru_cache import LRUCache, digest
from poslens.cache.storage.results import Stored
from poslens.compute import provenance
from poslens.compute.compute import Compute
from poslens.compute.item_job import stored_job
from poslens.compute.provenance import ModelIdentity
from poslens.compute.queue import Place, ready
from poslens.compute.runs import Job

DEFAULT_PAIRS = 30
"""Default number of pairs of a data set."""

MAX_OTHERS = 200
"""Maximum number of other documents among which a page ranks one; if there are more, they are drawn
at random."""


def ask(compute: Compute, pair: TextPair, spec: RetrieverSpec, method: Method) -> Place[Any]:
    """A position in the device queue for the result of an intervention on one pair, shared with
    identical requests. A new result is stored; waiting for it raises UserError if it cannot be
    computed.

    Raises:
        UserError: the model's files are not on this machine, or too many requests are waiting.
    """
    model, results = compute.identify(spec), causes(compute.root, method)
    if (stored := results.get(model.key, method, pair)) is not None:
        return ready(stored)

    def compute_pair() -> Any:
        retriever = compute.retriever(model)
        with compute.device_slot(spec)():
            result = intervene(retriever, method, pair)
        results.put(model.key, method, [(pair, result)])
        return result

    key = ("intervention", compute.root, model.key, repr(method), pair)
    return compute.queue.ask(key, compute_pair)


def other_documents(pair: TextPair, pairs: Sequence[TextPair]) -> list[str]:
    """The data set's other documents in the pair's language, in the data set's order; a random
    sample if there are more than `MAX_OTHERS`."""
    texts = list(
        dict.fromkeys(
            p.document for p in pairs if p.language == pair.language and p.document != pair.document
        )
    )
    if len(texts) > MAX_OTHERS:
        drawn = np.random.default_rng(SEED).choice(len(texts), MAX_OTHERS, replace=False)
        texts = [texts[i] for i in sorted(drawn)]
    return texts


def ask_others(
    compute: Compute, pair: TextPair, spec: RetrieverSpec, documents: Sequence[str]
) -> Place[Array]:
    """A position in the device queue for the query's scores [n] with other documents, shared with
    identical requests. New scores are stored; the result raises UserError if there are no other
    documents, or they cannot be scored.

    Raises:
        UserError: the model's files are not on this machine, or too many requests are waiting.
    """
    if (values := stored_scores_of_others(compute, pair, spec, documents)) is not None:
        return ready(values)
    model = compute.identify(spec)

    def score() -> Array:
        retriever = compute.retriever(model)
        options = RunOptions(device_slot=compute.device_slot(spec))
        values = score_others(retriever, model.key, pair, documents, compute.root, options)
        result = (AmongOthers(pair, documents), OtherScores(values))
        others(compute.root).put(model.key, OTHERS, [result])
        return values

    return compute.queue.ask(("others", compute.root, model.key, pair, tuple(documents)), score)


def stored_scores_of_others(
    compute: Compute, pair: TextPair, spec: RetrieverSpec, documents: Sequence[str]
) -> Array | None:
    """The query's stored scores [n] with other documents; None if they are not stored."""
    key = compute.identify(spec).key
    result = others(compute.root).get(key, OTHERS, AmongOthers(pair, documents))
    return result.scores if result and len(result.scores) == len(documents) else None


_answers: LRUCache[Any] = LRUCache(64)


# -- data sets -------------------------------------------------------------------------------------


def job(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    pairs: Sequence[TextPair],
    scope: str,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Job:
    """A job that applies an intervention to `pairs` and stores the results. `names` are what to
    call failed items, by pair id."""
    job = stored_job(
        compute,
        spec,
        method,
        pairs,
        partial(causes, method=method),
        lambda given, retriever, model, options: intervene_all(
            retriever, model, method, pairs, given.root, options=options
        ),
        scope=scope,
        doing="",  # the label names the intervention
        label=f"{spec.name}, {method.name}",
    )

    def failures() -> dict[str, str]:
        return {names.get(item, item): reason for item, reason in job.failures().items()}

    return replace(job, failures=failures) if names else job


def document_names(data: DataSet) -> dict[str, str]:
    """What to call each document without a query (`documents_of`), by its id there: its id in the
    data set's file or, if that has none, the id of its first pair."""
    names = {}
    for number, pair in first_pairs(data.pairs).items():
        _, document_id = data.ids.get(pair.pair_id, (None, None))
        names[number] = document_id or pair.pair_id
    return names


def stored(
    compute: Compute, spec: RetrieverSpec, method: Method, pairs: Sequence[TextPair]
) -> Stored[Any]:
    """The stored results of an intervention on `pairs`."""
    return causes(compute.root, method).select(compute.identify(spec).key, method, pairs)


@dataclass(frozen=True, slots=True)
class DataSetCause:
    """Causal curves averaged over pairs.

    Relocation: the score minus the pair's mean over the positions at which the evidence is read in
    full. `last_minus_first` is the mean over pairs of the last third minus the first, in score
    units; `lost` is the decrease of the score when the evidence is past the context limit, over the
    pairs that have such positions. Ablation: the decrease of the score without each part, and its
    `last_minus_first`; `lost` is None.

    Each estimate has its own n, and is None if no pair determines it. `n_left_out` pairs have no
    curve, because their evidence is read in full at fewer than two of the positions that it moves
    to. `notes` say what happened to single texts, and to how many.
    """

    summary: CurveSummary
    last_minus_first: Estimate | None
    lost: Estimate | None
    n_left_out: int
    model: ModelIdentity
    notes: tuple[str, ...]
    selection: str

    def provenance(self) -> Provenance:
        """Everything needed to reproduce this curve."""
        return provenance.of_curve(self.model, self.summary.curve, self.selection)


def last_minus_first(result: Relocation | Ablation | SegmentCurve) -> float | None:
    """The mean of the causal curve's last third minus that of its first; of a relocation, over the
    positions at which the evidence is read in full. None without such positions."""
    if isinstance(result, Relocation):
        return result.last_minus_first
    curve, third = result.curve(N_BINS), N_BINS // 3
    return float(curve[-third:].mean() - curve[:third].mean())


def data_set_cause(
    compute: Compute,
    spec: RetrieverSpec,
    method: Method,
    pairs: Sequence[TextPair],
    dataset: str,
    selection: str = "",
) -> DataSetCause:
    """The average of the stored results of an intervention on `pairs`; computes no intervention.

    Raises:
        UserError: no results of these pairs are stored, or all failed.
    """
    selected = stored(compute, spec, method, pairs)
    require_results(spec, method, selected)
    results = list(selected.results.values())
    groups = columns_of(pairs).documents_of(list(selected.results))
    summary, difference, lost = _answers.get(
        ("average", spec.name, dataset, repr(method), tuple(groups), selected.digest),
        lambda: _average(results, groups, spec.name, dataset, method, len(selected.failed)),
    )
    noted = Counter(result.note for result in results if result.note)
    notes = [f"{note} ({n:,} of {len(results):,})" for note, n in noted.most_common()]
    return DataSetCause(
        summary,
        difference,
        lost,
        len(results) - summary.curve.n,
        compute.identify(spec),
        tuple(notes),
        selection,
    )


def require_results(spec: RetrieverSpec, method: Method, selected: Stored[Any]) -> None:
    """Check that not every item failed.

    Raises:
        UserError: they did; it states the first reason.
    """
    if selected.failed and not selected.results:
        reason = next(iter(selected.failed.values()))
        raise UserError(f"{spec.name}: {method.name} failed for every item. {reason}")


def _average(
    results: Sequence[Any],
    groups: Sequence[Hashable],
    model: str,
    dataset: str,
    method: Method,
    n_failed: int,
) -> tuple[CurveSummary, Estimate | None, Estimate | None]:
    """Mean curve of interventions, their mean last-minus-first difference, and the mean decrease of
    the score past the context limit."""
    with_curve = [
        (result, curve, group)
        for result, group in zip(results, groups, strict=True)
        if (curve := result.curve(N_BINS)) is not None
    ]
    if results and not with_curve:
        raise UserError(
            f"In none of the {len(results)} pairs does {model} read the evidence whole at two of "
            "the positions that it moves to: choose shorter documents, or a model with a longer "
            "context limit."
        )
    curves = np.array([curve for _, curve, _ in with_curve], dtype=np.float64).reshape(-1, 100)
    summary = summarize(
        curves,
        [group for *_, group in with_curve],
        model=model,
        dataset=dataset,
        method=method,
        n_truncated=sum(result.read_share < 1 for result, *_ in with_curve),
        n_failed=n_failed,
        magnitudes=None,
        resampling="bin_mean",
    )

    def mean(of: Callable[[Any], float | None]) -> Estimate | None:
        values = [
            (value, group) for result, _, group in with_curve if (value := of(result)) is not None
        ]
        return estimate(np.array([[value] for value, _ in values]), [group for _, group in values])

    lost = mean(lambda result: result.lost if isinstance(result, Relocation) else None)
    return summary, mean(last_minus_first), lost


def agreement_of(
    compute: Compute, spec: RetrieverSpec, method: Method, cause: Method, pairs: Sequence[TextPair]
) -> Agreement:
    """The rank correlation of a method's curves with an intervention's, over the pairs that have
    both.

    Raises:
        UserError: no pair has both.
    """
    curves = compute.store.curves(compute.identify(spec).key, method, pairs)
    selected = stored(compute, spec, cause, pairs)
    rows = [row for row, i in enumerate(curves.pair_ids) if i in selected.results]
    if not rows:
        raise UserError(
            f"No pair has both a {method.name} curve and a causal curve of {spec.name} yet: "
            "compute both."
        )
    ids, of_method = [curves.pair_ids[row] for row in rows], curves.curves[rows]
    effects = [selected.results[i] for i in ids]
    key = ("agreement", spec.name, repr(method), repr(cause), digest(of_method), selected.digest)
    groups = columns_of(pairs).documents_of(ids)
    answer: Agreement = _answers.get(
        key, lambda: agreement(spec.name, list(of_method), effects, groups)
    )
    return answer

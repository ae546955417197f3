"""Stored results of interventions on pairs, and ranks of documents whose evidence was relocated."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.position_effect import PositionRanks
from poslens.attribution.interventions.ablation import Ablation, ablation
from poslens.attribution.interventions.displacement import (
    Displacement,
    behind_prefix,
    shifted_positions,
)
from poslens.attribution.interventions.relocation import Relocation, relocation
from poslens.attribution.interventions.segments import (
    EditCurves,
    SegmentCurve,
    edit_curves,
    segment_curve,
)
from poslens.attribution.retrievers.base import Pooled, Retriever
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.retrievers.scoring import Known, score_texts
from poslens.attribution.text import revision
from poslens.attribution.types import Array, Method, TextPair, as_array, set_arrays
from poslens.cache.jobs.items import compute_missing
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds.embeddings import EmbeddingStore, recent_texts, stored_vectors
from poslens.cache.storage.results import Key, Results, pair_key
from poslens.cache.storage.schema import Owner, Schema, register
from poslens.cache.storage.store import ModelKey

Cause = Relocation | Ablation | Displacement | SegmentCurve | EditCurves


def cause_key(pair: TextPair) -> Key:
    """Key of a pair with its texts, its evidence, and its language, which affects sentence
    splitting."""
    key = pair_key(pair)
    language = f"{pair.language or ''}{revision(pair.language)}"
    return key._replace(fingerprint=f"{key.fingerprint}:{language}")


def _owned(owner: Owner) -> dict[str, Any]:
    return {"model": owner.model.name, "pair_id": owner.item}


def _of_displacement(owner: Owner) -> dict[str, Any]:
    way, tokens = owner.method.params["by"], _lengths(owner.method)
    return {**_owned(owner), "way": way, "tokens": tuple(tokens)}


def _lengths(method: Method) -> list[int]:
    return [int(n) for n in str(method.params["tokens"]).split("/")]


def _of_edit(owner: Owner) -> dict[str, Any]:
    return {**_owned(owner), "by": owner.method.name}


def _of_ablation(owner: Owner) -> dict[str, Any]:
    return {**_owned(owner), "by": owner.method.params["by"]}


_SCHEMAS: tuple[Schema[Any], ...] = (
    Schema(Relocation, "relocation", given=_owned),
    Schema(Ablation, "ablation", given=_of_ablation),
    Schema(Displacement, "displacement", given=_of_displacement),
    Schema(SegmentCurve, "segments", given=_owned),
    Schema(SegmentCurve, "thirds", given=_owned),
    Schema(EditCurves, "insertion", given=_of_edit),
    Schema(EditCurves, "removal", given=_of_edit),
)
INTERVENTIONS = {schema.name: register(schema) for schema in _SCHEMAS}


def causes(root: Path, method: Method) -> Results[TextPair, Any]:
    """The stored results of one kind of intervention."""
    return Results(root, INTERVENTIONS[method.name], key=cause_key)


def intervene_all(
    retriever: Retriever,
    model: ModelKey,
    method: Method,
    pairs: Sequence[TextPair],
    root: Path,
    *,
    options: RunOptions = RunOptions(),
) -> Progress:
    """Compute the intervention for those of `pairs` that lack it below `root`. Stops within a pair
    and resumes at any pair. Texts shared by several pairs or runs are encoded once.

    Raises:
        UserError: the store can't be written; results stored before remain.
    """
    cache = recent_texts(root, model, retriever)

    def compute(pair: TextPair) -> Cause:
        return intervene(retriever, method, pair, cache)

    results = causes(root, method)
    return compute_missing(results, model, method, pairs, compute, options=options)


def intervene(
    retriever: Retriever, method: Method, pair: TextPair, cached: Known | None = None
) -> Cause:
    """Compute the intervention that `method` names. Representations in `cached`, of texts encoded
    for other pairs, are not computed again.

    Raises:
        UserError: the intervention doesn't apply to this pair or model.
        Stopped: canceled (`stoppable`).
    """
    params = method.params
    if method.name == "relocation":
        return relocation(retriever, pair, int(params["positions"]), cached=cached)
    if method.name == "ablation":
        return ablation(retriever, pair, params["by"], int(params["bins"]), cached=cached)
    if method.name == "displacement":
        lengths = _lengths(method)
        if params["by"] == "prefix":
            return behind_prefix(retriever, pair, lengths, cached=cached)
        return shifted_positions(retriever, pair, lengths)
    if method.name in ("segments", "thirds"):
        cut = "shuffled" if "order" in params else method.name
        n = int(params.get("segments", 3))
        return segment_curve(retriever, pair, cut, n, cached=cached)  # type: ignore[arg-type]
    return edit_curves(retriever, pair, method.name, cached=cached)  # type: ignore[arg-type]


# -- scores of other documents --------------------------------------------------------------------


OTHERS = Method("others", {"version": 2})
"""One method for all pairs, although the other documents usually differ by pair: each method has
its own file."""


class AmongOthers(NamedTuple):
    """A pair and the documents, in order, that its query is scored with."""

    pair: TextPair
    documents: Sequence[str]


def _among_key(item: AmongOthers) -> Key:
    key = pair_key(item.pair)
    texts = "\0".join(item.documents).encode("utf-8", "replace")
    digest = hashlib.sha256(texts).hexdigest()[:16]
    return key._replace(fingerprint=f"{key.fingerprint}:{digest}")


@dataclass(frozen=True, slots=True)
class OtherScores:
    """Scores [n] of a query with other documents, in the given order."""

    scores: Array

    def __post_init__(self) -> None:
        set_arrays(self, "a score", scores=(None,))


OTHER_SCORES = register(Schema(OtherScores, "others"))


def others(root: Path) -> Results[AmongOthers, OtherScores]:
    """Stored scores [n] of a pair's query with other documents; only the latest documents of each
    pair."""
    return Results(root, OTHER_SCORES, key=_among_key)


def score_others(
    retriever: Retriever,
    model: ModelKey,
    pair: TextPair,
    documents: Sequence[str],
    root: Path,
    options: RunOptions = RunOptions(),
) -> Array:
    """The query's scores [n] with other documents. If the model encodes a text as one vector, the
    documents' vectors are stored below `root` for later pairs.

    Raises:
        UserError: there are no documents.
        Stopped: the work was stopped.
    """
    if not documents:
        raise UserError("The data set has no other document in this language to rank among.")
    if Capability.VECTOR not in family_of(retriever.spec).capabilities:
        texts = [(pair.query, text) for text in documents]
        with options.device_slot():
            return score_texts(retriever, texts)
    pooled = cast(Pooled, retriever)
    vectors = stored_vectors(pooled, model, EmbeddingStore(root), options)(documents, "document")
    with options.device_slot(), retriever.lock, torch.no_grad():
        query = pooled.embed(pooled.encode_plain([pair.query], "query")).float()
        scores = pooled.similarities(query, vectors.to(query.device))[0]
    return as_array(scores.cpu().double().numpy(), (len(documents),), "a score")


# -- ranks of moved documents ---------------------------------------------------------------------


POSITION_RANKS = register(
    Schema(PositionRanks, "position_ranks", given=lambda owner: {"pair_id": owner.item})
)


@dataclass(frozen=True, slots=True)
class RankedPair:
    """A pair whose document is ranked among a corpus; `corpus` is the fingerprint of the corpus."""

    pair: TextPair
    corpus: str


def position_ranks(root: Path) -> Results[RankedPair, PositionRanks]:
    """The ranks stored below a folder."""
    return Results(root, POSITION_RANKS, key=_ranks_key)


def _ranks_key(item: RankedPair) -> Key:
    key = cause_key(item.pair)
    return key._replace(fingerprint=f"{key.fingerprint}:{item.corpus}")

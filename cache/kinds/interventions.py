"""Results of interventions on pairs, kept beside a model's attributions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from poslens.attribution.errors import UserError
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
from poslens.attribution.retrievers.base import Pooled, Representation, Retriever
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.retrievers.scoring import Known, score_texts, size
from poslens.attribution.types import Array, Method, TextPair, as_array
from poslens.cache.jobs.items import compute_missing
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.kinds.embeddings import EmbeddingStore, embedded
from poslens.cache.lru_cache import LRUCache
from poslens.cache.storage.results import Key, Results, pair_key
from poslens.cache.storage.schema import Owner, Schema
from poslens.cache.storage.store import ModelKey

Cause = Relocation | Ablation | Displacement | SegmentCurve | EditCurves
ShouldStop = Callable[[], bool]


def cause_key(pair: TextPair) -> Key:
    """A pair with its texts, its evidence and its language, which decides where sentences end."""
    key = pair_key(pair)
    return key._replace(fingerprint=f"{key.fingerprint}:{pair.language or ''}")


def _owned(owner: Owner) -> dict[str, Any]:
    return {"model": owner.model.name, "pair_id": owner.item}


def _of_ablation(owner: Owner) -> dict[str, Any]:
    return {**_owned(owner), "by": owner.method.params["by"]}


def _of_displacement(owner: Owner) -> dict[str, Any]:
    way, tokens = owner.method.params["by"], _lengths(owner.method)
    return {**_owned(owner), "way": way, "tokens": tuple(tokens)}


def _of_edits(owner: Owner) -> dict[str, Any]:
    return {**_owned(owner), "by": owner.method.name}


def _lengths(method: Method) -> list[int]:
    return [int(n) for n in str(method.params["tokens"]).split("/")]


_SEGMENTS = Schema(SegmentCurve, given=_owned)
_EDITS = Schema(EditCurves, given=_of_edits)
SCHEMAS: dict[str, Schema[Any]] = {
    "relocation": Schema(Relocation, given=_owned),
    "ablation": Schema(Ablation, given=_of_ablation),
    "displacement": Schema(Displacement, given=_of_displacement),
    "segments": _SEGMENTS,
    "thirds": _SEGMENTS,
    "insertion": _EDITS,
    "removal": _EDITS,
}


def causes(root: Path, method: Method) -> Results[TextPair, Any]:
    """What is kept of one kind of intervention.

    Raises:
        ValueError: `method` is none of them.
    """
    schema = SCHEMAS.get(method.name)
    if schema is None:
        raise ValueError(f"{method.name} is no intervention")
    return Results(root, method.name, key=cause_key, schema=schema)


KNOWN_BYTES = 2**26


def known_texts() -> LRUCache[Representation]:
    """What a run knows of the texts that it read last, as one model made it: up to 64 MiB, which is
    40,000 vectors of 384 numbers."""
    return LRUCache(KNOWN_BYTES, weigh=size)


def intervene_all(
    retriever: Retriever,
    model: ModelKey,
    method: Method,
    pairs: Sequence[TextPair],
    root: Path,
    *,
    options: RunOptions = RunOptions(),
) -> Progress:
    """Carry out the intervention on those of `pairs` that lack it below `root`; stops within a
    pair, resumes at any. Texts that several pairs share are read once.

    Raises:
        UserError: the store cannot be written; what was stored before stays.
    """
    cache = known_texts()
    return compute_missing(
        causes(root, method),
        model,
        method,
        pairs,
        lambda pair: intervene(retriever, method, pair, options.should_stop, cache),
        options=options,
    )


def intervene(
    retriever: Retriever,
    method: Method,
    pair: TextPair,
    should_stop: ShouldStop = lambda: False,
    cached: Known | None = None,
) -> Cause:
    """Carry out the intervention that `method` names. What is `cached` of texts that were read for
    other pairs is not computed again.

    Raises:
        UserError: it does not work on this pair or this model.
        Stopped: `should_stop` said so.
    """
    params = method.params
    given: dict[str, Any] = {"should_stop": should_stop, "cached": cached}
    if method.name == "relocation":
        return relocation(retriever, pair, int(params["positions"]), **given)
    if method.name == "ablation":
        return ablation(retriever, pair, params["by"], int(params["bins"]), **given)
    if method.name == "displacement":
        lengths = _lengths(method)
        if params["by"] == "prefix":
            return behind_prefix(retriever, pair, lengths, **given)
        return shifted_positions(retriever, pair, lengths, should_stop=should_stop)
    if method.name in ("segments", "thirds"):
        cut = "shuffled" if "order" in params else method.name
        n = int(params.get("segments", 3))
        return segment_curve(retriever, pair, cut, n, should_stop=should_stop)  # type: ignore[arg-type]
    if method.name in ("insertion", "removal"):
        return edit_curves(retriever, pair, method.name, should_stop=should_stop)  # type: ignore[arg-type]
    raise ValueError(f"{method.name} is no intervention")


# -- the other documents ---------------------------------------------------------------------------


OTHERS = Method("others", {"version": 2})
"""One for all pairs, though hardly two have the same other documents: each method has a file."""


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
    """Scores [n] of a query with other documents, in the order in which they were given."""

    scores: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", as_array(self.scores, (None,), "a score"))


OTHER_SCORES = Schema(OtherScores)


def others(root: Path) -> Results[AmongOthers, OtherScores]:
    """Scores [n] of a pair's query with other documents; of each pair with the latest ones."""
    return Results(
        root,
        "others",
        key=_among_key,
        schema=OTHER_SCORES,
    )


def score_others(
    retriever: Retriever,
    model: ModelKey,
    pair: TextPair,
    documents: Sequence[str],
    root: Path,
    options: RunOptions = RunOptions(),
) -> Array:
    """The query's scores [n] with other documents, whose vectors are kept below `root` for the
    pairs that come next where texts become one vector.

    Raises:
        UserError: there are none.
        Stopped: `should_stop` said so.
    """
    if not documents:
        raise UserError("The data set has no other document in this language to rank among.")
    if Capability.VECTOR not in family_of(retriever.spec).capabilities:
        texts = [(pair.query, text) for text in documents]
        with options.device_slot():
            return score_texts(retriever, texts, should_stop=options.should_stop)
    pooled = cast(Pooled, retriever)
    arrays, _ = embedded(pooled, model, "document", documents, EmbeddingStore(root), options)
    vectors = torch.from_numpy(np.stack([arrays[text] for text in documents]))
    with options.device_slot(), retriever.lock, torch.no_grad():
        query = pooled.embed(pooled.encode_plain([pair.query], "query")).float()
        scores = pooled.similarities(query, vectors.to(query.device))[0]
    return as_array(scores.double().cpu().numpy(), (len(documents),), "a score")

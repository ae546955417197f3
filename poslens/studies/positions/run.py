"""Ranks relocated documents: moves the evidence of each pair (the results are those of `cause`),
then reads the corpus block by block and counts the documents that rank above. Memory is needed
only for the query vectors, a block of the corpus and a count for each pair and position."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.datasets import Collection
from poslens.attribution.evaluation.position_effect import PositionRanks, position_ranks_method
from poslens.attribution.evaluation.scorers import scorer
from poslens.attribution.evaluation.search import BLOCK, GPU_BLOCK
from poslens.attribution.interventions.relocation import Relocation, relocation_method, tie_range
from poslens.attribution.retrievers.base import Pooled, Retriever, separate
from poslens.attribution.retrievers.detect import family_of
from poslens.attribution.retrievers.scoring import score_texts
from poslens.cache.jobs.loop import Progress, RunOptions
from poslens.cache.keys import text_digest
from poslens.cache.kinds.embeddings import EmbeddingStore, stored_vectors
from poslens.cache.kinds.interventions import (
    RankedPair,
    causes,
    intervene_all,
    position_ranks,
)
from poslens.cache.storage.store import ModelKey

Scores = NDArray[np.float32]
ScoreBlock = Callable[[Sequence[str]], Scores]
"""A function that returns the scores [queries, documents] of a block of documents."""


def run_positions(
    root: Path,
    retriever: Retriever,
    model: ModelKey,
    positions: int,
    items: Sequence[RankedPair],
    collection: Collection,
    *,
    options: RunOptions = RunOptions(),
) -> Progress:
    """Compute and store the missing ranks of `items`. Progress counts pairs, then documents of the
    corpus.

    Raises:
        Stopped: the work was stopped; stored results are not lost.
        UserError: the corpus cannot be read, or the store cannot be written.
    """
    store, method = position_ranks(root), position_ranks_method(positions)
    todo = store.missing(model, method, items, retry=options.retry_failed)
    moved, pairs = relocation_method(positions), [pair.pair for pair in todo]
    options.on_stage("Moving evidence")
    done = intervene_all(retriever, model, moved, pairs, root, options=options)
    if done.stopped:
        return done
    relocations = causes(root, moved).select(model, moved, pairs)
    failed = [
        (pair, relocations.failed[pair.pair.pair_id])
        for pair in todo
        if pair.pair.pair_id in relocations.failed
    ]
    store.put_failures(model, method, failed)
    usable = [pair for pair in todo if pair.pair.pair_id in relocations.results]
    if not usable:
        return done
    options.on_stage("Ranking among the corpus")
    queries = list(dict.fromkeys(pair.pair.query for pair in usable))
    moves = [relocations.results[pair.pair.pair_id] for pair in usable]
    score = _scores(root, retriever, model, queries, options)
    above, progress = _count(usable, moves, queries, score, collection, retriever, options)
    ranks = [
        (pair, PositionRanks(pair.pair.pair_id, 1 + n))
        for pair, n in zip(usable, above, strict=True)
    ]
    store.put(model, method, ranks)
    return progress


def _count(
    items: Sequence[RankedPair],
    relocations: Sequence[Relocation],
    queries: Sequence[str],
    score: ScoreBlock,
    collection: Collection,
    retriever: Retriever,
    options: RunOptions,
) -> tuple[list[NDArray[np.int64]], Progress]:
    """For each item, how many documents of the corpus score as high as the relocated document or
    higher [positions]. Copies of a pair's own document do not compete with it."""
    row_of = {query: row for row, query in enumerate(queries)}
    rows = [row_of[pair.pair.query] for pair in items]
    own = [text_digest(pair.pair.document) for pair in items]
    # Slightly lower, because the scores of equal texts differ by rounding between batches.
    lowest = [
        tie_range(relocation.scores)[0].astype(np.float32)[:, None] for relocation in relocations
    ]
    above = [np.zeros(len(relocation.scores), dtype=np.int64) for relocation in relocations]
    started, seen, total = time.perf_counter(), 0, collection.survey.n
    block = BLOCK if retriever.device.type == "cpu" else GPU_BLOCK
    documents = (document.text for document in collection.documents())
    while texts := list(islice(documents, block)):
        checkpoint()
        scores, digests = score(texts), np.array([text_digest(text) for text in texts])
        for number, row in enumerate(rows):
            rivals = scores[row, digests != own[number]]
            above[number] += np.count_nonzero(rivals >= lowest[number], axis=1)
        seen += len(texts)
        options.on_progress(Progress(total, seen, seen, 0, time.perf_counter() - started))
    return above, Progress(total, seen, seen, 0, time.perf_counter() - started)


def _scores(
    root: Path,
    retriever: Retriever,
    model: ModelKey,
    queries: Sequence[str],
    options: RunOptions,
) -> ScoreBlock:
    """The function that scores a block of documents against the queries. Document vectors are
    stored, and shared with rankings of the same corpus."""
    rows, way = list(range(len(queries))), family_of(retriever.spec).search
    if way == "index":

        def lexical(texts: Sequence[str]) -> Scores:
            pairs = [(query, text) for query in queries for text in texts]
            with options.device_slot():
                values = score_texts(retriever, pairs)
            return np.asarray(values, dtype=np.float32).reshape(len(queries), len(texts))

        return lexical
    dense = cast(Pooled, separate(retriever))

    encode = stored_vectors(dense, model, EmbeddingStore(root), options)
    score = scorer(dense, queries, encode if way == "vectors" else None, options.device_slot)
    return lambda texts: score(rows, texts).float().cpu().numpy()

"""Exact search: the best k documents of each query, over a corpus read block by block.

There is no index and no n x m matrix: only scores in the current top k stay in memory. Ties go to
the document that comes first in the corpus, whatever the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

import torch
from torch import Tensor

from poslens.attribution.batching import estimated_tokens
from poslens.attribution.checkpoints import stop_requested
from poslens.attribution.datasets.corpus import Collection, Document
from poslens.attribution.errors import RunEnded, Stopped, UserError
from poslens.attribution.evaluation.document_index import bm25
from poslens.attribution.evaluation.scorers import Scorer
from poslens.attribution.retrievers.base import Joint
from poslens.attribution.retrievers.lexical import terms_of
from poslens.attribution.retrievers.scoring import in_batches
from poslens.attribution.types import Array, TextPair, set_arrays

DEPTH = 100
"""Number of documents ranked for each query, as Recall@100 needs."""
BLOCK, GPU_BLOCK = 32, 2048
"""Number of documents scored between two checks whether to stop. No batch is larger than a block,
and a GPU scores thousands of short documents at once."""

_NOT_FOUND = -(2**63)
_LOW = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Ranking:
    """One query's documents, best first: keys, scores [n] and languages."""

    query_id: str
    document_ids: tuple[str, ...]
    scores: Array
    languages: tuple[str | None, ...]

    def __post_init__(self) -> None:
        set_arrays(self, "a score", scores=(len(self.document_ids),))
        if len(self.languages) != len(self.document_ids):
            raise ValueError("other languages than documents")


class TopK:
    """The best k of each of n queries as sortable integers [n, k]: the score in the high bits, the
    index in the corpus in the low bits; `seen` documents of the corpus were added."""

    def __init__(self, n: int, k: int = DEPTH) -> None:
        self.keys = torch.full((n, k), _NOT_FOUND, dtype=torch.int64)
        self.seen = 0

    def add(self, rows: Sequence[int], scores: Tensor, first: int) -> None:
        """Add scores [len(rows), m] of the documents `first`, `first` + 1, ... of the corpus; minus
        infinity for a document that is not found.

        Raises:
            UserError: a score is not a number.
        """
        if bool(scores.isnan().any()):
            raise UserError(
                "The model returned a score that is not a number: use float32, or check its "
                "weights."
            )
        # Zero has two signs and one rank; the bits of a negative float sort backwards.
        bits = (scores.float() + 0.0).cpu().contiguous().view(torch.int32).long()
        ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        places = _LOW - torch.arange(first, first + scores.shape[1])
        keys = (ordered << 32) | places
        keys[torch.isneginf(scores).cpu()] = _NOT_FOUND
        at = torch.as_tensor(rows, dtype=torch.long)
        k = self.keys.shape[1]
        self.keys[at] = torch.cat([self.keys[at], keys], dim=1).topk(k, dim=1).values

    def found(self, row: int) -> tuple[list[int], Tensor]:
        """Indices in the corpus and scores [n] of one query's documents, best first."""
        keys = self.keys[row]
        keys = keys[keys != _NOT_FOUND]
        high = keys >> 32
        bits = torch.where(high < 0, high ^ 0x7FFFFFFF, high).to(torch.int32)
        return (_LOW - (keys & _LOW)).tolist(), bits.view(torch.float32)


def search(
    collection: Collection,
    scorer: Scorer,
    *,
    own_corpus: bool = False,
    best: TopK | None = None,
    block: int = BLOCK,
    on_block: Callable[[TopK], None] = lambda best: None,
) -> TopK:
    """Search the corpus for every query; with `own_corpus`, each query only in its own part.

    `best` is the result of an earlier search that was stopped: documents that it has seen are
    skipped. `seen` of the returned result states how many documents were searched.
    """
    best = TopK(len(collection.queries)) if best is None else best
    rows = _rows(collection, own_corpus)
    # Counted in documents, because the earlier search can have had blocks of another size.
    place = best.seen
    for part, documents in _blocks(collection, block, own_corpus, place):
        if stop_requested():
            return best
        asked = rows.get(part, [])
        if asked:
            try:
                scores = scorer(asked, [document.text for document in documents])
                for number, document in enumerate(documents):
                    row = collection.own_query(document)
                    if row is not None and row in asked:
                        scores[asked.index(row), number] = float("-inf")
                best.add(asked, scores, place)
            except Stopped:
                return best
        place += len(documents)
        best.seen = place
        on_block(best)
    return best


def _rows(collection: Collection, own_corpus: bool) -> dict[str, list[int]]:
    """Indices of the queries that search each part; without `own_corpus`, the only part is ""."""
    rows: dict[str, list[int]] = {}
    for row, query in enumerate(collection.queries):
        rows.setdefault(query.part if own_corpus else "", []).append(row)
    return rows


def _blocks(
    collection: Collection, size: int, own_corpus: bool, seen: int = 0
) -> Iterator[tuple[str, tuple[Document, ...]]]:
    """The corpus after its first `seen` documents, in blocks; with `own_corpus`, no block contains
    documents of two parts."""
    left = islice(collection.documents(), seen, None)
    for part, documents in groupby(left, key=lambda document: document.part if own_corpus else ""):
        while block := tuple(islice(documents, size)):
            yield part, block


def rankings(collection: Collection, best: TopK) -> list[Ranking]:
    """The result of a search as one ranking for each query, in the collection's order."""
    documents = [(document.key, document.language) for document in collection.documents()]
    rankings = []
    for row, query in enumerate(collection.queries):
        places, scores = best.found(row)
        rankings.append(
            Ranking(
                query.query_id,
                tuple(documents[place][0] for place in places),
                scores.numpy(),
                tuple(documents[place][1] for place in places),
            )
        )
    return rankings


def search_lexical(
    collection: Collection,
    k1: float,
    b: float,
    words_of: Callable[[str], Sequence[str]] = terms_of,
    *,
    own_corpus: bool = False,
    on_text: Callable[[], None] = lambda: None,
) -> TopK | None:
    """BM25 with the corpus's own statistics; a document without a word of the query is not found.
    `words_of` returns a text's words as BM25 compares them. `on_text` is called for each document
    and query that was read. None if the search was stopped."""
    best = TopK(len(collection.queries))
    rows = _rows(collection, own_corpus)
    parts = groupby(
        collection.documents(), key=lambda document: document.part if own_corpus else ""
    )
    for part, documents in parts:
        words = []
        excluded: dict[int, int] = {}
        for number, document in enumerate(documents):
            if stop_requested():
                return None
            words.append(list(words_of(document.text)))
            on_text()
            if (row := collection.own_query(document)) is not None:
                excluded[row] = number
        first, best.seen = best.seen, best.seen + len(words)
        if part not in rows or not any(words):
            continue
        score = bm25(words, k1, b)
        for row in rows[part]:
            if stop_requested():
                return None
            on_text()
            asked = words_of(collection.queries[row].text)
            if not asked:  # a query of punctuation alone retrieves nothing
                continue
            scores = torch.from_numpy(score(asked))[None]
            if row in excluded:
                scores[0, excluded[row]] = float("-inf")
            best.add([row], scores, first)
    return best


def rerank(retriever: Joint, query: str, candidates: Ranking, texts: Sequence[str]) -> Ranking:
    """A first stage's ranking, reordered by a cross-encoder; `texts` are the candidates' texts."""
    pairs = [
        TextPair(key, query, text) for key, text in zip(candidates.document_ids, texts, strict=True)
    ]
    scores = torch.full((1, len(pairs)), float("-inf"))

    def tokens(number: int) -> int:
        return estimated_tokens(pairs[number].query + pairs[number].document)

    def score(numbers: list[int]) -> list[float]:
        try:
            encoded = retriever.encode_pairs([pairs[number] for number in numbers])[0]
            logits: list[float] = retriever.embed(encoded).float().cpu().tolist()
            return logits
        except RunEnded:
            raise
        except UserError:
            if len(numbers) == 1:
                return [float("-inf")]
        return score(numbers[: len(numbers) // 2]) + score(numbers[len(numbers) // 2 :])

    for numbers, logits in in_batches(retriever, score, range(len(pairs)), tokens):
        scores[0, numbers] = torch.tensor(logits)
    best = TopK(1, max(1, len(pairs)))
    best.add([0], scores, 0)
    places, values = best.found(0)
    return Ranking(
        candidates.query_id,
        tuple(candidates.document_ids[place] for place in places),
        values.numpy(),
        tuple(candidates.languages[place] for place in places),
    )

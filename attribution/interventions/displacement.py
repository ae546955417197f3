"""Displacement: the whole text moves without changing, after a neutral prefix or, for models that
add position embeddings to word embeddings, by shifted position ids. A change in the score is
then caused by position, not by content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import nn

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.errors import UserError
from poslens.attribution.interventions.ablation import of_tokens
from poslens.attribution.interventions.relocation import require_shares, tokens_of
from poslens.attribution.nouns import counted
from poslens.attribution.retrievers.base import Retriever, reads_jointly, separate
from poslens.attribution.retrievers.embedding_hooks import EmbeddingHooks
from poslens.attribution.retrievers.scoring import Known, score_texts
from poslens.attribution.text import joined
from poslens.attribution.types import Array, Method, TextPair, set_arrays

Way = Literal["prefix", "positions"]
PREFIXES = (0, 32, 64, 128, 256)
"""Lengths of the neutral prefix in tokens, and shifts of position ids."""

VERSION = 2


def displacement_method(way: Way, lengths: Sequence[int] = PREFIXES) -> Method:
    """The method under which results are stored and shown."""
    text = "/".join(map(str, lengths))
    return Method("displacement", {"by": way, "tokens": text, "version": VERSION})


@dataclass(frozen=True, slots=True)
class Displacement:
    """`scores` [K] with the text moved by `tokens` [K]; `read` [K] is the share of the text's own
    characters that was still read (1 for shifted positions)."""

    model: str
    pair_id: str
    way: Way
    tokens: tuple[int, ...]
    scores: Array
    read: Array
    note: str = ""

    def __post_init__(self) -> None:
        shape = (len(self.tokens),)
        set_arrays(self, "a score", scores=shape, read=shape)
        require_shares(self.read)


def behind_prefix(
    retriever: Retriever,
    pair: TextPair,
    lengths: Sequence[int] = PREFIXES,
    *,
    cached: Known | None = None,
) -> Displacement:
    """Score the document after neutral text of each length. The prefix is content, too: compare the
    result with `shifted_positions`, which adds none, if the model supports it."""
    prefixes = [
        of_tokens(retriever, pair.query, pair.language, n, 5 * n) if n else "" for n in lengths
    ]
    texts = [joined([prefix, pair.document]) for prefix in prefixes]
    asked = [(pair.query, text) for text in texts]
    scores = score_texts(retriever, asked, cached=cached)
    read = []
    for text in texts:
        reached = tokens_of(retriever, pair.query, text).share_read(len(text)) * len(text)
        start = len(text) - len(pair.document)
        read.append(max(0.0, reached - start) / len(pair.document))
    cut = sum(share < 1 for share in read)
    note = f"after {cut} of the prefixes, the document is truncated" if cut else ""
    return Displacement(
        retriever.name,
        pair.pair_id,
        "prefix",
        tuple(lengths),
        scores,
        np.array(read, dtype=np.float32),
        note,
    )


def position_table(retriever: Retriever) -> nn.Embedding:
    """The table of position embeddings for documents.

    Raises:
        UserError: there is none, because positions are relative or rotary or the model has no
            positions, or because query and document are read as one text.
    """
    if reads_jointly(retriever):
        raise UserError(
            f"{retriever.name} reads query and document as one text, so only the neutral prefix "
            "can move the document."
        )
    table = retriever.positions if isinstance(retriever, EmbeddingHooks) else None
    if table is None:
        raise UserError(
            f"{retriever.name} adds no position embeddings to its token embeddings, so only the "
            "neutral prefix can move the document."
        )
    return table


def shifted_positions(
    retriever: Retriever, pair: TextPair, lengths: Sequence[int] = PREFIXES
) -> Displacement:
    """Score the document with its tokens' positions shifted by each of `lengths`; leading special
    tokens are not shifted. Shifts beyond the end of the table are skipped.

    Raises:
        UserError: see `position_table`.
        Stopped: canceled (`stoppable`).
    """
    table, model = position_table(retriever), separate(retriever)
    tokens = tokens_of(retriever, pair.query, pair.document)
    n, first = len(tokens), int(np.argmax(tokens.content))
    room = table.num_embeddings - n - (0 if table.padding_idx is None else table.padding_idx + 1)
    fitting = tuple(length for length in lengths if length <= room)
    scores = []
    with model.lock, torch.no_grad():
        query = model.embed(model.encode_texts([pair.query], "query"))
        encoded = model.encode_texts([pair.document], "document")
    for length in fitting:
        checkpoint()
        with model.lock, torch.no_grad():
            with _shifted(table, first, length):
                vector = model.embed(encoded)
            scores.append(float(model.similarity(query, vector)))
    left = len(lengths) - len(fitting)
    verb = "exceeds" if left == 1 else "exceed"
    limit = f"the model's {table.num_embeddings} positions"
    note = f"{counted(left, 'shift')} {verb} {limit}" if left else ""
    return Displacement(
        retriever.name,
        pair.pair_id,
        "positions",
        fitting,
        np.array(scores, dtype=np.float32),
        np.ones(len(fitting), dtype=np.float32),
        note,
    )


@contextmanager
def _shifted(table: nn.Embedding, first: int, by: int) -> Iterator[None]:
    def shift(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        ids = args[0].clone()
        ids[..., first:] += by
        return (ids, *args[1:])

    hook = table.register_forward_pre_hook(shift)
    try:
        yield
    finally:
        hook.remove()

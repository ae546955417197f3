"""How documents stand in an index: whole, as windows of their tokens, or chunked late.

`windows:128:32` are texts of 128 tokens, each beginning 96 behind the one before; a document's
score is its best window's. `late:128` reads the text once and pools windows of its token vectors
(Günther et al. 2024, arXiv 2409.04701), so each window has seen what stands around it; what lies
behind the model's limit is in none of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from attribution.errors import UserError
from attribution.retrievers.dense import DenseRetriever
from attribution.text import words

_FORM = re.compile(r"(windows|late):(\d{1,9})(?::(\d{1,9}))?")
SLACK = 8
"""Tokens that are left free beside a window: one that begins or ends inside a word is cut into
other tokens, and more of them, than it had in its text."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """`size` tokens a window, of which `overlap` are the one's before; 0 and 0 where whole."""

    kind: Literal["whole", "windows", "late"] = "whole"
    size: int = 0
    overlap: int = 0

    def __str__(self) -> str:
        if self.kind == "whole":
            return self.kind
        return f"{self.kind}:{self.size}" + (f":{self.overlap}" if self.overlap else "")

    @property
    def title(self) -> str:
        """What figures and tables call it."""
        if self.kind == "whole":
            return "whole"
        if self.kind == "late":
            return f"late chunks of {self.size}"
        return f"windows of {self.size}" + (f", overlap {self.overlap}" if self.overlap else "")


WHOLE = Chunks()


def chunks_of(text: str) -> Chunks:
    """What `whole`, `windows:128:32`, `windows:128` or `late:128` asks for.

    Raises:
        UserError: none of these, or windows that would not advance.
    """
    if text == "whole":
        return WHOLE
    found = _FORM.fullmatch(text)
    if found is None or (found[1] == "late" and found[3]):
        raise UserError(
            f"There are no chunks {text[:40]!r}: give whole, windows:128:32 (tokens and overlap) "
            "or late:128."
        )
    size, overlap = int(found[2]), int(found[3] or 0)
    if size < 1:
        raise UserError("A window has at least 1 token.")
    if overlap >= size:
        raise UserError(
            f"A window of {size} tokens cannot overlap the next one by {overlap}: give an overlap "
            f"below {size}."
        )
    return Chunks("windows" if found[1] == "windows" else "late", size, overlap)


def require_fit(retriever: Any, chunks: Chunks) -> None:
    """Refuse what a loaded model cannot do.

    Raises:
        UserError: windows longer than it reads beside special tokens and prompt, or late chunks of
            a model without token vectors whose mean is its vector.
    """
    if chunks.kind == "late":
        from sentence_transformers.sentence_transformer.modules import (  # here: slow to import
            Pooling,
        )

        modes = (
            [one.pooling_mode for one in retriever.model if isinstance(one, Pooling)]
            if isinstance(retriever, DenseRetriever)
            else []
        )
        if modes != ["mean"]:
            raise no_late_chunks(retriever.name)
    if chunks.kind == "windows" and isinstance(retriever, DenseRetriever):
        word = retriever.encode_texts(["a"], "document").texts[0]
        room = word.max_length - int((~word.content).sum()) - SLACK
        if chunks.size > room:
            raise UserError(
                f"Windows of {chunks.size:,} tokens are more than {retriever.name} reads beside "
                f"special tokens, its prompt and {SLACK} tokens of slack ({room:,}): choose "
                "smaller ones."
            )


def no_late_chunks(name: str) -> UserError:
    """Why a model has none."""
    return UserError(
        f"{name} cannot be chunked late: its vector is not the mean of token vectors. Choose "
        "windows, or a model with mean pooling."
    )


def windows_of(retriever: Any, text: str, chunks: Chunks) -> list[str]:
    """The text's windows, by the model's own tokens; by words where the model has none. The text
    itself where it has no more than one."""
    spans = _token_spans(retriever, text)
    return [text[a:b] for a, b in _cut(spans, chunks)] or [text]


def _cut(spans: Sequence[tuple[int, int]], chunks: Chunks) -> list[tuple[int, int]]:
    step = chunks.size - chunks.overlap
    found = []
    for first in range(0, len(spans), step):
        part = spans[first : first + chunks.size]
        found.append((part[0][0], part[-1][1]))
        if first + chunks.size >= len(spans):
            break
    return found


def _token_spans(retriever: Any, text: str) -> list[tuple[int, int]]:
    """Characters [start, end) of every token of the text, read or not."""
    if not isinstance(retriever, DenseRetriever):
        return list(words(text))
    with retriever.lock:
        tokens = retriever.encoder("document").tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            truncation=False,
            verbose=False,
        )
    return [(a, b) for a, b in tokens["offset_mapping"] if b > a]


def late_vectors(retriever: DenseRetriever, texts: Sequence[str], size: int) -> list[Tensor]:
    """Vectors [W, H] of each text's windows of `size` tokens, special ones included, of one pass
    over the text. A text of one window has its own vector, as without chunks.

    Raises:
        UserError: a text has no token.
    """
    with retriever.lock, torch.no_grad():
        encoded = retriever.encode_plain(texts, "document")
        first, *rest = retriever.encoder("document")
        features: dict[str, Any] = first(dict(encoded.features))
        mask, vectors = features["attention_mask"], features["token_embeddings"]
        owner: list[int] = []
        masks, rows = [], []
        for number in range(len(texts)):
            places = mask[number].nonzero().flatten()
            for part in places.split(size):
                window = torch.zeros_like(mask[number])
                window[part] = mask[number][part]
                owner.append(number)
                masks.append(window)
                rows.append(vectors[number])
        found: dict[str, Any] = {
            "token_embeddings": torch.stack(rows),
            "attention_mask": torch.stack(masks),
        }
        if "prompt_length" in features:
            found["prompt_length"] = features["prompt_length"]
        for module in rest:
            found = module(found)
        pooled = found["sentence_embedding"].float().cpu()
    at = torch.tensor(owner)
    return [pooled[at == number] for number in range(len(texts))]

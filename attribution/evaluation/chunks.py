"""How documents are indexed: whole, as windows of their tokens, or as late chunks.

`windows:128:32` are texts of at most 128 tokens, each sharing 32 with the next; a document's
score is its best window's. `late:128` reads the text once and pools windows of its token vectors
(Günther et al. 2024, arXiv 2409.04701), so each window depends on the text around it; text past
the context limit is in none of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.text import words

_FORM = re.compile(r"(windows|late):(\d{1,9})(?::(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class Chunks:
    """Windows of `size` tokens that overlap by `overlap` tokens; 0 and 0 for whole documents."""

    kind: Literal["whole", "windows", "late"] = "whole"
    size: int = 0
    overlap: int = 0

    def __str__(self) -> str:
        if self.kind == "whole":
            return self.kind
        return f"{self.kind}:{self.size}" + (f":{self.overlap}" if self.overlap else "")

    @property
    def title(self) -> str:
        """The name in figures and tables."""
        if self.kind == "whole":
            return "whole"
        if self.kind == "late":
            return f"late chunks of {self.size}"
        return f"windows of {self.size}" + (f", overlap {self.overlap}" if self.overlap else "")


WHOLE = Chunks()


def chunks_of(text: str) -> Chunks:
    """The setting for `whole`, `windows:128:32`, `windows:128` or `late:128`.

    Raises:
        UserError: none of these, or windows that would not advance.
    """
    if text == "whole":
        return WHOLE
    match = _FORM.fullmatch(text)
    if match is None or (match[1] == "late" and match[3]):
        raise UserError(
            f"chunks can't be {text[:40]!r}: use whole, windows:128:32 (tokens and overlap) or "
            "late:128."
        )
    size, overlap = int(match[2]), int(match[3] or 0)
    if size < 1:
        raise UserError("A window must have at least 1 token.")
    if overlap >= size:
        raise UserError(
            f"A window of {size} tokens can't overlap the next one by {overlap}: use an overlap "
            f"below {size}."
        )
    return Chunks("windows" if match[1] == "windows" else "late", size, overlap)


def require_fit(retriever: Any, chunks: Chunks) -> None:
    """Check that a loaded model supports the setting.

    Raises:
        UserError: windows that exceed the context limit together with special tokens and prompt, or
            late chunks for a model without mean pooling of token vectors.
    """
    if chunks.kind == "late":
        if not isinstance(retriever, DenseRetriever):
            raise no_late_chunks(retriever.name)
        if [pooling.pooling_mode for pooling in _poolings(retriever)] != ["mean"]:
            raise no_late_chunks(retriever.name)
    if chunks.kind == "windows" and isinstance(retriever, DenseRetriever):
        room = _room(retriever)
        if chunks.size > room:
            raise UserError(
                f"Windows of {chunks.size:,} tokens don't fit into the context limit of "
                f"{retriever.name} ({room:,} without special tokens and prompt): choose smaller "
                "windows."
            )


def _poolings(retriever: DenseRetriever) -> list[Any]:
    from sentence_transformers.sentence_transformer.modules import Pooling  # here: slow to import

    return [module for module in retriever.of("document").model if isinstance(module, Pooling)]


def excludes_prompt(retriever: DenseRetriever) -> bool:
    """Whether the vector of a document leaves out the tokens of its prompt."""
    return bool(retriever.prompts["document"]) and not all(
        pooling.include_prompt for pooling in _poolings(retriever)
    )


def _n_excluded(retriever: DenseRetriever, features: Mapping[str, Any]) -> int:
    """Number of tokens at the beginning of each text that pooling excludes."""
    return int(features.get("prompt_length", 0)) if excludes_prompt(retriever) else 0


def _room(retriever: DenseRetriever) -> int:
    """Tokens of a document that the model reads after special tokens and its prompt."""
    word = retriever.encode_texts(["a"], "document").texts[0]
    return word.max_length - int((~word.content).sum())


def no_late_chunks(name: str) -> UserError:
    """The error for a model that does not support late chunks."""
    return UserError(
        f"{name} does not support late chunks, which need the token vectors of a model with mean "
        "pooling: choose windows, or such a model."
    )


def windows_of(retriever: Any, text: str, chunks: Chunks, title: str = "") -> list[str]:
    """The text's windows (`window_spans`), each after the first with the title and a space before
    it. The title is omitted if the model would then truncate windows of full size."""
    spans = window_spans(retriever, text, chunks)
    if title and isinstance(retriever, DenseRetriever):
        n_tokens = len(_token_spans(retriever, f"{title} "))
        if n_tokens + chunks.size > _room(retriever):
            title = ""
    prefix = f"{title} " if title else ""
    return [(prefix if start else "") + text[start:end] for start, end in spans]


def window_spans(retriever: Any, text: str, chunks: Chunks) -> list[tuple[int, int]]:
    """Characters [start, end) of the text's windows of at most `chunks.size` of the model's tokens,
    counted as the model reads each window, or of words if the model has no tokens. The whole text
    if it fits in one window.

    A window that begins or ends inside a word is tokenized differently, and often into more tokens,
    than the same characters in the text. Such a window gives up its last tokens, and the next one
    begins earlier. Only a single character of more than `size` tokens exceeds the size.
    """
    dense = isinstance(retriever, DenseRetriever)
    spans = _token_spans(retriever, text) if dense else list(words(text))
    units = _units(spans)
    windows: list[tuple[int, int]] = []
    first, last = 0, 0
    while last < len(units):
        last, n = first + 1, units[first][2]
        while last < len(units) and n + units[last][2] <= chunks.size:
            n += units[last][2]
            last += 1
        window = units[first][0], units[last - 1][1]
        while dense and last > first + 1:
            excess = len(_token_spans(retriever, text[window[0] : window[1]])) - chunks.size
            if excess <= 0:
                break
            while last > first + 1 and excess > 0:
                last -= 1
                excess -= units[last][2]
            window = units[first][0], units[last - 1][1]
        windows.append(window)
        after, shared = last, 0
        while after > first + 1 and (shared := shared + units[after - 1][2]) <= chunks.overlap:
            after -= 1
        first = after
    return windows or [(0, len(text))]


def read_spans(retriever: Any, text: str, chunks: Chunks) -> list[tuple[int, int]] | None:
    """Characters [start, end) of each chunk of the text, as far as the model reads them; None if
    that is unknown (whole texts that are sent to an endpoint).

    Raises:
        UserError: the model reads no token of the text.
    """
    if chunks.kind == "windows":
        return window_spans(retriever, text, chunks)
    if not isinstance(retriever, DenseRetriever):
        return None if retriever.spec.remote else [(0, len(text))]
    encoded = retriever.encode_texts([text], "document")
    tokens = encoded.texts[0]
    begin, size = 0, len(tokens)
    if chunks.kind == "late":
        begin, size = _n_excluded(retriever, encoded.features), chunks.size
    chunk_spans = []
    for first in range(begin, len(tokens), size):
        part = slice(first, first + size)
        content = tokens.content[part]
        if content.any():
            starts, ends = tokens.starts[part][content], tokens.ends[part][content]
            chunk_spans.append((int(starts.min()), int(ends.max())))
    return chunk_spans


def _units(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Spans [start, end) between which a text can be cut, each with its number of tokens:
    byte-level tokenizers give a character several tokens, all with the span of that character."""
    units: list[tuple[int, int, int]] = []
    for start, end in spans:
        if units and (start < units[-1][1] or end <= start):
            begin, until, n = units[-1]
            units[-1] = (begin, max(until, end), n + 1)
        elif end > start:
            units.append((start, end, 1))
    return units


def _token_spans(retriever: DenseRetriever, text: str) -> list[tuple[int, int]]:
    """Characters [start, end) of every token of the text, read or not, as tokenized after the
    prompt."""
    prompt = retriever.prompts["document"]
    with retriever.tokenizing:
        tokens = retriever.of("document").model.tokenizer(
            prompt + text,
            add_special_tokens=False,
            return_offsets_mapping=True,
            truncation=False,
            verbose=False,
        )
    spans = ((a - len(prompt), b - len(prompt)) for a, b in tokens["offset_mapping"])
    return [(max(0, a), b) for a, b in spans if b > 0]


def late_vectors(retriever: DenseRetriever, texts: Sequence[str], size: int) -> list[Tensor]:
    """Vectors [W, H] of each text's windows of `size` tokens, including special tokens, from one
    pass over the text. A text of one window has the same vector as without chunks. Tokens of a
    prompt that pooling excludes are in no window.

    Raises:
        UserError: a text has no token.
    """
    with retriever.lock, torch.no_grad():
        encoded = retriever.encode_plain(texts, "document")
        first, *rest = retriever.of("document").model
        features: dict[str, Any] = first(dict(encoded.features))
        mask, vectors = features["attention_mask"], features["token_embeddings"]
        excluded = _n_excluded(retriever, features)
        owner: list[int] = []
        masks, rows = [], []
        for number in range(len(texts)):
            places = mask[number].nonzero().flatten()[excluded:]
            for part in places.split(size):
                window = torch.zeros_like(mask[number])
                window[part] = mask[number][part]
                owner.append(number)
                masks.append(window)
                rows.append(vectors[number])
        # Without `prompt_length`: pooling would exclude as many tokens of every window.
        vectors_of: dict[str, Any] = {
            "token_embeddings": torch.stack(rows),
            "attention_mask": torch.stack(masks),
        }
        for module in rest:
            vectors_of = module(vectors_of)
        pooled = retriever.truncated(vectors_of["sentence_embedding"], "document").float().cpu()
    at = torch.tensor(owner)
    return [pooled[at == number] for number in range(len(texts))]

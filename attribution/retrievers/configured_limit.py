"""The length at which a model's configuration truncates texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poslens.attribution.retrievers.model_folder import Contents

_LENGTHS = "sentence_bert_config.json"

_RESERVING = frozenset("roberta xlm-roberta xlm-roberta-xl camembert mpnet".split())
"""Types of transformers that number positions from that of padding plus 1."""


def limit_in(files: Contents, family: str) -> int | None:
    """Tokens of a document, including special ones, at which the configuration in a model's folder
    truncates: that of sentence-transformers or of ColBERT, or else the tokenizer's; not past the
    model's positions. None if the files state none of these."""
    places = {place for _, place in files.modules} | {""}
    stated = [_size(files.config(place, _LENGTHS), "max_seq_length") for place in places]
    if not any(stated):
        tokenizers = (files.config(place, "tokenizer_config.json") for place in places)
        stated = [_size(tokenizer, "model_max_length") for tokenizer in tokenizers]
    if family == "late_interaction":
        lengths = [
            *((place, _LENGTHS, "document_length") for place in places),
            ("", "config_sentence_transformers.json", "document_length"),  # PyLate
            ("", "artifact.metadata", "doc_maxlen"),  # Stanford's ColBERT
        ]
        of_documents = [
            size for place, name, key in lengths if (size := _size(files.config(place, name), key))
        ]
        if not of_documents:  # the library's default, which the files don't state
            return None
        stated = [min(of_documents)]
    positions = list(
        filter(None, (_positions(files.config(place, "config.json")) for place in places))
    )
    limits = {min([limit, *positions]) for limit in stated if limit} or set(positions)
    # If encoders of queries and documents differ, there is no single limit.
    return limits.pop() if len(limits) == 1 else None


def _size(config: Mapping[str, Any], key: str) -> int | None:
    """A number of tokens in a configuration; None if it is not stated. Tokenizers without a limit
    state 10^30."""
    size = config.get(key)
    return size if type(size) is int and 0 < size < 10**9 else None


def _positions(config: Mapping[str, Any]) -> int | None:
    """The number of tokens for which a transformer has positions; None if that is not stated."""
    positions, padding = _size(config, "max_position_embeddings"), config.get("pad_token_id")
    if positions and config.get("model_type") in _RESERVING and type(padding) is int:
        positions -= padding + 1
    return positions

"""Sentences about a model's context limit and about the length its configuration truncates at."""

from __future__ import annotations

from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec


def configured_apart(spec: RetrieverSpec) -> int | None:
    """Where the model's own configuration truncates, if PosLens lets it read another number of
    tokens; else None."""
    configured = resolve.configured_limit(spec)
    return configured if spec.max_length not in (None, configured) else None


def unknown(spec: RetrieverSpec) -> bool:
    """Whether nobody here knows how much of a text the model reads: an endpoint truncates where it
    likes and says nothing of it. So it is with an object of a program."""
    return spec.family in ("endpoint", "rerank_endpoint", "object")


def reads(spec: RetrieverSpec) -> str:
    """How much of a text the model reads: `512 tokens (its own configuration: 256)`."""
    if unknown(spec):
        return "an unknown number of tokens"
    if spec.family == "lexical":
        return "texts of any length"
    limit = spec.max_length or resolve.configured_limit(spec)
    if limit is None:
        return "as many tokens as its own files say"
    apart = configured_apart(spec)
    return f"{limit:,} tokens" + (f" (its own configuration: {apart:,})" if apart else "")

"""How many tokens a model reads, beside where its own configuration truncates, in words."""

from __future__ import annotations

from attribution.retrievers import resolve
from attribution.retrievers.specs import RetrieverSpec


def configured_apart(spec: RetrieverSpec) -> int | None:
    """Where the model's own configuration truncates, if PosLens lets it read another number of
    tokens; else None."""
    configured = resolve.configured_limit(spec)
    return configured if spec.max_length not in (None, configured) else None


def reads(spec: RetrieverSpec) -> str:
    """How much of a text the model reads: `512 tokens; its configuration truncates at 256`."""
    if spec.without_files:
        return "an unknown number of tokens"
    if spec.family == "lexical":
        return "texts of any length"
    limit = spec.max_length or resolve.configured_limit(spec)
    if limit is None:
        return "as many tokens as its own files say"
    apart = configured_apart(spec)
    return f"{limit:,} tokens" + (f"; its configuration truncates at {apart:,}" if apart else "")

"""Sentences about a model's context limit, and the length at which its configuration truncates."""

from __future__ import annotations

from poslens.attribution.retrievers import resolve
from poslens.attribution.retrievers.specs import RetrieverSpec


def configured_apart(spec: RetrieverSpec) -> int | None:
    """The number of tokens at which the model's own configuration truncates, if PosLens truncates
    at another number; else None."""
    configured = resolve.configured_limit(spec)
    return configured if spec.max_length not in (None, configured) else None


def context_limit(spec: RetrieverSpec) -> int | None:
    """The number of tokens that the model reads of a text; None if its files do not state it or are
    not on this machine."""
    return spec.max_length or resolve.configured_limit(spec)


def unknown(spec: RetrieverSpec) -> bool:
    """Whether it is unknown how much of a text the model reads: Python objects do not state where
    they truncate, nor do endpoints, unless the number of words to send is set."""
    return spec.without_files and spec.max_length is None


def unit(spec: RetrieverSpec) -> str:
    """What the context limit counts, in the plural."""
    return "words" if spec.without_files else "tokens"


def reads(spec: RetrieverSpec) -> str:
    """How much of a text the model reads: `512 tokens (its own configuration: 256)`."""
    if unknown(spec):
        return "an unknown number of tokens"
    if spec.without_files:
        return f"the first {spec.max_length:,} words"
    if spec.family == "lexical":
        return "texts of any length"
    limit = context_limit(spec)
    if limit is None:
        return "as many tokens as its own files say"
    apart = configured_apart(spec)
    return f"{limit:,} tokens" + (f" (its own configuration: {apart:,})" if apart else "")

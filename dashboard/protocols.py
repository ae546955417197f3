"""The PosIR paper's settings, for the pages and the command line alike."""

from __future__ import annotations

from attribution.retrievers.registry import RetrieverSpec, with_settings

POSIR_PROMPT = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
)


def posir_spec(spec: RetrieverSpec) -> RetrieverSpec:
    """`spec` with PosIR's query prompt, queries cut at 512 tokens and documents at 2,048."""
    return with_settings(spec, max_length=2048, query_max_length=512, query_prompt=POSIR_PROMPT)

"""The PosIR paper's settings, for the pages and the command line alike."""

from __future__ import annotations

from poslens.attribution.retrievers.specs import RetrieverSpec, with_settings

POSIR_PROMPT = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
)


def posir_spec(spec: RetrieverSpec) -> RetrieverSpec:
    """`spec` as PosIR's saliency scripts read: the query prompt, queries cut at 512 tokens and
    documents at 2,048."""
    return with_settings(spec, max_length=2048, query_max_length=512, query_prompt=POSIR_PROMPT)


def posir_ranking_spec(spec: RetrieverSpec) -> RetrieverSpec:
    """`spec` as PosIR's ranking script (`eval.py`) reads: the query prompt, and 8,192 tokens of
    queries and documents alike. The script puts the prompt before queries of Qwen3-Embedding
    models alone; here it is put before those of every model that is ranked so."""
    return with_settings(spec, max_length=8192, query_max_length=8192, query_prompt=POSIR_PROMPT)

"""The PosIR paper's settings, shared by the pages and the command line."""

from __future__ import annotations

from poslens.attribution.retrievers.specs import RetrieverSpec, with_settings

POSIR_PROMPT = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
)


def posir_spec(spec: RetrieverSpec) -> RetrieverSpec:
    """`spec` with the settings of PosIR's saliency scripts: the query prompt, queries truncated
    at 512 tokens and documents at 2,048."""
    return with_settings(spec, max_length=2048, query_max_length=512, query_prompt=POSIR_PROMPT)


def posir_ranking_spec(spec: RetrieverSpec) -> RetrieverSpec:
    """`spec` with the settings of PosIR's ranking script (`eval.py`): the query prompt, and
    8,192 tokens for queries and documents. The script adds the prompt to queries of
    Qwen3-Embedding models only; here every model's queries get it."""
    return with_settings(spec, max_length=8192, query_max_length=8192, query_prompt=POSIR_PROMPT)

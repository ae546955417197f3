"""Shares of scores that are sums as they stand: nothing is estimated, nothing is left over.

share(document token j) = sum over i of M_ij, share(query token i) = sum over j of M_ij, with M
[Q, D] what token i of the query and token j of the document add to the score together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from attribution.types import Attribution, Method, TextPair


def attribute(retriever: Any, method: Method, pairs: Sequence[TextPair]) -> list[Attribution]:
    """Shares of every token of both sides, with the matrix; they add up to the score. The
    completeness error is rounding. With `matrix=similarities` the matrix holds all that was
    compared instead of what was summed; the shares are the same.

    Raises:
        UserError: a text without tokens, or a score that is not finite.
    """
    results = []
    for pair in pairs:
        started = time.perf_counter()
        with retriever.lock:
            found = retriever.exact(pair)
        matrix = found.matrix.astype("float64")
        shown = found.similarities if method.params.get("matrix") == "similarities" else None
        results.append(
            Attribution(
                model=retriever.name,
                method=method,
                pair_id=pair.pair_id,
                score=found.score,
                query=found.query,
                document=found.document,
                query_scores=matrix.sum(1),
                document_scores=matrix.sum(0),
                matrix=found.matrix if shown is None else shown,
                bias_share=0.0,
                completeness_error=found.score - float(matrix.sum()),
                seconds=time.perf_counter() - started,
            )
        )
    return results

"""Exact shares of scores that are sums, without estimates or a remainder.

share(document token j) = sum over i of M_ij, share(query token i) = sum over j of M_ij, where M
[Q, D] is what query token i and document token j together add to the score.
"""

from __future__ import annotations

from collections.abc import Sequence

from poslens.attribution.checkpoints import checkpoint
from poslens.attribution.methods.base import MethodEntry, MethodParameter, register
from poslens.attribution.methods.passes import distinct
from poslens.attribution.retrievers.base import Additive, ExactScore
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.types import Attribution, Method, TextPair


def attribute(retriever: Additive, method: Method, pairs: Sequence[TextPair]) -> list[Attribution]:
    """Shares of every token of both sides, and the matrix; they sum to the score up to rounding.
    With `matrix=similarities`, the matrix has all similarities instead of the summed ones; the
    shares are the same. Each distinct text is read once.

    Raises:
        UserError: a text without tokens, or a score that is not finite.
    """
    queries, asked = distinct([pair.query for pair in pairs])
    documents, read = distinct([pair.document for pair in pairs])
    exact: list[ExactScore] = []
    with retriever.lock:
        for exact_score in retriever.exact(queries, documents, list(zip(asked, read, strict=True))):
            checkpoint()
            exact.append(exact_score)
    results = []
    for pair, exact_score in zip(pairs, exact, strict=True):
        matrix = exact_score.matrix.astype("float64")
        shown = exact_score.similarities if method.params.get("matrix") == "similarities" else None
        results.append(
            Attribution(
                model=retriever.name,
                method=method,
                pair_id=pair.pair_id,
                score=exact_score.score,
                query=exact_score.query,
                document=exact_score.document,
                query_scores=matrix.sum(1),
                document_scores=matrix.sum(0),
                matrix=exact_score.matrix if shown is None else shown,
                bias_share=0.0,
                completeness_error=exact_score.score - float(matrix.sum()),
            )
        )
    return results


register(
    MethodEntry(
        name="terms",
        title="Term shares",
        help="Each term's exact share of the score. BM25: a query term's score is split evenly "
        "over its occurrences in the document. SPLADE: query weight times document weight, given "
        "to the tokens that produce the two weights. Shares sum to the score.",
        axis="Terms",
        unit="share of the score",
        signed=True,
        additive=True,
        needs=Capability.TERMS,
        compute=attribute,
        order=5,
        citation="Robertson and Zaragoza 2009 (BM25), Formal et al. 2021 (SPLADE)",
    )
)
register(
    MethodEntry(
        name="maxsim",
        title="MaxSim shares",
        help="Each document token's exact share of the score: each query token's largest "
        "similarity goes to the document token that attains it. Shares sum to the score.",
        axis="Maxsim",
        unit="share of the score",
        signed=True,
        additive=True,
        needs=Capability.MAXSIM,
        compute=attribute,
        order=6,
        citation="Khattab and Zaharia 2020 (ColBERT)",
        parameters=(
            MethodParameter(
                "matrix",
                ("winners", "similarities"),
                "What the matrix shows: only each query token's best match, or all similarities.",
            ),
        ),
    )
)

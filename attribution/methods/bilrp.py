"""BiLRP: layer-wise relevance propagation in second order, for similarities (Eberle et al. 2020;
for transformers Vasileiou and Eberle 2024).

Relevance of each dimension of both vectors is propagated to the tokens; the products over all
dimensions are summed: R_ij = sum over m of R_i(q_m) R_j(d_m). Attention weights, the scales of
normalization and activation ratios are constants, and linear layers follow the gamma rule. With
gamma = 0 this is the matrix of `decomposition`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from poslens.attribution.methods.base import MethodEntry, MethodParameter, build_batch, register
from poslens.attribution.methods.decomposition import require_complete
from poslens.attribution.methods.shares import share_matrices
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.family import Capability
from poslens.attribution.types import Attribution, Method, TextPair


def attribute(
    retriever: DenseRetriever, method: Method, pairs: Sequence[TextPair]
) -> list[Attribution]:
    """The matrix R of every pair of a query token and a document token; a token's value is the sum
    over the other text. Relevance is conserved: R plus the bias share, which has all products with
    constants of either encoder, is the score.

    Raises:
        UserError: the model cannot be linearized, or its score is not an inner product.
    """
    gamma = float(method.params["gamma"])
    with retriever.lock:
        (queries, of_queries), (documents, of_documents), matrices = share_matrices(
            retriever, pairs, "explicit", gamma
        )
    require_complete(retriever, of_queries, of_documents)
    sums = torch.stack([matrix.sum() for matrix in matrices])
    return build_batch(
        retriever,
        method,
        pairs,
        scores=of_documents.scores,
        queries=queries,
        documents=documents,
        query_scores=nn.utils.rnn.pad_sequence([m.sum(1) for m in matrices], batch_first=True),
        document_scores=nn.utils.rnn.pad_sequence([m.sum(0) for m in matrices], batch_first=True),
        matrices=matrices,
        bias_shares=of_documents.tokens.sum(1) + of_documents.bias - sums,
        completeness_errors=of_documents.error,
    )


register(
    MethodEntry(
        name="bilrp",
        title="BiLRP",
        help="Relevance of each pair of a query token and a document token, propagated backward "
        "through both encoders by the gamma rule with constant attention and normalization; a "
        "token's value is its sum over the other text. Values plus the bias share equal the score.",
        axis="BiLRP relevance",
        unit="share of the score",
        signed=True,
        additive=True,
        needs=Capability.JACOBIAN,
        compute=attribute,
        order=9,
        citation="Eberle et al. 2020, arXiv 2003.05431; Vasileiou and Eberle 2024, "
        "arXiv 2405.06604",
        slow=True,
        parameters=(
            MethodParameter(
                "gamma",
                ("0.25", "0", "0.1", "1"),
                "In a linear layer, contributions with the same sign as the output are weighted by "
                "1 + gamma. With 0, the result is the matrix of token decomposition.",
            ),
        ),
    )
)

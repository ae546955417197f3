"""Shares of one side's tokens for any vector of the other side."""

from __future__ import annotations

from torch import Tensor

from poslens.attribution.methods.passes import one_round
from poslens.attribution.methods.shares import BIASES, Shares, read_linear, shares_of
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.dense import DenseRetriever


def shares(
    retriever: DenseRetriever, encoded: Encoded, other: Tensor, biases: str = BIASES[0]
) -> Shares:
    """Shares of one side's tokens in the inner product with `other` [B, H]: input times gradient on
    the linearized encoder, with the constants as further inputs of ones."""
    return shares_of(read_linear(retriever, encoded, one_round(len(other)), biases), other)

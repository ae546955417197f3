"""Sparse encoders (SPLADE, Formal et al. 2021) through sentence-transformers: one weight per term
of the vocabulary.

s(q, d) = sum over the vocabulary's terms t of w_t(q) * w_t(d), where w_t is the largest value of
log(1 + relu(logit_t)) over the text's tokens. Each weight therefore comes from one token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Encoded, ExactScore, LibraryCheck
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.family import Capability, Family, Placement, register
from poslens.attribution.retrievers.library_model import load_model
from poslens.attribution.retrievers.specs import ModelFiles, RetrieverSpec
from poslens.attribution.types import TextPair, as_array


@dataclass(frozen=True, slots=True)
class Term:
    """A term that both texts have: its two weights, the tokens that they come from (indices into
    the texts' tokens), and the product of the weights, which it adds to the score."""

    text: str
    query_weight: float
    document_weight: float
    query_token: int
    document_token: int

    @property
    def share(self) -> float:
        """Its exact part of the score."""
        return self.query_weight * self.document_weight


_Weights = tuple[Tensor, Tensor]
"""Weights [V] of one text's terms, and the index [V] of the token that each comes from (the first
of equals)."""


class SparseRetriever(DenseRetriever):
    """A SparseEncoder (masked language model and max pooling) with access to its input embeddings;
    its "pooled vector" has one number per term of the vocabulary."""

    family = "sparse"

    def __init__(self, model: Any, spec: RetrieverSpec, precision: str) -> None:
        from sentence_transformers.base.modules import Transformer  # here: slow to import
        from sentence_transformers.sparse_encoder.modules import SpladePooling

        modules = list(model)
        if not (
            len(modules) == 2
            and isinstance(modules[0], Transformer)
            and isinstance(modules[1], SpladePooling)
            and modules[1].pooling_strategy == "max"
            and str(model.similarity_fn_name) == "dot"
        ):
            raise UserError(
                f"{spec.name} is not a SPLADE model with one encoder, max pooling and dot product: "
                "use such a model, or a dense model."
            )
        super().__init__(model, spec, precision)
        # In evaluation mode its in-place logarithm overwrites what the gradient needs.
        modules[1].train()

    def terms(self, pair: TextPair) -> list[Term]:
        """The terms that both texts have, the largest share first."""
        (asked,) = self._weights(self.encode_texts([pair.query], "query"))
        (read,) = self._weights(self.encode_texts([pair.document], "document"))
        return self._shared(asked, read)

    def _shared(self, query: _Weights, document: _Weights) -> list[Term]:
        """The terms that both texts have, the largest share first."""
        (asked, i), (values, j) = query, document
        product = asked * values
        shared = product.nonzero()[:, 0]
        shared = shared[product[shared].argsort(descending=True, stable=True)]
        names = self.model.tokenizer.convert_ids_to_tokens(shared.tolist())
        return [
            Term(str(name), float(asked[t]), float(values[t]), int(i[t]), int(j[t]))
            for name, t in zip(names, shared.tolist(), strict=True)
        ]

    def _weights(self, encoded: Encoded) -> list[_Weights]:
        """Each text's weights, from one forward pass."""
        with torch.no_grad():
            features = self.model[0](dict(encoded.features))
            logits = features["token_embeddings"]
            tokens = [encoded.row(logits, b).argmax(0).cpu() for b in range(len(encoded.texts))]
            weights = self.model[1](features)["sentence_embedding"].cpu().double()
        return list(zip(weights, tokens, strict=True))

    def exact(
        self, queries: Sequence[str], documents: Sequence[str], pairs: Sequence[tuple[int, int]]
    ) -> Iterator[ExactScore]:
        """The score of each pair as a sum over shared terms, each at the two tokens that its
        weights come from."""
        asked = self.encode_texts(queries, "query")
        read = self.encode_texts(documents, "document")
        query_weights, document_weights = self._weights(asked), self._weights(read)
        for i, j in pairs:
            query, document = asked.texts[i], read.texts[j]
            terms = self._shared(query_weights[i], document_weights[j])
            matrix = torch.zeros(len(query), len(document), dtype=torch.float64)
            for term in terms:
                matrix[term.query_token, term.document_token] += term.share
            values = matrix.numpy()
            score = float(sum(term.share for term in terms))
            yield ExactScore(query, document, score, as_array(values, values.shape, "a share"))

    def check(self, pair: TextPair) -> LibraryCheck:
        """Distance from sentence-transformers' own score, relative to it."""
        query = self._library(pair.query, "query", convert_to_sparse_tensor=False)
        document = self._library(pair.document, "document", convert_to_sparse_tensor=False)
        # Encoding switches the model back to evaluation mode.
        self.model[1].train()
        expected = float((query * document).sum())
        (exact,) = self.exact([pair.query], [pair.document], [(0, 0)])
        return LibraryCheck.of_score(exact.score, expected, 1e-6)


def _load(spec: RetrieverSpec, files: ModelFiles, place: Placement) -> SparseRetriever:
    model = load_model("SparseEncoder", spec, files.folder, place)
    return SparseRetriever(model, spec, place.precision)


FAMILY = register(
    Family(
        name="sparse",
        title="sparse",
        order=30,
        capabilities=frozenset({Capability.REMOVAL, Capability.GRADIENTS, Capability.TERMS}),
        search="term_weights",
        load=_load,
        library_class="SparseEncoder",
    )
)

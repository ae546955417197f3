"""Sparse encoders (SPLADE, Formal et al. 2021) on sentence-transformers: a weight for each word of
the vocabulary.

s(q, d) = sum over the vocabulary's terms t of w_t(q) * w_t(d), with w_t the largest of
log(1 + relu(logit_t)) over the text's tokens: so each weight comes from one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attribution.errors import UserError
from attribution.retrievers.base import ExactScore, LibraryCheck
from attribution.retrievers.dense import DenseRetriever
from attribution.retrievers.encoded import Encoded
from attribution.retrievers.family import Capability, Family, Placement, register
from attribution.retrievers.library_model import load_model
from attribution.retrievers.specs import ModelFiles, RetrieverSpec
from attribution.types import Side, TextPair, as_array


@dataclass(frozen=True, slots=True)
class Term:
    """One term that both texts have: what each weighs it, the two tokens that their weights come
    from (numbers in the texts' tokens) and what it adds to the score, the weights' product."""

    text: str
    query_weight: float
    document_weight: float
    query_token: int
    document_token: int

    @property
    def share(self) -> float:
        """Its exact part of the score."""
        return self.query_weight * self.document_weight


class SparseRetriever(DenseRetriever):
    """A SparseEncoder of a masked language model and max pooling, seen from its input embeddings;
    its "pooled vector" has a number for each word of the vocabulary."""

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
                f"{spec.name} is no SPLADE model of one encoder with max pooling and dot product: "
                "use one that is, or a dense model."
            )
        super().__init__(model, spec, precision)
        # In evaluation its logarithm overwrites what the gradient needs; nothing else differs.
        modules[1].train()

    def terms(self, pair: TextPair) -> tuple[Encoded, Encoded, list[Term]]:
        """Both texts as tokens, and the terms they share, the largest share first."""
        queries = self.encode_texts([pair.query], "query")
        documents = self.encode_texts([pair.document], "document")
        (asked, i), (found, j) = self._weights(queries), self._weights(documents)
        product = asked * found
        shared = product.nonzero()[:, 0]
        shared = shared[product[shared].argsort(descending=True, stable=True)]
        names = self.model.tokenizer.convert_ids_to_tokens(shared.tolist())
        terms = [
            Term(str(name), float(asked[t]), float(found[t]), int(i[t]), int(j[t]))
            for name, t in zip(names, shared.tolist(), strict=True)
        ]
        return queries, documents, terms

    def _weights(self, encoded: Encoded) -> tuple[Tensor, Tensor]:
        """Weights [V] of one text and the number [V] of the token that each comes from (the first
        of equals)."""
        with torch.no_grad():
            features = self.model[0](dict(encoded.features))
            logits = features["token_embeddings"][0]
            weights = self.embed(encoded)[0].cpu().double()
        start, n = encoded.offsets[0], len(encoded.texts[0])
        return weights, logits[start : start + n].argmax(0).cpu()

    def exact(self, pair: TextPair) -> ExactScore:
        """The score as a sum over shared terms, each at the two tokens its weights come from."""
        queries, documents, terms = self.terms(pair)
        query, document = queries.texts[0], documents.texts[0]
        matrix = torch.zeros(len(query), len(document), dtype=torch.float64)
        for term in terms:
            matrix[term.query_token, term.document_token] += term.share
        values = matrix.numpy()
        score = float(sum(term.share for term in terms))
        return ExactScore(query, document, score, as_array(values, values.shape, "a share"))

    def check(self, pair: TextPair) -> LibraryCheck:
        """Distance from sentence-transformers' own score, relative to it."""
        texts: tuple[tuple[str, Side], ...] = ((pair.query, "query"), (pair.document, "document"))
        query, document = (
            self.model.encode(
                [text],
                prompt=self.prompts[side] or None,
                task=side,
                show_progress_bar=False,
                convert_to_sparse_tensor=False,
            )
            for text, side in texts
        )
        # Encoding puts the model back into evaluation.
        self.model[1].train()
        theirs = float((query * document).sum())
        distance = abs(self.exact(pair).score - theirs) / max(abs(theirs), 1e-6)
        return LibraryCheck(distance, "score")


_CLASS = "SparseEncoder"


def _load(spec: RetrieverSpec, files: ModelFiles, place: Placement) -> SparseRetriever:
    return SparseRetriever(load_model(_CLASS, spec, files.folder, place), spec, place.precision)


FAMILY = register(
    Family(
        name="sparse",
        title="sparse",
        order=30,
        capabilities=frozenset({Capability.EMBEDDINGS, Capability.GRADIENTS, Capability.TERMS}),
        search="term_weights",
        load=_load,
        library_class=_CLASS,
    )
)

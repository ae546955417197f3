"""Late interaction (ColBERT, Khattab and Zaharia 2020) through sentence-transformers: one vector
per token, compared by MaxSim.

s(q, d) = sum over query tokens i of max over document tokens j of <q_i, d_j>; the mean over i for
models that score by it. Query expansion tokens count as query tokens but are not part of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Encoded, ExactScore, LibraryCheck
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.family import Capability, Family, Placement, register
from poslens.attribution.retrievers.library_model import load_model
from poslens.attribution.retrievers.model_folder import contents
from poslens.attribution.retrievers.specs import ModelFiles, RetrieverSpec
from poslens.attribution.types import Side, TextPair, Token, TokenizedText, as_array


@dataclass(frozen=True, slots=True)
class Vectors:
    """One vector per position [B, T, H], and which positions are scored [B, T]."""

    tokens: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: list[int]) -> Vectors:
        return Vectors(self.tokens[rows], self.mask[rows])

    def detach(self) -> Vectors:
        """Without a gradient."""
        return Vectors(self.tokens.detach(), self.mask)


class LateInteractionRetriever(DenseRetriever):
    """A MultiVectorEncoder with access to its input embeddings. Everything up to the backbone is as
    for dense models."""

    family = "late_interaction"

    def __init__(self, model: Any, spec: RetrieverSpec, precision: str) -> None:
        from sentence_transformers.multi_vector_encoder.modules import (  # here: slow to import
            BaseTokenPooling,
        )

        super().__init__(model, spec, precision)
        if any(isinstance(module, BaseTokenPooling) for module in model):
            raise UserError(
                f"{spec.name} merges token vectors, so its score can't be attributed to tokens: "
                "use a copy of the model without token pooling."
            )

    def max_length_of(self, side: Side) -> int:
        """Context limit of one side in tokens; ColBERT has short queries of fixed length."""
        from sentence_transformers.base.modules import Transformer  # here: slow to import

        reader: Transformer = next(
            module for module in self.model if isinstance(module, Transformer)
        )
        if side == "document":
            return min(filter(None, (reader.document_length, self.max_length)))
        expansion = reader.query_expansion
        if expansion is not None and expansion["strategy"] == "fixed":
            return int(expansion["length"])
        limits = (self.spec.query_max_length, reader.query_length, self.max_length)
        return min(filter(None, limits))

    def encode_texts(self, texts: Sequence[str], side: Side) -> Encoded:
        """As for dense models; expansion tokens after a query are special tokens.

        Raises:
            UserError: a text has no text tokens.
        """
        encoded = super().encode_texts(texts, side)
        expansion = encoded.features.get("query_expansion_positions")
        if expansion is None:
            return encoded
        name_of = self.model.tokenizer.convert_ids_to_tokens
        # Copied from the device at once, because each copied number would wait for the device.
        ids, added = encoded.features["input_ids"].tolist(), expansion.tolist()
        token_lists = []
        for b, text in enumerate(encoded.texts):
            expanded = (
                Token(str(name_of(i)), 0, 0, is_special=True)
                for i, is_added in zip(ids[b], added[b], strict=True)
                if is_added
            )
            tokens = (*text.tokens, *expanded)
            token_lists.append(TokenizedText.of(tokens, text.n_tokens_full, text.max_length))
        return replace(encoded, texts=tuple(token_lists))

    def embed(self, encoded: Encoded) -> Any:
        """One vector per position, from the model's own modules."""
        output = self.model(dict(encoded.features), task=encoded.side)
        return Vectors(output["token_embeddings"], output["attention_mask"].bool())

    def similarity(self, queries: Any, documents: Any) -> Tensor:
        """MaxSim [B]; one query with any number of documents, and the reverse."""
        best = self._similarities(queries, documents).amax(-1)
        scored = queries.mask.to(best.dtype)
        total = torch.where(queries.mask, best, 0).sum(-1)
        return total / scored.sum(-1) if self._mean else total

    @property
    def _mean(self) -> bool:
        return str(self.model.similarity_fn_name) == "meanmaxsim"

    def _similarities(self, queries: Vectors, documents: Vectors) -> Tensor:
        """Inner products [B, Q, D], minus infinity for document positions that are not scored."""
        if not bool(documents.mask.any(-1).all()):
            raise UserError(f"{self.name} scores no token of the document: enter a word.")
        products = queries.tokens @ documents.tokens.transpose(-1, -2)
        return products.masked_fill(~documents.mask[:, None, :], float("-inf"))

    def exact(
        self, queries: Sequence[str], documents: Sequence[str], pairs: Sequence[tuple[int, int]]
    ) -> Iterator[ExactScore]:
        """The score of each pair as a sum over query tokens, each with its best document token (the
        first of equals). `similarities` has all inner products, zero where nothing is scored."""
        asked = self.encode_texts(queries, "query")
        read = self.encode_texts(documents, "document")
        with torch.no_grad():
            query_vectors, document_vectors = self.embed(asked), self.embed(read)
        for i, j in pairs:
            query, document = query_vectors[[i]], document_vectors[[j]]
            # Copied from the device first: Apple's GPUs have no float64.
            products = self._similarities(query, document)[0].cpu().double()
            counted, content = query.mask[0].cpu(), document.mask[0].cpu()
            best, winner = products.max(-1)
            best = torch.where(counted, best, 0)
            if self._mean:
                best = best / counted.sum()
            shares = torch.zeros_like(products).scatter_(1, winner[:, None], best[:, None])
            scored = torch.where(counted[:, None] & content[None, :], products, 0)
            places = asked.span(i), read.span(j)
            parts = shares[places].numpy(), scored[places].numpy()
            yield ExactScore(
                asked.texts[i],
                read.texts[j],
                float(best.sum()),
                *(as_array(part, part.shape, "a share") for part in parts),
            )

    def check(self, pair: TextPair) -> LibraryCheck:
        """Distance from sentence-transformers' own score, relative to it."""
        query = self._library(pair.query, "query")
        document = self._library(pair.document, "document")
        expected = float(self.model.similarity_pairwise(query, document))
        (exact,) = self.exact([pair.query], [pair.document], [(0, 0)])
        return LibraryCheck.of_score(exact.score, expected, 1e-6)


_ARCHITECTURE = "HF_ColBERT"
_CLASS = "MultiVectorEncoder"


def _load(spec: RetrieverSpec, files: ModelFiles, place: Placement) -> LateInteractionRetriever:
    # sentence-transformers adds a random projection to an encoder that has none.
    folder = contents(files.folder)
    if not folder.modules and _ARCHITECTURE not in folder.architectures:
        raise UserError(
            f"{spec.name} has no projection of its token vectors: use the folder of a trained "
            "late-interaction model."
        )
    model = load_model(_CLASS, spec, files.folder, place)
    return LateInteractionRetriever(model, spec, place.precision)


FAMILY = register(
    Family(
        name="late_interaction",
        title="late-interaction",
        order=20,
        capabilities=frozenset({Capability.REMOVAL, Capability.GRADIENTS, Capability.MAXSIM}),
        search="token_vectors",
        load=_load,
        library_class=_CLASS,
        recognizes=lambda files: _ARCHITECTURE in files.architectures,
    )
)

"""Dense bi-encoders through sentence-transformers: one pooled vector per text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Encoded, LibraryCheck, each_tensor
from poslens.attribution.retrievers.embedding_hooks import (
    EmbeddingHooks,
    EncoderParts,
    embedding_layer,
    n_positions,
    require_tokenizer,
    require_vectors,
)
from poslens.attribution.retrievers.family import Capability, Family, Placement, register
from poslens.attribution.retrievers.specs import ModelFiles, RetrieverSpec
from poslens.attribution.types import Side, TextPair, TokenizedText

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class _Encoder(EncoderParts):
    """One SentenceTransformer and its modules that attribution uses.

    Raises:
        UserError: PosLens does not support it.
    """

    def __init__(self, name: str, model: SentenceTransformer) -> None:
        self.model = model.eval().requires_grad_(False)
        if "message" in getattr(model[0], "modality_config", {}):
            raise UserError(
                f"{name} wraps texts in a chat template, so PosLens can't locate its tokens in the "
                "text: use a copy of the model without the template."
            )
        require_tokenizer(name, model.tokenizer)
        backbone: Any = model.transformers_model
        if backbone is None:
            raise UserError(
                f"{name} is not built on one transformer: use a model whose first module is a "
                "transformers encoder."
            )
        # T5's encoder uses a tied copy of the table that it reports as its input embeddings.
        owner = backbone.encoder if hasattr(backbone, "shared") else backbone
        self.embeddings: nn.Module = owner.get_input_embeddings()
        self.entry = embedding_layer([backbone], self.embeddings)


class DenseRetriever(EmbeddingHooks):
    """A SentenceTransformer with access to its input embeddings, or two if queries have a separate
    encoder (`query_model`). `model`, `embeddings`, `entry` and `backbone` then belong to documents;
    `of(side)` has those of either side.

    `embeddings` are the word embeddings. `entry`, where the encoder begins, is the whole embedding
    layer (word + position + token type, normalized) if the backbone has one, otherwise the word
    embeddings. A hook replaces input embeddings, so any architecture works unchanged. The hook is
    on a shared module: everything that runs the model must hold `lock`.

    Raises:
        UserError: an unsupported encoder, or two that do not belong together.
    """

    family = "dense"
    model: SentenceTransformer
    _query: _Encoder | None = None

    def __init__(
        self,
        model: SentenceTransformer,
        spec: RetrieverSpec,
        precision: str,
        query_model: SentenceTransformer | None = None,
    ) -> None:
        document = _Encoder(spec.name, model)
        super().__init__(model, spec, precision)
        self.embeddings, self.entry = document.embeddings, document.entry
        if query_model is not None:
            self._query = _Encoder(spec.name, query_model)
            widths = [m.get_embedding_dimension() for m in (model, query_model)]
            if widths[0] != widths[1]:
                raise UserError(
                    f"{spec.name} embeds queries in {widths[1]} dimensions but documents in "
                    f"{widths[0]}: use two encoders that belong together."
                )
        self.prompts: dict[Side, str] = {
            "query": self._prompt("query", spec.query_prompt),
            "document": self._prompt("document", spec.document_prompt),
        }

    @cached_property
    def width(self) -> int:
        """Number of dimensions of a vector, H."""
        dimension = self.model.get_embedding_dimension()
        if dimension is None:  # not every module of sentence-transformers states it
            with self.lock, torch.no_grad():
                dimension = self.embed(self.encode_plain(["a"], "document")).shape[-1]
        return int(dimension)

    @property
    def asymmetric(self) -> bool:
        """Whether queries have a separate encoder."""
        return self._query is not None

    def of(self, side: Side) -> EncoderParts:
        """What reads texts of one side."""
        return self._query if self._query is not None and side == "query" else self

    def _prompt(self, side: Side, override: str | None) -> str:
        prompts = self.of(side).model.prompts
        return override if override is not None else prompts.get(side) or ""

    @property
    def max_length(self) -> int:
        """Context limit for documents in tokens, including special tokens."""
        return self._limit("document")

    def _limit(self, side: Side) -> int:
        backbone = self.of(side).backbone
        positions = n_positions(backbone.config, getattr(backbone, "embeddings", None))
        return min(int(limit) for limit in (self.of(side).model.max_seq_length, positions) if limit)

    def max_length_of(self, side: Side) -> int:
        """Context limit of one side; queries can have their own."""
        query_limit = self.spec.query_max_length if side == "query" else None
        limit = self._limit(side)
        return min(query_limit, limit) if query_limit else limit

    def encode_texts(self, texts: Sequence[str], side: Side) -> Encoded:
        """Tokenize exactly as sentence-transformers does, with offsets into each text.

        Raises:
            UserError: a text has no text tokens.
        """
        prompt = self.prompts[side]
        limit = self.max_length_of(side)
        batch, special_ids = self._tokenize(texts, side)
        tokenized, offsets = [], []
        for encoding in batch.encodings:
            # A text without any token is all padding, which is refused below.
            begin = encoding.attention_mask.index(1) if 1 in encoding.attention_mask else 0
            end = begin + sum(encoding.attention_mask)
            spans = np.array(encoding.offsets[begin:end], np.int32).reshape(-1, 2) - len(prompt)
            listed = zip(encoding.special_tokens_mask, encoding.ids, strict=True)
            special = np.array([flag or k in special_ids for flag, k in listed], np.bool_)
            special = special[begin:end] | (spans[:, 1] <= 0)  # or of the prompt
            starts, ends = np.where(special, 0, np.maximum(spans.T, 0))
            read = int((~special).sum())
            if read == 0:
                raise self._nothing_to_read(side)
            unread = sum(
                token_id not in special_ids and not is_special
                for rest in encoding.overflowing
                for token_id, is_special, (_, stop) in zip(
                    rest.ids, rest.special_tokens_mask, rest.offsets, strict=True
                )
                if stop > len(prompt)
            )
            names = tuple(encoding.tokens[begin:end])
            tokenized.append(TokenizedText(names, starts, ends, special, read + unread, limit))
            offsets.append(begin)
        return Encoded(self._features(batch, side), tuple(tokenized), tuple(offsets), side)

    def encode_plain(self, texts: Sequence[str], side: Side) -> Encoded:
        """Tokenize for `embed` only. Without `Token` columns, this takes a fraction of the time of
        `encode_texts`.

        Raises:
            UserError: a text has no text tokens.
        """
        batch, special_ids = self._tokenize(texts, side)
        length = len(self.prompts[side])
        for encoding in batch.encodings:
            placed = zip(encoding.ids, encoding.special_tokens_mask, encoding.offsets, strict=True)
            if not any(i not in special_ids and not s and z > length for i, s, (_, z) in placed):
                raise self._nothing_to_read(side)
        return Encoded(self._features(batch, side), (), (), side)

    def _tokenize(self, texts: Sequence[str], side: Side) -> tuple[Any, set[int]]:
        """sentence-transformers' tokenization of texts of one side, and which ids are special."""
        # The tokenizer is set to this side's length and then called. No other thread may set it in
        # between.
        with self.tokenizing:
            batch = self.of(side).model.preprocess(
                list(texts),
                prompt=self.prompts[side] or None,
                task=side,
                max_length=self.max_length_of(side),
            )
        require_vectors(self.name, batch["input_ids"], self.of(side).embeddings)
        tokenizer = self.of(side).model.tokenizer
        # The tokenizer counts an unknown word as special; here it is a word.
        return batch, set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}

    def _features(self, batch: Any, side: Side) -> dict[str, Any]:
        device = self.of(side).model.device
        with self.tokenizing:
            return each_tensor(batch, lambda values: values.to(device))

    def _nothing_to_read(self, side: Side) -> UserError:
        return UserError(f"{self.name} reads no word of the {side}: enter a word.")

    def embed(self, encoded: Encoded) -> Tensor:
        """Pooled embeddings [B, H] from the model's own modules, with gradients if the caller
        enables them (unlike `SentenceTransformer.encode`, which runs in inference mode)."""
        # A shallow copy: modules write their outputs into the dictionary.
        features = self.of(encoded.side).model(dict(encoded.features))
        return self.truncated(features["sentence_embedding"], encoded.side)

    def truncated(self, vectors: Tensor, side: Side) -> Tensor:
        """The dimensions of `vectors` [..., H] that the model's `encode` returns, which truncates
        the output of the modules if `truncate_dim` is set. Sparse encoders don't have it."""
        return vectors[..., : getattr(self.of(side).model, "truncate_dim", None)]

    def check(self, pair: TextPair) -> LibraryCheck:
        """Distance from sentence-transformers' own embedding of the document, relative to its
        length; with a separate query encoder, the larger one of document and query."""
        sides: dict[Side, str] = {"document": pair.document}
        if self.asymmetric:
            sides["query"] = pair.query
        distances = [self._distance(side, text) for side, text in sides.items()]
        return LibraryCheck(max(distances), "embedding")

    def _distance(self, side: Side, text: str) -> float:
        with torch.no_grad():
            vector = self.embed(self.encode_texts([text], side)).float()
        expected = self._library(text, side, convert_to_tensor=True).float()
        return float((vector - expected).norm() / expected.norm())

    def _library(self, text: str, side: Side, **settings: Any) -> Any:
        """What the library's own `encode` returns for a list of one text."""
        return self.of(side).model.encode(
            [text],
            prompt=self.prompts[side] or None,
            task=side,
            show_progress_bar=False,
            **settings,
        )

    def similarity(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Scores [B] of pooled queries [B, H] with pooled documents [B, H], by the model's own
        similarity (cosine or dot product)."""
        return self.model.similarity_pairwise(queries, documents)

    def similarities(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Scores [P, C] of every query [P, H] with every document [C, H]."""
        return self.model.similarity(queries, documents)

    @property
    def distance(self) -> str:
        """The distance by which the model scores, such as `euclidean`; empty if it scores by inner
        products."""
        name = str(self.model.similarity_fn_name)
        return name if name in ("euclidean", "manhattan") else ""

    def directions(self, vectors: Tensor) -> Tensor:
        """`vectors` [B, H] scaled so that the score is their inner product.

        Raises:
            UserError: the model's similarity is not an inner product but a distance.
        """
        if self.distance:
            raise UserError(
                f"{self.name} scores by {self.distance} distance, which is not a sum over tokens: "
                "choose saliency, integrated gradients or occlusion."
            )
        if self.model.similarity_fn_name == "cosine":
            return nn.functional.normalize(vectors, dim=-1)
        return vectors


def _load(spec: RetrieverSpec, files: ModelFiles, place: Placement) -> DenseRetriever:
    from poslens.attribution.retrievers.dense_loading import load_encoders  # here: slow to import

    model, query_model = load_encoders(spec, files, place)
    return DenseRetriever(model, spec, place.precision, query_model)


FAMILY = register(
    Family(
        name="dense",
        title="dense",
        order=10,
        capabilities=frozenset(
            {
                Capability.REMOVAL,
                Capability.GRADIENTS,
                Capability.VECTOR,
                Capability.JACOBIAN,
                Capability.LINEAR,
            }
        ),
        search="vectors",
        load=_load,
    )
)

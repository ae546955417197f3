"""Dense bi-encoders through sentence-transformers: one pooled vector per text."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import LibraryCheck
from poslens.attribution.retrievers.encoded import Encoded
from poslens.attribution.retrievers.family import Capability, Family, Placement, register
from poslens.attribution.retrievers.specs import ModelFiles, RetrieverSpec
from poslens.attribution.types import Side, TextPair, TokenizedText

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class _Encoder:
    """One SentenceTransformer and its modules that attribution uses.

    Raises:
        UserError: PosLens does not support it.
    """

    def __init__(self, name: str, model: SentenceTransformer) -> None:
        self.model = model.eval().requires_grad_(False)
        if "message" in getattr(model[0], "modality_config", {}):
            raise UserError(
                f"{name} wraps texts into a chat template, so tokens cannot be placed in the "
                "text: use a copy of the model without the template."
            )
        if not getattr(model.tokenizer, "is_fast", False):
            raise UserError(
                f"{name} has a tokenizer without character offsets: use a model with a fast "
                "tokenizer (tokenizer.json)."
            )
        backbone: Any = model.transformers_model
        if backbone is None:
            raise UserError(
                f"{name} is not built on one transformer: PosLens reads models whose "
                "first module is a transformers encoder."
            )
        # T5's encoder uses a tied copy of the table that it reports as its input embeddings.
        owner = backbone.encoder if hasattr(backbone, "shared") else backbone
        self.embeddings: nn.Module = owner.get_input_embeddings()
        block = getattr(backbone, "embeddings", None)
        whole = isinstance(block, nn.Module) and any(m is self.embeddings for m in block.modules())
        self.entry: nn.Module = block if isinstance(block, nn.Module) and whole else self.embeddings


class DenseRetriever:
    """A SentenceTransformer with access to its input embeddings, or two if queries have a separate
    encoder (`query_model`). `model`, `embeddings`, `entry` and `backbone` then belong to documents;
    `..._of(side)` returns those of either side.

    `embeddings` are the word embeddings. `entry`, where the encoder begins, is the whole embedding
    layer (word + position + token type, normalized) if the backbone has one, otherwise the word
    embeddings. A hook replaces input embeddings, so any architecture works unchanged. The hook is
    on a shared module: everything that runs the model must hold `lock`.

    Raises:
        UserError: an unsupported encoder, or two that do not belong together.
    """

    family = "dense"
    _query: _Encoder | None = None

    def __init__(
        self,
        model: SentenceTransformer,
        spec: RetrieverSpec,
        precision: str,
        query_model: SentenceTransformer | None = None,
    ) -> None:
        document = _Encoder(spec.name, model)
        self.model, self.embeddings, self.entry = model, document.embeddings, document.entry
        if query_model is not None:
            self._query = _Encoder(spec.name, query_model)
            widths = [m.get_embedding_dimension() for m in (model, query_model)]
            if widths[0] != widths[1]:
                raise UserError(
                    f"{spec.name} embeds queries in {widths[1]} dimensions and documents in "
                    f"{widths[0]}: give the two encoders of one model."
                )
        self.spec = spec
        self.name = spec.name
        self.precision = precision
        self.lock = threading.RLock()
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

    def encoder(self, side: Side) -> SentenceTransformer:
        """The model that embeds texts of one side."""
        return self._query.model if self._query is not None and side == "query" else self.model

    def _prompt(self, side: Side, override: str | None) -> str:
        own = self.encoder(side).prompts
        return override if override is not None else own.get(side) or ""

    def _backbone(self) -> Any:
        return self.model.transformers_model

    @property
    def backbone(self) -> nn.Module:
        """The transformer between the embeddings and the pooling."""
        backbone: nn.Module = self._backbone()
        return backbone

    def backbone_of(self, side: Side) -> Any:
        """The transformer of one side."""
        if self._query is not None and side == "query":
            return self._query.model.transformers_model
        return self._backbone()

    def embeddings_of(self, side: Side) -> nn.Module:
        """The word embeddings of one side."""
        return (
            self._query.embeddings
            if self._query is not None and side == "query"
            else self.embeddings
        )

    def entry_of(self, side: Side) -> nn.Module:
        """The module in which the encoder of one side begins."""
        return self._query.entry if self._query is not None and side == "query" else self.entry

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.model.device

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        encoders = [self.model] if self._query is None else [self.model, self._query.model]
        return sum(p.numel() * p.element_size() for e in encoders for p in e.parameters())

    @property
    def max_length(self) -> int:
        """Context limit for documents in tokens, including special tokens."""
        return self._limit("document")

    def _limit(self, side: Side) -> int:
        limits = (self.encoder(side).max_seq_length, self._positions(side))
        return min(int(limit) for limit in limits if limit)

    def _positions(self, side: Side) -> int | None:
        """Number of positions of the backbone, in tokens."""
        backbone = self.backbone_of(side)
        positions = getattr(backbone.config, "max_position_embeddings", None)
        if positions is None or positions <= 0:
            return None
        # RoBERTa, XLM-R and MPNet number positions from padding_idx + 1.
        table = getattr(getattr(backbone, "embeddings", None), "position_embeddings", None)
        reserved = getattr(table, "padding_idx", None)
        return int(positions) if reserved is None else int(positions) - int(reserved) - 1

    def max_length_of(self, side: Side) -> int:
        """Context limit of one side; queries can have their own."""
        own = self.spec.query_max_length if side == "query" else None
        limit = self._limit(side)
        return min(own, limit) if own else limit

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
        encoder = self.encoder(side)
        # The tokenizer is set to this side's length and then called. No other thread may set it in
        # between, whether or not the caller runs the model.
        with self.lock:
            batch = encoder.preprocess(
                list(texts),
                prompt=self.prompts[side] or None,
                task=side,
                max_length=self.max_length_of(side),
            )
        require_vectors(self.name, batch["input_ids"], self.embeddings_of(side))
        tokenizer = encoder.tokenizer
        # The tokenizer counts an unknown word as special; here it is a word.
        return batch, set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}

    def _features(self, batch: Any, side: Side) -> dict[str, Any]:
        device = self.encoder(side).device
        return {
            key: value.to(device) if isinstance(value, Tensor) else value
            for key, value in batch.items()
        }

    def _nothing_to_read(self, side: Side) -> UserError:
        return UserError(f"The {side} has no token that {self.name} reads as text: type a word.")

    def embed(self, encoded: Encoded) -> Tensor:
        """Pooled embeddings [B, H] from the model's own modules, with gradients if the caller
        enables them (unlike `SentenceTransformer.encode`, which runs in inference mode)."""
        # A shallow copy: modules write their outputs into the dictionary.
        vectors: Tensor = self.encoder(encoded.side)(dict(encoded.features))["sentence_embedding"]
        return vectors

    def input_embeddings(self, encoded: Encoded) -> Tensor:
        """Word embeddings [B, T, H] before position embeddings are added; detached."""
        with torch.no_grad():
            inputs: Tensor = self.embeddings_of(encoded.side)(encoded.features["input_ids"])
            return inputs

    def baseline(self, encoded: Encoded) -> Tensor:
        """The batch's word embeddings [B, T, H] with the padding token's embedding in place of
        every text token; special tokens stay."""
        inputs = self.input_embeddings(encoded).clone()
        tokenizer = self.encoder(encoded.side).tokenizer
        stand_in = tokenizer.pad_token_id
        if stand_in is None:
            stand_in = tokenizer.eos_token_id or 0
        with torch.no_grad():
            padding = torch.tensor([stand_in], device=inputs.device)
            vector = self.embeddings_of(encoded.side)(padding)[0]
        for b, text in enumerate(encoded.texts):
            start = encoded.offsets[b]
            content = torch.from_numpy(text.content).to(inputs.device)
            inputs[b, start : start + len(content)][content] = vector
        return inputs

    def check(self, pair: TextPair) -> LibraryCheck:
        """Distance from sentence-transformers' own embedding relative to its length: of the
        document or of the query, if that has a separate encoder, whichever is larger."""
        sides: dict[Side, str] = {"document": pair.document}
        if self.asymmetric:
            sides["query"] = pair.query
        distances = [self._distance(side, text) for side, text in sides.items()]
        return LibraryCheck(max(distances), "embedding")

    def _distance(self, side: Side, text: str) -> float:
        with torch.no_grad():
            ours = self.embed(self.encode_texts([text], side)).float()
        theirs = self.encoder(side).encode(
            [text],
            prompt=self.prompts[side] or None,
            task=side,
            convert_to_tensor=True,
            show_progress_bar=False,
        )
        theirs = theirs.float()
        return float((ours - theirs).norm() / theirs.norm())

    def similarity(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Scores [B] of pooled queries [B, H] with pooled documents [B, H], by the model's own
        similarity (cosine or dot product)."""
        return self.model.similarity_pairwise(queries, documents)

    def similarities(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Scores [P, C] of every query [P, H] with every document [C, H]."""
        return self.model.similarity(queries, documents)

    def directions(self, vectors: Tensor) -> Tensor:
        """`vectors` [B, H] scaled so that the score is their inner product.

        Raises:
            UserError: the model's similarity is no inner product (a distance).
        """
        name = self.model.similarity_fn_name
        if name == "cosine":
            return nn.functional.normalize(vectors, dim=-1)
        if name == "dot":
            return vectors
        raise UserError(
            f"{self.name} scores by {name} distance, which is no sum over tokens: choose saliency, "
            "integrated gradients or occlusion."
        )

    def entering(self, encoded: Encoded, module: nn.Module) -> Tensor:
        """The output of `module` for a batch, detached; later modules do not run."""

        def stop(_module: nn.Module, _args: object, output: Tensor) -> None:
            raise _Reached(output)

        hook = module.register_forward_hook(stop)
        try:
            with torch.no_grad():
                self.embed(encoded)
        except _Reached as reached:
            return reached.output
        finally:
            hook.remove()
        raise UserError(f"{self.name} does not use its embedding layer: it cannot be attributed.")

    @contextmanager
    def override_embeddings(
        self, inputs: Tensor, module: nn.Module | None = None
    ) -> Iterator[None]:
        """Context in which `module` (the word embeddings if None) returns `inputs` [B, T, H]
        instead of its own output.

        If `module` is None and there are two encoders, both are hooked: embed only texts of one
        side meanwhile, whose encoder then reads `inputs`."""
        where = [self.embeddings] if module is None else [module]
        if module is None and self._query is not None:
            where.append(self._query.embeddings)
        hooks = [
            each.register_forward_hook(lambda _module, _args, _output: inputs) for each in where
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def require_vectors(name: str, ids: Tensor, table: nn.Module) -> None:
    """Refuse token ids outside the word embeddings: on a GPU, looking one up breaks every later
    computation of the process.

    Raises:
        UserError: the tokenizer belongs to another model.
    """
    weight = getattr(table, "weight", None)
    largest = int(ids.max()) if ids.numel() else 0
    if isinstance(weight, Tensor) and largest >= weight.shape[0]:
        raise UserError(
            f"{name} has no vector for token {largest}, which its tokenizer made of the text: "
            f"it has {weight.shape[0]}, so give it the tokenizer that it was trained with."
        )


class _Reached(Exception):
    """Ends a forward pass once a module's output is known."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output


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
                Capability.EMBEDDINGS,
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

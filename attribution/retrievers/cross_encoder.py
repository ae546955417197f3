"""Cross-encoders through sentence-transformers: query and document are read together, and the score
is one relevance logit.

s(q, d) is the logit before any activation: of the only label, logit(1) - logit(0) of two labels, or
logit(yes) - logit(no) after the last token of a generative reranker. seq2seq.py adds
sequence-to-sequence rerankers and registers both as one family.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Encoded, LibraryCheck, each_tensor
from poslens.attribution.retrievers.embedding_hooks import (
    EmbeddingHooks,
    embedding_layer,
    n_positions,
    require_tokenizer,
    require_vectors,
)
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Side, TextPair, Token, TokenizedText

_QUERY, _DOCUMENT = "\ue000", "\ue001"
"""Private-use characters that locate the two texts in a chat template."""


Placed = tuple[Side, int, int] | None
"""The place of a token: its side, and its characters [start, end) in that side's text; None if it
belongs to neither."""


class CrossEncoderRetriever(EmbeddingHooks):
    """A CrossEncoder with access to its input embeddings.

    Both sides share one sequence: the query's tokens are those before the document's first token,
    the document's are all from there on. Separators and template tokens are special.
    """

    family = "cross_encoder"
    library = "sentence-transformers"

    def __init__(self, model: Any, spec: RetrieverSpec, precision: str) -> None:
        super().__init__(model.eval().requires_grad_(False), spec, precision)
        require_tokenizer(spec.name, model.tokenizer)
        self._configure()

    def _configure(self) -> None:
        """The model's settings besides its weights: labels, prompt, template, length."""
        model, spec = self.model, self.spec
        if model.num_labels > 2:
            raise UserError(
                f"{spec.name} has {model.num_labels} output labels: use a reranker with one label, "
                "or with two of which the second means relevant."
            )
        default = model.prompts.get(model.default_prompt_name or "") or ""
        self.prompt = spec.query_prompt if spec.query_prompt is not None else default
        self.templated = "message" in getattr(model[0], "modality_config", {})
        self.embeddings = self.backbone.get_input_embeddings()
        self.entry = embedding_layer(self.backbone.modules(), self.embeddings)
        # Texts are truncated at the same length here and when the library scores by itself.
        model.max_seq_length = self.max_length

    @property
    def max_length(self) -> int:
        """Context limit for query and document together, including special tokens."""
        positions = n_positions(self.backbone.config, self.__dict__.get("entry"))
        # A tokenizer without a limit states a number beyond any text.
        limits = (self.model.max_seq_length, positions)
        return min((int(limit) for limit in limits if limit and limit < 1e9), default=512)

    def encode_pairs(self, pairs: Sequence[TextPair]) -> tuple[Encoded, Encoded]:
        """Tokenize exactly as sentence-transformers does, with offsets into each text.

        Raises:
            UserError: a side has no text tokens, or a chat template changes the texts.
        """
        # The tokenizer is set to a length and then called, several times per pair. No other thread
        # may set it in between.
        with self.tokenizing:
            return self._encoded(pairs)

    def _encoded(self, pairs: Sequence[TextPair]) -> tuple[Encoded, Encoded]:
        both = [(pair.query, pair.document) for pair in pairs]
        batch = self.model.preprocess(both, prompt=self.prompt or None)
        require_vectors(self.name, batch["input_ids"], self.embeddings)
        encoded: dict[Side, list[tuple[TokenizedText, int]]] = {"query": [], "document": []}
        for b, (pair, encoding) in enumerate(zip(pairs, batch.encodings, strict=True)):
            begin = encoding.attention_mask.index(1)
            end = begin + sum(encoding.attention_mask)
            names = encoding.tokens
            if self.templated:
                names = self.model.tokenizer.convert_ids_to_tokens(batch["input_ids"][b].tolist())
                placed = self._by_template(pair, encoding, batch["input_ids"][b])
            else:
                placed = self._by_sequence(encoding)
            for side, start, text, tokens in self._sides(pair, names, placed, begin, end):
                full = sum(not token.is_special for token in tokens)
                if end - begin >= self.max_length:
                    read_until = max(token.end for token in tokens)
                    offsets = self._placed_tokens(text)["offset_mapping"]
                    full += sum(begins >= read_until for begins, _ in offsets)
                encoded[side].append((TokenizedText.of(tokens, full, self.max_length), start))
        features = each_tensor(batch, lambda values: values.to(self.device))
        query, document = (
            Encoded(features, tuple(t for t, _ in part), tuple(o for _, o in part))
            for part in (encoded["query"], encoded["document"])
        )
        return query, document

    def _sides(
        self, pair: TextPair, names: Sequence[str], placed: Sequence[Placed], begin: int, end: int
    ) -> Iterator[tuple[Side, int, str, list[Token]]]:
        """Both sides, with the position at which their tokens begin, their text and their tokens,
        from the names and places of the tokens from `begin` to `end`.

        Raises:
            UserError: a side has no text tokens.
        """
        of_document = (i for i in range(begin, end) if (placed[i] or [""])[0] == "document")
        split = next(of_document, end)
        sides: tuple[tuple[Side, str, int, int], ...] = (
            ("query", pair.query, begin, split),
            ("document", pair.document, split, end),
        )
        for side, text, start, stop in sides:
            tokens = []
            for name, place in zip(names[start:stop], placed[start:stop], strict=True):
                if place is None or place[0] != side or place[2] <= 0:
                    tokens.append(Token(name, 0, 0, is_special=True))
                else:
                    tokens.append(Token(name, max(place[1], 0), min(place[2], len(text))))
            if all(token.is_special for token in tokens):
                raise UserError(
                    f"{self.name} reads no word of the {side}: enter a word, or shorten the other "
                    "text."
                )
            yield side, start, text, tokens

    def _by_sequence(self, encoding: Any) -> list[Placed]:
        """The place of each token of a pair that the tokenizer joined."""
        names: dict[int, Side] = {0: "query", 1: "document"}
        shift = {0: len(self.prompt), 1: 0}
        return [
            None if number is None else (names[number], a - shift[number], z - shift[number])
            for number, (a, z) in zip(encoding.sequence_ids, encoding.offsets, strict=True)
        ]

    def _by_template(self, pair: TextPair, encoding: Any, ids: Tensor) -> list[Placed]:
        """The place of each token of a pair inside a chat template."""
        probe, rendered = self._rendered(_QUERY, _DOCUMENT), self._rendered(*_texts(pair))
        query, document = probe.find(_QUERY), probe.find(_DOCUMENT)
        query_end = query + len(pair.query)
        start = document - 1 + len(pair.query)  # the mark in place of the query has one character
        document_end = start + len(pair.document)
        if (
            query < 0
            or document <= query
            or rendered[query:query_end] != pair.query
            or rendered[start:document_end] != pair.document
        ):
            raise UserError(
                f"{self.name} has a chat template that changes the texts or puts the document "
                "first: use a reranker whose template keeps the texts unchanged, query first."
            )
        sides = placed_in(encoding.offsets, (query, query_end), (start, document_end))
        if encoding.ids != ids.tolist():
            # Truncated texts end with the template's last tokens again.
            end = self._template_end(rendered, document_end, ids.tolist())
            sides[len(sides) - end :] = [None] * end
        return sides

    def _template_end(self, rendered: str, start: int, ids: list[int]) -> int:
        """Number of tokens at the end of `ids` that belong to the template after character
        `start`."""
        whole = self._placed_tokens(rendered)
        after = [
            token
            for token, (a, _) in zip(whole["input_ids"], whole["offset_mapping"], strict=True)
            if a >= start
        ]
        if not after or ids[-len(after) :] != after:
            raise UserError(
                f"The pair is longer than the context limit of {self.name}, {self.max_length} "
                "tokens, and its template adds text at the end: shorten the document."
            )
        return len(after)

    def _rendered(self, query: str, document: str) -> str:
        """The tokenizer's input for a pair."""
        reader = self.model[0]
        modality, inputs, _ = reader.input_formatter.parse_inputs([(query, document)])
        if modality != "message":
            _, inputs = reader.input_formatter.batch_to_message(modality, inputs)
        messages = inputs["message"]
        if self.prompt:
            messages = reader.input_formatter.prepend_prompt_to_messages(messages, self.prompt)
        options = dict(reader.processing_kwargs.get("chat_template", {}))
        options.pop("restore_suffix", None)
        rendered: str = reader.processor.apply_chat_template(messages, tokenize=False, **options)[0]
        return rendered

    def _placed_tokens(self, text: str, special: bool = False) -> Any:
        """All tokens of a text with their characters, optionally with special tokens."""
        return self.model.tokenizer(
            text,
            add_special_tokens=special,
            truncation=False,
            return_offsets_mapping=True,
            verbose=False,
        )

    def embed(self, encoded: Encoded) -> Tensor:
        """The scores [B], with gradients if the caller enables them."""
        return _relevance(self.model(dict(encoded.features))["scores"])

    def directions(self, scores: Tensor) -> Tensor:
        """`scores` [B] as vectors [B, 1], whose inner product with one is the score."""
        return scores[:, None]

    def check(self, pair: TextPair) -> LibraryCheck:
        """Distance from the library's own logit, relative to it if its magnitude is above 1."""
        with torch.no_grad():
            score = float(self.embed(self.encode_pairs([pair])[0]))
        return LibraryCheck.of_score(score, self._library_score(pair), 1.0, self.library)

    def _library_score(self, pair: TextPair) -> float:
        scores = self.model.predict(
            [_texts(pair)],
            prompt=self.prompt or None,
            activation_fn=nn.Identity(),
            convert_to_tensor=True,
            show_progress_bar=False,
        )
        return float(_relevance(scores))


def _texts(pair: TextPair) -> tuple[str, str]:
    return pair.query, pair.document


def _relevance(scores: Tensor) -> Tensor:
    """One logit [B] of one or two labels [B, 1 or 2]."""
    if scores.ndim == 1:
        return scores
    return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]


def placed_in(
    offsets: Iterable[tuple[int, int]], query: tuple[int, int], document: tuple[int, int]
) -> list[Placed]:
    """The place of each token of an input that has the query and the document at these
    characters."""
    sides: dict[Side, tuple[int, int]] = {"document": document, "query": query}

    def place(a: int, z: int) -> Placed:
        for side, (start, end) in sides.items():
            if a < end and z > start and z > a:
                return side, a - start, z - start
        return None

    return [place(a, z) for a, z in offsets]

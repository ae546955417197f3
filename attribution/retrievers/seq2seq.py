"""Sequence-to-sequence rerankers (monoT5, Nogueira et al. 2020) through transformers.

The encoder reads `Query: {query} Document: {document} Relevant:`, and s(q, d) is the logit of the
word for "relevant" minus that of the other word at the decoder's first step. The logistic function
of s is monoT5's probability, so rankings are the same. If the text is too long, only the document
is truncated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Encoded
from poslens.attribution.retrievers.cross_encoder import CrossEncoderRetriever, Placed, placed_in
from poslens.attribution.retrievers.embedding_hooks import require_vectors
from poslens.attribution.retrievers.family import Capability, Family, Placement, register
from poslens.attribution.retrievers.library_model import load_model, require_complete
from poslens.attribution.retrievers.model_folder import Contents, contents
from poslens.attribution.retrievers.specs import ModelFiles, RetrieverSpec
from poslens.attribution.types import Side, TextPair, TokenizedText

ANSWERS = ("true", "false")
"""monoT5's words for relevant and not relevant."""

MAX_LENGTH = 512
"""Context limit if neither the tokenizer nor the spec states one: T5 has no last position."""

_BEFORE, _BETWEEN, _AFTER = "Query: ", " Document: ", " Relevant:"


def fits(files: Contents) -> bool:
    """Whether these are the files of a plain sequence-to-sequence model."""
    supported = files.config("config.json").get("model_type") in ("t5", "mt5", "umt5", "longt5")
    generates = any(name.endswith("ForConditionalGeneration") for name in files.architectures)
    # The encoder of such a model alone is used in dense models of sentence-transformers.
    return supported and generates and not files.modules


class Reranker(nn.Module):
    """The transformer and the difference of two of its logits, with the interface of CrossEncoder.

    Raises:
        UserError: an answer is not a single token of the vocabulary.
    """

    def __init__(
        self,
        name: str,
        transformer: Any,
        tokenizer: Any,
        answers: Sequence[str],
        max_seq_length: int,
    ) -> None:
        super().__init__()
        self.transformers_model = transformer
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.answer_ids = tuple(_only_token(name, tokenizer, word) for word in answers)
        self.start_id = int(transformer.config.decoder_start_token_id)
        with torch.no_grad():
            start = torch.tensor([[self.start_id]], device=transformer.device)
            # Computed once: if the decoder shares the encoder's table, a hook on the table would
            # change the decoder's input, too.
            self.start = transformer.decoder.get_input_embeddings()(start).clone()

    @property
    def device(self) -> torch.device:
        """The device of the transformer."""
        device: torch.device = self.transformers_model.device
        return device

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        """`scores` [B] of `input_ids` and `attention_mask` [B, T]."""
        ids = features["input_ids"]
        logits = self.transformers_model(
            input_ids=ids,
            attention_mask=features["attention_mask"],
            decoder_inputs_embeds=self.start.expand(len(ids), 1, -1),
            use_cache=False,
        ).logits[:, 0]
        yes, no = self.answer_ids
        return {"scores": logits[:, yes] - logits[:, no]}


def _only_token(name: str, tokenizer: Any, word: str) -> int:
    ids = tokenizer(word, add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise UserError(
            f"{name}'s answer {word!r} is not a single token: set its words for relevant and not "
            'relevant in its config.json, as in "answers": ["true", "false"].'
        )
    return int(ids[0])


class Seq2SeqRetriever(CrossEncoderRetriever):
    """A sequence-to-sequence reranker with access to its encoder's word embeddings."""

    library = "transformers"

    def _configure(self) -> None:
        self.embeddings = self.backbone.encoder.get_input_embeddings()
        self.entry = self.embeddings

    @property
    def max_length(self) -> int:
        """Context limit for query and document together, including the prompt."""
        length: int = self.model.max_seq_length
        return length

    def _encoded(self, pairs: Sequence[TextPair]) -> tuple[Encoded, Encoded]:
        """Prompt, query and document as one text; a document that is too long is truncated.

        Raises:
            UserError: a side has no text tokens, or the query leaves no room.
        """
        rows: list[list[int]] = []
        token_lists: dict[Side, list[TokenizedText]] = {"query": [], "document": []}
        for pair in pairs:
            ids, placed, full = self._row(pair)
            names = self.model.tokenizer.convert_ids_to_tokens(ids)
            rows.append(ids)
            for side, _, _, tokens in self._sides(pair, names, placed, 0, len(ids)):
                token_lists[side].append(TokenizedText.of(tokens, full[side], self.max_length))
        longest = max(map(len, rows))
        padding = self.model.tokenizer.pad_token_id or 0
        padded = torch.tensor([row + [padding] * (longest - len(row)) for row in rows])
        require_vectors(self.name, padded, self.embeddings)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        features = {"input_ids": padded.to(self.device), "attention_mask": mask.to(self.device)}
        offsets = tuple(len(text) for text in token_lists["query"])
        return (
            Encoded(features, tuple(token_lists["query"]), (0,) * len(rows)),
            Encoded(features, tuple(token_lists["document"]), offsets),
        )

    def _row(self, pair: TextPair) -> tuple[list[int], list[Placed], Counter[Side]]:
        """Token ids, the place of each, and the number of tokens of each whole text."""
        query = len(_BEFORE)
        document = query + len(pair.query) + len(_BETWEEN)
        end = document + len(pair.document)
        whole = self._placed_tokens(prompted(pair), special=True)
        query_end = document - len(_BETWEEN)
        placed = placed_in(whole["offset_mapping"], (query, query_end), (document, end))
        full = Counter(place[0] for place in placed if place is not None)
        over = len(placed) - self.max_length
        order = list(range(len(placed)))
        if over > 0:
            inside = [i for i in order if (placed[i] or [""])[0] == "document"]
            if over >= len(inside):
                raise UserError(
                    f"The query leaves no room for a document within the context limit of "
                    f"{self.name}, {self.max_length} tokens: shorten the query."
                )
            cut = set(inside[-over:])
            order = [i for i in order if i not in cut]
        ids = whole["input_ids"]
        return [ids[i] for i in order], [placed[i] for i in order], full

    def _library_score(self, pair: TextPair) -> float:
        """What transformers itself generates from the prompt as a text."""
        inputs = self.model.tokenizer(prompted(pair), return_tensors="pt").to(self.device)
        generated = self.backbone.generate(
            **inputs,
            max_new_tokens=1,
            do_sample=False,
            num_beams=1,
            output_logits=True,
            return_dict_in_generate=True,
        )
        yes, no = self.model.answer_ids
        logits = generated.logits[0][0].float()
        return float(logits[yes] - logits[no])


def prompted(pair: TextPair) -> str:
    """The encoder's input for a pair that is short enough."""
    return f"{_BEFORE}{pair.query}{_BETWEEN}{pair.document}{_AFTER}"


def _load_seq2seq(spec: RetrieverSpec, folder: Path, place: Placement) -> Seq2SeqRetriever:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(
        str(folder),
        use_safetensors=True,
        dtype=getattr(torch, place.precision),
        trust_remote_code=False,
        local_files_only=True,
    )
    require_complete([model])
    tokenizer = AutoTokenizer.from_pretrained(
        str(folder), trust_remote_code=False, local_files_only=True
    )
    answers = spec.answers or getattr(model.config, "answers", None) or ANSWERS
    limits = (spec.max_length, getattr(tokenizer, "model_max_length", None))
    length = min((int(limit) for limit in limits if limit and limit < 1e9), default=MAX_LENGTH)
    reranker = Reranker(spec.name, model.to(place.device), tokenizer, answers, length)
    return Seq2SeqRetriever(reranker, spec, place.precision)


_CLASS = "CrossEncoder"


def _load(spec: RetrieverSpec, files: ModelFiles, place: Placement) -> CrossEncoderRetriever:
    if fits(contents(files.folder)):
        return _load_seq2seq(spec, files.folder, place)
    # Classification heads read the pooler.
    model = load_model(_CLASS, spec, files.folder, place, uses_pooler=True)
    return CrossEncoderRetriever(model, spec, place.precision)


FAMILY = register(
    Family(
        name="cross_encoder",
        title="cross-encoder",
        order=40,
        capabilities=frozenset({Capability.REMOVAL, Capability.GRADIENTS, Capability.LINEAR}),
        search="rerank",
        load=_load,
        library_class=_CLASS,
        recognizes=lambda files: (
            fits(files)
            or any(name.endswith("ForSequenceClassification") for name in files.architectures)
        ),
    )
)
"""Both kinds of cross-encoder: those of cross_encoder.py and the rerankers of this module."""

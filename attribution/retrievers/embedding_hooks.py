"""Input embeddings of a transformer, read and replaced through hooks: what dense models and
cross-encoders share."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.base import Encoded, tokenizer_lock
from poslens.attribution.retrievers.specs import RetrieverSpec
from poslens.attribution.types import Side


class EncoderParts:
    """A model, its word embeddings, and the module in which its transformer begins."""

    model: Any
    embeddings: nn.Module
    entry: nn.Module

    @property
    def backbone(self) -> Any:
        """The transformer."""
        return self.model.transformers_model

    @property
    def positions(self) -> nn.Embedding | None:
        """The position embeddings that `entry` adds to word embeddings. None if it adds none
        (relative and rotary positions; GPT-2 adds them later)."""
        table = getattr(self.entry, "position_embeddings", None)
        return table if isinstance(table, nn.Embedding) else None


class EmbeddingHooks(EncoderParts, ABC):
    """A retriever with access to its word embeddings. Its own parts are those of documents, if
    queries have a separate encoder. Hooks are on shared modules: everything that runs the model
    must hold its lock."""

    def __init__(self, model: Any, spec: RetrieverSpec, precision: str) -> None:
        self.model = model
        self.spec, self.name, self.precision = spec, spec.name, precision
        self.lock = threading.RLock()
        self.tokenizing = tokenizer_lock(self.lock, self.device)

    @abstractmethod
    def embed(self, encoded: Encoded) -> Any:
        """The representation of a batch, or its scores."""

    @abstractmethod
    def directions(self, vectors: Tensor) -> Tensor:
        """What `embed` returns, as vectors [B, H] of which the score is an inner product."""

    def of(self, side: Side) -> EncoderParts:
        """What reads texts of one side: this object, unless queries have a separate encoder."""
        return self

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        device: torch.device = self.model.device
        return device

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        models = {self.of("query").model, self.of("document").model}
        return sum(p.numel() * p.element_size() for model in models for p in model.parameters())

    def input_embeddings(self, encoded: Encoded) -> Tensor:
        """Word embeddings [B, T, H] before position embeddings are added; detached."""
        with torch.no_grad():
            inputs: Tensor = self.of(encoded.side).embeddings(encoded.features["input_ids"])
            return inputs

    def baseline(self, encoded: Encoded) -> Tensor:
        """The batch's word embeddings [B, T, H] with the padding token's embedding in place of
        every text token of `encoded.texts`; special tokens stay."""
        inputs = self.input_embeddings(encoded).clone()
        tokenizer = self.of(encoded.side).model.tokenizer
        stand_in = tokenizer.pad_token_id
        if stand_in is None:
            stand_in = tokenizer.eos_token_id or 0
        with torch.no_grad():
            padding = torch.tensor([stand_in], device=inputs.device)
            vector = self.of(encoded.side).embeddings(padding)[0]
        for b, text in enumerate(encoded.texts):
            content = torch.from_numpy(text.content).to(inputs.device)
            inputs[b, encoded.span(b)][content] = vector
        return inputs

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
        raise UserError(f"{self.name} does not use its embedding layer, so it has no attribution.")

    @contextmanager
    def override_embeddings(
        self, inputs: Tensor, module: nn.Module | None = None
    ) -> Iterator[None]:
        """Context in which `module` (the word embeddings if None) returns `inputs` [B, T, H]
        instead of its own output.

        If `module` is None and there are two encoders, both are hooked: embed only texts of one
        side meanwhile, whose encoder then reads `inputs`."""
        tables = {self.of("document").embeddings, self.of("query").embeddings}
        with ExitStack() as hooks:
            for each in tables if module is None else {module}:
                hooks.enter_context(
                    each.register_forward_hook(lambda _module, _args, _output: inputs)
                )
            yield


class _Reached(Exception):
    """Ends a forward pass once a module's output is known."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output


def embedding_layer(modules: Iterable[nn.Module], embeddings: nn.Module) -> nn.Module:
    """The whole embedding layer of the first module that has one with these word embeddings, or
    else the word embeddings."""
    for module in modules:
        block = getattr(module, "embeddings", None)
        if isinstance(block, nn.Module) and any(m is embeddings for m in block.modules()):
            return block
    return embeddings


def require_tokenizer(name: str, tokenizer: Any) -> None:
    """Check that a tokenizer reports the characters of each token, and that it truncates the end of
    a text: which part was read is computed from where reading ends (`TokenizedText.read_until`).

    Raises:
        UserError: it does not.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"{name} has a tokenizer without character offsets: use a model with a fast "
            "tokenizer (tokenizer.json)."
        )
    if tokenizer.truncation_side != "right":
        raise UserError(
            f"{name} has a tokenizer that truncates the beginning of long texts, but PosLens "
            "supports only truncation of the end: set its truncation_side to right, usually in "
            "tokenizer_config.json."
        )


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
            f"{name} has only {weight.shape[0]} token embeddings, but its tokenizer returns token "
            f"{largest}: use the tokenizer that the model was trained with."
        )


def n_positions(config: Any, entry: object) -> int | None:
    """Number of tokens that a transformer has positions for; None if it is not limited. `entry` is
    its embedding layer."""
    positions = getattr(config, "max_position_embeddings", None)
    if not positions or positions <= 0:
        return None
    # RoBERTa, XLM-R and MPNet number positions from padding_idx + 1.
    reserved = getattr(getattr(entry, "position_embeddings", None), "padding_idx", None)
    return int(positions) if reserved is None else int(positions) - int(reserved) - 1

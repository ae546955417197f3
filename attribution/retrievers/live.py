"""A SentenceTransformer of the running program, even during its training, as a retriever: without a
copy or files, and with the model restored afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.dense import DenseRetriever
from poslens.attribution.retrievers.dense_loading import encoders_by_side
from poslens.attribution.retrievers.self_check import require_library_embedding
from poslens.attribution.retrievers.specs import OBJECT, RetrieverSpec


@contextmanager
def live_retriever(
    model: object, *, query_prompt: str | None = None, document_prompt: str | None = None
) -> Iterator[DenseRetriever]:
    """`model` as a retriever in evaluation mode and without gradients. A prompt of None is the
    model's own for that side. On exit, even after an error, the modes and gradient flags of the
    model and the settings of the tokenizer are restored. Nothing else may use the model meanwhile.

    Raises:
        UserError: it is not a SentenceTransformer that PosLens supports, or PosLens embeds a text
            differently than its `encode`.
    """
    if not isinstance(model, SentenceTransformer):
        raise UserError(
            f"The model is of type {type(model).__name__}: use a SentenceTransformer, which has "
            "one vector per text."
        )
    name = Path(model.model_card_data.base_model or "").name or type(model).__name__
    spec = RetrieverSpec(
        name=name,
        title=name,
        family="dense",
        source=OBJECT + name,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
    )
    with _unchanged(model):
        query_model, document_model = encoders_by_side(model) or (None, model)
        precision = str(document_model.dtype).removeprefix("torch.")
        retriever = DenseRetriever(document_model, spec, precision, query_model)
        require_library_embedding(retriever)
        yield retriever


@contextmanager
def _unchanged(model: SentenceTransformer) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    gradients = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    # Reading a text changes truncation and padding of all encoders' Rust tokenizers. A tokenizer
    # that several modules share is restored more than once.
    owners = (getattr(module, "tokenizer", None) for module in model.modules())
    fast: list[Any] = [getattr(tokenizer, "backend_tokenizer", None) for tokenizer in owners]
    settings = [(t, t.truncation, t.padding) for t in fast if t is not None]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, needs_gradient in gradients:
            parameter.requires_grad_(needs_gradient)
        for tokenizer, truncation, padding in settings:
            tokenizer.no_truncation()
            tokenizer.no_padding()
            if truncation is not None:
                tokenizer.enable_truncation(**truncation)
            if padding is not None:
                tokenizer.enable_padding(**padding)

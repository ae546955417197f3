"""Load all-MiniLM-L6-v2 with a planted adapter merged into its weights, from local files only."""

from __future__ import annotations

from pathlib import Path

from sentence_transformers import SentenceTransformer

from poslens.attribution.retrievers import specs
from poslens.attribution.retrievers.dense_loading import merge_adapter
from poslens.attribution.retrievers.resolve import minilm_folder

BASE_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PLANTED = ("MiniLM-primacy", "MiniLM-recency")
MAX_TOKENS = 512
"""Number of position embeddings; the model's own configuration truncates at 256."""


def load_planted(name: str | Path | None, strength: float = 1.0) -> SentenceTransformer:
    """MiniLM with the adapter `name` (or that of a folder; None for no adapter) scaled by
    `strength`: 0 is MiniLM itself, 1 the planted model."""
    retriever = SentenceTransformer(str(minilm_folder()), device="cpu", local_files_only=True)
    retriever.max_seq_length = MAX_TOKENS
    if name is not None:
        folder = name if isinstance(name, Path) else specs.PLANTED / name
        merge_adapter(retriever, folder, strength)
    return retriever.eval()

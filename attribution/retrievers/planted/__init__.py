"""Two retrievers whose positional bias was put there on purpose: ground truth for attribution."""

from __future__ import annotations

from pathlib import Path

from attribution.errors import UserError

BASE_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PLANTED = ("MiniLM-primacy", "MiniLM-recency")


def planted_folder(name: str) -> Path:
    """Folder of the LoRA adapter `name`, to be put on top of all-MiniLM-L6-v2.

    Raises:
        UserError: there is no such adapter.
    """
    folder = Path(__file__).parent / name
    if name not in PLANTED or not (folder / "adapter_model.safetensors").is_file():
        raise UserError(f"There is no planted retriever {name!r}: choose {' or '.join(PLANTED)}.")
    return folder

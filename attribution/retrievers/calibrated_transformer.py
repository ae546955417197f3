"""A calibrated model as a sentence-transformers folder: `export` writes it, and the class that its
modules.json names loads it. Besides sentence-transformers, loading needs only PosLens.

    SentenceTransformer(folder, trust_remote_code=True)

sentence-transformers imports no class of another package without `trust_remote_code`; PosLens's
loader accepts only this class, by name.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.calibrated_attention import Rows, attach, calibrator_of
from poslens.attribution.retrievers.calibration import EARLIER_NAMES, Calibration
from poslens.attribution.retrievers.model_rules import CALIBRATED_TRANSFORMER

SETTINGS = "calibration.json"


class CalibratedTransformer(Transformer):
    """sentence-transformers' Transformer with its attention calibrated as `calibration.json` in its
    folder states."""

    @classmethod
    def load(  # type: ignore[override]
        cls, model_name_or_path: str, subfolder: str = "", **settings: Any
    ) -> Any:
        """The transformer of a folder that `export` wrote.

        Raises:
            UserError: the folder has no calibration, or one out of range.
        """
        module = super().load(model_name_or_path, subfolder=subfolder, **settings)
        how, rows = _read(Path(model_name_or_path, subfolder, SETTINGS))
        attach(module, how, rows, Path(model_name_or_path).name)
        return module

    def save(self, output_path: str, *args: Any, **settings: Any) -> None:
        """Save the module together with its calibration."""
        super().save(output_path, *args, **settings)
        calibrator = calibrator_of(self.model)
        if calibrator is not None:
            _write(Path(output_path, SETTINGS), calibrator.calibration, calibrator.rows)


def export(retriever: Any, folder: Path) -> None:
    """Write a loaded, calibrated dense retriever to a new folder.

    Raises:
        UserError: it is not calibrated or has two encoders, or the folder already exists.
    """
    model: SentenceTransformer = retriever.model
    calibrator = calibrator_of(model.transformers_model)
    if calibrator is None:
        raise UserError(
            f"{retriever.name} is not calibrated: export a model such as MiniLM@calibrated."
        )
    if retriever.asymmetric:
        raise UserError(
            f"{retriever.name} has separate encoders for queries and documents, so it can't be "
            "exported as one model."
        )
    if folder.exists():
        raise UserError(f"{folder} already exists: name a new folder.")
    model.save_pretrained(str(folder), create_model_card=False)
    listed = folder / "modules.json"
    modules = json.loads(listed.read_text(encoding="utf-8"))
    modules[0]["type"] = CALIBRATED_TRANSFORMER
    listed.write_text(json.dumps(modules, indent=2), encoding="utf-8")
    _write(folder / modules[0]["path"] / SETTINGS, calibrator.calibration, calibrator.rows)


def _write(path: Path, how: Calibration, rows: Rows) -> None:
    settings = {"strength": how.strength, "block": how.block, "layers": how.layers, "rows": rows}
    path.write_text(json.dumps(settings, indent=2) + os.linesep, encoding="utf-8")


def _read(path: Path) -> tuple[Calibration, Rows]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings = {EARLIER_NAMES.get(key, key): value for key, value in settings.items()}
        strength, block, layers, rows = (
            settings[key] for key in ("strength", "block", "layers", "rows")
        )
        if (
            rows not in ("mean", "first", "last")
            or type(block) is not int
            or type(layers) not in (int, type(None))
            or type(strength) not in (int, float)
        ):
            raise ValueError("of another type")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path.name} has no valid settings: export the model again.") from error
    return Calibration(float(strength), block, layers), rows

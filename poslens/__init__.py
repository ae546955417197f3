"""PosLens for notebooks and scripts: does a retriever overlook evidence because of its position?

    import poslens
    poslens.explain("MiniLM", "when does the tide turn", "The tide turns twice a day. ...")

Notebooks display results, which have `to_frame()`, `figure()` and `save(path)`. The dashboard, the
commands and these calls share one cache, so each result is computed only once.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# In a checkout, attribution, cache and dashboard are folders next to this one, so this package's
# path must include the repository's root. In an installed wheel, they are inside this package.
_CHECKOUT = Path(__file__).resolve().parents[1]
if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "attribution").is_dir():
    __path__.append(str(_CHECKOUT))

from poslens.attribution.errors import UserError  # noqa: E402
from poslens.studies import declared  # noqa: E402
from poslens.version import __version__  # noqa: E402

if TYPE_CHECKING:
    from poslens.api import (
        check,
        curve,
        datasets,
        explain,
        methods,
        models,
        passport,
        run_study,
    )
    from poslens.evaluator import PositionEvaluator

__all__ = [
    "PositionEvaluator",
    "UserError",
    "__version__",
    "check",
    "curve",
    "datasets",
    "explain",
    "methods",
    "models",
    "passport",
    "run_study",
]


def __getattr__(name: str) -> Any:
    # Imported on first use, because importing torch takes seconds.
    if name == "PositionEvaluator":  # its module imports sentence-transformers
        return import_module("poslens.evaluator").PositionEvaluator
    if name in __all__ or name in declared():
        return getattr(import_module("poslens.api"), name)
    raise AttributeError(f"module 'poslens' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *declared()]

"""The attribution methods. Importing this package imports all of its modules, each of which
registers a method in `METHODS`."""

from __future__ import annotations

import pkgutil
from collections.abc import Container
from importlib import import_module

from poslens.attribution.methods.base import (
    CURVE_PARAMETERS,
    METHODS,
    POSIR_CURVE,
    MethodEntry,
    MethodParameter,
    make_method,
)
from poslens.attribution.methods.run import (
    Outcome,
    attribute_batch,
    attribute_batches,
    pair_batches,
)
from poslens.attribution.text import listed

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

METHOD_TITLES = {name: entry.title for name, entry in METHODS.items()}
"""The title of each method by its name."""


def instead_of(unfit: Container[str]) -> str:
    """What to select if these methods are unavailable for a model."""
    others = [name for name in METHODS if name not in unfit]
    return f"Select {listed(others, 'or')}." if others else "Select another model."


__all__ = [
    "CURVE_PARAMETERS",
    "METHODS",
    "METHOD_TITLES",
    "POSIR_CURVE",
    "MethodEntry",
    "MethodParameter",
    "Outcome",
    "attribute_batch",
    "attribute_batches",
    "instead_of",
    "make_method",
    "pair_batches",
]

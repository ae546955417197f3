"""The attribution methods. Importing this package imports all of its modules, each of which
registers a method in `METHODS`."""

from __future__ import annotations

import pkgutil
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

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

METHOD_TITLES = {name: entry.title for name, entry in METHODS.items()}
"""The title of each method by its name."""

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
    "make_method",
    "pair_batches",
]

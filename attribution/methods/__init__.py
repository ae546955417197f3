"""The attribution methods. Each is a module of this package that registers itself when it is
imported, which happens here; `METHODS` has them all."""

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

__all__ = [
    "CURVE_PARAMETERS",
    "METHODS",
    "POSIR_CURVE",
    "MethodEntry",
    "MethodParameter",
    "Outcome",
    "attribute_batch",
    "attribute_batches",
    "make_method",
    "pair_batches",
]

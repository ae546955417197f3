"""The schema of each kind of result, by its name in the store's files."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from poslens.attribution.errors import UserError
from poslens.attribution.evaluation.faithfulness import ErasureParameters
from poslens.attribution.types import Method
from poslens.cache import kinds
from poslens.cache.kinds.faithfulness import (
    FAITHFULNESS,
    RANDOM_ORDER,
    random_orders_schema,
    schema_of,
)
from poslens.cache.storage.schema import SCHEMAS, Schema

for _module in pkgutil.iter_modules(kinds.__path__):
    import_module(f"{kinds.__name__}.{_module.name}")


def schema_for(kind: str, method: Method) -> Schema[Any] | None:
    """The schema of a kind of results under a method; None if this version doesn't support the
    kind."""
    if not kind.startswith(FAITHFULNESS):
        return SCHEMAS.get(kind)
    try:
        parameters = ErasureParameters.parse(kind.removeprefix(FAITHFULNESS))
    except UserError:
        return None
    return random_orders_schema(parameters) if method == RANDOM_ORDER else schema_of(parameters)

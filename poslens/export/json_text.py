"""JSON text of commands' output, tables and passports."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON, with keys in the given order, text unescaped, and null for numbers that are
    not finite.

    Numpy arrays and numbers become lists and numbers; a lone surrogate becomes U+FFFD, which every
    UTF-8 reader accepts.
    """
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        # numpy.float64 is a subclass of float
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return without_surrogates(value)
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


def without_surrogates(text: str) -> str:
    """Text that can be encoded as UTF-8: lone surrogates become U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def script_json(value: Any) -> str:
    """JSON for a script element, with "<" escaped because `</script>` and `<!--` would end it.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")

"""The one writer of JSON that people read: answers of commands, tables and passports."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON: keys in the order given, text as it is, null for what is not finite.

    Arrays and numbers of numpy are lists and numbers; half of a character (a lone surrogate) is
    U+FFFD, which every reader of UTF-8 takes.
    """
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        # numpy's own float of 64 bits is one of Python's.
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return without_surrogates(value)
    return _plain(value.tolist()) if hasattr(value, "tolist") else value


def without_surrogates(text: str) -> str:
    """Text that can be written as UTF-8: U+FFFD in place of half a character."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)

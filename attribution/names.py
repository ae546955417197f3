"""Tables of what is registered by name: data sets, models, endpoints, runs, folders of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class Names(dict[str, T]):
    """Things registered by name in this process; `initial` are those that it starts with."""

    every: ClassVar[list[Names[Any]]] = []
    """All tables of this process."""

    def __init__(self, initial: Mapping[str, T] | None = None) -> None:
        super().__init__(initial or {})
        self.initial = dict(self)
        Names.every.append(self)

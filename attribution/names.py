"""What a program registers by name: data sets, models, endpoints, runs, folders of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class Names(dict[str, T]):
    """Things by the names under which this process knows them, at first `initial`."""

    every: ClassVar[list[Names[Any]]] = []
    """All such tables of the process."""

    def __init__(self, initial: Mapping[str, T] | None = None) -> None:
        super().__init__(initial or {})
        self.initial = dict(self)
        Names.every.append(self)

"""Tables of what is registered by name: data sets, models, endpoints, runs, folders of results;
methods, families and formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

T = TypeVar("T")


class Names(dict[str, T]):
    """Things registered by name in this process; `initial` are those that it starts with."""

    every: ClassVar[list[Names[Any]]] = []
    """All tables of this process."""

    def __init__(self, initial: Mapping[str, T] | None = None) -> None:
        super().__init__(initial or {})
        self.initial = dict(self)
        Names.every.append(self)


class _Declared(Protocol):
    """What a module declares: its name, and its position in lists."""

    @property
    def name(self) -> str:
        """Unique among declarations of this kind."""

    @property
    def order(self) -> int:
        """Position in lists, ascending."""


D = TypeVar("D", bound=_Declared)


def declare(table: dict[str, D], entry: D) -> D:
    """Add a declaration to a table, which stays in the declarations' order. Called once by the
    module that declares it."""
    if entry.name in table:
        raise ValueError(f"two declarations are named {entry.name}")
    ordered = sorted([*table.values(), entry], key=lambda declared: declared.order)
    table.clear()
    table.update((declared.name, declared) for declared in ordered)
    return entry

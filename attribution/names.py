"""What a program registers by name: data sets, models, endpoints, runs, folders of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Names(dict[str, T]):
    """Things by the names under which this process knows them, at first `initial`."""

    def __init__(self, initial: Mapping[str, T] | None = None) -> None:
        super().__init__(initial or {})
        self.initial = dict(self)
        _all.append(self)


_all: list[Names[Any]] = []


@contextmanager
def temporary_names() -> Iterator[None]:
    """Forget what is registered within this block at its end."""
    before = [dict(names) for names in _all]
    try:
        yield
    finally:
        for number, names in enumerate(_all):
            earlier = before[number] if number < len(before) else names.initial
            names.clear()
            names.update(earlier)

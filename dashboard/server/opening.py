"""What pages show before a reader chooses: the models and the data set that `run` was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Opening:
    """Models and a data set by name; nothing where each page has its own defaults."""

    models: tuple[str, ...] = ()
    dataset: str | None = None

    def models_or(self, default: Sequence[str], maximum: int) -> list[str]:
        """The models that a page opens with, at most `maximum` of those given."""
        return list(self.models[:maximum] or default)

    def model_or(self, default: str, at: int | None) -> str:
        """The model that a list opens with: the one given as number `at`, if there is one."""
        return self.models[at] if at is not None and at < len(self.models) else default


_current = Opening()


def current() -> Opening:
    """What this process's pages open with."""
    return _current


def use(opening: Opening) -> None:
    """Open pages with this from now on."""
    global _current
    _current = opening

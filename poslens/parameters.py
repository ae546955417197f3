"""Parameters of a study. The command's option, the page's widget, the URL parameter and the
argument of the Python call are derived from one declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from poslens.attribution.errors import UserError, printable

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Parameter(Generic[T]):
    """One parameter of a study. `default` is used if no value is given; `title` is by default its
    name, and `option` is the command's option if its name differs from the parameter's."""

    default: T
    help: str
    title: str = ""
    option: str = ""

    def parse(self, value: Any) -> T:
        """The checked value, converted to the parameter's type.

        Raises:
            UserError: it is out of range, or of another type.
        """
        raise TypeError(f"{type(self).__name__} checks nothing")


@dataclass(frozen=True, kw_only=True)
class Integer(Parameter[int | None]):
    """A whole number from `low` to `high`; the page's buttons change it by `step`. A default of
    None means no limit: the page shows an empty field with the placeholder `unlimited`."""

    low: int
    high: int = 10_000_000
    step: int = 1
    unlimited: str = "all"

    def parse(self, value: Any) -> int:
        try:
            number = int(str(value))
        except ValueError:
            number = self.low - 1
        if not self.low <= number <= self.high:
            raise UserError(
                f"{self.title} must be a whole number from {self.low:,} to "
                f"{self.high:,}, not {str(value)[:40]!r}."
            )
        return number


@dataclass(frozen=True, kw_only=True)
class Switch(Parameter[bool]):
    """On or off."""

    default: bool = False

    def parse(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise UserError(f"{self.title} must be True or False, not {str(value)[:40]!r}.")
        return value


@dataclass(frozen=True, kw_only=True)
class Text(Parameter[str | None]):
    """Any text but an empty one, of up to `longest` characters; None if it is not given."""

    default: str | None = None
    longest: int = 100_000

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or len(value) > self.longest or printable(value) != value:
            raise UserError(
                f"{self.title} must be a text of at most {self.longest:,} characters "
                "without control characters."
            )
        if not (text := value.strip()):
            raise UserError(f"{self.title} is empty: enter a text, or leave it out.")
        return text


@dataclass(frozen=True, kw_only=True)
class ModelName(Text):
    """The name of a model."""

    default: str


@dataclass(frozen=True, kw_only=True)
class Choice(Parameter[str]):
    """One of `options`."""

    options: tuple[str, ...]

    def parse(self, value: Any) -> str:
        if value not in self.options:
            raise UserError(
                f"{self.title}: choose from {', '.join(self.options)}, not {str(value)[:40]!r}."
            )
        return str(value)


@dataclass(frozen=True, kw_only=True)
class Several(Parameter[tuple[str, ...]]):
    """One or more values, each checked by `check`, which raises UserError. `options` are
    suggestions, or the only values allowed if `closed`, for which pages can show `titles`. The
    default replaces an empty choice."""

    options: tuple[str, ...]
    check: Callable[[str], object] = str
    closed: bool = False
    titles: Mapping[str, str] = field(default_factory=dict)

    def parse(self, value: Any) -> tuple[str, ...]:
        choices = [value] if isinstance(value, str) else list(value)
        for choice in choices:
            if self.closed and choice not in self.options:
                raise UserError(
                    f"{self.title}: choose from {', '.join(self.options)}, not "
                    f"{str(choice)[:40]!r}."
                )
            self.check(choice)
        return tuple(dict.fromkeys(map(str, choices))) or self.default


@dataclass(frozen=True, kw_only=True)
class Numbers(Parameter[tuple[float, ...]]):
    """One or more numbers from `low` to `high`, separated by commas; whole numbers if `whole`."""

    low: float
    high: float
    whole: bool = False

    def parse(self, value: Any) -> tuple[float, ...]:
        parts = value.split(",") if isinstance(value, str) else list(value)
        try:
            numbers = [float(part) for part in parts if str(part).strip()]
        except ValueError:
            numbers = []
        allowed = all(self.low <= number <= self.high for number in numbers)
        if not numbers or not allowed or (self.whole and any(number % 1 for number in numbers)):
            kind = "whole numbers" if self.whole else "numbers"
            raise UserError(
                f"{self.title} must be {kind} from {self.low:,.10g} to "
                f"{self.high:,.10g}, separated by commas, not {str(value)[:60]!r}."
            )
        return tuple(int(number) if self.whole else number for number in sorted(set(numbers)))

    def text(self) -> str:
        """The default in the notation of the command line."""
        return ",".join(f"{number:g}" for number in self.default)


class Parameters(dict[str, Parameter[Any]]):
    """The parameters of a study by name, in the order in which they are shown."""

    def __init__(self, **declared: Parameter[Any]) -> None:
        super().__init__()
        for name, each in declared.items():
            self[name] = replace(each, title=each.title or name.replace("_", " ").capitalize())

    def settings(self, given: Mapping[str, Any] | None = None, table: str = "") -> Settings:
        """All values, checked, with defaults for those that are not given; `table` names the only
        table that is needed, and is empty if all are.

        Raises:
            UserError: a parameter is unknown, or a value is not allowed.
        """
        given = dict(given or {})
        if unknown := [name for name in given if name not in self]:
            raise UserError(
                f"There is no parameter {unknown[0][:80]!r}: choose from "
                f"{', '.join(self) or 'none'}."
            )
        return Settings(
            {
                name: parameter.parse(given[name])
                if given.get(name) is not None
                else parameter.default
                for name, parameter in self.items()
            },
            table,
        )


class Settings(dict[str, Any]):
    """Checked values of a study's parameters, which are also attributes. Equal settings have equal
    text, which can be part of a key. `table` is the table that a command prints; empty where all
    tables are shown."""

    def __init__(self, values: Mapping[str, Any], table: str = "") -> None:
        super().__init__(values)
        self.table = table

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(str(self))

    def __str__(self) -> str:
        return ", ".join(
            f"{name}={'+'.join(map(str, value)) if isinstance(value, tuple) else value}"
            for name, value in self.items()
        )

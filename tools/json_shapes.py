"""The shapes of commands' JSON (`poslens/commands/answers.py`) as a JSON Schema and as rows of a
table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from poslens.commands.answers import Lines, ResultSource

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", NoneType: "null"}


@dataclass(frozen=True)
class Field:
    """A field of a shape; `kind` is its type without annotations."""

    name: str
    kind: Any
    meaning: str
    required: bool


def fields_of(shape: Any) -> Iterator[Field]:
    """The fields of a TypedDict, in order, with type variables replaced.

    Raises:
        ValueError: a field has no meaning (`Annotated`).
    """
    named = get_origin(shape) or shape
    variables = dict(zip(getattr(named, "__parameters__", ()), get_args(shape), strict=True))
    for name, hint in get_type_hints(named, include_extras=True).items():
        required = get_origin(hint) is not NotRequired
        inner = hint if required else get_args(hint)[0]
        if get_origin(inner) is not Annotated:
            raise ValueError(f"{named.__name__}.{name} does not say what it is")
        kind, meaning = get_args(inner)
        yield Field(name, _replaced(kind, variables), meaning, required)


def _replaced(kind: Any, variables: Mapping[Any, Any]) -> Any:
    if kind in variables:
        return variables[kind]
    if get_origin(kind) is list:
        return list[_replaced(get_args(kind)[0], variables)]  # type: ignore[misc]
    return kind


def is_shape(kind: Any) -> bool:
    """Whether this type is a TypedDict, generic or not."""
    return is_typeddict(get_origin(kind) or kind)


def line_of(shape: Any) -> Any:
    """The shape of each line of a `Lines` answer; None for other answers."""
    return get_args(shape)[0] if get_origin(shape) is Lines else None


def words(kind: Any) -> str:
    """A type in words."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        lists = any(get_origin(part) is list for part in inside)
        return (", or " if lists else " or ").join(map(words, inside))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inside)
    if origin is list:
        of = words(inside[0])
        return f"list of ({of})" if " or " in of else f"list of {of}"
    if origin is dict:
        return f"{words(inside[1])} by name"
    if kind is ResultSource:
        return "[provenance](#provenance)"
    return "object" if is_shape(kind) else WORDS[kind]


@dataclass
class Schema:
    """Creates schemas and collects the definitions to which they refer."""

    definitions: dict[str, Any] = field(default_factory=dict)
    named: dict[str, Any] = field(default_factory=dict)

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type.

        Raises:
            ValueError: two shapes have the same name.
        """
        origin, inside = get_origin(kind), get_args(kind)
        if (line := line_of(kind)) is not None:
            return {**self.of(line), "$comment": "an object on each line"}
        if origin in (Union, UnionType):
            return {"anyOf": [self.of(part) for part in inside]}
        if origin is Literal:
            return {"enum": list(inside)}
        if origin is list:
            return {"type": "array", "items": self.of(inside[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(inside[1])}
        if not is_shape(kind):
            return {"type": PLAIN[kind]}
        if origin is not None:
            return self._object(kind)
        name = kind.__name__
        if self.named.setdefault(name, kind) is not kind:
            raise ValueError(f"two shapes are called {name}")
        if name not in self.definitions:
            self.definitions[name] = self._object(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _object(self, shape: Any) -> dict[str, Any]:
        fields = list(fields_of(shape))
        return {
            "type": "object",
            "properties": {
                field.name: {"description": field.meaning, **self.of(field.kind)}
                for field in fields
            },
            "required": [field.name for field in fields if field.required],
        }


def flat(shape: Any, before: str = "") -> Iterator[Field]:
    """The fields of an answer and of the objects in it, with their paths: `rows[].model` is the
    field `model` of each of `rows`. The fields of a provenance are not repeated for each answer."""
    if (line := line_of(shape)) is not None:
        yield from flat(line, before)
        return
    if get_origin(shape) is list:
        yield from flat(get_args(shape)[0], f"{before}[].")
        return
    for item in fields_of(shape):
        name = f"{before}{item.name}"
        yield Field(name, item.kind, item.meaning, item.required)
        kind, path = item.kind, name
        if get_origin(kind) in (Union, UnionType):
            kind = next((part for part in get_args(kind) if get_origin(part) or is_shape(part)), "")
        while get_origin(kind) in (list, dict):
            path += "[]" if get_origin(kind) is list else ".*"
            kind = get_args(kind)[-1]
            if get_origin(kind) in (Union, UnionType):
                kind = next((part for part in get_args(kind) if is_shape(part)), "")
        if is_shape(kind) and kind is not ResultSource:
            yield from flat(kind, f"{path}.")

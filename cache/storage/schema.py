"""Storage of dataclass results as JSON, with a schema derived from the annotations of their fields.

Stored results may come from third parties: a value of the wrong type, a number that is not finite,
a missing or an unknown field is rejected, and so is anything that the dataclass itself rejects.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from poslens.attribution.damage import DAMAGE
from poslens.attribution.errors import UserError
from poslens.attribution.types import Method
from poslens.cache.storage.codec import Fields
from poslens.cache.storage.files import ModelKey

T = TypeVar("T")

_MAX_INT = 2**31 - 1
_MAX_FLOAT = float(np.finfo(np.float32).max)
_MAX_TEXT = 5000

# Exceptions that forged values can raise in the constructor of a dataclass.
_REFUSED: tuple[type[Exception], ...] = (*DAMAGE, UserError, zlib.error)


class Misfit(ValueError):
    """The fields are not a valid result of this kind."""


class Owner(NamedTuple):
    """What a stored result belongs to; `item` is its id within its data set."""

    model: ModelKey
    method: Method
    item: str


@dataclass(frozen=True, slots=True)
class Packed:
    """Marks an array that is stored flat, as base 85 of its little-endian values; with `limit`,
    compressed by zlib, with at most that many bytes uncompressed."""

    limit: int = 0

    def pack(self, values: np.ndarray) -> str:
        """The array as text."""
        raw = values.astype(values.dtype.newbyteorder("<")).tobytes()
        return base64.b85encode(zlib.compress(raw, 1) if self.limit else raw).decode()

    def unpack(self, text: object, dtype: np.dtype[Any]) -> np.ndarray:
        """The values [n].

        Raises:
            Misfit, ValueError, zlib.error: the text is not a valid packed array.
        """
        if not isinstance(text, str):
            raise Misfit("no packed array")
        raw = base64.b85decode(text)
        if self.limit:
            opened = zlib.decompressobj()
            raw = opened.decompress(raw, self.limit)
            if opened.unconsumed_tail:
                raise Misfit(f"more than {self.limit} bytes")
        return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype)


class Schema(Generic[T]):
    """Converts results of the dataclass `kind` to JSON values and back. `name` is the name of this
    kind of results in the store's files, empty for parts of other results.

    `given` are fields whose values come from the owner of a result and override stored ones; fields
    in `unstored` are not stored. `names` maps fields to stored names that differ.
    """

    def __init__(
        self,
        kind: type[T],
        name: str = "",
        *,
        given: Callable[[Owner], Mapping[str, Any]] = lambda owner: {},
        unstored: frozenset[str] = frozenset(),
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self._kind, self._given = name, kind, given
        names = names or {}
        hints = get_type_hints(kind, include_extras=True)
        declared = [field for field in fields(kind) if field.name not in unstored]  # type: ignore[arg-type]
        self._stored = {names.get(field.name, field.name): field.name for field in declared}
        self._forms = {field.name: _form(hints[field.name]) for field in declared}
        self._required = {
            names.get(field.name, field.name)
            for field in declared
            if field.default is MISSING and field.default_factory is MISSING
        }

    def pack(self, result: T) -> Fields:
        """The stored fields of a result, as JSON values."""
        return {
            stored: self._forms[name].pack(getattr(result, name))
            for stored, name in self._stored.items()
        }

    def unpack(self, fields: Fields, owner: Owner) -> T:
        """The result with these fields.

        Raises:
            Misfit: the fields are not a valid result of this kind.
        """
        if not self._required <= fields.keys() <= self._stored.keys():
            raise Misfit("other fields")
        try:
            values = {
                self._stored[name]: self._forms[self._stored[name]].read(value)
                for name, value in fields.items()
            }
            return self._kind(**{**values, **self._given(owner)})
        except _REFUSED as error:
            raise Misfit(f"no {self._kind.__name__}") from error


SCHEMAS: dict[str, Schema[Any]] = {}
"""The schema of each kind of results by its name; filled by the modules of `kinds`."""


def register(schema: Schema[T]) -> Schema[T]:
    """Register the schema of a kind of results. Called once by its module."""
    if schema.name in SCHEMAS:
        raise ValueError(f"two kinds of results are named {schema.name}")
    SCHEMAS[schema.name] = schema
    return schema


class _Form(NamedTuple):
    """How values of an annotation are read from JSON values, which may be forged, and packed."""

    read: Callable[[Any], Any]
    pack: Callable[[Any], Any]


def _form(hint: Any) -> _Form:
    hint = _unaliased(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _READERS:
        return _Form(_READERS[hint], _plain)
    if origin is Annotated and isinstance(arguments[1], Packed):
        packed, dtype = arguments[1], _dtype(arguments[0])
        return _Form(lambda value: _finite(packed.unpack(value, dtype)), packed.pack)
    if origin is np.ndarray:
        return _Form(_array_reader(_dtype(hint)), _plain)
    if origin is Literal:
        return _Form(_choice_reader(arguments), _plain)
    if origin in (Union, UnionType):
        (argument,) = (each for each in arguments if each is not NoneType)
        read, pack = _form(argument)
        return _Form(
            lambda value: None if value is None else read(value),
            lambda value: None if value is None else pack(value),
        )
    if origin is tuple and arguments[-1] is Ellipsis:
        read, pack = _form(arguments[0])
        return _Form(
            lambda value: tuple(map(read, _list(value))), lambda value: list(map(pack, value))
        )
    if origin is tuple:
        readers = [_form(each).read for each in arguments]
        return _Form(
            lambda value: tuple(
                read(each) for read, each in zip(readers, _list(value), strict=True)
            ),
            _plain,
        )
    if is_dataclass(hint) and isinstance(hint, type):
        schema = Schema(hint)
        return _Form(lambda value: _nested(schema, value), schema.pack)
    raise TypeError(f"{hint} has no form as JSON")


def _unaliased(hint: Any) -> Any:
    """The annotation that an alias stands for: from Python 3.12 on, `NDArray` of NumPy 2.5 is a
    type alias, and not the array type itself."""
    alias = get_origin(hint)
    return alias.__value__[get_args(hint)] if hasattr(alias, "__value__") else hint


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise Misfit("not true or false")
    return value


def _int(value: Any) -> int:
    if type(value) is not int or abs(value) > _MAX_INT:
        raise Misfit("no whole number")
    return value


def _float(value: Any) -> float:
    # The comparison is False for NaN.
    if type(value) not in (int, float) or not abs(value) <= _MAX_FLOAT:
        raise Misfit("no finite number")
    return float(value)


def _str(value: Any) -> str:
    if type(value) is not str or len(value) > _MAX_TEXT:
        raise Misfit("no text")
    value.encode()  # rejects lone surrogates
    return value


_READERS: dict[Any, Callable[[Any], Any]] = {bool: _bool, int: _int, float: _float, str: _str}


def _dtype(hint: Any) -> np.dtype[Any]:
    """The dtype of `NDArray[...]`."""
    dtype: np.dtype[Any] = np.dtype(get_args(get_args(_unaliased(hint))[1])[0])
    return dtype


def _finite(values: np.ndarray) -> np.ndarray:
    if not np.isfinite(values).all():
        raise Misfit("a number that is not finite")
    return values


def _array_reader(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    whole = dtype.kind == "i"

    def read(value: Any) -> np.ndarray:
        values = np.array(_list(value))
        if values.size and values.dtype.kind not in ("i" if whole else "if"):
            raise Misfit("not numbers")
        with np.errstate(over="ignore"):
            return _finite(values.astype(dtype))

    return read


def _choice_reader(choices: tuple[Any, ...]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not str or value not in choices:
            raise Misfit("none of the choices")
        return value

    return read


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise Misfit("no list")
    return value


def _nested(schema: Schema[Any], value: Any) -> Any:
    if type(value) is not dict:
        raise Misfit("no fields")
    return schema.unpack(value, _NOBODY)


_NOBODY = Owner(ModelKey("", ""), Method("nested"), "")

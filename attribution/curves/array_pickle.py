"""Reads a list of numpy arrays from a pickle, and refuses everything else.

Loading a pickle calls the functions that it names. Here every accepted name is mapped to a small
class or function of this module that makes float arrays from bytes; numpy itself is never called.
Use a separate process nevertheless (`curves/published.py`), because sizes in the file can be wrong.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FLOATS = {"f4": "<f4", "f8": "<f8"}


class NotArrays(Exception):
    """The pickle contains something other than numpy arrays of floats."""


class _Dtype:
    """Replaces a float dtype while the pickle is read."""

    def __init__(self, name: object, align: object = False, copy: object = False) -> None:
        plain = str(name).lstrip("<=|") if isinstance(name, str) else ""
        if plain not in _FLOATS:
            raise NotArrays
        self.name = _FLOATS[plain]

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] == ">":
            self.name = self.name.replace("<", ">")


class _Array:
    """Replaces an array until its state is read."""

    values: NDArray[np.floating] | None = None

    def __setstate__(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            raise NotArrays
        _, shape, dtype, fortran, data = state
        self.values = _values(data, dtype, shape, "F" if fortran else "C")


_NDARRAY = object()
"""Replaces the array class, which a pickle names but never calls."""


def _values(data: object, dtype: object, shape: object, order: str) -> NDArray[np.floating]:
    """A view of the bytes, because a pickle can refer to the same bytes a million times."""
    if not (
        isinstance(data, bytes | bytearray)
        and isinstance(dtype, _Dtype)
        and isinstance(shape, tuple)
        and all(isinstance(n, int) and n >= 0 for n in shape)
        and order in ("C", "F")
    ):
        raise NotArrays
    values = np.frombuffer(data, dtype.name)
    try:
        return values.reshape(shape, order="C" if order == "C" else "F")
    except ValueError as error:
        raise NotArrays from error


def _reconstruct(kind: object, shape: object, code: object) -> _Array:
    if kind is not _NDARRAY:
        raise NotArrays
    return _Array()


def _from_buffer(data: object, dtype: object, shape: object, order: object) -> _Array:
    array = _Array()
    array.values = _values(data, dtype, shape, str(order))
    return array


def _latin_1(text: object, encoding: object = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise NotArrays
    return text.encode("latin-1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Dtype,
    # Bytes as written by protocols below 3.
    ("_codecs", "encode"): _latin_1,
    # Names of numpy 1 and numpy 2.
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The replacement of an accepted name."""
        if (module, name) not in _ADMITTED:
            raise NotArrays
        return _ADMITTED[module, name]

    def persistent_load(self, pid: object) -> Any:
        """Refuse references to objects outside the pickle."""
        raise NotArrays


def arrays(data: bytes, limit: int | None = None) -> list[NDArray[np.float64]]:
    """The float arrays of a pickled list or tuple of arrays, or of a single array.

    Raises:
        NotArrays: the pickle names or contains anything else, has more than `limit` numbers, or is
            damaged.
    """
    try:
        loaded = _Reader(io.BytesIO(data)).load()
    except NotArrays:
        raise
    # A damaged pickle can raise almost any exception.
    except Exception as error:
        raise NotArrays from error
    listed = loaded if isinstance(loaded, list | tuple) else [loaded]
    values = [item.values for item in listed if isinstance(item, _Array)]
    arrays = [array for array in values if array is not None]
    if not listed or len(arrays) != len(listed):
        raise NotArrays
    if limit is not None and sum(max(1, values.size) for values in arrays) > limit:
        raise NotArrays
    return [values.astype(np.float64) for values in arrays]

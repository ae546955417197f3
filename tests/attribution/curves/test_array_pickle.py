"""Pickles of arrays are read back; pickles of anything else are refused."""

from __future__ import annotations

import builtins
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poslens.attribution.curves.array_pickle import NotArrays, arrays
from poslens.attribution.curves.published import read_curves
from poslens.attribution.errors import UserError

CURVES = np.random.default_rng(0).random((5, 100))


def numpy_1(data: bytes) -> bytes:
    """The same pickle as written by numpy 1, whose module had no underscore."""
    for name in (b"multiarray", b"numeric"):
        new, old = b"numpy._core." + name, b"numpy.core." + name
        data = data.replace(bytes([len(new)]) + new, bytes([len(old)]) + old)
        data = data.replace(b"c" + new + b"\n", b"c" + old + b"\n")
    return data


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("write", [bytes, numpy_1])
def test_pickled_arrays_are_read_back(protocol: int, write) -> None:
    data = write(pickle.dumps(list(CURVES), protocol))
    # Frames of protocols 4 and 5 give their length, which the shorter names change.
    if write is numpy_1 and protocol >= 4:
        data = data[:2] + data[11:]
    if write is numpy_1:
        assert b"numpy.core" in data and b"numpy._core" not in data
    assert np.array_equal(np.stack(arrays(data)), CURVES)


@pytest.mark.parametrize(
    "value",
    [
        CURVES.astype(np.float32),
        CURVES.astype(">f8"),
        np.asfortranarray(CURVES),
        CURVES[:, ::2],
        np.float64(3) * np.ones(100),
    ],
)
def test_arrays_of_every_layout_are_read_back(value: np.ndarray) -> None:
    for protocol in (2, 4, 5):
        (found,) = arrays(pickle.dumps(value, protocol))
        assert np.array_equal(found, value) and found.dtype == np.float64


class Calls:
    """An object that is pickled as a call."""

    def __init__(self, function, *arguments) -> None:
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def hostile(tmp: Path) -> dict[str, bytes]:
    target = tmp / "written"
    command = f"touch {target}"
    raw = {
        "os.system": Calls(os.system, command),
        "eval": Calls(builtins.eval, f"open({str(target)!r}, 'w')"),
        "exec": Calls(builtins.exec, f"open({str(target)!r}, 'w')"),
        "open": Calls(open, str(target), "w"),
        "numpy.load": Calls(np.load, str(target)),
        "numpy.fromfile": Calls(np.fromfile, "/etc/hostname", "u1"),
        "numpy.ones": Calls(np.ones, 100),
        "ndarray called": Calls(np.ndarray, (100,)),
        "ndarray of objects": np.array([Calls(os.system, command)], dtype=object),
        "structured": np.zeros(2, dtype=[("a", "f8")]),
        "strings": np.array(["a"]),
        "whole numbers": np.arange(100),
        "getattr": Calls(getattr, "", "join"),
        "numbers": [1.0] * 100,
        "lists": [[1.0] * 100],
        "nothing": [],
        "mixed": [CURVES[0], 1.0],
        "dict": {"curves": CURVES},
        "import": Calls(__import__, "os"),
    }
    found = {name: pickle.dumps(value, 4) for name, value in raw.items()}
    found["protocol 0"] = f"cos\nsystem\n(S'{command}'\ntR.".encode()
    found["dotted"] = b"\x80\x04\x8c\x16numpy._core.multiarray\x8c\x18_reconstruct.__globals__\x93."
    found["module attribute"] = b"\x80\x04\x8c\x05numpy\x8c\x02os\x93."
    found["persistent id"] = b"\x80\x02X\x01\x00\x00\x00aQ."
    found["extension"] = b"\x80\x02\x82\x01."
    found["no pickle"] = b"curves"
    found["empty"] = b""
    found["cut"] = pickle.dumps(list(CURVES), 4)[:-50]
    found["shape lies"] = pickle.dumps(CURVES[0], 2).replace(b"Kd\x85", b"Kz\x85")
    found["build on the class"] = b"\x80\x02cnumpy\nndarray\n}X\x01\x00\x00\x00aK\x01sb."
    return found


def test_hostile_pickles_do_nothing(tmp_path: Path) -> None:
    for name, data in hostile(tmp_path).items():
        with pytest.raises(NotArrays):
            arrays(data)
            pytest.fail(name)
    assert list(tmp_path.iterdir()) == []
    # The pickles are really hostile: an ordinary unpickler executes them.
    pickle.loads(hostile(tmp_path)["os.system"])  # noqa: S301
    assert [p.name for p in tmp_path.iterdir()] == ["written"]


@pytest.mark.parametrize(
    "data",
    [
        # A memo of 2^32 entries (30 GB); bytes and a list with a false length.
        b"\x80\x04]r" + struct.pack("<I", 2**32 - 1) + b".",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
        b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b".",
        b"\x80\x02\x8b" + struct.pack("<I", 2**31 - 1) + b".",
        b"\x80\x02" + b"(" * 1_000_000 + b".",
    ],
    ids=["memo", "bytes", "bytearray", "frame", "long", "marks"],
)
def test_false_sizes_end_only_the_child_process(data: bytes) -> None:
    with pytest.raises(UserError, match="contains no curves"):
        read_curves("m", "curves.pkl", data)


@given(st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 5))
def test_a_changed_byte_gives_arrays_or_an_error(at: int, value: int, protocol: int) -> None:
    data = bytearray(pickle.dumps(list(CURVES[:2]), protocol))
    data[at % len(data)] = value
    try:
        found = arrays(bytes(data))
    except NotArrays:
        return
    assert all(one.dtype == np.float64 for one in found)

"""Damage to files: bytes changed anywhere, and values that no format expects."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import random
from typing import Any

import pyarrow as pa

PIECES = [
    b"",
    b"\0",
    b'"',
    b'""',
    b",",
    b"\t",
    b"\n",
    b"\r\n",
    b"\r",
    b"\\",
    b"\\ud800",
    b"\xff",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    "\u2028".encode(),
    b"[",
    b"{",
    b"]",
    b"}",
    b"[" * 2000,
    b"NaN",
    b"Infinity",
    b"-1",
    b"1e300",
    b"inf",
    b"nan",
    b"--1",
    "²".encode(),
    b"9" * 30,
    b"9" * 5000,
    b"null",
    b"true",
    b"0x1",
    b"PAR1",
    b"\x1f\x8b",
    b"(",
    b"('a', 'b', [('\\ud800', 1)])",
    b"=1+1",
]
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63,
    10**400,
    -(10**30),
    0.5,
    1e300,
    float("inf"),
    float("nan"),
    "",
    " ",
    "\ud800",
    "a\0b",
    "x" * 600,
    "inf",
    "1e300",
    "--1",
    "²",
    "7.0",
    [],
    [1],
    [0, 4],
    [4, 0],
    [None, 4],
    [[]],
    ["a"],
    {},
    {"a": {}},
    "eng",
    "q1",
    "d1",
    "p1",
    "\u202e",
    "\n",
]
MOMENT = dt.datetime(2020, 1, 1)
COLUMNS = [
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
    pa.string_view(),
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.null(),
    pa.date32(),
    pa.date64(),
    pa.timestamp("s"),
    pa.timestamp("ns"),
    pa.duration("s"),
    pa.time64("ns"),
    pa.decimal128(38, 2),
    pa.list_(pa.int64()),
    pa.list_(pa.float64()),
    pa.list_(pa.string()),
    pa.list_(pa.list_(pa.int64())),
    pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.int64()),
    pa.binary(4),
    pa.list_(pa.int64(), 2),
]


def damaged(data: bytes, random: random.Random) -> bytes:
    """The bytes with one to four bytes or runs of bytes changed, inserted, deleted or moved."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at = random.randrange(len(found) + 1)
        until = min(len(found), at + random.choice((0, 1, 1, 4, 20, 200)))
        kind = random.randrange(6)
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << random.randrange(8)
        elif kind == 1 and found:
            found[at % len(found)] = random.randrange(256)
        elif kind == 2:
            found[at:until] = random.choice(PIECES)
        elif kind == 3:
            del found[at:until]
        elif kind == 4:
            found[at:at] = found[at:until] * random.choice((1, 2, 50))
        else:
            del found[at:]
    return bytes(found)


def odd_json(value: Any, random: random.Random) -> Any:
    """The value with one of its parts, at any depth, replaced, renamed or deleted."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        name = random.choice(list(value))
        rest = {key: one for key, one in value.items() if key != name}
        kind = random.randrange(8)
        if kind == 0:
            return rest
        if kind == 1:
            return rest | {str(random.choice(VALUES))[:700]: value[name]}
        return value | {name: odd_json(value[name], random)}
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        return [*value[:at], odd_json(value[at], random), *value[at + 1 :]]
    return random.choice(VALUES)


def json_text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode()


def odd_column(n: int, kind: pa.DataType, random: random.Random) -> pa.Array:
    """A column of any type, with values at the limits of the type."""
    if pa.types.is_dictionary(kind):
        return odd_column(n, kind.value_type, random).dictionary_encode().cast(kind)
    return pa.array([_odd(kind, random) for _ in range(n)], kind)


def _odd(kind: pa.DataType, random: random.Random) -> Any:
    if random.random() < 0.2 or pa.types.is_null(kind):
        return None
    if pa.types.is_boolean(kind):
        return random.random() < 0.5
    if pa.types.is_integer(kind):
        top = 2 ** (kind.bit_width - pa.types.is_signed_integer(kind)) - 1
        return random.choice((0, 1, 4, top, top // 2))
    if pa.types.is_float16(kind):
        return __import__("numpy").float16(random.choice((0.5, float("inf"), float("nan"))))
    if pa.types.is_floating(kind):
        return random.choice((0.0, 4.0, 0.5, 1e38, float("inf"), float("nan"), -1.0))
    if pa.types.is_decimal(kind):
        return decimal.Decimal(10) ** 30
    if pa.types.is_temporal(kind):
        return _moment(kind, random)
    if pa.types.is_struct(kind):
        return {"a": random.randrange(9)}
    if pa.types.is_map(kind):
        return [("a", 1)]
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        n = 2 if pa.types.is_fixed_size_list(kind) else random.choice((0, 1, 2, 2, 40))
        return [_odd(kind.value_type, random) for _ in range(n)]
    text = random.choice(("q1", "d1", "1", "", " ", "x" * 600, "a\0b", "text"))
    if pa.types.is_fixed_size_binary(kind):
        return b"\xff\0\xff\0"
    return text.encode() if "binary" in str(kind) else text


def _moment(kind: pa.DataType, random: random.Random) -> Any:
    """Beyond the range of Python's dates, if the type allows."""
    if pa.types.is_time(kind) or pa.types.is_date32(kind):
        return random.choice((0, 1)) if pa.types.is_time(kind) else random.choice((0, 2**31 - 1))
    return random.choice((0, 2**62, -(2**62)))

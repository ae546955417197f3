"""Serialization of attributions: safetensors with metadata, compressed, with a checksum.

Safetensors contains only arrays and strings, no executable code, and is restored bit for bit. All
arrays are float32, including matrices: the sums of a matrix's rows and columns are shown next to
the score with their difference from it, down to 1e-6, and float16 would round at 1e-3.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load

from poslens.attribution.errors import UserError
from poslens.attribution.types import Array, Attribution, Method, TextPair, TokenizedText
from poslens.cache.keys import text_fingerprint

FORMAT = 2
MAX_RAW = 64 << 20
"""Maximum size in bytes of an uncompressed result: a matrix of 512 x 32,000 tokens fits. Without a
limit, a few kilobytes from a third party could expand to gigabytes."""

_CODEC = pa.Codec("zstd")
_BLOCK = 128 << 10
_PLAIN = bytes(code for code in range(32, 127) if code not in b'"\\')  # not escaped in JSON


Fields = dict[str, Any]
"""Named values of JSON types."""


class DamagedPayload(Exception):
    """The bytes don't match the checksum or can't be decoded."""


class PackedText(NamedTuple):
    """A serialized tokenized text: its strings as JSON, and start, end and is_special of each token
    as int32 [T, 3]."""

    said: str
    spans: bytes


def pack_text(text: TokenizedText) -> PackedText:
    """Serialize the text. Many results share a text, so pack it only once."""
    spans = np.empty((len(text), 3), "<i4")
    spans[:, 0], spans[:, 1], spans[:, 2] = text.starts, text.ends, text.special
    words = (
        f'{{"tokens": {_listed(text.texts)}, "n_tokens_full": {text.n_tokens_full}, '
        f'"max_length": {text.max_length}}}'
    )
    return PackedText(words, spans.tobytes())


def _listed(tokens: Sequence[str]) -> str:
    """JSON of the strings, identical to that of `json.dumps`; four times as fast if nothing has to
    be escaped."""
    joined = '", "'.join(tokens)
    between = b'"' * (2 * len(tokens) - 2)
    if tokens and joined.isascii() and joined.encode().translate(None, _PLAIN) == between:
        return f'["{joined}"]'
    return json.dumps(tokens)


def _unpack_text(header: dict[str, Any], spans: np.ndarray) -> TokenizedText:
    texts = header["tokens"]
    if len(texts) != len(spans):
        raise ValueError(f"{len(texts)} tokens, {len(spans)} spans")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a token is no text")
    if spans.dtype != np.int32:
        raise TypeError("an offset is not a number")
    if len(spans) and (spans.min() < 0 or bool((spans[:, 0] > spans[:, 1]).any())):
        raise ValueError("a span ends before it begins")
    starts, ends, special = spans.T
    n_full, limit = header["n_tokens_full"], header["max_length"]
    if not (isinstance(n_full, int) and isinstance(limit, int) and n_full >= 0 and limit >= 0):
        raise TypeError("a length is no number")
    return TokenizedText(tuple(texts), starts, ends, special, n_full, limit)


def identity(dataset: str, pair_id: str, text: str) -> bytes:
    """Bytes that a checksum covers in addition to the payload, so that a payload stored under
    another pair or other texts (16 hexadecimal digits) is detected as damaged."""
    return f"{dataset}\0{pair_id}\0{text}".encode("utf-8", "surrogatepass")


def identity_of(pair: TextPair) -> bytes:
    """The identity of a pair; see `identity`."""
    return identity(pair.dataset, pair.pair_id, text_fingerprint(pair))


def encode(
    attribution: Attribution,
    pair: TextPair,
    query: PackedText | None = None,
    document: PackedText | None = None,
) -> bytes:
    """Checksum (4 bytes), length (8 bytes), then the compressed safetensors. `query` and `document`
    are the packed texts, if already available.

    Raises:
        UserError: the result is larger than MAX_RAW bytes.
    """
    query = query or pack_text(attribution.query)
    document = document or pack_text(attribution.document)
    span = pair.evidence
    numbers = {
        "format": FORMAT,
        "score": attribution.score,
        "seconds": attribution.seconds,
        "bias_share": attribution.bias_share,
        "completeness_error": attribution.completeness_error,
        "standard_error": attribution.standard_error,
        # The pair's fields in a summary, so that the summary can be rebuilt.
        "pair": {
            "language": pair.language,
            "domain": pair.domain,
            "document_tokens": pair.document_tokens,
            "start": span.start if span else None,
            "end": span.end if span else None,
            "characters": len(pair.document),
        },
    }
    before, pair_key, of_pair = json.dumps(numbers).partition(', "pair": ')
    texts = f', "query": {query.said}, "document": {document.said}'
    header = before + texts + pair_key + of_pair
    raw = _safetensors(attribution, query, document, header.encode())
    if len(raw) > MAX_RAW:
        raise UserError(
            f"The result of pair {pair.pair_id[:80]} has {len(raw) >> 20} MiB, more than the "
            f"{MAX_RAW >> 20} MiB that are kept of one: leave the matrix out, or shorten the texts."
        )
    return _sealed(raw, _CODEC.compress(raw, asbytes=True), identity_of(pair))


def _safetensors(
    attribution: Attribution, query: PackedText, document: PackedText, header: bytes
) -> bytes:
    """The bytes that `safetensors.numpy.save` would write for these arrays, but 20 times as fast:
    wider types first, then by name.

    The JSON is stored as one of the arrays: from bytes, unlike from a file, safetensors' own
    metadata can't be read without parsing everything a second time.
    """
    floats = {"document_scores": attribution.document_scores}
    if attribution.matrix is not None:
        floats["matrix"] = attribution.matrix
    floats["query_scores"] = attribution.query_scores
    sentences, data, end = [], [], 0

    def add(name: str, kind: str, shape: str, values: bytes) -> None:
        nonlocal end
        start, end = end, end + len(values)
        sentences.append(
            f'"{name}":{{"dtype":"{kind}","shape":[{shape}],"data_offsets":[{start},{end}]}}'
        )
        data.append(values)

    for name, array in floats.items():
        shape = ",".join(map(str, array.shape))
        add(name, "F32", shape, array.astype("<f4", copy=False).tobytes())
    add("document_spans", "I32", f"{len(attribution.document)},3", document.spans)
    add("query_spans", "I32", f"{len(attribution.query)},3", query.spans)
    add("header", "U8", str(len(header)), header)
    table = f"{{{','.join(sentences)}}}".encode()
    table += b" " * (-len(table) % 8)
    return b"".join([len(table).to_bytes(8, "little"), table, *data])


def _sealed(raw: bytes, packed: bytes, identity: bytes) -> bytes:
    body = len(raw).to_bytes(8, "big") + packed
    entry: bytes = zlib.crc32(body, zlib.crc32(identity)).to_bytes(4, "big") + body
    return entry


def recompress(data: bytes, identity: bytes) -> bytes:
    """Repack a result without compression, for a file that compresses many results together.

    Raises:
        DamagedPayload: the bytes were modified or truncated, or belong to another pair.
    """
    try:
        raw = _raw(data, identity)
    except _DAMAGE as error:
        raise DamagedPayload from error
    return _sealed(raw, _stored(raw), identity)


def _stored(raw: bytes) -> bytes:
    """A Zstandard frame (RFC 8878, section 3.1.1) of raw blocks: single segment, with its size in
    eight bytes."""
    parts = [b"\x28\xb5\x2f\xfd\xe0", len(raw).to_bytes(8, "little")]
    for start in range(0, max(len(raw), 1), _BLOCK):
        block = raw[start : start + _BLOCK]
        last = start + _BLOCK >= len(raw)
        parts += [(len(block) << 3 | last).to_bytes(3, "little"), block]
    return b"".join(parts)


def is_whole(data: object, identity: bytes) -> bool:
    """Whether these bytes are intact and were stored under this identity."""
    if not isinstance(data, bytes) or len(data) < 12:
        return False
    return zlib.crc32(data[4:], zlib.crc32(identity)) == int.from_bytes(data[:4], "big")


def _raw(data: bytes, identity: bytes) -> bytes:
    if not is_whole(data, identity):
        raise DamagedPayload
    size = int.from_bytes(data[4:12], "big")
    if size > MAX_RAW:
        raise ValueError(f"unpacks to {size} bytes")
    raw: bytes = _CODEC.decompress(data[12:], size, asbytes=True)
    return raw


def _unpack(data: bytes, identity: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays = load(_raw(data, identity))
    return arrays, json.loads(arrays["header"].tobytes())


# An imported file may be malicious: any value may have any type.
_DAMAGE = (
    pa.ArrowException,
    OSError,
    SafetensorError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    UserError,
)


def decode(data: bytes, model: str, method: Method, pair_id: str, identity: bytes) -> Attribution:
    """The attribution that `encode` serialized.

    Raises:
        DamagedPayload: the bytes were modified or truncated, or belong to another pair.
    """
    try:
        arrays, header = _unpack(data, identity)
        return Attribution(
            model=model,
            method=method,
            pair_id=pair_id,
            score=header["score"],
            query=_unpack_text(header["query"], arrays["query_spans"]),
            document=_unpack_text(header["document"], arrays["document_spans"]),
            query_scores=arrays["query_scores"],
            document_scores=arrays["document_scores"],
            matrix=arrays.get("matrix"),
            bias_share=_number(header["bias_share"]),
            completeness_error=_number(header["completeness_error"]),
            standard_error=_number(header.get("standard_error")),  # missing in older results
            seconds=_number(header["seconds"]) or 0.0,
        )
    except _DAMAGE as error:
        raise DamagedPayload from error


def pair_fields(data: bytes, identity: bytes) -> dict[str, Any]:
    """The pair's fields in the payload, by their names in a summary.

    Raises:
        DamagedPayload: the bytes were modified or truncated, or belong to another pair.
    """
    try:
        found = _unpack(data, identity)[1]["pair"]
        return {name: _of(kind, found[stored]) for name, (stored, kind) in _PAIR.items()}
    except _DAMAGE as error:
        raise DamagedPayload from error


_PAIR: dict[str, tuple[str, type]] = {
    "language": ("language", str),
    "domain": ("domain", str),
    "document_tokens": ("document_tokens", int),
    "evidence_start": ("start", int),
    "evidence_end": ("end", int),
    "characters": ("characters", int),
}


def _of(kind: type, value: Any) -> Any:
    """`value`, if it is None or of this type and within the size limit."""
    fits = not isinstance(value, int) or 0 <= value < 2**31
    if value is None or (isinstance(value, kind) and fits):
        return value
    raise TypeError(f"{value!r:.80} is no {kind.__name__}")


def _number(value: Any) -> float | None:
    if value is None or (isinstance(value, int | float) and math.isfinite(value)):
        return value
    raise TypeError(f"{value!r:.80} is no number")


def pack_floats(values: Array) -> bytes:
    """Values [n] as float32 with a checksum."""
    data = np.asarray(values).astype("<f4").tobytes()
    return data + zlib.crc32(data).to_bytes(4, "big")


def unpack_floats(data: object) -> np.ndarray | None:
    """The values [n] that `pack_floats` serialized; None if they are damaged."""
    if not isinstance(data, bytes):  # SQLite can store text in a blob column
        return None
    values = data[:-4]
    if len(values) % 4 or zlib.crc32(values) != int.from_bytes(data[-4:], "big"):
        return None
    return np.frombuffer(values, dtype="<f4")


def pack_fields(fields: Fields) -> bytes:
    """JSON of `fields`, preceded by its CRC-32."""
    # A float32 converted to float64 and written as JSON is restored bit for bit.
    text = json.dumps(fields).encode()
    return zlib.crc32(text).to_bytes(4, "big") + text


def unpack_fields(payload: object) -> Fields | None:
    """The fields; None if nothing is stored or it is damaged."""
    if not isinstance(payload, bytes) or not has_whole_fields(payload):
        return None
    try:
        fields = json.loads(payload[4:])
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def has_whole_fields(payload: bytes) -> bool:
    """Whether the payload is intact output of `pack_fields`."""
    return zlib.crc32(payload[4:]).to_bytes(4, "big") == payload[:4]

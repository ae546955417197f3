"""Serialization of attributions: a JSON header and raw arrays, compressed, with a checksum.

It contains only arrays and strings, no executable code, and is restored bit for bit. All scores are
float32, including matrices: the sums of a matrix's rows and columns are shown next to the score
with their difference from it, down to 1e-6, and float16 would round at 1e-3.
"""

from __future__ import annotations

import json
import math
import zlib
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load

from poslens.attribution.damage import DAMAGE
from poslens.attribution.errors import UserError
from poslens.attribution.types import Array, Attribution, Method, TextPair, TokenizedText
from poslens.cache.keys import text_fingerprint

FORMAT = 3
MAX_RAW = 64 << 20
"""Maximum size in bytes of an uncompressed result: a matrix of 512 x 32,000 tokens fits. Without a
limit, a few kilobytes from a third party could expand to gigabytes."""

_CODEC = pa.Codec("zstd")

Fields = dict[str, Any]
"""Named values of JSON types."""


class DamagedPayload(Exception):
    """The bytes don't match the checksum or can't be decoded."""


class PackedText(NamedTuple):
    """A serialized tokenized text of T tokens: T, the number of bytes of its strings,
    `n_tokens_full` and `max_length`; for each token the distance of its start from that of the
    token before, the length of its span and is_special as int32 [3, T], which compress better than
    offsets; and the strings, each preceded by a separator that occurs in none of them."""

    sizes: tuple[int, int, int, int]
    spans: bytes
    strings: bytes


def pack_text(text: TokenizedText) -> PackedText:
    """Serialize the text. Many results share a text, so pack it only once."""
    spans = np.empty((3, len(text)), "<i4")
    spans[0], spans[1], spans[2] = text.starts, text.ends - text.starts, text.special
    spans[0, 1:] -= text.starts[:-1]
    joined = "".join(text.texts)
    separator = next(char for char in map(chr, count()) if char not in joined)
    strings = _utf8(separator.join(("", *text.texts)))
    sizes = len(text), len(strings), text.n_tokens_full, text.max_length
    return PackedText(sizes, spans.tobytes(), strings)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _unpack_text(sizes: list[int], spans: np.ndarray, strings: bytes) -> TokenizedText:
    distances, widths, special = spans
    starts = np.cumsum(distances, dtype=np.int64)
    ends = starts + widths
    if spans.size and (widths.min() < 0 or starts.min() < 0 or ends.max() >= 2**31):
        raise ValueError("a span ends before it begins")
    text = strings.decode("utf-8", "surrogatepass")
    tokens = tuple(text[1:].split(text[0])) if text else ()
    if len(tokens) != sizes[0]:
        raise ValueError(f"{len(tokens)} tokens, {sizes[0]} spans")
    columns = (starts.astype(np.int32), ends.astype(np.int32), special > 0)
    return TokenizedText(tokens, *columns, sizes[2], sizes[3])


def identity(dataset: str, pair_id: str, text: str) -> bytes:
    """Bytes that a checksum covers in addition to the payload, so that a payload stored under
    another pair or other texts (16 hexadecimal digits) is detected as damaged."""
    return _utf8(f"{dataset}\0{pair_id}\0{text}")


def identity_of(pair: TextPair) -> bytes:
    """The identity of a pair; see `identity`."""
    return identity(pair.dataset, pair.pair_id, text_fingerprint(pair))


def encode(
    attribution: Attribution,
    pair: TextPair,
    query: PackedText | None = None,
    document: PackedText | None = None,
) -> bytes:
    """Checksum (4 bytes), uncompressed length (8 bytes), then the compressed result. `query` and
    `document` are the packed texts, if already available.

    Raises:
        UserError: the result is larger than MAX_RAW bytes.
    """
    span = pair.evidence
    header = {
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
            "evidence_start": span.start if span else None,
            "evidence_end": span.end if span else None,
            "characters": len(pair.document),
        },
    }
    scores = [attribution.query_scores, attribution.document_scores]
    if attribution.matrix is not None:
        scores.append(attribution.matrix)
    texts = (query or pack_text(attribution.query), document or pack_text(attribution.document))
    raw = _joined(header, texts, scores)
    if len(raw) > MAX_RAW:
        raise UserError(
            f"The result of pair {pair.pair_id[:80]} has {len(raw) >> 20} MiB, more than the "
            f"limit of {MAX_RAW >> 20} MiB: compute it without the matrix, or shorten the texts."
        )
    return _sealed(len(raw), _CODEC.compress(raw, asbytes=True), identity_of(pair))


def _joined(
    header: Fields, texts: tuple[PackedText, PackedText], scores: list[np.ndarray]
) -> bytes:
    """The header's length (4 bytes) and the header, padded to whole words; the spans of both texts,
    the scores, the matrix if there is one, and the strings of both texts."""
    query, document = texts
    sides = {"query": query.sizes, "document": document.sizes, "matrix": len(scores) > 2}
    text = json.dumps({**header, **sides}).encode()
    text += b" " * (-len(text) % 4)
    values = [array.astype("<f4", copy=False).tobytes() for array in scores]
    parts = [query.spans, document.spans, *values, query.strings, document.strings]
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])


def _sealed(size: int, packed: bytes, identity: bytes) -> bytes:
    body = size.to_bytes(8, "big") + packed
    entry: bytes = zlib.crc32(body, zlib.crc32(identity)).to_bytes(4, "big") + body
    return entry


def uncompressed(data: bytes, identity: bytes) -> bytes:
    """The same result without compression (its length is given as 0), for a file that compresses
    many results together.

    Raises:
        DamagedPayload: the bytes were modified or truncated, or belong to another pair.
    """
    try:
        return _sealed(0, _raw(data, identity), identity)
    except _DAMAGE as error:
        raise DamagedPayload from error


def is_whole(data: object, identity: bytes) -> bool:
    """Whether these bytes are intact and were stored under this identity."""
    if not isinstance(data, bytes) or len(data) < 12:
        return False
    return zlib.crc32(data[4:], zlib.crc32(identity)) == int.from_bytes(data[:4], "big")


def _raw(data: bytes, identity: bytes) -> bytes:
    if not is_whole(data, identity):
        raise DamagedPayload
    size = int.from_bytes(data[4:12], "big")
    if (unpacked := size or len(data) - 12) > MAX_RAW:
        raise ValueError(f"unpacks to {unpacked} bytes")
    raw: bytes = _CODEC.decompress(data[12:], size, asbytes=True) if size else data[12:]
    return _converted(raw) if raw[8:9] == b"{" else raw


def _converted(raw: bytes) -> bytes:
    """A result of format 2 (safetensors), converted to the current format."""
    arrays = load(raw)
    header = json.loads(arrays["header"].tobytes())
    texts = []
    for side in ("query", "document"):
        text, spans = header.pop(side), arrays[f"{side}_spans"]
        if spans.dtype != np.int32:
            raise TypeError("an offset is not a number")
        tokens, (starts, ends, special) = tuple(text["tokens"]), spans.T
        limits = text["n_tokens_full"], text["max_length"]
        texts.append(pack_text(TokenizedText(tokens, starts, ends, special, *limits)))
    pair = header["pair"]
    pair |= {f"evidence_{name}": pair.pop(name) for name in ("start", "end")}
    scores = [
        arrays[name] for name in ("query_scores", "document_scores", "matrix") if name in arrays
    ]
    return _joined(header, (texts[0], texts[1]), scores)


def _parts(raw: bytes) -> tuple[Fields, TokenizedText, TokenizedText, list[np.ndarray]]:
    """Header, query, document, and the scores with the matrix if there is one."""
    place = 4 + int.from_bytes(raw[:4], "little")
    header = json.loads(raw[4:place])
    sizes = [*header["query"], *header["document"]]
    if len(sizes) != 8 or not all(type(size) is int and size >= 0 for size in sizes):
        raise TypeError("a length is no number")
    n_query, n_document = sizes[0], sizes[4]

    def take(dtype: str, *shape: int) -> np.ndarray:
        nonlocal place
        values = np.frombuffer(raw, dtype, math.prod(shape), place).reshape(shape)
        place += values.nbytes
        return values

    spans = [take("<i4", 3, n_query), take("<i4", 3, n_document)]
    scores = [take("<f4", n_query), take("<f4", n_document)]
    if header["matrix"]:
        scores.append(take("<f4", n_query, n_document))
    query = _unpack_text(sizes[:4], spans[0], take("S1", sizes[1]).tobytes())
    document = _unpack_text(sizes[4:], spans[1], take("S1", sizes[5]).tobytes())
    if place != len(raw):
        raise ValueError("more than a result")
    return header, query, document, scores


# An imported file may be malicious: any value may have any type.
_DAMAGE: tuple[type[Exception], ...] = (*DAMAGE, SafetensorError, UserError)


def decode(data: bytes, model: str, method: Method, pair_id: str, identity: bytes) -> Attribution:
    """The attribution that `encode` serialized.

    Raises:
        DamagedPayload: the bytes were modified or truncated, or belong to another pair.
    """
    try:
        header, query, document, scores = _parts(_raw(data, identity))
        return Attribution(
            model=model,
            method=method,
            pair_id=pair_id,
            score=header["score"],
            query=query,
            document=document,
            query_scores=scores[0],
            document_scores=scores[1],
            matrix=scores[2] if len(scores) > 2 else None,
            bias_share=_number(header["bias_share"]),
            completeness_error=_number(header["completeness_error"]),
            standard_error=_number(header.get("standard_error")),  # missing in older results
            seconds=_number(header["seconds"]) or 0.0,
        )
    except _DAMAGE as error:
        raise DamagedPayload from error


def summary_fields(data: bytes, identity: bytes) -> Fields:
    """The fields of the summary that the payload contains. Their types are not checked.

    Raises:
        DamagedPayload: the bytes were modified or truncated, or belong to another pair.
    """
    try:
        header, _, document, _ = _parts(_raw(data, identity))
        return {
            **header["pair"],
            "score": header["score"],
            "tokens": document.n_tokens_full,
            "truncated": document.truncated,
        }
    except _DAMAGE as error:
        raise DamagedPayload from error


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

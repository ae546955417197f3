"""Stored results are read back bit for bit, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from poslens.attribution.methods import make_method
from poslens.attribution.types import (
    Attribution,
    EvidenceSpan,
    TextPair,
    Token,
    TokenizedText,
)
from poslens.cache.storage import codec
from poslens.cache.storage.codec import (
    DamagedPayload,
    decode,
    encode,
    identity_of,
    summary_fields,
)

METHOD = make_method("saliency")


def same(one: Attribution, other: Attribution) -> bool:
    """Equal in every field, arrays bit for bit."""
    for name in Attribution.__dataclass_fields__:
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, np.ndarray):
            if not (isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape):
                return False
            a, b = a.tobytes(), b.tobytes()
        if a != b or type(a) is not type(b):
            return False
    return True


def test_round_trip_bit_for_bit(result) -> None:
    for n, fields in enumerate(
        (
            {},
            {"n_full": 900},
            {"bias_share": -0.125, "completeness_error": 1e-17},
            {"matrix": np.arange(78, dtype=np.float32).reshape(6, 13) / 7},
            {"query": "x"},
        )
    ):
        pair, stored = result(f"p{n}", **fields)
        back = decode(encode(stored, pair), "M", METHOD, stored.pair_id, identity_of(pair))
        assert same(back, stored)
        assert (back.matrix is not None) == ("matrix" in fields)
        assert not back.document_scores.flags.writeable
        assert not same(back, result("other")[1])


def formerly(raw: bytes) -> bytes:
    """A raw result in the previous format, written with `safetensors` and `json`."""
    header, query, document, scores = codec._parts(raw)
    arrays = dict(zip(("query_scores", "document_scores", "matrix"), scores, strict=False))
    header = {name: value for name, value in header.items() if name not in ("matrix", "format")}
    for name, text in (("query", query), ("document", document)):
        spans = [token[1:] for token in text.tokens]
        arrays[f"{name}_spans"] = np.array(spans, np.int32).reshape(-1, 3)
        names = [token.text for token in text.tokens]
        limits = {"n_tokens_full": text.n_tokens_full, "max_length": text.max_length}
        header[name] = {"tokens": names, **limits}
    pair = header["pair"]
    header["pair"] = pair | {"start": pair["evidence_start"], "end": pair["evidence_end"]}
    json_text = json.dumps({"format": 2, **header}).encode()
    return save({**arrays, "header": np.frombuffer(json_text, np.uint8)})


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("odd", ["plain", '"', "\x7f", "fog 🚀 النخلة", "\ud800", ""])
def test_a_result_in_the_previous_format_is_read_bit_for_bit(
    result, odd: str, compressed: bool, matrix: bool
) -> None:
    pair, stored = result("p", **({"matrix": np.ones((6, 13), np.float32)} if matrix else {}))
    tokens = (Token(odd, 3, 9), *stored.document.tokens[1:])
    document = TokenizedText.of(tokens, 99, 512)
    stored = replace(stored, document=document, standard_error=0.25)
    pair, key = replace(pair, language="eng", evidence=EvidenceSpan(1, 4)), identity_of(pair)
    data = encode(stored, pair)
    assert same(decode(codec.uncompressed(data, key), "M", METHOD, "p", key), stored)
    raw = formerly(codec._raw(data, key))
    packed = codec._CODEC.compress(raw, asbytes=True) if compressed else raw
    older = codec._sealed(len(raw) if compressed else 0, packed, key)
    assert same(decode(older, "M", METHOD, "p", key), stored)
    assert summary_fields(older, key) == summary_fields(data, key)


small = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(st.text(max_size=5), small), min_size=1, max_size=8), small)
def test_round_trip_of_any_tokens_and_numbers(
    tokens: list[tuple[str, float]], score: float
) -> None:
    text = TokenizedText.of(
        tuple(Token(t, k, 2**31 - 1, k % 3 == 0) for k, (t, _) in enumerate(tokens)), 10**9, 512
    )
    values = np.array([value for _, value in tokens], dtype=np.float32)
    stored = Attribution("M", METHOD, "p", score, text, text, values, -values)
    pair = TextPair("p", "q", "d")
    assert same(decode(encode(stored, pair), "M", METHOD, "p", identity_of(pair)), stored)


def test_any_damaged_byte_is_detected(result) -> None:
    """Flip every bit at the beginning and end, and one bit of every seventh byte in between."""
    pair, stored = result("p")
    whole, key = encode(stored, pair), identity_of(pair)
    places = [*range(16), *range(16, len(whole) - 8, 7), *range(len(whole) - 8, len(whole))]
    for place in places:
        for bit in range(8) if place < 16 else (place % 8,):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            with pytest.raises(DamagedPayload):
                decode(bytes(damaged), "M", METHOD, "p", key)


@pytest.mark.parametrize("keep", [0, 3, 4, 11, 12, 13, -1])
def test_a_truncated_payload_is_detected(result, keep: int) -> None:
    pair, stored = result("p")
    with pytest.raises(DamagedPayload):
        decode(encode(stored, pair)[:keep], "M", METHOD, "p", identity_of(pair))


@pytest.mark.parametrize("tail", [b"\0", b"more"])
def test_an_extended_payload_is_detected(result, tail: bytes) -> None:
    pair, stored = result("p")
    with pytest.raises(DamagedPayload):
        decode(encode(stored, pair) + tail, "M", METHOD, "p", identity_of(pair))


@pytest.mark.parametrize(
    "change", [{"pair_id": "r"}, {"dataset": "other"}, {"query": "another"}, {"document": "more"}]
)
def test_a_payload_stored_under_another_pair_is_detected(result, change: dict) -> None:
    """Intact bytes in the wrong place still don't count as the result stored there."""
    pair, stored = result("p")
    other = replace(pair, **change)
    with pytest.raises(DamagedPayload):
        decode(encode(stored, pair), "M", METHOD, other.pair_id, identity_of(other))
    with pytest.raises(DamagedPayload):
        summary_fields(encode(stored, pair), identity_of(other))


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float32])
def test_offsets_of_another_type_are_damage(result, kind: type) -> None:
    """Forged offsets: a wider number would be truncated, and another position shown."""
    pair, stored = result("p")
    key = identity_of(pair)
    arrays = load(formerly(codec._raw(encode(stored, pair), key)))
    raw = save({**arrays, "document_spans": arrays["document_spans"].astype(kind)})
    made_up = codec._sealed(0, raw, key)
    if kind is np.int32:
        assert same(decode(made_up, "M", METHOD, "p", key), stored)
        return
    with pytest.raises(DamagedPayload):
        decode(made_up, "M", METHOD, "p", key)


def test_a_payload_contains_what_its_summary_needs() -> None:
    text = TokenizedText.of((Token("a", 0, 1),), 1, 9)
    stored = Attribution("M", METHOD, "p", 1.0, text, text, np.ones(1), np.ones(1))
    pair = TextPair("p", "q", "abcdef", EvidenceSpan(2, 4), "eng", "music", "set", 7)
    assert summary_fields(encode(stored, pair), identity_of(pair)) == {
        "language": "eng",
        "domain": "music",
        "document_tokens": 7,
        "evidence_start": 2,
        "evidence_end": 4,
        "characters": 6,
        "score": 1.0,
        "tokens": 1,
        "truncated": False,
    }

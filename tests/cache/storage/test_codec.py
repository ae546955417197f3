"""What comes back is what was stored, bit for bit, or nothing at all."""

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
    pair_fields,
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


@pytest.mark.parametrize("matrix", [False, True])
@pytest.mark.parametrize(
    "odd", ["plain", '"', "\\", "new\nline", "\x7f", "fog 🚀 النخلة", "\ud800", ', "pair": ', ""]
)
def test_a_payload_is_what_the_libraries_write(result, odd: str, matrix: bool) -> None:
    """Put together by hand, byte for byte as `safetensors` and `json` do."""
    pair, stored = result("p", **({"matrix": np.ones((6, 13), np.float32)} if matrix else {}))
    tokens = (Token(odd, 3, 9), *stored.document.tokens[1:])
    document = TokenizedText.of(tokens, 99, 512)
    stored = replace(stored, document=document, standard_error=0.25)
    pair = replace(pair, language=odd, evidence=EvidenceSpan(1, 4))
    found = codec._raw(encode(stored, pair), identity_of(pair))

    def text(it: TokenizedText) -> dict:
        names = [token.text for token in it.tokens]
        return {"tokens": names, "n_tokens_full": it.n_tokens_full, "max_length": it.max_length}

    fields = ("score", "seconds", "bias_share", "completeness_error", "standard_error")
    about = {"language": odd, "domain": pair.domain, "document_tokens": pair.document_tokens}
    header = {
        "format": codec.FORMAT,
        **{name: getattr(stored, name) for name in fields},
        "query": text(stored.query),
        "document": text(document),
        "pair": {**about, "start": 1, "end": 4, "characters": len(pair.document)},
    }
    arrays = {"query_scores": stored.query_scores, "document_scores": stored.document_scores}
    for name, it in (("query_spans", stored.query), ("document_spans", document)):
        arrays[name] = np.array([token[1:] for token in it.tokens], np.int32)
    if stored.matrix is not None:
        arrays["matrix"] = stored.matrix
    said = np.frombuffer(json.dumps(header).encode(), np.uint8)
    assert found == save({**arrays, "header": said})


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


def test_any_damaged_byte_is_noticed(result) -> None:
    """Every bit of the head and of the end, and one bit of every seventh byte between."""
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
def test_a_cut_payload_is_noticed(result, keep: int) -> None:
    pair, stored = result("p")
    with pytest.raises(DamagedPayload):
        decode(encode(stored, pair)[:keep], "M", METHOD, "p", identity_of(pair))


@pytest.mark.parametrize("tail", [b"\0", b"more"])
def test_a_longer_payload_is_noticed(result, tail: bytes) -> None:
    pair, stored = result("p")
    with pytest.raises(DamagedPayload):
        decode(encode(stored, pair) + tail, "M", METHOD, "p", identity_of(pair))


@pytest.mark.parametrize(
    "change", [{"pair_id": "r"}, {"dataset": "other"}, {"query": "another"}, {"document": "more"}]
)
def test_a_payload_under_another_pair_is_noticed(result, change: dict) -> None:
    """Bytes that turn up where they don't belong: whole, and still not what was stored there."""
    pair, stored = result("p")
    other = replace(pair, **change)
    with pytest.raises(DamagedPayload):
        decode(encode(stored, pair), "M", METHOD, other.pair_id, identity_of(other))
    with pytest.raises(DamagedPayload):
        pair_fields(encode(stored, pair), identity_of(other))


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float32])
def test_places_of_another_type_are_damage(result, kind: type) -> None:
    """What somebody made up: a wider number would be cut, and another place shown."""
    pair, stored = result("p")
    key = identity_of(pair)
    arrays = load(codec._raw(encode(stored, pair), key))
    raw = save({**arrays, "document_spans": arrays["document_spans"].astype(kind)})
    made_up = codec._sealed(raw, codec._stored(raw), key)
    if kind is np.int32:
        assert same(decode(made_up, "M", METHOD, "p", key), stored)
        return
    with pytest.raises(DamagedPayload):
        decode(made_up, "M", METHOD, "p", key)


def test_a_payload_says_what_its_summary_needs() -> None:
    text = TokenizedText.of((Token("a", 0, 1),), 1, 9)
    stored = Attribution("M", METHOD, "p", 1.0, text, text, np.ones(1), np.ones(1))
    pair = TextPair("p", "q", "abcdef", EvidenceSpan(2, 4), "eng", "music", "set", 7)
    assert pair_fields(encode(stored, pair), identity_of(pair)) == {
        "language": "eng",
        "domain": "music",
        "document_tokens": 7,
        "evidence_start": 2,
        "evidence_end": 4,
        "characters": 6,
    }

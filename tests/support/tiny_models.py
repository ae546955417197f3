"""Two-layer random models of many architectures, each with a small tokenizer trained here.

Random weights are enough: what is tested are laws (padding changes nothing, gradients agree with
an independent loop, offsets point at the token's own characters), not meaning.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    Transformer,
)
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

CORPUS = (
    "The tide rises twice a day because the Moon pulls the water nearer to it more strongly.",
    "query: instruct: passage: a quick brown fox, jumping over 12 lazy dogs; isn't it? !",
    "Zażółć gęślą jaźń. Kôň a vôľa. El niño comió piñas. naïve café",
    "海洋潮汐是由月球引力引起的。土星有光环。",
    "นกเงือกเป็นนกขนาดใหญ่ อาศัยอยู่ในป่า",
    "النخلة شجرة مثمرة تعيش في الصحراء",
    "rocket 🚀 and family 👩‍🚀 flags 🇵🇱 smile 🙂",
)
VOCABULARY = 420
"""Too few for whole words: texts in several scripts are split within words and characters."""


@dataclass(frozen=True)
class Tiny:
    """How to build one: the family of its tokenizer, its pooling and its configuration."""

    model_type: str
    tokenizer: str
    pooling: str = "mean"
    padding: str = "right"
    positions: int = 128
    extra: tuple[tuple[str, Any], ...] = ()
    modules: str = ""
    """What follows the pooling: `dense`, `tanh` (a dense layer with it) and `normalize`."""


_LLAMA_LIKE = (("num_key_value_heads", 2), ("head_dim", 8))
TINY = {
    "bert": Tiny("bert", "wordpiece"),
    "bert-cls": Tiny("bert", "wordpiece", pooling="cls"),
    # RoBERTa-like models number positions from padding_idx + 1, so 130 positions allow 128 tokens.
    "roberta": Tiny("roberta", "bytelevel", positions=130),
    "xlm-roberta": Tiny("xlm-roberta", "unigram", positions=130),
    "mpnet": Tiny("mpnet", "wordpiece", positions=130),
    "distilbert": Tiny("distilbert", "wordpiece"),
    "modernbert": Tiny("modernbert", "bytelevel", extra=(("local_attention", 16),)),
    "qwen3-right": Tiny("qwen3", "causal", "lasttoken", "right", extra=_LLAMA_LIKE),
    "qwen3-left": Tiny("qwen3", "causal", "lasttoken", "left", extra=_LLAMA_LIKE),
    "llama-right": Tiny("llama", "causal", "lasttoken", "right", extra=_LLAMA_LIKE),
    "llama-left": Tiny("llama", "causal", "lasttoken", "left", extra=_LLAMA_LIKE),
    # One for each architecture of the presets that is not listed above.
    "t5": Tiny(
        "t5",
        "unigram",
        extra=(
            ("d_model", 32),
            ("d_kv", 8),
            ("d_ff", 48),
            ("num_layers", 2),
            ("num_heads", 4),
            ("relative_attention_num_buckets", 8),
            ("relative_attention_max_distance", 32),
        ),
        modules="dense normalize",
    ),
    "distiluse": Tiny("distilbert", "wordpiece", modules="tanh"),
    "labse": Tiny("bert", "wordpiece", pooling="cls", modules="tanh normalize"),
    "bge-m3": Tiny("xlm-roberta", "unigram", "cls", positions=130, modules="normalize"),
    "gte": Tiny("gte", "unigram", "cls", modules="normalize"),
    "gpt_neo": Tiny(
        "gpt_neo",
        "causal",
        "weightedmean",
        extra=(
            ("num_layers", 2),
            ("num_heads", 4),
            ("window_size", 8),
            ("attention_types", [[["global", "local"], 1]]),
        ),
    ),
    "gemma3": Tiny(
        "gemma3_text",
        "causal",
        "lasttoken",
        extra=(
            *_LLAMA_LIKE,
            ("sliding_window", 8),
            ("query_pre_attn_scalar", 8),
            ("layer_types", ["sliding_attention", "full_attention"]),
        ),
    ),
    "gemma3-both-ways": Tiny(
        "gemma3_text",
        "causal",
        "mean",
        extra=(
            *_LLAMA_LIKE,
            ("sliding_window", 8),
            ("query_pre_attn_scalar", 8),
            ("layer_types", ["sliding_attention", "full_attention"]),
            ("use_bidirectional_attention", True),
        ),
    ),
    "mistral": Tiny("mistral", "causal", "mean", extra=_LLAMA_LIKE),
    "qwen2": Tiny("qwen2", "causal", "lasttoken", extra=_LLAMA_LIKE),
}


def _word_pieces(raw: Tokenizer, special: list[str]) -> models.WordPiece:
    """Every word of CORPUS, and every character of it as the start and as the rest of a word."""
    words = {
        word
        for text in CORPUS
        for word, _ in raw.pre_tokenizer.pre_tokenize_str(raw.normalizer.normalize_str(text))
    }
    characters = {character for word in words for character in word}
    pieces = sorted(words | characters) + sorted(f"##{character}" for character in characters)
    vocabulary = {piece: number for number, piece in enumerate([*special, *pieces])}
    return models.WordPiece(vocabulary, unk_token="[UNK]")


def _unigrams(raw: Tokenizer, special: list[str]) -> models.Unigram:
    """Every character of CORPUS and the most common pieces of two or three, by frequency."""
    counts: Counter[str] = Counter()
    for text in CORPUS:
        for word, _ in raw.pre_tokenizer.pre_tokenize_str(raw.normalizer.normalize_str(text)):
            for length in (1, 2, 3):
                counts.update(word[i : i + length] for i in range(len(word) - length + 1))
    by_count = sorted(counts, key=lambda piece: (-counts[piece], piece))
    longer = [piece for piece in by_count if len(piece) > 1][:40]
    pieces = sorted([piece for piece in by_count if len(piece) == 1] + longer)
    scores = [(piece, math.log(counts[piece] / counts.total())) for piece in pieces]
    names = [(name, 0.0) for name in special]
    return models.Unigram([*names, *scores], special.index("<unk>"), False)


def train_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A fast tokenizer of the family's kind, made from CORPUS: the same one in every process.

    The trainers of WordPiece and Unigram break ties in the order of a randomized hash map, so
    their vocabularies differ between two processes, and with them every tiny model's scores.
    """
    if family == "wordpiece":
        raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        raw.normalizer = normalizers.BertNormalizer()
        raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
        begin, end = "[CLS]", "[SEP]"
        raw.model = _word_pieces(raw, list(names.values()))
        raw.add_special_tokens(list(names.values()))
        raw.decoder = decoders.WordPiece()
    elif family == "unigram":
        raw = Tokenizer(models.Unigram())
        raw.normalizer = normalizers.NFKC()
        raw.pre_tokenizer = pre_tokenizers.Metaspace()
        names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
        begin, end = "<s>", "</s>"
        raw.model = _unigrams(raw, list(names.values()))
        raw.add_special_tokens(list(names.values()))
        raw.decoder = decoders.Metaspace()
    else:
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
        if family == "causal":
            names = {"pad": "<pad>", "eos": "<eos>"}
        begin, end = ("", "<eos>") if family == "causal" else ("<s>", "</s>")
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=list(names.values()),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        raw.decoder = decoders.ByteLevel()
        raw.train_from_iterator(CORPUS * 4, trainer)
    template: list[Any] = [
        processors.TemplateProcessing(
            single=f"{begin} $A {end}".strip(),
            special_tokens=[(t, raw.token_to_id(t)) for t in (begin, end) if t],
        )
    ]
    if family in ("bytelevel", "causal"):
        template.insert(0, processors.ByteLevel(trim_offsets=True))
    raw.post_processor = processors.Sequence(template)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, **{f"{role}_token": token for role, token in names.items()}
    )


def build(
    name: str,
    root: Path,
    *,
    tokenizer_limit: int | None = None,
    prompts: tuple[tuple[str, str], ...] = (),
    include_prompt: bool = True,
    seed: int = 7,
) -> Path:
    """Write the model below `root` in the format of sentence-transformers; return its folder."""
    tiny = TINY[name]
    tokenizer = train_tokenizer(tiny.tokenizer)
    if tokenizer_limit is not None:
        tokenizer.model_max_length = tokenizer_limit
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": tiny.positions,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "cls_token_id": None,
        "sep_token_id": None,
    }
    if tiny.model_type == "distilbert":
        settings |= {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}
    config = AutoConfig.for_model(tiny.model_type, **settings, **dict(tiny.extra))
    torch.manual_seed(seed)
    model = AutoModel.from_config(config).eval()
    with torch.no_grad():
        # Random initialization is so small that attention is nearly uniform and positions hardly
        # matter, too little for a test to detect a mistake in either.
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(6)
    raw = root / "raw"
    model.save_pretrained(raw)
    tokenizer.save_pretrained(raw)
    folder = root / name
    modules: list[Any] = [
        Transformer(str(raw)),
        Pooling(32, tiny.pooling, include_prompt=include_prompt),
    ]
    for kind in tiny.modules.split():
        activation = torch.nn.Tanh() if kind == "tanh" else torch.nn.Identity()
        modules.append(
            Normalize()
            if kind == "normalize"
            else Dense(32, 24, bias=kind == "tanh", activation_function=activation)
        )
    SentenceTransformer(modules=modules, prompts=dict(prompts) or None).save_pretrained(str(folder))
    if tiny.padding == "left":  # not saved with the model
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"padding_side": "left"}))
    return folder
